"""The messages of the gRPC binding as the JSON objects of the HTTP binding, and back, without loss.

`to_document` makes of a request the body that HTTP would have received, and of an answer what HTTP would have answered;
`to_message` is the way back. For each message, `SHAPES` has a table that says which member of the JSON object each
field is. In a request a field beats the attribute of its name; in an answer the attribute does, which is the exact one.
What messages say differently from JSON is in functions: options, batches, errors, answers that repeat a job.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from google.protobuf.message import Message

from django_ojs import spellings
from django_ojs.conf import ojs_settings
from django_ojs.errors import OJSError
from django_ojs.grpc import values
from django_ojs.grpc.shapes import (
    COUNT,
    DOUBLE,
    DURATION,
    FLAG,
    INSTANT,
    INTEGER,
    MILLISECONDS,
    OBJECT,
    RESULT,
    TEXT,
    TEXTS,
    TTL,
    VALUES,
    Document,
    FieldKind,
    MessageShape,
    Unfit,
    Words,
    nested,
    repeated,
    same,
)  # fmt: skip
from django_ojs.grpc.values import UnreadableMessage
from django_ojs.http import body
from django_ojs.rules import durations, envelope, retrypolicy, unique
from django_ojs.rules.faults import fault, job_fault, workflow_fault

JOB_STATES = Words("JobState", "JOB_STATE_")
CONFLICTS = Words("UniqueConflictAction", "UNIQUE_CONFLICT_ACTION_", {"use_existing": "ignore"})
WORKER_STATES = Words("WorkerState", "WORKER_STATE_")
WORKFLOW_STATES = Words("WorkflowState", "WORKFLOW_STATE_", {"active": "running"})
STEP_STATES = Words("WorkflowStepState", "WORKFLOW_STEP_STATE_")
HEALTH = Words("HealthStatus", "HEALTH_STATUS_")


def to_document(message: Message) -> Document:
    """The JSON object of a message: a request's body for the HTTP binding, an answer as HTTP gives it.

    Members that HTTP has in a path or a query are in it too (`job_id`, `queue`, `limit`). Raises InvalidPayload,
    InvalidRequest or InvalidWorkflow, with the path of the member, for what no JSON can say: NaN, a value without a
    kind, an enum's unknown number, an instant or a duration out of range, a tag that holds no JSON.
    """
    shape = SHAPES[message.DESCRIPTOR.name]
    try:
        return shape.read(message)
    except UnreadableMessage as found:
        if shape.refuse is not None and found.refuse is job_fault:
            found.refuse = shape.refuse
        error = found.error()
        if found.parts[-1:] == ["jobs"] and isinstance(found.parts[-2], int):
            error.details["index"] = found.parts[-2]
        raise error from None


def read_request(message: Message) -> Document:
    """`to_document` of what a client has sent, which costs no more than a body of HTTP may.

    Raises PayloadTooLarge and BatchSizeExceeded, too.
    """
    most = {"values": ojs_settings.MAX_BODY_VALUES, "numbers": body.MAX_EXACT_NUMBERS}
    if message.DESCRIPTOR.name == "EnqueueBatchRequest":
        _check_batch(message)
    try:
        with values.bounded(*most.values()):
            return to_document(message)
    except values.TooMany as error:
        (what,) = error.args
        raise body.too_costly(what, most[what]) from None


def _check_batch(message: Any) -> None:
    """The default options become part of each job, so they count as often."""
    jobs, limit = len(message.jobs), ojs_settings.MAX_BATCH_BYTES
    body.check_size(jobs)
    size = message.default_options.ByteSize() * jobs if message.HasField("default_options") else 0
    if size > limit:
        raise body.too_large(size, limit, "default_options")


def to_message(name: str, document: Mapping[str, Any]) -> Any:
    """The message `name` of a JSON object: of a request's body, or of an answer of the HTTP binding.

    KeyError for a name that `ojs.proto` does not have; TypeError or ValueError for what is no JSON.
    """
    shape = SHAPES[name]
    message = shape.type()
    shape.write(message, document)
    return message


# Policies

RETRY = MessageShape(
    "RetryPolicy",
    {
        "max_attempts": INTEGER,
        "initial_interval": DURATION,
        "backoff_coefficient": DOUBLE,
        "max_interval": DURATION,
        "jitter": FLAG,
        "non_retryable_errors": TEXTS,
        "on_exhaustion": TEXT,
    },
)
UNIQUE = MessageShape(
    "UniquePolicy",
    {
        "key": TEXTS,
        "period": DURATION,
        "on_conflict": CONFLICTS.one,
        "states": JOB_STATES.many,
        "args_keys": TEXTS,
        "meta_keys": TEXTS,
    },
)


def policy_message(policy: retrypolicy.RetryPolicy) -> Any:
    """The policy in force as a message, with all of its values."""
    words = {
        "max_attempts": policy.max_attempts,
        "initial_interval": durations.format_iso(policy.initial_ms),
        "backoff_coefficient": policy.coefficient,
        "max_interval": durations.format_iso(policy.max_ms),
        "jitter": policy.jitter,
        "on_exhaustion": policy.on_exhaustion or "dead_letter",
    }
    if policy.non_retryable:
        words["non_retryable_errors"] = list(policy.non_retryable)
    if policy.retryable:
        words["retryable_errors"] = list(policy.retryable)
    if policy.strategy != "exponential":
        words["backoff_strategy"] = policy.strategy
    return to_message("RetryPolicy", words)


@lru_cache(maxsize=1024)
def _policy_stored(text: str) -> Any:
    """The message of the policy in a row's column. Shared: it is copied where it is used."""
    return policy_message(retrypolicy.from_json(text))


