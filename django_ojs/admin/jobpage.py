"""What a job's page says, in the order in which an operator asks: how it is, why it failed, and what it belongs to.

Each function returns facts, and leaves out those that a job does not have.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any, NamedTuple
from uuid import UUID

from django.contrib.admin.utils import quote
from django.db.models import QuerySet
from django.utils.html import format_html, format_html_join
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext

from django_ojs import clock, states
from django_ojs.admin import display
from django_ojs.admin.base import ViewAdmin
from django_ojs.jobs import progress
from django_ojs.jobs.selection import tags
from django_ojs.models import CronRun, CronSchedule, Job, Queue, Worker, Workflow, WorkflowStep
from django_ojs.models.job import STAGED
from django_ojs.rules import ratelimit, redaction, retry
from django_ojs.rules.retry import RetryPolicy
from django_ojs.states import State

Html = SafeString | str
#: Jobs that run and are listed on the page of their queue or worker.
RUNNING = 100


class Fact(NamedTuple):
    """A name and a value; `note` is said below it, and `key` is a class of the style sheet."""

    name: str
    value: Any
    note: Any = ""
    key: str = ""


def attempts(job: Job) -> str:
    most = job.max_attempts + (job.uncounted or 0)
    return gettext("%(number)s of %(most)s") % {"number": job.attempt, "most": most}


def since(job: Job) -> dt.datetime | None:
    """When the job came into its state."""
    match State(job.state):
        case State.ACTIVE:
            return job.started_at
        case State.AVAILABLE:
            return job.enqueued_at
        case State.RETRYABLE if job.due_at:
            return job.due_at - dt.timedelta(milliseconds=job.retry_delay_ms or 0)
        case state if state in states.TERMINAL:
            return job.finished_at
        case _:
            return job.activated_at or job.created_at


def ran_ms(job: Job, now: dt.datetime) -> int | None:
    """Milliseconds that the latest attempt ran; of one that runs, until `now`. None where the job has no such times."""
    end = now if job.state == State.ACTIVE else job.finished_at
    return max(0, round((end - job.started_at) / dt.timedelta(milliseconds=1))) if job.started_at and end else None


def running(jobs: QuerySet[Job]) -> dict[str, Any]:
    """Those of the jobs that run now as `running_jobs.html` shows them, those first that have been running longest."""
    columns = ("id", "type", "queue", "worker_id", "attempt", "started_at", "visible_until")
    active = jobs.filter(state=State.ACTIVE).order_by("started_at", "id").values(*columns)
    rows = [
        {**job, "started": display.ago(job["started_at"]), "until": display.when(job["visible_until"])}
        for job in active[: RUNNING + 1]
    ]
    return {"rows": rows[:RUNNING], "more": len(rows) > RUNNING}


def strip(admin: ViewAdmin, job: Job, using: str) -> list[Fact]:
    """How the job is: its state and since when, the attempt, what comes next and when, who runs it, and where."""
    began, now = since(job), clock.now(using)
    dead = gettext("dead letter") if job.state == State.DISCARDED and job.dead_letter else ""
    facts = [
        Fact(gettext("state"), display.label(job.state), dead, "ojs-state"),
        Fact(gettext("since"), display.ago(began), display.when(began)),
        Fact(gettext("attempt"), attempts(job), _uncounted(job)),
        *_next(job, now),
    ]
    if job.finished_at and (ran := ran_ms(job, now)) is not None:
        facts.append(Fact(gettext("ran"), display.duration(ran)))
    if job.worker_id:
        facts.append(Fact(gettext("worker"), _worker(admin, job, using)))
    where = _link(admin.url_of(Queue, quote(job.queue)), display.shorten(job.queue, 60))
    priority = gettext("priority %(number)s") % {"number": job.priority} if job.priority else ""
    facts.append(Fact(gettext("queue"), where, priority))
    if (shown := reported(job, using)) is not None:
        facts.append(Fact(gettext("progress"), shown, key="ojs-progress"))
    return facts


def _uncounted(job: Job) -> str:
    number = job.uncounted or 0
    text = ngettext("%(number)s does not count", "%(number)s do not count", number) % {"number": number}
    return text if number else ""


def _next(job: Job, now: dt.datetime) -> Iterator[Fact]:
    """What will happen to the job by itself, and when."""
    if job.state in STAGED and job.due_at:
        name = gettext("next attempt") if job.state == State.RETRYABLE else gettext("starts")
        yield Fact(name, _ahead(job.due_at, now), display.when(job.due_at))
    elif job.state == State.ACTIVE and (end := job.timeout_at or job.visible_until):
        name = gettext("times out") if job.timeout_at else gettext("reserved until")
        yield Fact(name, _ahead(end, now), display.when(end))


def _ahead(instant: dt.datetime, now: dt.datetime) -> str:
    left = round((instant - now).total_seconds())
    if left <= 0:
        return gettext("due")
    return gettext("in %(time)s") % {"time": " ".join(display.duration(left * 1000).split()[:4])}


def _worker(admin: ViewAdmin, job: Job, using: str) -> Html:
    """A link to the worker's page while there is one: rows of workers are deleted some time after they stop."""
    known = Worker.objects.using(using).filter(pk=job.worker_id).exists()
    address = admin.url_of(Worker, quote(job.worker_id)) if known else ""
    return _link(address, display.printable(job.worker_id), "ojs-code")


