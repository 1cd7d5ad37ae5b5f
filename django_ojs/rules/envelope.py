"""The job envelope: from what a client sends to the values of a job, and from a job's row to what it reads.

`parse` reads every attribute at the top level and inside `options` (binding 3.1 to 3.3) and keeps what the
client wrote in `JobSpec.extra`; `render` puts that back around the server's own attributes (3.4, 3.5). Each
attribute has its reader in `rules/attributes.py`, with the sizes. No database here.
"""

from __future__ import annotations

import datetime as dt
import marshal
import re
import uuid
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from django.core.signals import setting_changed

from django_ojs import clock, jsontext
from django_ojs.conf import Settings, ojs_settings
from django_ojs.errors import OJSError
from django_ojs.messages import phrase
from django_ojs.rules import attributes, problems
from django_ojs.rules.attributes import SPECVERSION, AttributeSource
from django_ojs.rules.durations import format_instant
from django_ojs.rules.faults import job_fault
from django_ojs.rules.ratelimit import RatePolicy
from django_ojs.rules.unique import UniquePolicy
from django_ojs.states import State

MAX_TRACE_ID = 64

#: The member in which `render` adds the stored retry policy that is in force, where `with_policy` is set. Only the gRPC
#: binding shows that policy.
POLICY_MEMBER = "__ojs_retry_policy"
with_policy: ContextVar[bool] = ContextVar("with_policy", default=False)

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")


@dataclass
class JobSpec:
    """A valid job that a client asks for. Times are UTC, durations milliseconds; None is what the client did not give.

    `retry` holds the given fields by their names in `RetryPolicy`, `unique` the policy as sent. `extra` is
    everything to echo; the three texts are the JSON of `args`, `meta` and `extra` ('' without one), made once
    for measuring and storing. `form` is what the job shares with many others, where it does: see `_forms`.
    """

    id: uuid.UUID
    type: str
    queue: str
    args: list[Any]
    meta: dict[str, Any]
    priority: int = 0
    pending: bool = False
    scheduled_at: dt.datetime | None = None
    expires_at: dt.datetime | None = None
    timeout_ms: int | None = None
    visibility_ms: int | None = None
    other_timeouts_ms: dict[str, int] = field(default_factory=dict)  #: `total_timeout` and more, see `timeouts.others`
    retry: dict[str, Any] = field(default_factory=dict)
    unique: dict[str, Any] | None = None
    unique_policy: UniquePolicy | None = None
    unique_path: str = field(default="unique", compare=False)  #: where the client gave the policy
    unique_key: str = ""
    result_ttl: int | None = None
    workflow_id: uuid.UUID | None = None  #: set by the workflow that the job belongs to, never by a client
    rate_limit: RatePolicy | None = None
    trace_id: str = ""
    warnings: tuple[dict[str, Any], ...] = ()  #: which of its members mean nothing, for the answer
    extra: dict[str, Any] = field(default_factory=dict)
    args_text: str = "[]"
    meta_text: str = "{}"
    extra_text: str = ""
    form: JobSpec | None = field(default=None, repr=False, compare=False)


class ReadJob(Protocol):
    """Reads a document in the words of the specification. `sent` is the same in the client's own words, where those
    were others: answers echo its policies."""

    def __call__(self, document: dict[str, Any], sent: dict[str, Any] | None = None, /) -> JobSpec: ...


#: Called with a document in any words, and with what reads one in those of the specification.
Respelled: TypeAlias = Callable[[dict[str, Any], ReadJob], JobSpec]


def parse(
    document: object,
    *,
    now: dt.datetime,
    settings: Settings = ojs_settings,
    index: int | None = None,
    respelled: Respelled | None = None,
) -> JobSpec:
    """The job that a client's `document` asks for; `index` is its place in a batch, for the error.

    `respelled` reads a document in other words than those of the specification (`spellings`). It is asked only where
    this process does not remember what such a document says.

    Raises InvalidPayload (400; 422 for retry values), PayloadTooLarge or MetadataTooLarge (413).
    """
    try:
        if not isinstance(document, dict):
            raise job_fault("job", phrase("must be a JSON object with at least type and args"), document)
        return _parse(document, now, settings, respelled)
    except OJSError as error:
        if index is not None:
            locate(error, index)
        raise


