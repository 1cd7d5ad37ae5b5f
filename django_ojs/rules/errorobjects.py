"""Makes the error objects that a job's history keeps, of what a worker reports and of what the server finds (core 8,
jobs 1.6)."""

from __future__ import annotations

import datetime as dt
import itertools
import traceback
from collections.abc import Iterator
from typing import Any

from django_ojs import jsontext
from django_ojs.errors import InvalidRequest
from django_ojs.rules.durations import format_instant
from django_ojs.rules.faults import fault

MAX_FRAMES = 50
MAX_CHARACTERS = 10_000
MAX_SOURCE = 500  #: characters of source below one frame
MAX_DEPTH = 32  #: of nested arrays and objects; history and events wrap an error in more of them

#: What Python prints between an exception and the one that it led to.
LINKS = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)

_FINAL = frozenset({"expired"})  #: the errors of the server that no retry helps


def normalise(error: object, attempt: int, occurred_at: dt.datetime, *, store_backtrace: bool = True) -> dict[str, Any]:
    """The object to store for an error that a worker reported on `attempt`; unknown keys are kept.

    Raises InvalidRequest where `error` is not an object, has no message or a mistyped member.
    """
    for found in faults(error):
        raise found
    assert isinstance(error, dict)
    given = {key: value for key, value in error.items() if value is not None}
    details, code = given.get("details"), given.get("code")
    error_class = details.get("error_class") if details else None
    named = given.get("type") or (error_class if isinstance(error_class, str) else "") or code
    stored: dict[str, Any] = {
        "type": named or "handler_error",
        "code": code or "handler_error",
        "message": given["message"],
        "retryable": given.get("retryable", True),
    }
    frames = _backtrace(given)
    if frames is not None and store_backtrace:
        stored["backtrace"] = frames
    if details is not None:
        stored["details"] = details
    stored |= {key: value for key, value in given.items() if key not in _KNOWN}
    return stored | stamp(attempt, occurred_at)


def faults(error: object, path: str = "error", *, shown: bool = False) -> Iterator[InvalidRequest]:
    """Everything that is wrong with an error object (core 8.1) as a worker reports it; with `shown`, as an envelope has
    it: then `type` must be there, and a backtrace is a list."""
    if not isinstance(error, dict):
        yield fault(path, "must be an object with at least a message", error)
        return
    if jsontext.is_deeper(error, MAX_DEPTH):
        yield fault(path, f"must not nest deeper than {MAX_DEPTH} levels", error)
        return
    for name, (kind, label) in _KINDS.items():
        value = error.get(name)
        if (value is not None or (shown and name == "type")) and not isinstance(value, kind):
            yield fault(f"{path}.{name}", f"must be {label}", value)
    message = error.get("message")
    if not (isinstance(message, str) and message):
        yield fault(f"{path}.message", "must be a string that says what failed, and not empty", message)
    name = "backtrace" if shown or error.get("backtrace") is not None else "stack_trace"
    frames = error.get(name)
    if isinstance(frames, str) and not shown:
        return
    if frames is not None and not (isinstance(frames, list) and all(isinstance(frame, str) for frame in frames)):
        yield fault(f"{path}.{name}", "must be an array of strings, one for each frame", frames)


def from_exception(exc: BaseException) -> dict[str, Any]:
    """The error object that a worker reports for an exception.

    Its backtrace has the innermost frames last, each with its line of source where there is one, after those of the
    exceptions that led to it.
    """
    kind = type(exc)
    dotted = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return {
        "type": kind.__name__,
        "message": _text_of(exc) or kind.__name__,
        "details": {"error_class": dotted},
        "backtrace": _truncated(_story(exc)[::-1])[::-1],
    }


def server_error(
    type: str,
    message: str,
    attempt: int,
    now: dt.datetime,
    **facts: Any,
) -> dict[str, Any]:
    """The object to store for a fault that the server found: `timeout`, `visibility_timeout`, `expired`, ...

    `facts` are added as they are (`timeout_kind`, `limit_seconds`, `elapsed_seconds`), and may set `retryable`.
    """
    stored = {"type": type, "code": type, "message": message, "retryable": type not in _FINAL}
    return stored | facts | stamp(attempt, now)


def overrun(kind: str, limit: dt.timedelta, elapsed: dt.timedelta) -> dict[str, Any]:
    """The facts of a timeout for its error and its event (binding 5), in seconds."""
    seconds = round(elapsed.total_seconds(), 3)
    return {"timeout_kind": kind, "limit_seconds": limit.total_seconds(), "elapsed_seconds": seconds}


_KINDS: dict[str, tuple[type, str]] = {
    "details": (dict, "an object"), "code": (str, "a string"), "type": (str, "a string"),
    "retryable": (bool, "true or false"),
}  # fmt: skip
_KNOWN = frozenset(
    {
        "type",
        "code",
        "message",
        "retryable",
        "backtrace",
        "stack_trace",
        "details",
        "attempt",
        "occurred_at",
        "timestamp",
    }
)


def stamp(attempt: int, instant: dt.datetime) -> dict[str, Any]:
    """Which attempt failed, and when, as an error says it."""
    text = format_instant(instant)
    return {"attempt": attempt, "occurred_at": text, "timestamp": text}


def _backtrace(given: dict[str, Any]) -> list[str] | None:
    name = "backtrace" if "backtrace" in given else "stack_trace"
    frames = given.get(name)
    if frames is None:
        return None
    return _truncated(frames.splitlines() if isinstance(frames, str) else frames)


def _truncated(frames: list[str]) -> list[str]:
    kept: list[str] = []
    left = MAX_CHARACTERS
    for frame in frames[:MAX_FRAMES]:
        if left <= 0:
            break
        kept.append(frame[:left])
        left -= len(frame)
    return kept


def _story(exc: BaseException) -> list[str]:
    """The frames of the exception, and before them those of what led to it, each such part ended by an entry that
    says what it was and one of `LINKS`."""
    parts, link, seen = [], "", {id(exc)}
    while True:
        frames = _frames(exc)
        parts.append([*frames, f"{_last_line(exc)}\n\n{link}\n"] if link else frames)
        if exc.__cause__ is not None:
            link, earlier = LINKS[0], exc.__cause__
        elif exc.__context__ is not None and not exc.__suppress_context__:
            link, earlier = LINKS[1], exc.__context__
        else:
            break
        if id(earlier) in seen or sum(map(len, parts)) >= MAX_FRAMES:
            break
        seen.add(id(earlier))
        exc = earlier
    return list(itertools.chain.from_iterable(reversed(parts)))


def _frames(exc: BaseException) -> list[str]:
    """The innermost frames of the traceback, outermost first: a line, and below it the source as Python shows it."""
    whole = exc.__traceback__
    names = [frame.f_code.co_qualname for frame, _ in traceback.walk_tb(whole)][-MAX_FRAMES:]
    stack = traceback.extract_tb(whole, limit=-MAX_FRAMES)
    found = []
    for name, summary in zip(names, stack, strict=True):
        source = stack.format_frame_summary(summary).rstrip().partition("\n")[2]
        place = f"at {name} ({summary.filename}:{summary.lineno})"
        found.append(f"{place}\n{source}" if 0 < len(source) <= MAX_SOURCE else place)
    return found


def _last_line(exc: BaseException) -> str:
    """What Python prints below the frames of an exception."""
    return "".join(traceback.format_exception_only(exc)).rstrip()


def _text_of(exc: BaseException) -> str:
    try:
        return str(exc)
    except Exception:  # noqa: BLE001 - the handler's own __str__ must not hide that the handler failed
        return ""