def _link(address: str, text: str, style: str = "") -> Html:
    shown = format_html('<span class="{}">{}</span>', style, text) if style else text
    return format_html('<a href="{}">{}</a>', address, shown) if address else shown


def reported(job: Job, using: str) -> Html | None:
    """What the handler reported last in this attempt, as it shows in the API; None for nothing."""
    row = {"id": job.pk, "attempt": job.attempt, "started_at": job.started_at, "state": job.state}
    found = progress.of([row], using).get(job.pk)
    if found is None:
        return None
    shown = progress.describe(row, found)
    percent = "" if shown["progress"] is None else f"{shown['progress'] * 100:.3g} %"
    message = redaction.part("progress", found.message, job.type, job.meta) if found.message else ""
    words = ", ".join(filter(None, (percent, display.shorten(message))))
    bar = format_html('<progress max="1" value="{}" aria-hidden="true"></progress> ', shown["progress"] or 0)
    said = format_html("{} <small>({})</small>", words or gettext("data only"), display.when(found.updated_at))
    return format_html("{}{}", bar if percent else "", said)


def last_failure(job: Any) -> tuple[str, str] | None:
    """The class and the message of what failed last, in short; None where nothing did. For a job whose `history` is
    loaded, and whose meta is not."""
    if not job.history:
        return None
    if redaction.hides("errors", job.type):  # careful, without its meta
        return redaction.MASK, ""
    error = redaction.error(job.type, job.history[-1])
    return display.shorten(error.get("type") or "error", 40), display.shorten(error.get("message") or "")


def failures(job: Job) -> dict[str, list[dict[str, Any]]]:
    """The `latest` error, unless the job succeeded after all, and the `earlier` ones, newest first; all redacted."""
    history = display.errors(redaction.part("errors", job.errors, job.type, job.meta))
    latest = 0 if job.state == State.COMPLETED else 1
    return {"latest": history[:latest], "earlier": history[latest:]}


def data(job: Job) -> list[Fact]:
    """What the client sent and the handler returned, as JSON without what the site hides."""
    parts = {
        "args": gettext("arguments"), "result": gettext("result"), "meta": gettext("meta"),
        "extra": gettext("other attributes"),
    }  # fmt: skip
    shown = {name: redaction.part(name, getattr(job, name), job.type, job.meta) for name in parts}
    return [Fact(word, display.json(shown[name]), key=name) for name, word in parts.items() if _is_there(shown[name])]


def _is_there(value: Any) -> bool:
    return value is not None and value != {} and value != []


# The right side: what holds for the job


def policy(job: Job) -> list[Fact]:
    """When it is tried again, and what it may take."""
    lengths = (
        (gettext("execution timeout"), job.timeout_ms),
        (gettext("grace period"), job.grace_ms),
        (gettext("heartbeat timeout"), job.heartbeat_ms),
        (gettext("own reservation length"), job.visibility_ms),
        (gettext("reservation granted"), job.lease_ms),
        (gettext("latest backoff"), job.retry_delay_ms),
    )
    return [
        Fact(gettext("retry policy"), in_words(retry.from_json(job.retry), job.max_attempts)),
        *(Fact(name, display.duration(length)) for name, length in lengths if length is not None),
        *([Fact(gettext("losses in a row"), job.losses)] if job.losses else []),
    ]


