"""All that is wrong with a document: its faults (the parser tier, conformance 3.1), and its unknown members.

Where PUSH stops at the first fault, `validate` asks every attribute's reader by itself and collects what they say. The
attributes of the server are checked too, as a document that a server wrote has them. `validate_sequence` does the same
for a list of operations. `unknown_in_job` and its neighbours find misspelt members, for the warnings of an answer.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from django_ojs import clock, states
from django_ojs.conf import ojs_settings
from django_ojs.errors import InvalidPayload, InvalidRequest, OJSError
from django_ojs.jsontext import is_integer
from django_ojs.rules import attributes, durations, errorobjects, ratelimit, retrypolicy, suggest, unique
from django_ojs.rules.attributes import OPTIONS, SYSTEM, TOP_LEVEL, AttributeSource, Found
from django_ojs.states import State, Verb

#: What a complete envelope has beside `type` and `args`, which every document needs (L0-ENV-001).
COMPLETE = ("specversion", "id", "queue")


class Problem(NamedTuple):
    """One fault: where (`retry.max_attempts`; `` is the document), what, what to do, and the error code of PUSH."""

    path: str
    message: str
    hint: str
    code: str = "invalid_payload"


def validate(document: object, *, complete: bool = False, arguments: bool = True) -> list[Problem]:
    """Every problem of a job document, `[]` where there is none.

    A producer may leave out what the server fills in; with `complete`, the five attributes of a whole
    envelope must be there (core 5.1). Without `arguments` those of the job are not known yet, as in a declaration:
    whether a unique policy finds its names there is not asked.
    """
    if not isinstance(document, dict):
        return [Problem("", "must be a JSON object", 'Write {"type": "email.send", "args": []}.')]
    found: list[Problem] = []
    if complete:
        found += [_missing(name) for name in COMPLETE if document.get(name) is None]
    try:
        source = AttributeSource(document)
    except OJSError as error:
        return [*found, of_error(error), *_system(document)]
    now = clock.now()
    values: dict[str, Any] = {}
    for name, read in _readers(source, now):
        try:
            values[name] = read()
        except OJSError as error:
            found.append(of_error(error))
    found += _inside(source.find("retry"), retrypolicy.parse)
    found += _inside(source.find("unique"), unique.parse)
    found += _inside(source.find("rate_limit"), ratelimit.parse_of_job)
    found += _sizes(document)
    if arguments:
        found += _key(source, values)
    found += _system(document)
    return list(dict.fromkeys(found))


def _readers(source: AttributeSource, now: dt.datetime) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every attribute with its reader."""
    extra: dict[str, Any] = {}
    hyphens = ojs_settings.DIALECT == "published"
    yield "specversion", lambda: attributes.check_specversion(source)
    yield "id", lambda: attributes.job_id(source.document)
    yield "type", lambda: attributes.job_type(source, extra, hyphens)
    yield "queue", lambda: attributes.queue(source)
    yield "args", lambda: attributes.args(source.document)
    yield "meta", lambda: attributes.meta(source.document, source.options)
    yield "priority", lambda: attributes.job_priority(source, ojs_settings.PRIORITY_LEVELS)
    yield "version", lambda: attributes.version(source, extra)
    yield "pending", lambda: attributes.pending(source)
    yield "scheduled_at", lambda: attributes.scheduled_at(source, extra, now)
    yield "expires_at", lambda: attributes.expires_at(source, extra, now)
    yield "timeout", lambda: attributes.execution_timeout(source, extra)
    yield "visibility_timeout", lambda: attributes.visibility_timeout(source, extra)
    yield "other timeouts", lambda: attributes.other_timeouts(source, extra, extra.get("timeout_ms"))
    yield "retry", lambda: attributes.retry_policy(source, extra)
    yield "unique", lambda: None if attributes.unique(source, extra) is None else attributes.unique_policy(source)
    yield "schema", lambda: attributes.schema(source, extra)
    yield "tags", lambda: attributes.tags(source, extra)
    yield "rate_limit", lambda: attributes.rate_limit(source, extra)
    yield "result_ttl", lambda: attributes.result_ttl(source, extra)


def _inside(place: Found, parse: Callable[[object, str], object]) -> list[Problem]:
    """All that is wrong with a policy: its reader runs again without the member that it refused, until it passes."""
    found: list[Problem] = []
    if not isinstance(place.value, dict):
        return found
    rest = dict(place.value)
    while True:
        try:
            parse(rest, place.path)
        except OJSError as error:
            found.append(of_error(error))
            member = str(error.details.get("field", "")).removeprefix(f"{place.path}.")
            if member not in rest:
                return found
            del rest[member]
        else:
            return found


