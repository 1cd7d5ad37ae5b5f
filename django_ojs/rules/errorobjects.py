"""Makes the error objects that a job's history keeps, of what a worker reports and of what the server finds (core 8,
jobs 1.6).

An error without a `type` gets the class in `details.error_class`, and one without that its `code`: this is the
specification's own rule (jobs 1.6), not another spelling.
"""

from __future__ import annotations

import datetime as dt
import itertools
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

from django_ojs import jsontext
from django_ojs.errors import InvalidRequest
from django_ojs.rules.durations import format_instant
from django_ojs.rules.faults import fault

MAX_FRAMES = 50
MAX_CHARACTERS = 10_000  #: of a backtrace
MAX_MESSAGE = 10_000  #: characters of a message
MAX_PROGRESS_MESSAGE = 1000  #: characters of what a handler says of its progress
MAX_PROGRESS_DATA = 4096  #: bytes of JSON of the data that a report on progress has of its own
MAX_PROGRESS_DATA_DEPTH = 32  #: how deep they nest
MAX_NAME = 200  #: characters of a type, a code and the name of a class
MAX_DETAILS = 16_384  #: characters of `details` as JSON, and of all members together that we do not know
MAX_LEAVES = 20  #: exceptions of a group that an error lists
MAX_CLASSES = 50  #: different classes of a group's exceptions that an error lists
MAX_SOURCE = 500  #: characters of source below one frame
MAX_ERROR_DEPTH = 32  #: of nested arrays and objects; history and events wrap an error in more of them

#: What Python prints between an exception and the one that it led to.
LINKS = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
    "The above exception was one of those in the following group:",
)

_FINAL = frozenset({"expired"})  #: the errors of the server that no retry helps


def normalise(error: object, *, store_backtrace: bool = True) -> dict[str, Any]:
    """The object to store for an error that a worker reported, but for its `stamp`; unknown keys are kept.

    What is too long is cut, and says so: a job must not end up with more than a database takes.

    An empty message, which an exception without a text has, gives way to the type. Raises InvalidRequest where `error`
    is not an object, has no message or a mistyped member.
    """
    for found in faults(error):
        raise found
    assert isinstance(error, dict)
    given = {key: value for key, value in error.items() if value is not None}
    details, code = given.get("details"), given.get("code")
    error_class = details.get("error_class") if details else None
    named = given.get("type") or (error_class if isinstance(error_class, str) else "") or code or "handler_error"
    stored: dict[str, Any] = {
        "type": cut(named, MAX_NAME),
        "code": cut(code or "handler_error", MAX_NAME),
        "message": cut(given["message"] or named, MAX_MESSAGE),
        "retryable": given.get("retryable", True),
    }
    frames = given.get("backtrace")
    if frames is not None and store_backtrace:
        stored["backtrace"] = _truncated(frames)
    if details is not None:
        stored["details"] = within(details, MAX_DETAILS)
    if rest := {key: value for key, value in given.items() if key not in _KNOWN}:
        stored |= within(rest, MAX_DETAILS)
    return stored


def faults(error: object, path: str = "error", *, shown: bool = False) -> Iterator[InvalidRequest]:
    """Everything that is wrong with an error object (core 8.1) as a worker reports it; with `shown`, as an envelope has
    it: then `type` must be there, and `message` not be empty."""
    if not isinstance(error, dict):
        yield fault(path, "must be an object with at least a message", error)
        return
    if jsontext.is_deeper(error, MAX_ERROR_DEPTH):
        yield fault(path, f"must not nest deeper than {MAX_ERROR_DEPTH} levels", error)
        return
    for name, (kind, label) in _KINDS.items():
        value = error.get(name)
        if (value is not None or (shown and name == "type")) and not isinstance(value, kind):
            yield fault(f"{path}.{name}", f"must be {label}", value)
    message = error.get("message")
    if not isinstance(message, str) or (shown and not message):
        yield fault(f"{path}.message", "must be a string that says what failed", message)
    frames = error.get("backtrace")
    if frames is not None and not (isinstance(frames, list) and all(isinstance(frame, str) for frame in frames)):
        yield fault(f"{path}.backtrace", "must be an array of strings, one for each frame", frames)


