"""Spans of OpenTelemetry around enqueueing and running jobs (events specification 8.4). Imported by `tracing` only."""

from __future__ import annotations

import contextlib
import functools
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from django.db import connections
from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import django_ojs
from django_ojs.conf import ojs_settings
from django_ojs.database import database
from django_ojs.rules import errorobjects, redaction
from django_ojs.telemetry.tracecontext import MAX_TRACESTATE, joined

if TYPE_CHECKING:
    from django_ojs.rules.workflows import Plan

_TRACE, _BAGGAGE = TraceContextTextMapPropagator(), W3CBaggagePropagator()
_tracer: tuple[Any, trace.Tracer] | None = None  #: with the provider that it is of


def is_on() -> bool:
    """Whether the site has set a provider: the API alone brings one that makes nothing."""
    return not type(trace.get_tracer_provider()).__module__.startswith("opentelemetry.trace")


def current() -> dict[str, str]:
    """The current context as headers; empty where there is no valid span and no baggage."""
    carrier: dict[str, str] = {}
    if not contexts.get_current():
        return carrier
    _TRACE.inject(carrier)
    _BAGGAGE.inject(carrier)
    return carrier


def current_ids() -> tuple[str, str]:
    found = trace.get_current_span().get_span_context()
    if not found.is_valid:
        return "", ""
    return trace.format_trace_id(found.trace_id), trace.format_span_id(found.span_id)


def record(exc: BaseException) -> None:
    message = errorobjects.text_of(exc)
    if len(message) <= errorobjects.MAX_MESSAGE:
        trace.get_current_span().record_exception(exc)
        return
    error = errorobjects.from_exception(exc)
    shortened = {"exception.message": error["message"], "exception.stacktrace": "\n".join(error["backtrace"])}
    trace.get_current_span().record_exception(exc, attributes=shortened)


class Enqueueing:
    """The span of one push. `carrier` is what its jobs shall carry."""

    def __init__(self, span: Span, received: Mapping[str, str], number: int) -> None:
        self._span, self._number = span, number
        self.carrier = joined(received, current())

    def conclude(self, outcomes: Sequence[Any]) -> None:
        """Tell what became of the jobs: of a single one everything, of many how many there were."""
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                shown = redaction.site_rules() is None  # a refusal may repeat what it refuses
                if shown:
                    self._span.record_exception(outcome)
                self._span.set_status(Status(StatusCode.ERROR, str(outcome) if shown else type(outcome).__name__))
                self._span.set_attribute("error.type", type(outcome).__name__)
                return
        row = getattr(outcomes[0], "row", None) if self._number == 1 and outcomes else None
        if row is not None:
            self._span.set_attributes(_of_row(row))
            if row["due_at"]:
                self._span.set_attribute("ojs.job.scheduled_at", row["due_at"].isoformat())
        self._span.set_status(StatusCode.OK)


@contextlib.contextmanager
def enqueueing(documents: Sequence[Any], received: Mapping[str, str]) -> Iterator[Enqueueing]:
    """The PRODUCER span of a push: a child of the current span, else of the one that the request names."""
    name, attributes = _producer(documents)
    with _start(name, SpanKind.PRODUCER, _parent(received), attributes) as span:
        yield Enqueueing(span, received, len(documents))


class MemberSpans:
    """The spans of jobs of workflows that are enqueued together. `documents` carry them where the context is ours."""

    def __init__(self, documents: Sequence[Any]) -> None:
        self.documents: list[Any] = []
        self.spans: list[Span] = []
        for document in documents:
            name, attributes = _producer([document])
            meta = document.get("meta") or {}
            is_ours, meta = _without_mark(meta)
            around = _TRACE.extract(meta, Context())
            span = _get_tracer().start_span(name, context=around, kind=SpanKind.PRODUCER, attributes=attributes)
            self.spans.append(span)
            carrier: dict[str, str] = {}
            _TRACE.inject(carrier, trace.set_span_in_context(span, Context()))
            self.documents.append({**document, "meta": meta | carrier} if is_ours else document)

    def conclude(self, outcomes: Sequence[Any]) -> None:
        """Tell what became of each job."""
        for span, outcome in zip(self.spans, outcomes, strict=True):
            Enqueueing(span, {}, 1).conclude([outcome])