def _unique_in_force(given: Any) -> Document:
    """A job's unique policy, however the client spelled it; its own words are the attribute `unique`."""
    policy = spellings.read_unique(given)
    args = policy.args_names is not None and not policy.strict
    found: Document = {
        "key": list(policy.args_names or ()) if args else sorted(policy.dimensions, key=unique.DIMENSIONS.index),
        "on_conflict": policy.on_conflict.value,
        "states": [state.value for state in policy.states],
    }  # fmt: skip
    found["states"].sort()
    if policy.period_ms is not None:
        found["period"] = durations.format_iso(policy.period_ms)
    if policy.strict:
        found["args_keys"] = list(policy.args_names or ())
    if policy.meta_names:
        found["meta_keys"] = list(policy.meta_names)
    return found


# Errors of jobs

_DEFAULT_CODE = "handler_error"


def _write_backtrace(message: Any, field: str, value: Any) -> None:
    """Frames of several lines are exact in the attribute only."""
    if type(value) is not list or not all(type(frame) is str for frame in value):
        raise Unfit
    setattr(message, field, "\n".join(value))
    if any("\n" in frame for frame in value) or value == [""]:
        raise Unfit


def _write_code(message: Any, document: Mapping[str, Any]) -> None:
    """An error that has no code of its own shows its type instead."""
    kind = document.get("type")
    if document.get("code") == _DEFAULT_CODE and type(kind) is str and kind and kind != _DEFAULT_CODE:
        try:
            message.code = kind
        except UnicodeEncodeError:
            return
        message.attributes["code"].string_value = _DEFAULT_CODE


_ERROR_FIELDS: dict[str, FieldKind | tuple[FieldKind, str]] = {
    "code": TEXT,
    "message": TEXT,
    "retryable": FLAG,
    "attempt": INTEGER,
    "occurred_at": INSTANT,
    "backtrace": FieldKind(lambda text: text.split("\n"), _write_backtrace),
    "details": OBJECT,
}
ERROR = MessageShape("JobError", _ERROR_FIELDS, answer=True, beside=_write_code)  #: as the server has it
REPORT = MessageShape("JobError", _ERROR_FIELDS, filled=lambda: {"message": ""})  #: as a worker sends it


# Jobs as the server has them

#: The member of a job under which `envelope.render` tells this binding the retry policy in force, as it is stored.
POLICY = envelope.POLICY_MEMBER
TRACE = MessageShape("Job", {"trace_id": TEXT})  #: a field that is written beside the others


