"""Jobs and their outcomes as answers show them to readers: without what the site hides (`REDACT`).

FETCH does not come through here, because a worker needs the whole job, nor does the answer to the caller of PUSH.
"""

from __future__ import annotations

from typing import Any

from django.db import router

from django_ojs import clock, jsontext
from django_ojs.errors import ResultPruned
from django_ojs.jobs import progress as reports
from django_ojs.jobs.joblog import cursor_of
from django_ojs.models import Job, JobLog, JobProgress, JobRow
from django_ojs.models.workflow import name_workflows
from django_ojs.rules import envelope, redaction
from django_ojs.rules.durations import format_instant
from django_ojs.rules.joblogs import level_word
from django_ojs.states import State


def job(row: JobRow) -> dict[str, Any]:
    return redaction.job(whole(row))


def whole(row: JobRow) -> dict[str, Any]:
    """The job with all that the site hides from others than its worker."""
    name_workflows([row], router.db_for_write(Job))
    return envelope.render(row)


def progress(row: JobRow, found: JobProgress | None) -> dict[str, Any]:
    """`row` may lack its meta."""
    meta = row.get("meta") if redaction.site_rules() else None
    return redaction.progress(reports.describe(row, found), row["type"], meta and jsontext.loads(meta))


def checkpoint(row: JobRow, state: Any) -> Any:
    """The state that a job has saved."""
    meta = row["meta"] if redaction.site_rules() else None
    return redaction.part("checkpoint", state, row["type"], meta and jsontext.loads(meta))


def mask_of_logs(row: JobRow) -> redaction.Logs:
    """What may be shown of the lines of this job, which has its arguments and meta."""
    if redaction.site_rules() is None:
        return redaction.Logs(row["type"], None, None)
    return redaction.Logs(row["type"], jsontext.loads(row["args"]), row["meta"] and jsontext.loads(row["meta"]))


def log_line(line: JobLog, mask: redaction.Logs) -> dict[str, Any]:
    """A line of a job's logs; one that says how many lines are missing has no message."""
    place = {
        "id": cursor_of(line), "attempt": line.attempt, "attempt_started_at": format_instant(line.started_at),
        "time": format_instant(line.time),
    }  # fmt: skip
    if line.dropped is not None:
        return place | {"dropped": line.dropped}
    shown = place | {"level": level_word(line.level), "logger": line.logger, "message": mask.message(line.message)}
    if line.fields:
        shown["fields"] = mask.fields(line.fields)
    if line.exception:
        shown["exception"] = mask.exception(line.exception)
    return shown


def log_text(shown: dict[str, Any]) -> str:
    """A line as `log_line` shows it, for people: several lines where it has a traceback."""
    if "dropped" in shown:
        return f"... {shown['dropped']} lines are not kept ..."
    fields = " ".join(f"{name}={jsontext.dumps(value)}" for name, value in shown.get("fields", {}).items())
    head = " ".join(filter(None, (shown["time"], shown["level"].upper(), shown["logger"])))
    text = f"{head}: {shown['message']}{f'  {fields}' if fields else ''}"
    return f"{text}\n{shown['exception']}" if "exception" in shown else text


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