def render(row: Mapping[str, Any], *, dialect: str | None = None) -> dict[str, Any]:
    """The envelope of a job's row (binding 3.4, 3.5): what is not set is absent. `dialect` defaults to the site's."""
    state = row["state"]
    envelope: dict[str, Any] = {
        "specversion": SPECVERSION,
        "id": str(row["id"]),
        "type": row["type"],
        "queue": row["queue"],
        "args": jsontext.loads(row["args"]),
        "meta": jsontext.loads(row["meta"]) if row["meta"] != "{}" else {},
        "priority": row["priority"],
    }
    if row["extra"]:
        envelope |= jsontext.loads(row["extra"])
    if row.get("workflow_id") is not None:
        envelope["workflow_id"] = str(row["workflow_id"])
        envelope |= row.get("lineage", {})  # put there by workflows.graphs
    envelope["state"] = str(state)
    envelope["attempt"] = row["attempt"]
    envelope["max_attempts"] = row["max_attempts"]
    if "progress" in row:  # put there by jobs.progress
        envelope |= row["progress"]
    if "checkpoint" in row:  # put there by jobs.checkpoints
        kept = jsontext.loads(row["checkpoint"].state)
        envelope["checkpoint"] = {"state": kept, "sequence": row["checkpoint"].sequence}
        envelope["last_checkpoint"] = kept
    errors = jsontext.loads(row["errors"]) if row["errors"] else []
    _render_times(envelope, row, state)
    _render_end(envelope, row, state, errors, dialect)
    if errors:
        if state != State.COMPLETED:
            envelope["error"] = errors[-1]
        envelope["errors"] = errors
    if row["result"] is not None:
        _render_result(envelope, row)
    if state == State.ACTIVE and row["worker_id"]:
        envelope["worker_id"] = row["worker_id"]
    if with_policy.get() and "retry" in row:
        envelope[POLICY_MEMBER] = row["retry"]
    return envelope


def trace_id_of(meta: Mapping[str, Any]) -> str:
    """The trace a job belongs to: `meta.trace_id`, else the one inside a valid `traceparent`, else ''."""
    given = meta.get("trace_id")
    if isinstance(given, str) and given and given.isprintable():
        return given[:MAX_TRACE_ID]
    return trace_id_in(meta.get("traceparent"))


def trace_id_in(parent: object) -> str:
    """The trace id inside a `traceparent`, '' in one that is not valid."""
    found = _TRACEPARENT.fullmatch(parent) if isinstance(parent, str) else None
    return found[1] if found else ""


def _parse(
    document: dict[str, Any], now: dt.datetime, settings: Settings, respelled: Respelled | None
) -> JobSpec:  # fmt: skip
    signature = _signature(document) if settings is ojs_settings else None
    if respelled is None and signature is not None:
        signature += _AS_SPECIFIED
    form = None if signature is None else _forms.get(signature)
    if not form:

        def read(canonical: dict[str, Any], sent: dict[str, Any] | None = None) -> JobSpec:
            return _finished(_read(canonical, now, settings, sent), document, settings)

        spec = read(document) if respelled is None else respelled(document, read)
        if signature is not None and form is None:
            _remember(signature, now, respelled)
        return spec
    spec = object.__new__(JobSpec)
    spec.__dict__ = form.__dict__.copy()  # takes a third of the time of its update
    spec.id = attributes.job_id(document)
    spec.args = attributes.args(document)
    spec.meta = attributes.meta(document, _NO_OPTIONS)
    if line := {name: document[name] for name in LINE if name in document}:
        spec.extra = spec.extra | line
        spec.extra_text = attributes.to_text(spec.extra, "job")
    return _finished(spec, document, settings)


def _read(
    document: dict[str, Any], now: dt.datetime, settings: Settings, sent: dict[str, Any] | None = None
) -> JobSpec:  # fmt: skip
    """All attributes as the client gave them."""
    source = AttributeSource(document)
    extra: dict[str, Any] = {}
    plain = document.keys() <= _PLAIN
    if not plain:
        attributes.check_members(document, settings.MAX_ENVELOPE_BYTES)
        extra = source.unknown()
        attributes.version(source, extra)
    attributes.check_specversion(source)
    spec = JobSpec(
        id=attributes.job_id(document),
        type=attributes.job_type(source, extra, hyphens=settings.DIALECT == "published"),
        queue=attributes.queue(source),
        args=attributes.args(document),
        meta=attributes.meta(document, source.options),
        priority=attributes.job_priority(source, settings.PRIORITY_LEVELS),
        extra=extra,
    )
    if not plain:
        _read_rest(spec, source, now)
    if sent is not None:
        _echo(spec, AttributeSource(sent))
    if extra:
        spec.extra_text = attributes.to_text(extra, "job")
    return spec