def from_exception(exc: BaseException) -> dict[str, Any]:
    """The error object that a worker reports for an exception.

    Its backtrace has the innermost frames last, each with its line of source where there is one, after those of the
    exceptions that led to it. Of a group its exceptions are in `details`, in the message and in the backtrace, too.
    """
    kind = type(exc)
    message = text_of(exc) or kind.__name__
    details: dict[str, Any] = {"error_class": dotted(kind)} | _bases(kind) | _notes(exc)
    if isinstance(exc, BaseExceptionGroup):
        found = leaves(exc)
        details |= _of_group(found)
        first = "; ".join(f"{type(leaf).__name__}: {cut(text_of(leaf), MAX_NAME)}" for leaf in found[:_MOST_QUOTED])
        message = f"{cut(message, MAX_MESSAGE // 2)}: {first}{'; ...' if len(found) > _MOST_QUOTED else ''}"
    return {
        "type": cut(kind.__name__, MAX_NAME),
        "message": cut(message, MAX_MESSAGE),
        "details": details,
        "backtrace": _backtrace_of(exc),
    }


#: Exceptions of a group that its message quotes, and whose frames are in its backtrace; frames of each of those.
_MOST_QUOTED, _MOST_TRACED, _FRAMES_EACH = 3, 5, 8
_MOST_LEAVES = 1000  #: exceptions of a group that are looked at


def leaves(exc: BaseException) -> list[BaseException]:
    """The exceptions of a group that are no groups, however deep; of any other exception itself alone."""
    found: list[BaseException] = []
    pending = [exc]
    while pending and len(found) < _MOST_LEAVES:
        one = pending.pop()
        if isinstance(one, BaseExceptionGroup):
            pending += reversed(one.exceptions)
        else:
            found.append(one)
    return found


