"""What a job's page says, in the order in which an operator asks: how it is, why it failed, and what it belongs to.

Each function returns facts, and leaves out those that a job does not have.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import QuerySet
from django.template.defaultfilters import filesizeformat
from django.utils.html import format_html, format_html_join
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext

from django_ojs import clock, states
from django_ojs.admin import display
from django_ojs.admin.base import ViewAdmin
from django_ojs.jobs import checkpoints, progress, steps
from django_ojs.jobs.selection import tags
from django_ojs.models import Approval, CronRun, CronSchedule, Job, Queue, Worker, Workflow, WorkflowStep
from django_ojs.models.job import STAGED
from django_ojs.rules import ratelimit, redaction, retrypolicy, workflowgraph
from django_ojs.rules.approvals import EVENT as APPROVAL
from django_ojs.rules.retrypolicy import JITTER, RetryPolicy
from django_ojs.rules.rows import END_OF_TIME
from django_ojs.rules.steps import COMPENSATES, Step, StepKind
from django_ojs.states import State
from django_ojs.workerregistry import deaths

Html = SafeString | str
#: Workflows that are listed on the page of the job that runs them.
CHILDREN = 20
#: Jobs that run and are listed on the page of their queue or worker.
RUNNING = 100
#: Approvals of a job that its page links to.
SHOWN_APPROVALS = 10


class NamedValue(NamedTuple):
    """A name and a value; `note` is said below it, and `key` is a class of the style sheet."""

    name: str
    value: Any
    note: Any = ""
    key: str = ""


def attempts(job: Job) -> str:
    most = job.max_attempts + (job.uncounted or 0)
    return gettext("%(number)s of %(most)s") % {"number": f"{job.attempt:,}", "most": f"{most:,}"}


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


def strip(admin: ViewAdmin, job: Job, steps: Sequence[Step], using: str) -> list[NamedValue]:
    """How the job is: its state and since when, the attempt, what comes next and when, who runs it, and where. `steps`
    are the latest of its handler."""
    began, now = since(job), clock.now(using)
    dead = gettext("dead letter") if job.state == State.DISCARDED and job.dead_letter else ""
    facts = [
        NamedValue(gettext("state"), display.colour_label(job.state), dead, "ojs-state"),
        NamedValue(gettext("since"), display.ago(began), display.when(began)),
        NamedValue(gettext("attempt"), attempts(job), _uncounted(job)),
        *_next(job, steps, now),
    ]
    if job.finished_at and (ran := ran_ms(job, now)) is not None:
        facts.append(NamedValue(gettext("ran"), display.duration(ran)))
    if job.worker_id:
        facts.append(NamedValue(gettext("worker"), _worker(admin, job, using)))
    where = _link(admin.url_of(Queue, job.queue), display.ellipsized(job.queue, 60))
    priority = gettext("priority %(number)s") % {"number": job.priority} if job.priority else ""
    facts.append(NamedValue(gettext("queue"), where, priority))
    if (shown := reported(job, using)) is not None:
        facts.append(NamedValue(gettext("progress"), shown, key="ojs-progress"))
    return facts


def _uncounted(job: Job) -> str:
    number = job.uncounted or 0
    text = ngettext("%(number)s does not count", "%(number)s do not count", number) % {"number": f"{number:,}"}
    return text if number else ""


def _next(job: Job, steps: Sequence[Step], now: dt.datetime) -> Iterator[NamedValue]:
    """What the job waits for, or what will happen to it by itself, and when."""
    waits = [one for one in steps if one.event_name is not None and not one.has_ended]
    if job.state == State.RETRYABLE and waits:
        names = ", ".join(awaited(one) for one in waits)
        yield NamedValue(gettext("waits for"), display.ellipsized(names, 60), display.ago(waits[0].began_at))
    if job.state in STAGED and job.due_at and job.due_at < END_OF_TIME:
        name = gettext("next attempt") if job.state == State.RETRYABLE else gettext("starts")
        yield NamedValue(name, _ahead(job.due_at, now), display.when(job.due_at))
    elif job.state == State.ACTIVE and (end := job.timeout_at or job.visible_until):
        name = gettext("times out") if job.timeout_at else gettext("reserved until")
        yield NamedValue(name, _ahead(end, now), display.when(end))


def awaited(step: Step) -> str:
    """What a step waits for, in words."""
    if step.kind == StepKind.CHILDREN:
        return gettext("other jobs")
    if step.event_name == APPROVAL:
        return gettext("the approval %(name)s") % {"name": step.name}
    return gettext("the event %(name)s") % {"name": " ".join(filter(None, step.event))}


def _ahead(instant: dt.datetime, now: dt.datetime) -> str:
    left = round((instant - now).total_seconds())
    if left <= 0:
        return gettext("due")
    return gettext("in %(time)s") % {"time": " ".join(display.duration(left * 1000).split()[:4])}


def _worker(admin: ViewAdmin, job: Job, using: str) -> Html:
    """A link to the worker's page while there is one: rows of workers are deleted some time after they stop."""
    known = Worker.objects.using(using).filter(pk=job.worker_id).exists()
    address = admin.url_of(Worker, job.worker_id) if known else ""
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
    words = ", ".join(filter(None, (percent, display.ellipsized(message))))
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
    return display.ellipsized(error.get("type") or "error", 40), display.ellipsized(error.get("message") or "")