def _job_beside(message: Any, document: Mapping[str, Any]) -> None:
    stored = document.get(POLICY)
    message.retry_policy.CopyFrom(_policy_guessed(document) if stored is None else _policy_stored(stored))
    message.meta.SetInParent()
    if type(document.get("unique")) is dict:
        try:
            UNIQUE.write(message.unique_policy, _unique_in_force(document["unique"]))
        except OJSError:  # stored under rules of another version: the attribute says what it is
            message.ClearField("unique_policy")
    if "completed_at" not in document:
        for name in ("cancelled_at", "discarded_at"):
            if name in document:
                JOB.write_member(message, "completed_at", document[name])
    meta = document.get("meta")
    if meta and isinstance(meta, dict):
        TRACE.write_member(message, "trace_id", envelope.trace_id_of(meta))


def _policy_guessed(document: Mapping[str, Any]) -> Any:
    """What the words of a job make of the policy of the site, where `envelope.render` did not tell the stored one."""
    given = document.get("retry")
    try:
        layers = [spellings.read_retry(layer) for layer in (ojs_settings.RETRY, given) if layer]
        policy = retrypolicy.merge(*layers)
    except OJSError:  # stored under rules of another version
        policy = retrypolicy.DEFAULT
    most = document.get("max_attempts")
    return policy_message(dataclasses.replace(policy, max_attempts=most) if type(most) is int else policy)


def _job_after(document: Document) -> Document:
    """A cancelled job has `cancelled_at` and no `completed_at` in JSON."""
    if document.get("state") == "cancelled" and "cancelled_at" in document:
        document.pop("completed_at", None)
    return document


class _JobShape(MessageShape):
    """A job, whose stored policy and own words about uniqueness are written beside the fields."""

    def write(self, message: Any, document: Mapping[str, Any]) -> None:
        own = {name: value for name, value in document.items() if name != POLICY} if POLICY in document else document
        super().write(message, own)
        _job_beside(message, document)


JOB = _JobShape(
    "Job",
    {
        "id": TEXT,
        "type": TEXT,
        "queue": TEXT,
        "args": VALUES,
        "meta": OBJECT,
        "state": JOB_STATES.one,
        "priority": INTEGER,
        "attempt": INTEGER,
        "max_attempts": INTEGER,
        "result": RESULT,
        "errors": repeated(ERROR),
        **dict.fromkeys(("created_at", "enqueued_at", "scheduled_at", "started_at", "completed_at"), INSTANT),
        "expires_at": INSTANT,
        "timeout": (MILLISECONDS, "timeout_ms"),
        "visibility_timeout": (MILLISECONDS, "visibility_timeout_ms"),
        "tags": TEXTS,
        "workflow_id": TEXT,
        "specversion": TEXT,
    },
    answer=True,
    filled=lambda: {"args": [], "meta": {}, "priority": 0, "attempt": 0},
    after=_job_after,
)


# Jobs as clients send them

#: Names of the same thing: one in an entry of a batch beats all of them in the defaults. The field `ttl` becomes the
#: member `expires_at`.
_RIVALS = {name: spellings.rivals(name) for name in spellings.OPTIONS} | dict.fromkeys(
    ("ttl", "expires_at"), frozenset({"ttl", "expires_at"})
)
_OPTION_FIELDS: dict[str, FieldKind | tuple[FieldKind, str]] = {
    "queue": TEXT,
    "priority": INTEGER,
    "delay_until": INSTANT,
    "timeout": (MILLISECONDS, "timeout_ms"),
    "retry": nested(RETRY),
    "unique": nested(UNIQUE),
    "ttl": TTL,
    "tags": TEXTS,
    "trace_id": TEXT,
    "meta": OBJECT,
    "max_attempts": INTEGER,
    "visibility_timeout": (MILLISECONDS, "visibility_timeout_ms"),
    "pending": FLAG,
}


def _options_before(document: Document) -> Document:
    """A time to live is a relative `expires_at` in JSON."""
    expires_at = document.get("expires_at")
    if type(expires_at) is str and expires_at.startswith("+") and "ttl" not in document:
        document["ttl"] = document.pop("expires_at")
    return document


class _OptionsShape(MessageShape):
    """The options of a job. `read_members` has them under the names of the fields, `read` as HTTP's `options`."""

    def read(self, message: Any) -> Document:
        options, beside = http_options(self.read_members(message))
        return beside | options

    def write(self, message: Any, document: Mapping[str, Any]) -> None:
        super().write(message, document)
        if "ttl" in message.attributes and "expires_at" not in message.attributes:  # it was no duration of ours
            message.attributes["expires_at"].CopyFrom(message.attributes["ttl"])
            del message.attributes["ttl"]


