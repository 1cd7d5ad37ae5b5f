"""Jobs, their outcomes, schedules and workflows as answers show them to readers: without what the site hides
(`REDACT`).

FETCH does not come through here, because a worker needs the whole job, nor does the answer to the caller of PUSH.
"""

from __future__ import annotations

from typing import Any

from django.db import router

from django_ojs import clock, jsontext
from django_ojs.errors import ResultPruned
from django_ojs.jobs import progress as reports
from django_ojs.models import CronSchedule, Job, JobProgress, JobRow
from django_ojs.rules import cron, envelope, redaction, workflowgraph
from django_ojs.states import State
from django_ojs.workflows.workflow import View


def job(row: JobRow) -> dict[str, Any]:
    return redaction.job(envelope.render(row))


def progress(row: JobRow, found: JobProgress | None) -> dict[str, Any]:
    """`row` may lack its meta."""
    meta = row.get("meta") if redaction.active() else None
    return redaction.progress(reports.describe(row, found), row["type"], meta and jsontext.loads(meta))


def schedule(found: CronSchedule) -> dict[str, Any]:
    return redaction.job(cron.render(found))


def workflow(view: View) -> dict[str, Any]:
    return redaction.job(workflowgraph.render(*view))


def outcome(row: JobRow) -> dict[str, Any]:
    """The result of a completed job (jobs 8), the error of any other. Raises ResultPruned."""
    whole = job(row)
    if row["state"] == State.COMPLETED:
        if envelope.result_is_gone(row, clock.now(router.db_for_write(Job))):
            details = {"resource_type": "result", "resource_id": str(row["id"])}
            raise ResultPruned(f"The result of job '{row['id']}' is no longer kept.", details=details)
        return {"state": row["state"], "result": whole.get("result")}
    return {"state": row["state"], "error": whole.get("error")}


def brief(row: JobRow | None) -> dict[str, Any] | None:
    """The outcome in the answer about several jobs; None for an unknown one."""
    if row is None:
        return None
    whole = job(row)
    found = {"state": row["state"], "result": whole.get("result")}
    return found | ({"error": whole["error"]} if "error" in whole else {})