@contextlib.contextmanager
def enqueueing_members(documents: Sequence[Any]) -> Iterator[MemberSpans]:
    """A PRODUCER span for each job of a workflow, whose parent is the span in which the workflow was made.

    Where a step brought a context of its own, that is the parent, and the job carries it on unchanged.
    """
    members = MemberSpans(documents)
    try:
        yield members
    except BaseException as error:
        for span in members.spans:
            span.set_status(Status(StatusCode.ERROR, type(error).__name__))
            span.set_attribute("error.type", type(error).__name__)
        raise
    finally:
        for span in members.spans:
            span.end()


#: In the `tracestate` of jobs of a workflow: their context is that of the workflow, which the span that enqueues them
#: replaces. A step with a context of its own lacks it.
_MARK = "ojs=workflow"


def _marked(context: Mapping[str, str]) -> Mapping[str, str]:
    if "traceparent" not in context:
        return context
    state = ",".join(filter(None, [_MARK, context.get("tracestate", "")]))
    return {**context, "tracestate": state if len(state) <= MAX_TRACESTATE else _MARK}


def _without_mark(meta: Mapping[str, Any]) -> tuple[bool, dict[str, Any]]:
    """Whether the context in `meta` has the mark, and `meta` without it."""
    state = meta.get("tracestate")
    entries = state.split(",") if isinstance(state, str) else []
    if _MARK not in entries:
        return False, dict(meta)
    entries.remove(_MARK)
    kept = {name: value for name, value in meta.items() if name != "tracestate"}
    return True, kept | ({"tracestate": ",".join(entries)} if entries else {})


def _producer(documents: Sequence[Any]) -> tuple[str, dict[str, Any]]:
    """Name and attributes of the span that enqueues these."""
    types = {document.get("type") for document in documents if isinstance(document, dict)}
    queues = {_queue(document) for document in documents if isinstance(document, dict)}
    job_type = str(types.pop()) if len(types) == 1 else "batch"
    queue = str(queues.pop()) if len(queues) == 1 else ""
    number = len(documents)
    linked = ojs_settings.TRACING == "link"
    name = f"{queue} enqueue{'_batch' if number > 1 else ''}".strip() if linked else f"ojs.enqueue {job_type}"
    attributes: dict[str, Any] = _operation("publish") | {"messaging.destination.name": queue}
    if number > 1:
        attributes["messaging.batch.message_count"] = number
    return name, attributes


@contextlib.contextmanager
def workflow(plan: Plan, received: Mapping[str, str]) -> Iterator[tuple[Mapping[str, str], Callable[[str], None]]]:
    """The span in which a workflow is made; gives what all of its jobs shall carry, and what takes its id."""
    attributes = _system() | {"ojs.workflow.type": plan.type, "ojs.workflow.steps": len(plan.steps)}
    name = f"ojs.workflow {plan.name or plan.type}"
    with _start(name, SpanKind.INTERNAL, _parent(received), attributes) as span:
        yield _marked(joined(received, current())), functools.partial(span.set_attribute, "ojs.workflow.id")


@contextlib.contextmanager
def executing(context: Any) -> Iterator[Span]:
    """The CONSUMER span of one attempt, in the context that the job carries.

    By default the span that enqueued the job is its parent, and linked too; with `TRACING = "link"` it is linked only.
    """
    row = context.row
    around = _carried(row, context.meta)
    origin = trace.get_current_span(around).get_span_context()
    links = [Link(origin)] if origin.is_valid else []
    name = f"ojs.execute {row['type']}"
    if ojs_settings.TRACING == "link":
        name, around = f"{row['queue']} process", trace.set_span_in_context(trace.INVALID_SPAN, around)
    attributes = _operation("process") | _of_row(row) | {
        "ojs.worker.id": row["worker_id"], "ojs.job.attempt": row["attempt"],
    }  # fmt: skip
    if context.workflow_id:
        attributes["ojs.workflow.id"] = context.workflow_id
    if "workflow_type" in row:
        attributes |= {"ojs.workflow.type": row["workflow_type"], "ojs.workflow.step": row["lineage"]["workflow_step"]}
    token = contexts.attach(around)  # with the baggage, which the handler may read
    try:
        with _start(name, SpanKind.CONSUMER, around, attributes, links) as span:
            yield span
    finally:
        contexts.detach(token)


