"""The trace goes on from the request through the queue into the handler, and nobody's own context is touched."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from opentelemetry import baggage, trace
from opentelemetry.context import attach, detach
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import django_ojs
from django_ojs import job
from django_ojs.client.context import CONTEXT_COLUMNS, NoLink
from django_ojs.client.definition import enqueue, enqueue_many
from django_ojs.client.directives import Snooze
from django_ojs.errors import OJSError
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack, fail
from django_ojs.jobs.push import push
from django_ojs.models import Event, Job, Workflow
from django_ojs.registry import Registry, registry
from django_ojs.telemetry import spans, tracing
from django_ojs.worker.execution import aexecute, execute
from django_ojs.worker.runs import JobRun
from django_ojs.workflows.workflow import create

pytestmark = pytest.mark.django_db

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
SECOND = "00-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-bbbbbbbbbbbbbbbb-01"


class Made:
    """The spans that ended, by the beginning of their names."""

    def __init__(self, exporter: InMemorySpanExporter, tracer: trace.Tracer) -> None:
        self._exporter, self.tracer = exporter, tracer

    def all(self, beginning: str = "") -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name.startswith(beginning)]

    def one(self, beginning: str) -> ReadableSpan:
        (span,) = self.all(beginning)
        return span


@pytest.fixture
def sdk(monkeypatch: Any) -> Made:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(spans.trace, "get_tracer_provider", lambda: provider)
    return Made(exporter, provider.get_tracer("test"))


@pytest.fixture
def handlers() -> Iterator[Registry]:
    with registry.isolated() as isolated:
        yield isolated


def meta_of(job_type: str) -> Any:
    return Job.objects.get(type=job_type).meta


def run_next(handlers: Registry, handler: Any, job_type: str = "a.b") -> Any:
    """Claim the next job and run it as the worker does."""
    definition = handlers.get(job_type) or job(job_type)(handler)
    (row,) = fetch(Fetch(["default"], worker_id="w1", columns=CONTEXT_COLUMNS))
    run = JobRun(row, definition, time.monotonic(), NoLink())
    is_async = asyncio.iscoroutinefunction(handler)
    return asyncio.run(aexecute(run)) if is_async else execute(run)


def trace_of(span: ReadableSpan) -> str:
    return trace.format_trace_id(span.context.trace_id)


# Into meta


@pytest.mark.parametrize("path", ["/jobs", "/jobs/batch", "/jobs/bulk"])
def test_the_headers_of_a_request_become_meta(api: Any, path: str) -> None:
    headers = {"traceparent": PARENT, "tracestate": "congo=t61rcWkgMzE", "baggage": "user=7", "x-request-id": "r-1"}
    job = {"type": "a.b", "args": [], "meta": {"own": 1}}
    assert (
        api.post(path, job if path == "/jobs" else {"jobs": [job, {**job, "type": "a.c"}]}, **headers).status_code < 300
    )
    assert meta_of("a.b") == {
        "own": 1, "traceparent": PARENT, "tracestate": "congo=t61rcWkgMzE", "trace_id": TRACE, "baggage": "user=7",
        "request_id": "r-1",
    }  # fmt: skip
    assert Event.objects.filter(type="job.enqueued", trace_id=TRACE).exists()


@pytest.mark.parametrize("own", [{"traceparent": SECOND}, {"trace_id": "b" * 32}])
@pytest.mark.parametrize("place", ["meta", "options.meta", "options.metadata"])
def test_a_context_of_the_jobs_own_is_never_mixed_with_another(api: Any, own: dict[str, str], place: str) -> None:
    above, _, below = place.rpartition(".")
    document = {"options": {below: own}} if above else {"meta": own}
    api.post("/jobs", {"type": "a.b", "args": [], **document}, traceparent=PARENT, tracestate="x=y")
    assert meta_of("a.b") == own


@pytest.mark.parametrize(
    "header", ["", "nonsense", PARENT.upper(), "00-" + "0" * 32 + "-00f067aa0ba902b7-01", "ff" + PARENT[2:]]
)
def test_a_header_that_is_no_traceparent_counts_as_none(api: Any, header: str) -> None:
    api.post("/jobs", {"type": "a.b", "args": []}, traceparent=header, tracestate="x=y")
    assert Job.objects.get().meta == {}


def test_an_invalid_traceparent_of_the_jobs_own_stays(api: Any) -> None:
    job = api.push("a.b", meta={"traceparent": "nonsense"})
    assert job["meta"] == {"traceparent": "nonsense"}
    assert Event.objects.get(type="job.enqueued").trace_id == ""


def test_headers_never_make_a_job_too_large(api: Any, settings: Any) -> None:
    settings.OJS = {**settings.OJS, "MAX_META_BYTES": 400}
    api.push("a.b", meta={"x": "y" * 100})
    headers = {"traceparent": PARENT, "baggage": "k=" + "v" * 300}
    api.post("/jobs", {"type": "a.c", "args": [], "meta": {"x": "y" * 100}}, **headers)
    assert set(meta_of("a.c")) == {"x", "traceparent", "trace_id"}
    api.post("/jobs", {"type": "a.d", "args": [], "meta": {"x": "y" * 380}}, **headers)
    assert set(meta_of("a.d")) == {"x"}


@pytest.mark.parametrize("body", [{"type": "a.b", "args": [], "meta": 5}, {"type": "a.b", "args": [], "options": 5}, 7])
def test_headers_do_not_hide_what_is_wrong(api: Any, body: Any) -> None:
    assert api.post("/jobs", body, traceparent=PARENT).status_code == 400


def test_nothing_of_a_request_is_left_for_the_next(api: Any) -> None:
    api.post("/jobs", {"type": "a.b", "args": []}, traceparent=PARENT)
    api.post("/jobs", {"type": "a.b", "args": [], "id": "no uuid"}, traceparent=PARENT)
    enqueue("later.on")
    api.push("also.later")
    assert meta_of("later.on") == meta_of("also.later") == {}


def test_all_steps_of_a_workflow_carry_the_context_of_whoever_made_it(api: Any) -> None:
    steps = [{"type": "s.one", "args": []}, {"type": "s.two", "args": []}]
    assert api.post("/workflows", {"type": "chain", "name": "x", "steps": steps}, traceparent=PARENT).status_code == 201
    first = api.fetch()
    api.post("/workers/ack", {"job_id": first["id"]}, traceparent=SECOND)
    assert meta_of("s.one") == meta_of("s.two") == {"traceparent": PARENT, "trace_id": TRACE}
    assert set(Event.objects.filter(job_id__isnull=False).values_list("trace_id", flat=True)) == {TRACE}


def test_a_step_does_not_take_the_context_of_the_worker_before_it(api: Any) -> None:
    api.post("/workflows", {"type": "chain", "steps": [{"type": "s.one", "args": []}, {"type": "s.two", "args": []}]})
    api.post("/workers/ack", {"job_id": api.fetch()["id"]}, traceparent=SECOND, **{"x-request-id": "r"})
    assert meta_of("s.two") == {}


def test_every_event_of_a_job_carries_its_trace(api: Any) -> None:
    api.post("/jobs", {"type": "a.b", "args": [], "retry": {"initial_interval": "PT1S"}}, traceparent=PARENT)
    job = api.fetch(worker_id="w")
    api.post("/workers/heartbeat", {"worker_id": "w", "active_jobs": [job["id"]]})
    api.post("/workers/nack", {"job_id": job["id"], "error": {"message": "no"}})
    api.delete(f"/jobs/{job['id']}")
    events = Event.objects.filter(job_id__isnull=False)
    assert {"job.enqueued", "job.started", "job.heartbeat", "job.failed", "job.retrying", "job.cancelled"} <= set(
        events.values_list("type", flat=True)
    )
    assert set(events.values_list("trace_id", flat=True)) == {TRACE}
    assert all(event["data"]["trace_id"] == TRACE for event in api.get("/events", {"types": "job.*"}).json()["events"])


# Without an SDK


def test_the_current_span_is_carried_without_an_sdk() -> None:
    remote = trace.SpanContext(
        int(TRACE, 16), int("00f067aa0ba902b7", 16), is_remote=True, trace_flags=trace.TraceFlags(1)
    )
    with trace.use_span(trace.NonRecordingSpan(remote)):
        enqueue("a.b")
    assert meta_of("a.b") == {"traceparent": PARENT, "trace_id": TRACE}


def test_without_opentelemetry_everything_else_works(api: Any, handlers: Registry, monkeypatch: Any) -> None:
    monkeypatch.setattr(tracing, "_spans", None)
    monkeypatch.setitem(sys.modules, "django_ojs.telemetry.spans", None)
    monkeypatch.delattr("django_ojs.telemetry.spans")
    api.post("/jobs", {"type": "a.b", "args": []}, traceparent=PARENT)
    assert meta_of("a.b")["trace_id"] == TRACE
    assert run_next(handlers, lambda: 5).result == "5"
    assert tracing._spans is False
    assert tracing.current_ids() == ("", "")


# Spans


def test_enqueueing_and_running_are_one_trace(sdk: Made, handlers: Registry) -> None:
    with sdk.tracer.start_as_current_span("request"):
        enqueue("a.b", 1, queue="default")
    run_next(handlers, lambda number: number)
    request, made, ran = sdk.one("request"), sdk.one("ojs.enqueue a.b"), sdk.one("ojs.execute a.b")
    assert (made.kind, ran.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert {trace_of(span) for span in (request, made, ran)} == {trace_of(request)}
    assert made.parent is not None
    assert made.parent.span_id == request.context.span_id
    assert ran.parent is not None
    assert ran.parent.span_id == made.context.span_id
    assert [link.context.span_id for link in ran.links] == [made.context.span_id]
    assert made.status.status_code == ran.status.status_code == StatusCode.OK
    job = Job.objects.get()
    both = {
        "messaging.system": "ojs", "messaging.destination.name": "default", "messaging.message.id": str(job.pk),
        "ojs.job.id": str(job.pk), "ojs.job.type": "a.b", "ojs.job.queue": "default", "ojs.job.priority": 0,
        "messaging.message.body.size": 3, "ojs.backend.type": connection.vendor,
        "ojs.backend.version": django_ojs.__version__,
    }  # fmt: skip
    assert made.attributes is not None
    assert ran.attributes is not None
    assert both.items() <= made.attributes.items()
    assert made.attributes["messaging.operation.type"] == "publish"
    assert made.attributes["ojs.job.state"] == "available"
    ours = {
        "messaging.operation.type": "process", "ojs.worker.id": "w1", "ojs.job.attempt": 1, "ojs.job.state": "active",
    }  # fmt: skip
    assert (both | ours).items() <= ran.attributes.items()
    assert "ojs.workflow.id" not in ran.attributes


def test_linked_spans_are_named_by_queue_and_have_no_parent(sdk: Made, handlers: Registry, settings: Any) -> None:
    settings.OJS = {**settings.OJS, "TRACING": "link"}
    enqueue("a.b")
    run_next(handlers, lambda: None)
    made, ran = sdk.one("default enqueue"), sdk.one("default process")
    assert ran.parent is None
    assert [link.context.span_id for link in ran.links] == [made.context.span_id]
    assert trace_of(ran) != trace_of(made)


def test_no_spans_where_the_site_wants_none(sdk: Made, handlers: Registry, settings: Any) -> None:
    settings.OJS = {**settings.OJS, "TRACING": "off"}
    with sdk.tracer.start_as_current_span("request") as request:
        enqueue("a.b")
    run_next(handlers, lambda: None)
    assert [span.name for span in sdk.all()] == ["request"]
    assert meta_of("a.b")["trace_id"] == trace.format_trace_id(request.get_span_context().trace_id)


def test_a_request_of_a_framework_without_instrumentation_is_the_parent(sdk: Made, api: Any) -> None:
    api.post("/jobs", {"type": "a.b", "args": []}, traceparent=PARENT, tracestate="x=y", **{"x-request-id": "r-1"})
    made = sdk.one("ojs.enqueue a.b")
    assert trace_of(made) == TRACE
    meta = meta_of("a.b")
    assert meta["traceparent"] == f"00-{TRACE}-{trace.format_span_id(made.context.span_id)}-01"
    assert (meta["tracestate"], meta["trace_id"], meta["request_id"]) == ("x=y", TRACE, "r-1")


def test_every_attempt_has_a_span_and_a_failure_its_error(sdk: Made, handlers: Registry) -> None:
    def broken() -> None:
        raise LookupError("nothing there")

    enqueue("a.b")
    run_next(handlers, broken)
    fail([Failure(Job.objects.get().pk, requeue=True)])
    run_next(handlers, broken)
    first, second = sdk.all("ojs.execute a.b")
    assert first.context.span_id != second.context.span_id
    assert trace_of(first) == trace_of(second)
    assert first.status.status_code is StatusCode.ERROR
    assert first.attributes is not None
    assert second.attributes is not None
    assert (first.attributes["error.message"], first.attributes["ojs.job.error.attempt"]) == ("nothing there", 1)
    assert "LookupError" in str(first.attributes["error.type"])
    assert second.attributes["ojs.job.error.attempt"] == 2
    (event,) = first.events
    assert event.name == "exception"
    assert event.attributes is not None
    assert event.attributes["exception.message"] == "nothing there"


@pytest.mark.parametrize("is_async", [False, True])
def test_a_hidden_error_is_in_no_span(sdk: Made, handlers: Registry, settings: Any, is_async: bool) -> None:
    def broken() -> None:
        raise LookupError("hunter2")

    async def abroken() -> None:
        raise LookupError("hunter2")

    settings.OJS = {**settings.OJS, "REDACT": {"types": {"a.*": ["errors"]}}}
    enqueue("a.b")
    run_next(handlers, abroken if is_async else broken)
    span = sdk.one("ojs.execute a.b")
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes is not None
    assert span.attributes["error.type"] == "LookupError"
    assert "hunter2" not in span.to_json()


@pytest.mark.parametrize("rule", [{"types": {"a.*": ["args"]}}, {"classified": True}, {"keys": ["pin"]}])
def test_no_span_says_how_long_hidden_arguments_are(
    sdk: Made, handlers: Registry, settings: Any, rule: dict[str, Any]
) -> None:
    def take(pin: str) -> None: ...

    for shown in (True, False):
        settings.OJS = {**settings.OJS, "REDACT": {} if shown else rule}
        enqueue("a.b", "1234")
        run_next(handlers, take)
        for span in sdk.all()[-2:]:
            assert ("messaging.message.body.size" in (span.attributes or {})) is shown


def test_a_snooze_is_no_error(sdk: Made, handlers: Registry) -> None:
    def later() -> None:
        raise Snooze("5s")

    enqueue("a.b")
    run_next(handlers, later)
    assert sdk.one("ojs.execute").status.status_code is StatusCode.OK
    assert sdk.one("ojs.execute").events == ()


@pytest.mark.parametrize("is_async", [False, True])
def test_a_handler_runs_in_its_span_and_may_enqueue(sdk: Made, handlers: Registry, is_async: bool) -> None:
    seen: list[Any] = []

    def handler() -> None:
        seen.append((trace.get_current_span().get_span_context().span_id, baggage.get_baggage("user")))
        enqueue("c.d") if not is_async else None

    async def ahandler() -> None:
        handler()

    token = attach(baggage.set_baggage("user", "7"))
    enqueue("a.b")
    detach(token)
    if is_async:
        (row,) = fetch(Fetch(["default"], worker_id="w1", columns=CONTEXT_COLUMNS))
        run = JobRun(row, job("a.b")(ahandler), time.monotonic(), NoLink())
        asyncio.run(aexecute(run))
    else:
        run_next(handlers, handler)
        child = sdk.one("ojs.enqueue c.d")
        assert child.parent is not None
        assert child.parent.span_id == sdk.one("ojs.execute a.b").context.span_id
    assert seen == [(sdk.one("ojs.execute a.b").context.span_id, "7")]
    assert not trace.get_current_span().get_span_context().is_valid


def test_a_trace_id_alone_is_honoured(sdk: Made, handlers: Registry) -> None:
    push([{"type": "a.b", "args": [], "meta": {"trace_id": TRACE}}])
    run_next(handlers, lambda: None)
    assert trace_of(sdk.one("ojs.execute a.b")) == TRACE


@pytest.mark.parametrize(
    "meta", [{"traceparent": "nonsense"}, {"trace_id": "not hex"}, {"trace_id": "z" * 32}, {"traceparent": 5}]
)
def test_a_broken_context_begins_a_trace_of_its_own(sdk: Made, handlers: Registry, meta: dict[str, Any]) -> None:
    push([{"type": "a.b", "args": [], "meta": meta}])
    run_next(handlers, lambda: None)
    assert sdk.one("ojs.execute a.b").parent is None


def test_many_jobs_are_one_span(sdk: Made) -> None:
    enqueue_many([("a.b", [n]) for n in range(50)])
    made = sdk.one("ojs.enqueue")
    assert made.attributes is not None
    assert made.attributes["messaging.batch.message_count"] == 50
    ids = {job.meta["traceparent"].split("-")[2] for job in Job.objects.all()}
    assert ids == {trace.format_span_id(made.context.span_id)}


def test_a_refused_push_is_an_error_in_its_span(sdk: Made, api: Any) -> None:
    assert api.post("/jobs", {"type": "NOT A TYPE", "args": []}).status_code == 400
    made = sdk.one("ojs.enqueue")
    assert made.status.status_code is StatusCode.ERROR
    assert made.events[0].name == "exception"


def test_a_step_with_a_context_of_its_own_keeps_it_and_its_span_is_a_child_of_it(sdk: Made) -> None:
    own = {"traceparent": PARENT, "tracestate": "vendor=1"}
    create({"type": "group", "jobs": [{"type": "s.one", "args": [], "meta": own}, {"type": "s.two", "args": []}]})
    assert Job.objects.get(type="s.one").meta == own
    assert [f"{sdk.one('ojs.enqueue s.one').context.trace_id:032x}"] == [TRACE]
    assert sdk.one("ojs.enqueue s.two").context.trace_id == sdk.one("ojs.workflow").context.trace_id


def test_a_member_that_is_refused_has_a_span_that_says_so(sdk: Made) -> None:
    unique = {"keys": ["type"], "on_conflict": "reject"}
    push([{"type": "s.one", "args": [], "unique": unique}])
    with pytest.raises(OJSError):
        create({"type": "chain", "steps": [{"type": "s.one", "args": [], "unique": unique}]})
    assert [span.status.status_code for span in sdk.all("ojs.enqueue s.one")] == [StatusCode.OK, StatusCode.ERROR]


def test_a_workflow_is_one_trace(sdk: Made, handlers: Registry) -> None:
    steps = [{"type": "s.one", "args": []}, {"type": "s.two", "args": []}]
    create({"type": "chain", "name": "nightly", "steps": steps})
    for step in steps:
        job(str(step["type"]))(lambda: None)
    for job_type in ("s.one", "s.two"):
        (row,) = fetch(Fetch(["default"], worker_id="w1", columns=CONTEXT_COLUMNS))
        definition = handlers.get(job_type)
        assert definition is not None
        execute(JobRun(row, definition, time.monotonic(), NoLink()))
        ack([Ack(row["id"])])
    flow = sdk.one("ojs.workflow nightly")
    ran = [sdk.one("ojs.execute s.one"), sdk.one("ojs.execute s.two")]
    assert flow.kind is SpanKind.INTERNAL
    made = [sdk.one("ojs.enqueue s.one"), sdk.one("ojs.enqueue s.two")]
    assert [span.kind for span in made] == [SpanKind.PRODUCER] * 2
    assert [span.parent and span.parent.span_id for span in made] == [flow.context.span_id] * 2
    assert [span.parent and span.parent.span_id for span in ran] == [span.context.span_id for span in made]
    assert {span.context.trace_id for span in sdk.all()} == {flow.context.trace_id}
    assert {tuple(sorted(row.meta)) for row in Job.objects.all()} == {("trace_id", "traceparent")}
    for step, span in enumerate([*ran, flow]):
        assert span.attributes is not None
        named = {name: value for name, value in span.attributes.items() if name.startswith("ojs.workflow.")}
        where = {"ojs.workflow.step": step} if span is not flow else {"ojs.workflow.steps": 2}
        assert named == {"ojs.workflow.id": str(Workflow.objects.get().pk), "ojs.workflow.type": "chain"} | where