def _key(source: AttributeSource, values: Mapping[str, Any]) -> list[Problem]:
    """What is wrong with the unique policy's names: the arguments may have none of them."""
    policy = values.get("unique")
    if policy is None or not {"type", "queue", "args", "meta"} <= values.keys():
        return []
    try:
        path = source.find("unique").path
        unique.key(policy, values["type"], values["queue"], values["args"], values["meta"], path=path)
    except OJSError as error:
        return [of_error(error)]
    return []


def _sizes(document: dict[str, Any]) -> list[Problem]:
    found: list[Problem] = []
    checks: tuple[Callable[[str], None], ...] = (
        lambda text: attributes.check_envelope(document, (text,), ojs_settings.MAX_ENVELOPE_BYTES),
        lambda text: attributes.check_shape({"args": None, "meta": None, **document}),
    )
    try:
        text = attributes.to_text(document, "job")
        meta = attributes.to_text(document.get("meta") or {}, "meta")
        attributes.check_meta(meta, ojs_settings.MAX_META_BYTES)
    except OJSError as error:
        return [of_error(error)]
    for check in checks:
        try:
            check(text)
        except OJSError as error:
            found.append(of_error(error))
    return found


_TIMES = ("created_at", "enqueued_at", "started_at", "completed_at", "cancelled_at", "discarded_at", "activated_at",
          "next_attempt_at", "next_retry_at")  # fmt: skip
_COUNTS = ("attempt", "max_attempts", "retry_delay_ms")


def _system(document: Mapping[str, Any]) -> list[Problem]:
    """What is wrong with the attributes that the server writes, where the document has them (core 5.3)."""
    found: list[Problem] = []
    state = document.get("state")
    if state is not None and state not in list(State):
        found.append(Problem("state", f"must be one of {', '.join(State)}", "Use the state as the server gave it."))
    for name in _COUNTS:
        value = document.get(name)
        if value is not None and not (is_integer(value) and value >= 0):
            found.append(Problem(name, "must be an integer of at least 0", "It is the server's; leave it out."))
    for name in _TIMES:
        if document.get(name) is None:
            continue
        try:
            durations.parse_instant(document[name])
        except ValueError as error:
            found.append(Problem(name, str(error), "It is the server's; leave it out."))
    if document.get("error") is not None:
        found += _error(document["error"], "error")
    history = document.get("errors")
    if isinstance(history, list):
        found += [problem for index, error in enumerate(history) for problem in _error(error, f"errors[{index}]")]
    elif history is not None:
        found.append(Problem("errors", "must be an array", "It is the server's; leave it out."))
    return found


def _error(error: object, path: str) -> Iterator[Problem]:
    """What is wrong with an error object of an envelope (core 8.1)."""
    hint = "It is the server's; leave it out."
    for fault in errorobjects.faults(error, path, shown=True):
        place = str(fault.details["field"])
        yield Problem(place, fault.message.removeprefix(f"{place}: ").rstrip("."), hint)
    if not isinstance(error, dict):
        return
    count = error.get("attempt")
    if count is not None and not (is_integer(count) and count >= 0):
        yield Problem(f"{path}.attempt", "must be an integer of at least 0", hint)
    for name in ("occurred_at", "timestamp"):
        try:
            if error.get(name) is not None:
                durations.parse_instant(error[name])
        except ValueError as fault:
            yield Problem(f"{path}.{name}", str(fault), hint)


def _missing(name: str) -> Problem:
    return Problem(name, "must be given in a complete envelope", f"Add {name}, or let the server fill it in.")


def of_error(error: OJSError) -> Problem:
    """The problem that an error tells of."""
    path = str(error.details.get("field", ""))
    message = error.message.removeprefix(f"{path}: ").rstrip(".")
    path = "" if path == "job" else path
    hint = error.hint
    if hint in (InvalidPayload.hint, InvalidRequest.hint):
        wanted = message.partition("must be ")[2]
        hint = f"Write {wanted}." if wanted else f"Change or leave out {path or 'what is at fault'}."
    return Problem(path, message, hint, error.error_code)


#: Operations that change no state.
_READS = frozenset({"beat", "info"})


def validate_sequence(operations: object) -> list[Problem]:
    """Every operation of a list that the transition table does not allow at its place (L0-LC-002).

    An operation is a word (`"FETCH"`), or an object with `operation`, and optionally `job` (a name that
    tells several jobs apart) and `state` (the state it led to, where the verb leaves a choice).
    """
    if isinstance(operations, dict):
        operations = operations.get("operations")
    if not isinstance(operations, list):
        return [Problem("", "must be a list of operations", 'Write ["PUSH", "FETCH", "ACK"].')]
    found: list[Problem] = []
    possible: dict[str, frozenset[State]] = {}
    for index, entry in enumerate(operations):
        problem = _step(entry, f"[{index}]", possible)
        if problem:
            found.append(problem)
    return found