def failures(job: Job) -> dict[str, list[dict[str, Any]]]:
    """The `latest` error, unless the job succeeded after all, and the `earlier` ones, newest first; all redacted."""
    history = display.errors(redaction.part("errors", job.errors, job.type, job.meta))
    latest = 0 if job.state == State.COMPLETED else 1
    return {"latest": history[:latest], "earlier": history[latest:]}


def data(job: Job) -> list[NamedValue]:
    """What the client sent and the handler returned, as JSON without what the site hides."""
    parts = {
        "args": gettext("arguments"), "result": gettext("result"), "meta": gettext("meta"),
        "extra": gettext("other attributes"),
    }  # fmt: skip
    shown = {name: redaction.part(name, getattr(job, name), job.type, job.meta) for name in parts}
    found = [
        NamedValue(word, display.json(shown[name]), key=name) for name, word in parts.items() if _is_there(shown[name])
    ]
    return [*_checkpoint(job), *found]


def _checkpoint(job: Job) -> Iterator[NamedValue]:
    """The state from which the next attempt goes on, without what the site hides, and how and when it was saved."""
    kept = checkpoints.read(job.pk, using=job._state.db) if job.resumable else None
    if kept is None:
        return
    facts = [gettext("save number %(number)s") % {"number": f"{kept.sequence:,}"}]
    if not redaction.tells("checkpoint", job.type, job.meta):
        facts.append(filesizeformat(kept.size))
    state = display.json(redaction.part("checkpoint", kept.state, job.type, job.meta))
    said = format_html("<p>{}, {}</p>", ", ".join(facts), display.when(kept.created_at))
    yield NamedValue(gettext("checkpoint"), format_html("{}{}", said, state), key="checkpoint")


def _is_there(value: Any) -> bool:
    return value is not None and value != {} and value != []


# The right side: what holds for the job


def policy(job: Job) -> list[NamedValue]:
    """When it is tried again, and what it may take."""
    lengths = (
        (gettext("execution timeout"), job.timeout_ms),
        (gettext("grace period"), job.grace_ms),
        (gettext("heartbeat timeout"), job.heartbeat_ms),
        (gettext("own reservation length"), job.visibility_ms),
        (gettext("reservation granted"), job.lease_ms),
        (gettext("latest backoff"), None if job.due_at and job.due_at >= END_OF_TIME else job.retry_delay_ms),
    )
    return [
        NamedValue(gettext("retry policy"), in_words(retrypolicy.from_json(job.retry), job.max_attempts)),
        *(NamedValue(name, display.duration(length)) for name, length in lengths if length is not None),
        *([NamedValue(gettext("losses in a row"), job.losses)] if job.losses else []),
        *_deaths(job),
    ]


def _deaths(job: Job) -> Iterator[NamedValue]:
    """When the process of its worker died last, how, and what follows from it."""
    for death in deaths.of_job(job.pk, job._state.db or "default")[:1]:
        beside = gettext("it ran alone") if death.alone else gettext("others ran beside it")
        shown = format_html("{} <small>({})</small>", deaths.describe(death), display.when(death.at))
        yield NamedValue(gettext("worker died"), shown, beside)
    if job.suspected and job.state not in states.TERMINAL:
        yield NamedValue(gettext("next run"), gettext("alone in a process"))


def in_words(policy: RetryPolicy, max_attempts: int) -> str:
    """A retry policy as a sentence: `5 attempts, 2 s doubling to 1 h, ±25 %`."""
    most = max(1, max_attempts)
    parts = [ngettext("%(number)s attempt", "%(number)s attempts", most) % {"number": f"{most:,}"}]
    if most > 1:
        parts += [_backoff(policy), *([f"±{100 * JITTER:g} %"] if policy.jitter else [])]
        if policy.retryable:
            parts.append(gettext("a retry only after %(errors)s") % {"errors": _names(policy.retryable)})
        if policy.non_retryable:
            parts.append(gettext("no retry after %(errors)s") % {"errors": _names(policy.non_retryable)})
    if policy.on_exhaustion == "discard":
        parts.append(gettext("then no dead letter"))
    return ", ".join(parts)


