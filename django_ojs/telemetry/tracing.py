"""Puts the trace context of the caller that enqueues a job into the job's `meta` (events specification 8).

It comes from the span that is current where OpenTelemetry is at work, else from the headers of the HTTP request.
A context that a job has already is never touched. This module needs no OpenTelemetry: `spans` does, and is asked
only where it is installed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar, Token
from types import ModuleType
from typing import TYPE_CHECKING, Any

from django_ojs import jsontext, spellings
from django_ojs.conf import ojs_settings
from django_ojs.rules.envelope import trace_id_in
from django_ojs.telemetry.tracecontext import MAX_BAGGAGE, MAX_TRACESTATE, TRACE_KEYS, joined

if TYPE_CHECKING:
    from django_ojs.rules.workflows import Plan

#: What the request brought that is being answered. `_DETACHED`: the jobs belong to no caller that this process knows.
_received: ContextVar[Mapping[str, str] | None] = ContextVar("ojs_received", default=None)
_DETACHED: Mapping[str, str] = {}
_spans: ModuleType | bool | None = None  #: False: OpenTelemetry is not installed, None: not looked yet


def receive(headers: Mapping[str, str], request_id: str = "") -> Token[Mapping[str, str] | None] | None:
    """Note what the headers of a request (as in `META`) say, until `forget`. None: nothing."""
    found = {"request_id": request_id} if request_id else {}
    parent = headers.get("HTTP_TRACEPARENT", "").strip()
    if trace_id := trace_id_in(parent):
        found |= {"traceparent": parent, "trace_id": trace_id}
        state = headers.get("HTTP_TRACESTATE", "").strip()
        if state and len(state) <= MAX_TRACESTATE and _is_plain(state):
            found["tracestate"] = state
    baggage = headers.get("HTTP_BAGGAGE", "").strip()
    if baggage and len(baggage) <= MAX_BAGGAGE and _is_plain(baggage):
        found["baggage"] = baggage
    return _received.set(found) if found else None


def forget(token: Token[Mapping[str, str] | None] | None) -> None:
    if token is not None:
        _received.reset(token)


@contextlib.contextmanager
def detached() -> Iterator[None]:
    """A block in which jobs are enqueued for themselves, such as the next step of a workflow: its documents carry
    the context of the caller that made the workflow, not of the worker that happened to complete the step before."""
    token = _received.set(_DETACHED)
    try:
        yield
    finally:
        _received.reset(token)


@contextlib.contextmanager
def enqueueing(documents: Sequence[Any]) -> Iterator[tuple[Sequence[Any], Callable[[Sequence[Any]], None] | None]]:
    """A block that pushes envelopes, each with the trace context, within a span where spans are made
    (`hooks.around_push`)."""
    received, spans = _received.get(), spans_in_use()
    if received is _DETACHED and spans is None:
        yield documents, None
    elif received is _DETACHED:
        with spans.enqueueing_members(documents) as members:
            yield members.documents, members.conclude
    elif spans is not None and documents:
        with spans.enqueueing(documents, received or {}) as span:
            yield with_context(documents, span.carrier), span.conclude
    else:
        yield with_context(documents, _ambient(received)), None


@contextlib.contextmanager
def creating(plan: Plan) -> Iterator[Callable[[str], None]]:
    """A block that stores a workflow: all of its jobs, those of later steps too, get the same context.

    It is given what to call with the workflow's id once there is one.
    """
    received = _received.get()
    made: Callable[[str], None] = _ignore
    with contextlib.ExitStack() as stack:
        if received is _DETACHED:
            context: Mapping[str, str] = {}
        elif (spans := spans_in_use()) is not None:
            context, made = stack.enter_context(spans.workflow(plan, received or {}))
        else:
            context = _ambient(received)
        for step in plan.steps:
            if step.document is not None:
                (step.document,) = with_context([step.document], context)
        yield made


def _ignore(workflow_id: str) -> None:
    """For a process that makes no spans: the id goes nowhere."""


def spans_in_use() -> Any:
    """The module `spans` where an SDK of OpenTelemetry is at work and the site wants spans; else None."""
    spans = _loaded()
    return spans if spans and ojs_settings.TRACING != "off" and spans.is_on() else None


def record(exc: BaseException) -> None:
    """Note an exception in the span of the run that raised it."""
    if (spans := spans_in_use()) is not None:
        spans.record(exc)


def current_ids() -> tuple[str, str]:
    """The ids of the current trace and span, '' without one."""
    spans = _loaded()
    return spans.current_ids() if spans else ("", "")


def ids_of(meta: Mapping[str, Any]) -> tuple[str, str]:
    """The ids of the current trace and span, or else those that a job's `meta` has; '' without any."""
    if any(current := current_ids()):
        return current
    parts = str(meta.get("traceparent", "")).split("-")
    return (parts[1], parts[2]) if len(parts) == 4 and trace_id_in(meta["traceparent"]) else ("", "")


def with_context(documents: Sequence[Any], context: Mapping[str, str]) -> Sequence[Any]:
    """The envelopes with what their `meta` lacks of `context`; what is no envelope stays for PUSH to refuse."""
    return [_completed(document, context) for document in documents] if context else documents


def _completed(document: Any, context: Mapping[str, str]) -> Any:
    meta = document.get("meta") if isinstance(document, dict) else ""
    if not isinstance(meta, dict | None):
        return document
    taken = {key for layer in spellings.metas(document) for key in layer}
    if not taken.isdisjoint(TRACE_KEYS):
        taken |= TRACE_KEYS
    added = {key: value for key, value in context.items() if key not in taken}
    whole = {**(meta or {}), **added}
    if "baggage" in added and _is_too_large(whole):
        del added["baggage"], whole["baggage"]
    # A header must not make a job too large that was not.
    return document if not added or (meta and _is_too_large(whole)) else {**document, "meta": whole}


def _is_too_large(meta: dict[str, Any]) -> bool:
    return len(jsontext.dumps(meta).encode(errors="replace")) > ojs_settings.MAX_META_BYTES


def _ambient(received: Mapping[str, str] | None) -> Mapping[str, str]:
    """The current context of an application that makes no spans here, and what the request brought."""
    spans = _loaded()
    current: dict[str, str] = spans.current() if spans else {}
    return joined(received or {}, current)


def _loaded() -> Any:
    global _spans
    if _spans is None:
        try:
            from django_ojs.telemetry import spans
        except ImportError:
            _spans = False
        else:
            _spans = spans
    return _spans


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable()