JOB_OPTIONS = _OptionsShape("EnqueueOptions", _OPTION_FIELDS, before=_options_before)


def http_options(given: Document) -> tuple[Document, Document]:
    """The `options` of HTTP of what `JOB_OPTIONS.read_members` has read, and what belongs beside them in the envelope:
    attributes that HTTP does not look for in `options`, such as `id`."""
    options = {name: value for name, value in given.items() if name in spellings.OPTIONS}
    beside = {name: value for name, value in given.items() if name not in spellings.OPTIONS}
    ttl, trace_id = (beside.pop(name, None) for name in ("ttl", "trace_id"))
    if ttl is not None:
        options["expires_at"] = ttl
    if trace_id is not None and isinstance(meta := options.get("meta", {}), dict):
        options["meta"] = {**meta, "trace_id": trace_id}
    return options, beside


def laid_over(defaults: Document, own: Document) -> Document:
    """The options of an entry over the defaults of its batch: field by field, `meta` key by key. Both are what
    `JOB_OPTIONS.read_members` has read."""
    beaten = {other for name in own for other in _RIVALS.get(name, (name,))}
    merged = {name: value for name, value in defaults.items() if name not in beaten} | own
    mine, theirs = own.get("meta"), defaults.get("meta")
    if isinstance(mine, dict) and isinstance(theirs, dict):
        merged["meta"] = theirs | mine
    if isinstance(mine, dict) and "trace_id" in mine and "trace_id" not in own:
        merged.pop("trace_id", None)
    if "max_attempts" in own and "retry" not in own and isinstance(policy := merged.get("retry"), dict):
        merged["retry"] = {name: value for name, value in policy.items() if name != "max_attempts"}
    return merged


#: Attributes that HTTP takes beside `options` too, with the field of the options that says the same.
_HOISTED = {
    **{name: name for name in ("queue", "priority", "tags", "retry", "unique", "meta", "timeout_ms", "pending")},
    "visibility_timeout_ms": "visibility_timeout_ms",
    "scheduled_at": "delay_until",
}


class _EntryShape(MessageShape):
    """A job that a client asks for, with its options.

    Args:
        hoists: whether attributes beside `options` are written as options, where those have a field for them.
    """

    def __init__(
        self, name: str, fields: Mapping[str, FieldKind | tuple[FieldKind, str]], *, hoists: bool = True
    ) -> None:
        # A schedule's job may stand in `job_template`, and then has its arguments there.
        super().__init__(name, fields, filled=(lambda: {"args": []}) if hoists else dict)
        self.hoists = hoists

    def read(self, message: Any, defaults: Document | None = None) -> Document:
        document = self.read_members(message)
        given = message.HasField("options")
        if not given and not defaults:
            return document
        try:
            own = JOB_OPTIONS.read_members(message.options) if given else {}
        except UnreadableMessage as found:
            raise found.inside("options") from None
        options, beside = http_options(laid_over(defaults, own) if defaults else own)
        known = document.get("options")
        document["options"] = {**known, **options} if isinstance(known, dict) else options
        return {**beside, **document}

    def write(self, message: Any, document: Mapping[str, Any]) -> None:
        document = dict(document)
        options = document.get("options")
        if isinstance(options, dict):
            del document["options"]
            if rest := {name: value for name, value in options.items() if name not in spellings.OPTIONS}:
                document["options"] = rest
            message.options.SetInParent()
            JOB_OPTIONS.write(
                message.options, {name: value for name, value in options.items() if name in spellings.OPTIONS}
            )
        if self.hoists and (options is None or isinstance(options, dict)):
            self._hoist(message, document, options)
        super().write(message, document)

    def _hoist(self, message: Any, document: Document, options: Mapping[str, Any] | None) -> None:
        for name, option in _HOISTED.items():
            if document.get(name) is None:
                continue
            if any(rival in (options or ()) or (rival != name and rival in document) for rival in _RIVALS[name]):
                continue
            if JOB_OPTIONS.write_member(message.options, option, document[name]):
                del document[name]
        if options is None and not message.options.ListFields():
            message.ClearField("options")


_ENTRY: dict[str, FieldKind | tuple[FieldKind, str]] = {"type": TEXT, "args": VALUES}
ENTRY = _EntryShape("BatchJobEntry", _ENTRY)