def _of_group(found: list[BaseException]) -> dict[str, Any]:
    """What an error says of a group's exceptions: one of each class first, and how many there are.

    `error_classes` are all of their classes, which a retry policy asks for; it is missing where they are too many.
    `error_classes_bases` has what those are made from that have more than `Exception` for it.
    """
    by_class: dict[str, list[BaseException]] = {}
    for leaf in found:
        by_class.setdefault(dotted(type(leaf)), []).append(leaf)
    ordered = [*(group[0] for group in by_class.values()), *(leaf for group in by_class.values() for leaf in group[1:])]
    listed = [
        {
            "type": cut(type(leaf).__name__, MAX_NAME), "error_class": dotted(type(leaf)),
            "message": cut(text_of(leaf), MAX_MESSAGE // MAX_LEAVES), **_notes(leaf),
        }
        for leaf in ordered[:MAX_LEAVES]
    ]  # fmt: skip
    facts: dict[str, Any] = {"exceptions": listed, "exceptions_total": len(found)}
    if len(by_class) <= MAX_CLASSES and len(found) < _MOST_LEAVES:
        facts["error_classes"] = sorted(by_class)
        made_from = {name: _bases(type(group[0])).get("error_bases") for name, group in by_class.items()}
        if any(made_from.values()):
            facts["error_classes_bases"] = {name: bases for name, bases in made_from.items() if bases}
    return facts


def dotted(kind: type[BaseException]) -> str:
    """The name of a class of exceptions, with its module unless that is `builtins`."""
    whole = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return cut(whole, MAX_NAME)


#: What every exception is made from, which an error need not say.
_COMMON = frozenset({object, BaseException, Exception, BaseExceptionGroup})


def _bases(kind: type[BaseException]) -> dict[str, Any]:
    """The classes that a class of exceptions is made from, nearest first: a retry policy may name one of those."""
    found = [dotted(base) for base in kind.__mro__[1:] if base not in _COMMON and issubclass(base, BaseException)]
    return {"error_bases": found[:MAX_LEAVES]} if found else {}


def _notes(exc: BaseException) -> dict[str, Any]:
    """What `add_note` has added to an exception."""
    try:
        notes = [cut(str(note), MAX_NAME * 5) for note in exc.__notes__[:MAX_LEAVES]]
    except BaseException:  # noqa: BLE001 - there is none, or it is no list, or a property that raises
        return {}
    return {"notes": notes} if notes else {}


def cut(text: str, limit: int) -> str:
    """The text, with at most so many characters: one that is longer ends with a mark that says how long it was."""
    if len(text) <= limit:
        return text
    mark = f"… [cut: {len(text)} characters]"
    return text[: max(limit - len(mark), 0)] + mark


def progress_message(given: object) -> str:
    """What a handler says of its progress, as it is stored: text that every database takes, cut with a mark where it is
    too long. Raises what the `__str__` of what is given raises."""
    text = cut(str(given), MAX_PROGRESS_MESSAGE).replace("\0", "�")
    return text if text.isascii() else text.encode(errors="replace").decode()


def fault_of_progress_data(data: Mapping[str, Any]) -> str:
    """What is wrong with the object that a report on progress has of its own; '' for nothing."""
    if jsontext.is_deeper(data, MAX_PROGRESS_DATA_DEPTH):
        return f"must not nest deeper than {MAX_PROGRESS_DATA_DEPTH} levels"
    size = len(jsontext.dumps(dict(data)).encode())
    return f"must be at most {MAX_PROGRESS_DATA} bytes of JSON, not {size}" if size > MAX_PROGRESS_DATA else ""


def within(value: Any, limit: int) -> Any:
    """A JSON value with at most about so many characters of JSON: longer strings are cut, and what comes after is left
    out with a mark. The members of an object that are met first are kept."""
    return value if len(jsontext.dumps(value)) <= limit else _Cutting(limit).take(value)


class _Cutting:
    """Takes over a value until so many characters are spent."""

    def __init__(self, limit: int) -> None:
        self.left = limit

    def take(self, value: Any) -> Any:
        if isinstance(value, dict):
            taken = {}
            for number, (key, item) in enumerate(value.items()):
                if self.left <= 0:
                    taken["…"] = f"[cut: {len(value) - number} more]"
                    break
                self.left -= min(len(key), MAX_NAME) + 4
                taken[cut(key, MAX_NAME)] = self.take(item)
            return taken
        if isinstance(value, list | tuple):
            items = []
            for number, item in enumerate(value):
                if self.left <= 0:
                    items.append(f"… [cut: {len(value) - number} more]")
                    break
                self.left -= 1
                items.append(self.take(item))
            return items
        text = value if isinstance(value, str) else jsontext.dumps(value)
        length, left = len(text), max(self.left, MAX_NAME)
        self.left -= min(length, left)
        return value if length <= left else cut(text, left)


def least(exc: BaseException) -> dict[str, Any]:
    """The error object of an exception that cannot be read: what is known without asking it."""
    name = type(exc).__name__
    return {"type": name, "message": f"{name}, an exception that raises another one when it is read."}


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


def _truncated(frames: list[str]) -> list[str]:
    kept: list[str] = []
    left = MAX_CHARACTERS
    for frame in frames[:MAX_FRAMES]:
        if left <= 0:
            break
        kept.append(frame[:left])
        left -= len(frame)
    return kept


def _backtrace_of(exc: BaseException) -> list[str]:
    """What leads to the exception; nothing where that cannot be read."""
    try:
        return _truncated(_story(exc)[::-1])[::-1]
    except BaseException:  # noqa: BLE001 - an exception of the site's may raise another one when it is read
        return []


def _story(exc: BaseException) -> list[str]:
    """The frames of the exception, and before them those of what led to it, each such part ended by an entry that
    says what it was and one of `LINKS`."""
    parts, link, seen = [], "", {id(exc)}
    while True:
        frames = _frames(exc)
        parts.append([*frames, _led_to(exc, link)] if link else frames)
        if isinstance(exc, BaseExceptionGroup):
            traced = leaves(exc)[:_MOST_TRACED]
            parts += [[*_frames(leaf)[-_FRAMES_EACH:], _led_to(leaf, LINKS[2])] for leaf in reversed(traced)]
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


def _led_to(exc: BaseException, link: str) -> str:
    """The entry that ends the frames of an exception that led to another one."""
    return f"{cut(_last_line(exc), MAX_SOURCE)}\n\n{link}\n"


def _last_line(exc: BaseException) -> str:
    """What Python prints below the frames of an exception."""
    return "".join(traceback.format_exception_only(exc)).rstrip()


def text_of(exc: BaseException) -> str:
    """What the exception says of itself; '' where its own `__str__` raises, whatever that is."""
    try:
        return str(exc)
    except BaseException:  # noqa: BLE001 - that must not hide that the handler failed
        return ""
