"""What the handler of a job has logged, as the job's page shows it: the last lines, then new ones as they come.

The page has the newest lines. Its script (`logs.js`) asks for those behind them while the job may still log, and for
all that fit a level and a text.
"""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.cache import add_never_cache_headers

from django_ojs import states
from django_ojs.admin import display
from django_ojs.errors import InvalidRequest
from django_ojs.http import redacted
from django_ojs.http.jobs import has_text, log_file
from django_ojs.jobs import joblog
from django_ojs.models import Job, JobLog
from django_ojs.rules import joblogs, redaction

#: Lines that the page shows at first, and that one question brings.
SHOWN, MOST = 200, 500
MAX_TEXT = 200
#: The colour of each level's label.
_COLOURS = {
    "debug": "other",
    "info": "available",
    "warning": "retryable",
    "error": "discarded",
    "critical": "discarded",
}


def section(job: Job, url: str, using: str) -> dict[str, Any]:
    """What the page needs to begin with."""
    lines, cut = newest(job, using)
    return {
        "url": url, "lines": _rows(job, lines), "cut": cut, "cursor": joblog.cursor_of(lines[-1]) if lines else "",
        "levels": list(joblogs.LEVELS), "goes_on": job.state not in states.TERMINAL, "is_there": bool(lines),
    }  # fmt: skip


def newest(job: Job, using: str) -> tuple[list[JobLog], bool]:
    """The newest lines in their order, and whether there are others before them."""
    rows = JobLog.objects.using(using).filter(job_id=job.pk).order_by("-started_at", "-sequence")
    found = list(rows[: SHOWN + 1])
    return found[:SHOWN][::-1], len(found) > SHOWN


def part(request: HttpRequest, job: Job, using: str) -> HttpResponse:
    """The lines that the query asks for: rows behind `after`, or with `format=text` all of them as a file."""
    mask = mask_of(job)
    level = joblogs.LEVELS.get(request.GET.get("level", ""), 0)
    text = request.GET.get("text", "")[:MAX_TEXT].lower()
    shows = (lambda line: has_text(line, mask, text)) if text else None
    if request.GET.get("format") == "text":
        row = {"id": job.pk}
        response = HttpResponse(log_file(row, mask, level=level, shows=shows), content_type="text/plain; charset=utf-8")
        response["Content-Disposition"] = f'attachment; filename="job-{job.pk}.log"'
        add_never_cache_headers(response)
        return response
    try:
        page = joblog.read(
            job.pk, level=level, after=request.GET.get("after") or None, limit=MOST, shows=shows, using=using
        )
    except InvalidRequest as error:
        return HttpResponse(error.message, status=400, content_type="text/plain; charset=utf-8")
    context = {
        "lines": _rows(job, page.lines), "cursor": page.cursor or "", "has_more": page.has_more,
        "goes_on": job.state not in states.TERMINAL,
    }  # fmt: skip
    found = TemplateResponse(request, "django_ojs/admin/log_rows.html", context)
    add_never_cache_headers(found)
    return found


def mask_of(job: Job) -> redaction.Logs:
    """What may be shown of the lines of this job."""
    return redaction.Logs(job.type, job.args, job.meta)


def _rows(job: Job, lines: list[JobLog]) -> list[dict[str, Any]]:
    mask = mask_of(job)
    return [_row(line, mask) for line in lines]


def _row(line: JobLog, mask: redaction.Logs) -> dict[str, Any]:
    shown = redacted.log_line(line, mask)
    row: dict[str, Any] = {
        "id": shown["id"], "attempt": line.attempt, "began": shown["attempt_started_at"], "dropped": line.dropped,
    }  # fmt: skip
    if line.dropped is not None:
        return row
    level = shown["level"]
    return row | {
        "time": timezone.localtime(line.time).strftime("%H:%M:%S.%f")[:-3], "exact": shown["time"],
        "level": level, "colour": _COLOURS[level],
        "logger": display.printable(line.logger), "message": display.printable(shown["message"]),
        "fields": display.pretty(shown["fields"]) if "fields" in shown else "",
        "exception": display.printable(shown.get("exception", "")),
    }  # fmt: skip