def _step(entry: object, path: str, possible: dict[str, frozenset[State]]) -> Problem | None:
    """Move the job of one operation on; `possible` holds the states in which each job may be by now."""
    given: Mapping[str, Any] = entry if isinstance(entry, dict) else {"operation": entry}
    word = given.get("operation")
    known = word.lower() if isinstance(word, str) else ""
    job = str(given.get("job", ""))
    before = possible.get(job)
    if known in _READS:
        return _unborn(path, known) if before is None else None
    verb = Verb(known) if known in set(Verb) else None
    if verb is None:
        words = ", ".join(sorted({*Verb, *_READS}))
        return Problem(path, f"{word!r:.40} is no operation", f"Use one of {words}.")
    wanted = given.get("state")
    if wanted is not None and wanted not in list(State):
        return Problem(f"{path}.state", "is no state", f"Use one of {', '.join(State)}.")
    if verb is Verb.PUSH and before is not None:
        return Problem(path, "pushes a job that exists already", "Name another job, or push once only.")
    if verb is not Verb.PUSH and before is None:
        return _unborn(path, verb)
    sources: Sequence[State | None] = [None] if before is None else states.ordered(before)
    after = {target for source in sources for target in states.targets(verb, source) if wanted in (None, target)}
    if not after and verb is Verb.CANCEL and before == frozenset({State.CANCELLED}):
        return None  # cancelling twice is no error (core 7.6)
    if not after:
        return _illegal(path, verb, sources, wanted)
    possible[job] = frozenset(after)
    return None


def _unborn(path: str, verb: str) -> Problem:
    return Problem(path, f"cannot {verb} a job that was never pushed", "Begin with PUSH.", "invalid_state_transition")


def _illegal(path: str, verb: Verb, sources: Sequence[State | None], wanted: Any) -> Problem:
    here = " or ".join(str(source) for source in sources if source) or "new"
    allowed = sorted({t.verb.upper() for t in states.TRANSITIONS if t.source in sources})
    goal = f" to {wanted}" if wanted else ""
    legal = " or ".join(states.ordered(states.sources(verb))) or "a new job"
    ways = ", ".join(allowed) or "nothing"
    hint = f"{verb.upper()} starts from {legal}; from {here} there is {ways}."
    return Problem(path, f"cannot {verb} a job that is {here}{goal}", hint, "invalid_state_transition")


# Members of a client's document that no rule of ours reads: slips such as `max_attemps`, which would mean nothing.
#
# Core 5.5 has them kept, so the server names them in `warnings` and goes on; the Python API refuses them. Inside a
# policy (`retry`, `unique`, `rate_limit`) every unknown member is named. A job, a workflow or a schedule may carry
# attributes of the client's own, so there only those are named whose name is nearly one of ours, or stands in `options`
# only. Names that begin with `x_`, `x-` or `ext_` are the client's and never named.


UNKNOWN_MEMBER = "unknown_member"

_OWN = ("x_", "x-", "ext_")
#: How alike two names are where one is taken for the other: inside a policy, and where others may stand as well.
_IN_POLICY, _ANYWHERE = 0.6, 0.8
#: Names that other systems use for members of ours, and that are not alike.
_OTHER_NAMES = {
    "retries": "max_attempts", "max_retries": "max_attempts", "attempts": "max_attempts", "delay": "initial_interval",
    "backoff": "backoff_coefficient", "ttl": "period", "per": "period", "max": "limit", "retry_policy": "retry",
    "delay_until": "scheduled_at", "metadata": "meta",
}  # fmt: skip

#: The members of each policy, by the name of the attribute.
POLICY_MEMBERS: Mapping[str, frozenset[str]] = {
    "retry": retrypolicy.MEMBERS, "unique": unique.MEMBERS, "rate_limit": ratelimit.MEMBERS,
}  # fmt: skip
_JOB = TOP_LEVEL - SYSTEM
_STEP = _JOB | {"name", "depends_on", "steps", "jobs", "callbacks"}
_WORKFLOW = frozenset({"type", "name", "id", "steps", "jobs", "callbacks", "options", "depends_on"})
_WORKFLOW_OPTIONS = OPTIONS | {"callback_type"}
_CRON = _JOB | {"name", "cron", "timezone", "job_template", "overlap_policy", "enabled", "description"}