class _BatchShape(MessageShape):
    """Jobs, each with the defaults of the batch below its own options."""

    def read(self, message: Any) -> Document:
        document = self.read_members(message)
        defaults: Document | None = None
        if message.HasField("default_options"):
            try:
                defaults = JOB_OPTIONS.read_members(message.default_options)
            except UnreadableMessage as found:
                raise found.inside("default_options") from None
        jobs = []
        values.count(message.jobs)
        for index, job in enumerate(message.jobs):
            try:
                jobs.append(ENTRY.read(job, defaults))
            except UnreadableMessage as found:
                raise found.inside(index).inside("jobs") from None
        return document | ({"jobs": jobs} if jobs else {})


# Answers that are larger than their messages


def _unwrapped(key: str) -> Callable[[Document], Document]:
    """HTTP shows the thing under `key`, and its members once more beside it: only the first travels."""

    def before(document: Document) -> Document:
        inner = document.get(key)
        if inner is None:
            document.pop(key, None)
            return document
        if not isinstance(inner, dict):
            return document
        return {
            name: value
            for name, value in document.items()
            if name == key or name not in inner or inner[name] != value
        }  # fmt: skip

    return before


def _wrapped(key: str) -> Callable[[Document], Document]:
    """The way back."""

    def after(document: Document) -> Document:
        inner = document.get(key)
        if inner is None:
            return {key: None, **document}
        return {**inner, **document} if isinstance(inner, dict) else document

    return after


def _wrapping(name: str, key: str, shape: MessageShape) -> MessageShape:
    return MessageShape(name, {key: nested(shape)}, answer=True, before=_unwrapped(key), after=_wrapped(key))


def _page(
    name: str, field: str, key: str, shape: MessageShape, mirrors: tuple[str, ...] = (), **more: Any
) -> MessageShape:
    """A page of a list: HTTP has the rows under several names, and the next cursor inside `pagination`."""

    def before(document: Document) -> Document:
        rows = document.get(key)
        kept = {n: value for n, value in document.items() if n not in mirrors or value != rows}
        cursor = _cursor_of(document)
        return kept | ({"next_cursor": cursor} if cursor is not None else {})

    def after(document: Document) -> Document:
        if _cursor_of(document) == document.get("next_cursor"):
            document.pop("next_cursor", None)
        return document | {mirror: document[key] for mirror in mirrors if mirror not in document}

    fields = {field: (repeated(shape), key), **more.pop("fields", {})}
    total = more.pop("total", {})
    return MessageShape(name, fields, answer=True, filled=lambda: {key: [], **total}, before=before, after=after)


def _cursor_of(document: Mapping[str, Any]) -> Any:
    pagination = document.get("pagination")
    return pagination.get("next_cursor") if isinstance(pagination, dict) else None


def _dropped(message: Any, document: Mapping[str, Any]) -> None:
    dropped = document.get("dropped")
    for index in dropped if isinstance(dropped, list) else ():
        if type(index) is not int or not 0 <= index < 2**31:
            continue
        message.errors[index].code = "dropped"
        message.errors[index].message = "A middleware of the site, or a full queue, dropped this job."


def _first_job(document: Document) -> Document:
    """FETCH over HTTP also shows the first job by itself."""
    jobs = document["jobs"]
    if jobs and isinstance(jobs, list):
        document.setdefault("job", jobs[0])
    return document


def _without_first_job(document: Document) -> Document:
    jobs = document.get("jobs")
    if jobs and isinstance(jobs, list) and "job" in document and document["job"] == jobs[0]:
        del document["job"]
    return document


# The rest


def _write_implementation(message: Any, field: str, value: Any) -> None:
    """What the message has no field for is in the attribute."""
    if type(value) is not dict:
        raise Unfit
    inner = getattr(message, field)
    inner.SetInParent()
    IMPLEMENTATION.write(inner, value)
    if IMPLEMENTATION.read(inner) != value:
        raise Unfit


def _write_extensions(message: Any, field: str, value: Any) -> None:
    """Their names; where each has a version and more, that is in the attribute."""
    if type(value) is dict:
        groups = [group for group in value.values() if isinstance(group, list)]
        entries = [entry for group in groups for entry in group if isinstance(entry, dict)]
        getattr(message, field).extend(entry["name"] for entry in entries if type(entry.get("name")) is str)
        raise Unfit
    TEXTS.write(message, field, value)