def _names(errors: Sequence[str]) -> str:
    return display.ellipsized(", ".join(errors), 160)


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


def relations(admin: ViewAdmin, job: Job, using: str) -> list[NamedValue]:
    """What the job belongs to."""
    found = []
    if job.workflow_id:
        flow, step = _workflow(admin, job.workflow_id, job.pk, using)
        found.append(NamedValue(gettext("workflow"), flow, step))
    found += _family(admin, job, using)
    for name, nominal in CronRun.objects.using(using).filter(job_id=job.pk).values_list("name", "scheduled_at"):
        address = admin.url_of(CronSchedule, name)
        found.append(NamedValue(gettext("schedule"), _link(address, display.ellipsized(name)), display.when(nominal)))
    if job.unique_key:
        key = redaction.unique_key(job.unique_key, job.type, job.meta)
        found.append(NamedValue(gettext("unique key"), display.code(key)))
    if job.rate_key:
        own = display.pretty(ratelimit.from_json(job.rate_limit).as_wire()) if job.rate_limit else ""
        found.append(NamedValue(gettext("rate limit"), display.code(job.rate_key), own))
    if job.trace_id:
        found.append(NamedValue(gettext("trace id"), display.code(job.trace_id)))
    if job.uncounted:  # it has given its slot back: it sleeps now and then, waits, or asks people
        asked = Approval.objects.using(using).filter(job_id=job.pk).order_by("-pk")[:SHOWN_APPROVALS]
        named = ((_link(admin.url_of(Approval, one.pk), display.ellipsized(one.title)), one.state) for one in asked)
        if approvals := format_html_join(", ", "{} ({})", named):
            found.append(NamedValue(gettext("Approvals"), approvals))
    if names := tags(job.extra):
        jobs = admin.own_url("changelist")
        links = ((jobs, urlencode({"tag": display.printable(tag)}), display.ellipsized(tag)) for tag in names)
        found.append(NamedValue(gettext("tags"), format_html_join(" ", '<a href="{}?{}">{}</a>', links)))
    return found


def _family(admin: ViewAdmin, job: Job, using: str) -> list[NamedValue]:
    """The job that it comes from, and those that come of it."""
    found = []
    if job.parent_id:
        link = _link(admin.url_of(Job, job.parent_id), str(job.parent_id), "ojs-id")
        undoes = COMPENSATES in (job.extra or {})
        found.append(NamedValue(gettext("undoes job") if undoes else gettext("parent job"), link))
    # What undoes a job is the last that comes of it.
    latest = Job.objects.using(using).filter(parent_id=job.pk).order_by("-pk")[:1]
    for pk, extra, state in latest.values_list("pk", "extra", "state"):
        if COMPENSATES in (extra or {}) and steps.undoes(pk, using=using):  # a client may say so of any job
            found.append(NamedValue(gettext("undone by"), _link(admin.url_of(Job, pk), str(pk), "ojs-id"), state))
    if job.uncounted:  # a job that runs others has given its slot back
        for child in Workflow.objects.using(using).filter(parent_id=job.pk).order_by("-pk")[:CHILDREN]:
            link = _link(admin.url_of(Workflow, child.pk), child.public_id, "ojs-id")
            found.append(NamedValue(gettext("child jobs"), link, workflowgraph.summary(child)["state"]))
    return found


def _workflow(admin: ViewAdmin, flow: UUID, job: UUID, using: str) -> tuple[Html, str]:
    """A link to the workflow, where this admin site has its page, and which of its steps the job is."""
    steps = WorkflowStep.objects.using(using).filter(job_id=job, workflow_id=flow)
    columns = ("step_id", "workflow__name", "workflow__own_id")
    step, name, own = steps.values_list(*columns).first() or ("", "", None)
    text = display.ellipsized(name or own or flow)
    said = gettext("step %(step)s") % {"step": display.ellipsized(step)} if step else ""
    return _link(admin.url_of(Workflow, flow), text, "" if name else "ojs-id"), said


def times(job: Job) -> list[NamedValue]:
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
    found = [NamedValue(name, display.when(instant)) for name, instant in known if instant]
    if job.wake_at and job.wake_at not in {instant for _name, instant in known}:
        found.append(NamedValue(gettext("next look by the scheduler"), display.when(job.wake_at)))
    return found