class Unknown(NamedTuple):
    """A member that means nothing: where it is, its name, and the name that the client probably wanted ('': none)."""

    path: str
    name: str
    suggestion: str

    def sentence(self) -> str:
        """What is wrong, after the path and without a full stop."""
        return "means nothing here" + (f"; did you mean {self.suggestion}?" if self.suggestion else "")

    def warning(self) -> dict[str, Any]:
        """The entry under `warnings` in an answer."""
        suggestion = {"suggestion": self.suggestion} if self.suggestion else {}
        return {"code": UNKNOWN_MEMBER, "path": self.path, "message": f"{self.path}: {self.sentence()}", **suggestion}


def unknown_in_policy(name: str, given: object, path: str = "") -> Iterator[Unknown]:
    """The unknown members of one policy: `name` is the attribute, `path` where the client wrote it."""
    if not isinstance(given, Mapping):
        return
    path = path or name
    yield from _strangers(given, POLICY_MEMBERS[name], path, _IN_POLICY, near_only=False)
    for part in ("rate", "throttle") if name == "rate_limit" else ():
        if isinstance(given.get(part), Mapping):
            window = ratelimit.WINDOW_MEMBERS
            yield from _strangers(given[part], window, f"{path}.{part}", _IN_POLICY, near_only=False)


def unknown_in_job(document: Mapping[str, Any], prefix: str = "", known: frozenset[str] = _JOB) -> Iterator[Unknown]:
    """The unknown members of an envelope, its `options` and its policies; each path begins with `prefix`."""
    yield from _attributes(document, known, prefix)
    options = document.get("options")
    if isinstance(options, Mapping):
        yield from _attributes(options, OPTIONS, f"{prefix}options.")


def unknown_in_workflow(document: Mapping[str, Any], path: str = "$") -> Iterator[Unknown]:
    """The unknown members of a workflow, of its options and of its steps, however deep."""
    yield from _strangers(document, _WORKFLOW, path, _ANYWHERE, near_only=True)
    options = document.get("options")
    if isinstance(options, Mapping):
        yield from _attributes(options, _WORKFLOW_OPTIONS, f"{path}.options.")
    for name in ("steps", "jobs"):
        items = document.get(name)
        for index, item in enumerate(items if isinstance(items, list) else ()):
            if isinstance(item, Mapping):
                nested = any(item.get(part) is not None for part in ("steps", "jobs", "callbacks"))
                place = f"{path}.{name}[{index}]"
                yield from unknown_in_workflow(item, place) if nested else unknown_in_job(item, f"{place}.", _STEP)
    callbacks = document.get("callbacks")
    for name, item in callbacks.items() if isinstance(callbacks, Mapping) else ():
        if isinstance(item, Mapping):
            yield from unknown_in_job(item, f"{path}.callbacks.{name}.", _STEP)


def unknown_in_schedule(body: Mapping[str, Any]) -> Iterator[Unknown]:
    """The unknown members of the registration of a schedule and of the job in it."""
    yield from unknown_in_job(body, known=_CRON)
    template = body.get("job_template")
    if isinstance(template, Mapping):
        yield from unknown_in_job(template, "job_template.")


#: Entries under `warnings` for one document.
MAX_WARNINGS = 50


def warnings(found: Iterator[Unknown]) -> tuple[dict[str, Any], ...]:
    """The entries under `warnings` of an answer, the first `MAX_WARNINGS`."""
    return tuple(unknown.warning() for unknown in islice(found, MAX_WARNINGS))


def _attributes(given: Mapping[str, Any], known: frozenset[str], prefix: str) -> Iterator[Unknown]:
    yield from _strangers(given, known, prefix.rstrip("."), _ANYWHERE, near_only=True)
    for name in POLICY_MEMBERS:
        if name in given and name in known:
            yield from unknown_in_policy(name, given[name], f"{prefix}{name}")


def _strangers(
    given: Mapping[str, Any], known: frozenset[str], path: str, alike: float, *, near_only: bool
) -> Iterator[Unknown]:
    if given.keys() <= known:
        return
    for name in given:
        if name not in known and name not in SYSTEM and not name.startswith(_OWN):
            meant = _OTHER_NAMES.get(name, name)
            in_options = near_only and meant in OPTIONS and meant not in known
            suggestion = f"options.{meant}" if in_options else _meant(name, known, alike)
            if suggestion or not near_only:
                yield Unknown(f"{path}.{name[:100]}" if path else name[:100], name[:100], suggestion)


def _meant(name: str, known: frozenset[str], alike: float) -> str:
    if _OTHER_NAMES.get(name) in known:
        return _OTHER_NAMES[name]
    if found := suggest.nearest(name, known, alike):
        return found
    meant = _OTHER_NAMES.get(suggest.nearest(name, _OTHER_NAMES, _ANYWHERE), "")
    return meant if meant in known else ""