def _write_queue(message: Any, field: str, value: Any) -> None:
    """The name of a queue, or the whole queue: then that is the attribute."""
    if type(value) is dict:
        TEXT.write(message, field, value.get("name"))
        raise Unfit
    TEXT.write(message, field, value)


IMPLEMENTATION = MessageShape("Implementation", {"name": TEXT, "version": TEXT, "language": TEXT}, answer=True)
QUEUE = MessageShape(
    "QueueInfo",
    {"name": TEXT, "paused": FLAG, "available_count": (INTEGER, "available"), "created_at": INSTANT},
    answer=True,
    filled=lambda: {"paused": False, "available": 0},
)
_COUNTS = ("available", "active", "scheduled", "retryable", "dead", "completed_last_hour", "failed_last_hour")
_RATES = ("avg_duration_ms", "avg_wait_ms", "throughput_per_second")
STATISTICS = MessageShape(
    "QueueStatistics",
    {**dict.fromkeys(_COUNTS, INTEGER), **dict.fromkeys(_RATES, DOUBLE), "paused": FLAG},
    answer=True,
    filled=lambda: {**dict.fromkeys((*_COUNTS, *_RATES), 0), "paused": False},
)


def _stats_before(document: Document) -> Document:
    """`paused` is among the figures of the message, and beside those of HTTP."""
    stats = document.get("stats")
    if isinstance(stats, dict) and "paused" in document and "paused" not in stats:
        document["stats"] = {**stats, "paused": document["paused"]}
    return document


def _stats_after(document: Document) -> Document:
    stats = document.get("stats")
    if isinstance(stats, dict) and "paused" in document:
        stats.pop("paused", None)
    return document


def _cron_options(message: Any, document: Mapping[str, Any]) -> None:
    """The options of a schedule's jobs, `queue` and `meta` among them, which HTTP shows beside the others."""
    options = document.get("options")
    shown = {name: document[name] for name in ("queue", "meta") if document.get(name)}
    if isinstance(options, dict):
        shown |= {name: value for name, value in options.items() if name in spellings.OPTIONS}
    if shown:
        JOB_OPTIONS.write(message.options, shown)


CRON = MessageShape(
    "CronEntry",
    {
        **dict.fromkeys(("name", "cron", "timezone", "type"), TEXT),
        "args": VALUES,
        "next_run_at": INSTANT,
        "last_run_at": INSTANT,
    },
    answer=True,
    filled=lambda: {"args": []},
    beside=_cron_options,
)


def _registered_before(document: Document) -> Document:
    entry = document.get("cron_job")
    if not isinstance(entry, dict):
        return document
    return {
        name: value
        for name, value in document.items()
        if name in ("name", "next_run_at", "cron_job") or (name not in entry or value not in (entry[name], entry))
    }


def _registered_after(document: Document) -> Document:
    entry = document.get("cron_job")
    return {**entry, "cron": entry, **document} if isinstance(entry, dict) else document


_STEP_OF_JOB = {
    **dict.fromkeys(("scheduled", "available", "pending", "retryable"), "pending"),
    **{word: word for word in ("active", "completed", "cancelled")},
    "discarded": "failed",
}
#: The words of HTTP for a step without a job. Some forms say `pending` for one that has to wait.
_STEP_OF_WORD = {"pending": "waiting", "available": "pending"}


def _step_before(document: Document) -> Document:
    return {name: value for name, value in document.items() if name != "job_id" or value is not None}


def _step_state(message: Any, document: Mapping[str, Any]) -> None:
    """The state by the step's job, which means the same in every form of workflow; HTTP's word is kept beside it."""
    shown = document.get("state")
    job_state = document.get("job_state")
    if type(job_state) is str and job_state in _STEP_OF_JOB:
        word = _STEP_OF_JOB[job_state]
    elif document.get("job_id") is None and type(shown) is str:
        word = _STEP_OF_WORD.get(shown, shown)
    else:
        return
    if word in STEP_STATES.numbers:
        message.state = STEP_STATES.numbers[word]
        if word != shown:
            values.write_value(message.attributes["state"], shown)