def in_words(policy: RetryPolicy, max_attempts: int) -> str:
    """A retry policy as a sentence: `5 attempts, 2 s doubling to 1 h, ±50 %`."""
    most = max(1, max_attempts)
    parts = [ngettext("%(number)s attempt", "%(number)s attempts", most) % {"number": f"{most:,}"}]
    if most > 1:
        parts += [_backoff(policy), *(["±50 %"] if policy.jitter else [])]
        if policy.non_retryable:
            names = display.shorten(", ".join(policy.non_retryable), 160)
            parts.append(gettext("no retry after %(errors)s") % {"errors": names})
    if policy.on_exhaustion == "discard":
        parts.append(gettext("then no dead letter"))
    return ", ".join(parts)


def _backoff(policy: RetryPolicy) -> str:
    """How the waits between the attempts grow."""
    facts = {
        "first": display.duration(policy.initial_ms),
        "most": display.duration(policy.max_ms),
        "factor": f"{policy.coefficient:g}",
    }
    same = policy.strategy == "constant" or (policy.strategy == "exponential" and policy.coefficient == 1)
    if same or policy.max_ms <= policy.initial_ms:
        return gettext("%(first)s apart") % {**facts, "first": facts["first" if same else "most"]}
    match policy.strategy:
        case "linear":
            return gettext("%(first)s more each time, to %(most)s") % facts
        case "polynomial":
            return gettext("%(first)s × attempt to the power of %(factor)s, to %(most)s") % facts
    if policy.coefficient == 2:
        return gettext("%(first)s doubling to %(most)s") % facts
    return gettext("%(first)s, × %(factor)s each time, to %(most)s") % facts


def relations(admin: ViewAdmin, job: Job, using: str) -> list[Fact]:
    """What the job belongs to."""
    found = []
    if job.workflow_id:
        flow, step = _workflow(admin, job.workflow_id, job.pk, using)
        found.append(Fact(gettext("workflow"), flow, step))
    for name, nominal in CronRun.objects.using(using).filter(job_id=job.pk).values_list("name", "scheduled_at"):
        address = admin.url_of(CronSchedule, quote(name))
        found.append(Fact(gettext("schedule"), _link(address, display.shorten(name)), display.when(nominal)))
    if job.unique_key:
        found.append(Fact(gettext("unique key"), display.code(job.unique_key)))
    if job.rate_key:
        own = display.pretty(ratelimit.from_json(job.rate_limit).as_wire()) if job.rate_limit else ""
        found.append(Fact(gettext("rate limit"), display.code(job.rate_key), own))
    if job.trace_id:
        found.append(Fact(gettext("trace id"), display.code(job.trace_id)))
    if names := tags(job.extra):
        jobs = admin.own_url("changelist")
        links = ((jobs, urlencode({"tag": tag}), display.shorten(tag)) for tag in names)
        found.append(Fact(gettext("tags"), format_html_join(" ", '<a href="{}?{}">{}</a>', links)))
    return found


def _workflow(admin: ViewAdmin, flow: UUID, job: UUID, using: str) -> tuple[Html, str]:
    """A link to the workflow, where this admin site has its page, and which of its steps the job is."""
    steps = WorkflowStep.objects.using(using).filter(job_id=job, workflow_id=flow)
    step, name = steps.values_list("step_id", "workflow__name").first() or ("", "")
    text = display.shorten(name or flow)
    said = gettext("step %(step)s") % {"step": display.shorten(step)} if step else ""
    return _link(admin.url_of(Workflow, flow), text, "" if name else "ojs-id"), said


def times(job: Job) -> list[Fact]:
    """Every instant that the job has; the scheduler's next look only if it is none of the others."""
    known = (
        (gettext("created"), job.created_at),
        (gettext("activated"), job.activated_at),
        (gettext("due"), job.due_at),
        (gettext("enqueued"), job.enqueued_at),
        (gettext("started"), job.started_at),
        (gettext("reserved until"), job.visible_until),
        (gettext("times out"), job.timeout_at),
        (gettext("finished"), job.finished_at),
        (gettext("to start by"), job.start_by),
        (gettext("expires"), job.expires_at),
        (gettext("to end by"), job.deadline_at),
    )
    found = [Fact(name, display.when(instant)) for name, instant in known if instant]
    if job.wake_at and job.wake_at not in {instant for _name, instant in known}:
        found.append(Fact(gettext("next look by the scheduler"), display.when(job.wake_at)))
    return found