def _echo(spec: JobSpec, sent: AttributeSource) -> None:
    """Let answers have the policies in the client's own words."""
    if "retry" in spec.extra:
        spec.extra["retry"] = sent.find("retry").value
    if "unique" in spec.extra:
        spec.extra["unique"] = spec.unique = sent.find("unique").value
    if "rate_limit" in spec.extra:
        spec.extra["rate_limit"] = sent.find("rate_limit").value


#: An envelope with nothing else has no options, no times and no policies to look for.
_PLAIN = frozenset({"specversion", "id", "type", "queue", "args", "meta", "priority"})


def _read_rest(spec: JobSpec, source: AttributeSource, now: dt.datetime) -> None:
    """The attributes that most jobs do without."""
    extra = spec.extra
    spec.pending = attributes.pending(source)
    spec.scheduled_at = attributes.scheduled_at(source, extra, now)
    spec.expires_at = attributes.expires_at(source, extra, now)
    spec.timeout_ms = attributes.execution_timeout(source, extra)
    spec.visibility_ms = attributes.visibility_timeout(source, extra)
    spec.retry = attributes.retry_policy(source, extra)
    spec.unique = attributes.unique(source, extra)
    spec.other_timeouts_ms = attributes.other_timeouts(source, extra, spec.timeout_ms)
    attributes.schema(source, extra)
    attributes.tags(source, extra)
    spec.rate_limit = attributes.rate_limit(source, extra)
    spec.result_ttl = attributes.result_ttl(source, extra)
    spec.unique_policy = attributes.unique_policy(source)
    spec.unique_path = source.find("unique").path
    spec.warnings = problems.warnings(problems.unknown_in_job(source.document))


def _finished(spec: JobSpec, document: dict[str, Any], settings: Settings) -> JobSpec:
    """What is made of the arguments and of `meta`: the texts, whose sizes are checked, the trace, the unique key."""
    if spec.args:
        spec.args_text = attributes.to_text(spec.args, "args", "INVALID_ARGS")
    if spec.meta:
        spec.meta_text = attributes.to_text(spec.meta, "meta", "INVALID_METADATA")
        spec.trace_id = trace_id_of(spec.meta)
    policy = spec.unique_policy
    if policy is not None:
        if "args" in policy.dimensions and attributes.is_encoded(spec.meta):
            spec.unique_policy = None  # a key made of them would mean nothing (orchestration 7)
        else:
            spec.unique_key = attributes.unique_key(policy, spec.unique_path, spec)
    texts = (spec.args_text, spec.meta_text, spec.extra_text)
    if spec.meta:
        attributes.check_meta(spec.meta_text, settings.MAX_META_BYTES)
    attributes.check_envelope(document, texts, settings.MAX_ENVELOPE_BYTES)
    if not attributes.is_simple(texts):
        attributes.check_shape({"args": spec.args, "meta": spec.meta, **spec.extra})
    return spec


# Most jobs of a site are of a few forms: they differ in `id`, `args` and `meta`, in which job enqueued them, and in
# nothing else. Each process remembers what it has read of the rest.

#: By the signature of the rest: the job that it asks for; None where it was seen only once, False where it says
#: something else each time.
_forms: dict[bytes, JobSpec | Literal[False] | None] = {}
MOST_FORMS, _LONGEST_FORM = 512, 2048  #: entries; bytes
#: The members that differ.
_OWN = frozenset({"id", "args", "meta"})
#: And those that say where a job comes from, if they are ids: the server only keeps them.
LINE = ("parent_id", "root_id")
_LENGTH_OF_ID = 36
_NO_OPTIONS: Mapping[str, Any] = {}


#: Behind the signature of an envelope that is read in the words of the specification only. `marshal` passes over it.
_AS_SPECIFIED = b"\0"


def _signature(document: dict[str, Any]) -> bytes | None:
    """What envelopes have in common that have the same rest; None for one that is too unusual to be remembered. In it
    1, 1.0 and true differ."""
    rest = {name: value for name, value in document.items() if name not in _OWN}
    for name in LINE:
        value = rest.get(name)
        if isinstance(value, str) and len(value) == _LENGTH_OF_ID and value.isascii():
            del rest[name]
    try:
        signature = marshal.dumps(rest, 2)  # a later version writes equal values in several ways
    except ValueError:  # there is more than JSON knows, or an `ExactNumber`
        return None
    return signature if len(signature) <= _LONGEST_FORM else None