STEP = MessageShape(
    "WorkflowStepStatus",
    {"id": TEXT, "type": TEXT, "state": STEP_STATES.one, "job_id": TEXT, "depends_on": TEXTS},
    answer=True,
    filled=lambda: {"job_id": None, "depends_on": []},
    before=_step_before,
    beside=_step_state,
)
WORKFLOW = MessageShape(
    "Workflow",
    {
        "id": TEXT,
        "name": TEXT,
        "state": WORKFLOW_STATES.one,
        "steps": repeated(STEP),
        "created_at": INSTANT,
        "completed_at": INSTANT,
    },
    answer=True,
    filled=lambda: {"name": ""},
)


_EVENT_OF = ("job_id", "job_type", "queue", "workflow_id")
EVENT_OF = MessageShape("Event", dict.fromkeys(_EVENT_OF, TEXT))  #: the fields that repeat what is in `data`


def _event_beside(message: Any, document: Mapping[str, Any]) -> None:
    data = document.get("data")
    if isinstance(data, dict):
        for name in _EVENT_OF:
            EVENT_OF.write_member(message, name, data.get(name))


class _HealthShape(MessageShape):
    """`details` is what HTTP answers; status and time are the same once more."""

    def read(self, message: Any) -> Document:
        document = self.read_members(message)
        details: Document = document.pop("details", {})
        return document | details

    def write(self, message: Any, document: Mapping[str, Any]) -> None:
        super().write(message, {name: document[name] for name in ("status", "timestamp") if name in document})
        message.attributes.clear()
        OBJECT.write(message, "details", dict(document))


_JOB_ID = {"job_id": TEXT}
_NAMED_QUEUE = {"queue": TEXT}

