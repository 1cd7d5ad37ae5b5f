"""Jobs, schedules and workflows in the answers to those who read them: without what the site hides (`REDACT`).

FETCH does not come through here: who runs a job needs all of it. Nor does the answer to whoever just pushed it.
"""

from __future__ import annotations

from typing import Any

from django_ojs import jsontext
from django_ojs.jobs import progress as reports
from django_ojs.models import CronSchedule, JobProgress, JobRow
from django_ojs.rules import cron, envelope, redaction, workflowgraph
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