def conclude(span: Span, error: Mapping[str, Any] | None, attempt: int) -> None:
    """The end of an attempt: with the error that is reported, or well."""
    if error is None:
        span.set_status(StatusCode.OK)
        return
    message = str(error.get("message", ""))
    span.set_status(Status(StatusCode.ERROR, message))
    span.set_attributes(
        {"error.type": str(error.get("type", "error")), "error.message": message, "ojs.job.error.attempt": attempt}
    )


def _start(
    name: str, kind: SpanKind, around: Context | None, attributes: Mapping[str, Any], links: Sequence[Link] = ()
) -> contextlib.AbstractContextManager[Span]:
    return _get_tracer().start_as_current_span(name, context=around, kind=kind, attributes=attributes, links=links)


def _get_tracer() -> trace.Tracer:
    global _tracer
    provider = trace.get_tracer_provider()
    if _tracer is None or _tracer[0] is not provider:
        _tracer = provider, provider.get_tracer("django_ojs", django_ojs.__version__)
    return _tracer[1]


def _parent(received: Mapping[str, str]) -> Context | None:
    """None: the current context, which wins over the request's headers where a framework has read them already."""
    if "traceparent" not in received or trace.get_current_span().get_span_context().is_valid:
        return None
    return _BAGGAGE.extract(received, _TRACE.extract(received))


def _carried(row: Mapping[str, Any], meta: Mapping[str, Any]) -> Context:
    """The context in the job's meta, and nothing of what is current in this thread."""
    carrier = {key: value for key, value in meta.items() if key in _FIELDS and isinstance(value, str)}
    found = _BAGGAGE.extract(carrier, _TRACE.extract(carrier, Context()))
    if not trace.get_current_span(found).get_span_context().is_valid and row["trace_id"]:
        return trace.set_span_in_context(NonRecordingSpan(_of_trace(row["trace_id"], row["id"])), found)
    return found


def _of_trace(trace_id: str, job_id: uuid.UUID) -> SpanContext:
    """A place in a trace of which only the id is known: a span that is in no backend, the same for every attempt."""
    try:
        number = int(trace_id, 16) if len(trace_id) == 32 else 0
    except ValueError:
        number = 0
    return SpanContext(number, job_id.int & ((1 << 64) - 1), is_remote=True, trace_flags=TraceFlags(1))


_FIELDS = frozenset({"traceparent", "tracestate", "baggage"})


def _operation(type: str) -> dict[str, Any]:
    return _system() | {"messaging.operation.type": type, "messaging.operation": type}


def _system() -> dict[str, Any]:
    """What all of our spans say: the kind of database and the version of this package, as `ojs_server_info` does."""
    vendor = connections[database(None)].vendor
    return {"messaging.system": "ojs", "ojs.backend.type": vendor, "ojs.backend.version": django_ojs.__version__}


def _of_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """What is known of a job. The size is that of its arguments as JSON, in bytes, unless the site hides those."""
    size = {} if redaction.tells("args", row["type"]) else {"messaging.message.body.size": len(row["args"].encode())}
    return size | {
        "ojs.job.id": str(row["id"]), "ojs.job.type": row["type"], "ojs.job.queue": row["queue"],
        "ojs.job.priority": row["priority"], "messaging.message.id": str(row["id"]),
        "messaging.destination.name": row["queue"], "ojs.job.state": str(row["state"]),
    }  # fmt: skip


def _queue(document: Mapping[str, Any]) -> str:
    options = document.get("options")
    named = options.get("queue") if isinstance(options, dict) else None
    return str(named or document.get("queue") or "default")