SHAPES: dict[str, MessageShape] = {
    shape.type.DESCRIPTOR.name: shape
    for shape in (
        *(JOB, RETRY, UNIQUE, ERROR, JOB_OPTIONS, ENTRY, IMPLEMENTATION, QUEUE, STATISTICS, CRON, STEP, WORKFLOW),
        MessageShape("BatchJobError", {"code": TEXT, "message": TEXT}, answer=True),
        # Producers
        _EntryShape("EnqueueRequest", _ENTRY),
        _wrapping("EnqueueResponse", "job", JOB),
        _BatchShape("EnqueueBatchRequest", {"jobs": repeated(ENTRY), "default_options": nested(JOB_OPTIONS)}),
        MessageShape(
            "EnqueueBatchResponse",
            {"jobs": repeated(JOB), "count": INTEGER},
            answer=True,
            filled=lambda: {"jobs": [], "count": 0},
            beside=_dropped,
        ),
        MessageShape("GetJobRequest", _JOB_ID),
        _wrapping("GetJobResponse", "job", JOB),
        MessageShape("CancelJobRequest", {"job_id": TEXT, "reason": TEXT}),
        _wrapping("CancelJobResponse", "job", JOB),
        MessageShape("ActivateJobRequest", _JOB_ID),
        _wrapping("ActivateJobResponse", "job", JOB),
        # Workers
        MessageShape("FetchRequest", {"queues": TEXTS, "count": INTEGER, "worker_id": TEXT}),
        MessageShape(
            "FetchResponse",
            {"jobs": repeated(JOB)},
            answer=True,
            filled=lambda: {"jobs": []},
            before=_without_first_job,
            after=_first_job,
        ),
        MessageShape("AckRequest", {"job_id": TEXT, "result": RESULT}),
        MessageShape("AckResponse", {"acknowledged": FLAG}, answer=True),
        MessageShape("NackRequest", {"job_id": TEXT, "error": nested(REPORT)}),
        MessageShape("NackResponse", {"state": JOB_STATES.one, "next_attempt_at": INSTANT}, answer=True),
        MessageShape(
            "HeartbeatRequest",
            {
                "id": TEXT,
                "worker_id": TEXT,
                "extend_by": (MILLISECONDS, "visibility_timeout_ms"),
                "current_state": (WORKER_STATES.one, "state"),
            },
            refuse=fault,
        ),
        MessageShape(
            "HeartbeatResponse",
            {"directed_state": (WORKER_STATES.one, "state"), "new_deadline": INSTANT},
            answer=True,
        ),
        MessageShape(
            "StreamJobsRequest", {"queues": TEXTS, "worker_id": TEXT, "max_concurrent": INTEGER}, refuse=fault
        ),
        # Events
        MessageShape(
            "StreamEventsRequest",
            {"queues": TEXTS, "event_types": TEXTS, "job_id": TEXTS, "workflow_id": TEXT},
            refuse=fault,
        ),
        MessageShape(
            "Event",
            {"id": TEXT, "type": TEXT, "timestamp": (INSTANT, "time"), "data": OBJECT},
            answer=True,
            filled=lambda: {"id": ""},
            beside=_event_beside,
        ),
        # The server
        MessageShape("ManifestRequest"),
        MessageShape(
            "ManifestResponse",
            {
                "ojs_version": TEXT,
                "implementation": FieldKind(IMPLEMENTATION.read, _write_implementation),
                "conformance_level": INTEGER,
                "protocols": TEXTS,
                "backend": TEXT,
                "extensions": FieldKind(list, _write_extensions),
                "schema_validation": FLAG,
            },
            answer=True,
            filled=lambda: {"conformance_level": 0, "schema_validation": False},
        ),
        MessageShape("HealthRequest"),
        _HealthShape("HealthResponse", {"status": HEALTH.one, "timestamp": INSTANT, "details": OBJECT}, answer=True),
        # Queues
        MessageShape("ListQueuesRequest", {"limit": COUNT, "cursor": TEXT}),
        _page("ListQueuesResponse", "queues", "queues", QUEUE, fields={"next_cursor": TEXT}),
        MessageShape("QueueStatsRequest", _NAMED_QUEUE),
        MessageShape(
            "QueueStatsResponse",
            {"queue": FieldKind(same, _write_queue), "stats": nested(STATISTICS)},
            answer=True,
            before=_stats_before,
            after=_stats_after,
        ),
        MessageShape("PauseQueueRequest", _NAMED_QUEUE),
        MessageShape("PauseQueueResponse", answer=True),
        MessageShape("ResumeQueueRequest", _NAMED_QUEUE),
        MessageShape("ResumeQueueResponse", answer=True),
        # Dead letters
        MessageShape("ListDeadLetterRequest", {"queue": TEXT, "limit": COUNT, "cursor": TEXT}),
        _page(
            "ListDeadLetterResponse",
            "jobs",
            "jobs",
            JOB,
            ("items",),
            fields={"next_cursor": TEXT, "total_count": (INTEGER, "total")},
            total={"total": 0},
        ),
        MessageShape("RetryDeadLetterRequest", _JOB_ID),
        _wrapping("RetryDeadLetterResponse", "job", JOB),
        MessageShape("DeleteDeadLetterRequest", _JOB_ID),
        MessageShape("DeleteDeadLetterResponse", answer=True),
        # Schedules
        _EntryShape(
            "RegisterCronRequest",
            {**dict.fromkeys(("name", "cron", "timezone", "type"), TEXT), "args": VALUES},
            hoists=False,
        ),
        MessageShape(
            "RegisterCronResponse",
            {"name": TEXT, "next_run_at": INSTANT},
            answer=True,
            before=_registered_before,
            after=_registered_after,
        ),
        MessageShape("UnregisterCronRequest", {"name": TEXT}),
        MessageShape("UnregisterCronResponse", answer=True),
        MessageShape("ListCronRequest"),
        _page("ListCronResponse", "entries", "crons", CRON, ("cron_jobs", "items")),
        # Workflows
        MessageShape(
            "CreateWorkflowRequest",
            {
                "name": TEXT,
                "steps": repeated(_EntryShape("WorkflowStep", {"id": TEXT, **_ENTRY, "depends_on": TEXTS})),
            },
            refuse=lambda path, problem, received: workflow_fault(f"$.{path}", problem, received=received),
        ),
        _EntryShape("WorkflowStep", {"id": TEXT, **_ENTRY, "depends_on": TEXTS}),
        _wrapping("CreateWorkflowResponse", "workflow", WORKFLOW),
        MessageShape("GetWorkflowRequest", {"workflow_id": TEXT}),
        _wrapping("GetWorkflowResponse", "workflow", WORKFLOW),
        MessageShape("CancelWorkflowRequest", {"workflow_id": TEXT, "reason": TEXT}),
        _wrapping("CancelWorkflowResponse", "workflow", WORKFLOW),
    )
}