def _remember(signature: bytes, now: dt.datetime, respelled: Respelled | None) -> None:
    """Record that an envelope with this rest is valid; when it has come twice, keep what it says.

    That is read from a copy, which no caller can change later. It is not kept where it has times, which may be relative
    to now, or `meta` among its options, which stands beside that of each job.
    """
    if signature not in _forms:
        if len(_forms) >= MOST_FORMS:
            _forms.clear()
        _forms[signature] = None
        return
    rest = {**marshal.loads(signature), "args": []}  # noqa: S302 - `_signature` wrote it

    def read(canonical: dict[str, Any], sent: dict[str, Any] | None = None) -> JobSpec:
        return _read(canonical, now, ojs_settings, sent)

    form = read(rest) if respelled is None else respelled(rest, read)
    form.form = form
    _forms[signature] = form if form.scheduled_at is None and form.expires_at is None and not form.meta else False


def forget() -> None:
    """Drop what this process remembers of envelopes."""
    _forms.clear()


def _settings_changed(*, setting: str, **kwargs: Any) -> None:
    if setting == "OJS":
        forget()


setting_changed.connect(_settings_changed, dispatch_uid="django_ojs.rules.envelope")


def locate(error: OJSError, index: int) -> None:
    """Name the job of the batch in the error's message and details: `jobs[3].type: ...`."""
    message = error.message
    if message.startswith("job: "):
        error.message = f"jobs[{index}]{message.removeprefix('job')}"
    elif message.startswith(f"{error.details.get('field')}: "):
        error.message = f"jobs[{index}].{message}"
    else:
        error.message = f"jobs[{index}]: {message}"
    error.args = (error.message,)
    error.details["index"] = index


def _render_result(envelope: dict[str, Any], row: Mapping[str, Any]) -> None:
    """The result with its dates, as long as it is to be kept (jobs 8)."""
    end = result_expires_at(row)
    if result_is_gone(row, clock.now()):
        return
    envelope["result"] = jsontext.loads(row["result"])
    if row["finished_at"] is not None:
        envelope["result_stored_at"] = format_instant(row["finished_at"])
        envelope["result_size_bytes"] = jsontext.byte_length(row["result"])
    if end is not None:
        envelope["result_expires_at"] = format_instant(end)


def _render_times(envelope: dict[str, Any], row: Mapping[str, Any], state: str) -> None:
    envelope["created_at"] = format_instant(row["created_at"])
    if row["enqueued_at"] is not None and state not in (State.SCHEDULED, State.PENDING):
        envelope["enqueued_at"] = format_instant(row["enqueued_at"])
    for name in ("started_at", "activated_at"):
        if row[name] is not None:
            envelope[name] = format_instant(row[name])
    if row["retry_delay_ms"] is not None:
        envelope["retry_delay_ms"] = row["retry_delay_ms"]
    if state == State.RETRYABLE and row["due_at"] is not None:
        envelope["next_attempt_at"] = envelope["next_retry_at"] = format_instant(row["due_at"])


def _render_end(
    envelope: dict[str, Any], row: Mapping[str, Any], state: str, errors: list[Any], dialect: str | None
) -> None:
    """The terminal time under the name that belongs to the state."""
    if row["finished_at"] is None:
        return
    finished = format_instant(row["finished_at"])
    if state == State.CANCELLED:
        envelope["cancelled_at"] = finished
    elif state == State.COMPLETED:
        envelope["completed_at"] = finished
    elif state == State.DISCARDED:
        envelope["discarded_at"] = finished
        expired = bool(errors) and errors[-1].get("type") == "expired"
        if not (expired and (dialect or ojs_settings.DIALECT) == "published"):
            envelope["completed_at"] = finished


# How long the result of a job is kept (jobs 8)

FOR_EVER = -1


def result_ttl(row: Mapping[str, Any]) -> int:
    """Seconds from the end of the job, or `FOR_EVER`; the job's own, else the site's."""
    own = row["result_ttl"]
    if own is not None:
        return int(own)
    return FOR_EVER if ojs_settings.RESULT_TTL is None else ojs_settings.RESULT_TTL


def result_expires_at(row: Mapping[str, Any]) -> dt.datetime | None:
    """When the result goes; None: never, or not before the job has ended. Members of workflows keep theirs."""
    ttl = result_ttl(row)
    if row["finished_at"] is None or ttl == FOR_EVER or row["workflow_id"] is not None:
        return None
    end: dt.datetime = row["finished_at"]
    try:
        return end + dt.timedelta(seconds=ttl)
    except OverflowError:
        return None


def result_is_gone(row: Mapping[str, Any], now: dt.datetime) -> bool:
    """Whether the result's time is over: to the second where the job names it, else once it was pruned."""
    end = result_expires_at(row)
    return end is not None and end <= now and (row["result_ttl"] is not None or row["result"] is None)
