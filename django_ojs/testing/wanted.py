"""What a test expects of a job, and how a job differs from it in the words of a failed assertion."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypedDict

from django_ojs import jsontext
from django_ojs.client.definition import Enqueuer
from django_ojs.client.handle import JobHandle
from django_ojs.client.options import Duration, milliseconds
from django_ojs.conf import ojs_settings
from django_ojs.policies import priority as priorities
from django_ojs.policies.durations import format_instant

#: A job type by its name, `"email.send"`, or by its handler, `send_email`.
JobType: TypeAlias = "str | Enqueuer[Any]"

_PLURAL = frozenset({"args", "tags"})
_CLOSE = dt.timedelta(milliseconds=1)  #: the wire has no finer time


class Expected(TypedDict, total=False):
    """What may be said of a job besides its type; what is left out may be anything."""

    args: Sequence[Any]  #: all of them, in order
    queue: str
    meta: Mapping[str, Any]  #: these members, whatever else there is
    priority: int | str
    tags: Iterable[str]  #: these tags, whatever others there are
    at: dt.datetime  #: not before this instant
    delay: Duration  #: so long after it was enqueued
    state: str


def how_often(times: int | None, count: int | None, done: str = "") -> int | None:
    """The exact number of `times=` or `count=`, which are one argument under two names; None: at least one.

    TypeError for both, and for 0 where `done` (`enqueued`) says of which assertion that is the negation.
    """
    if times is not None and count is not None:
        raise TypeError("times= and count= are the same: give one of them.")
    number = times if count is None else count
    if number == 0 and done:
        raise TypeError(f"{'times' if count is None else 'count'}=0: say assert_not_{done}() or refute_{done}().")
    return number


def name_of(type: JobType) -> str:
    return type if isinstance(type, str) else type.type


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """A job type (None: any) and what is expected of its jobs."""

    type: str | None
    expected: Expected

    @classmethod
    def of(cls, type: JobType | None, expected: Expected) -> Wanted:
        if unknown := sorted(set(expected) - Expected.__annotations__.keys()):
            raise TypeError(
                f"Nothing can be expected of {unknown[0]}=: there are {', '.join(Expected.__annotations__)}."
            )
        return cls(None if type is None else name_of(type), expected)

    def fits(self, job: JobHandle) -> bool:
        return not any(self.differences(job))

    def differences(self, job: JobHandle) -> Iterator[str]:
        """What is other than expected, in a few words each."""
        if self.type is not None and job.type != self.type:
            yield "another type"
            return
        for name, wanted in self.expected.items():
            if not _READERS[name](job, wanted):
                yield f"{name} {'differ' if name in _PLURAL else 'differs'}"

    def __str__(self) -> str:
        what = self.type or "any job"
        return what + "".join(f", {name}={_shown(value)}" for name, value in self.expected.items())


def described(job: JobHandle) -> str:
    """One line about a job: what it is, where it is, when it may start."""
    arguments = ", ".join(_shown(value) for value in job.args)
    facts = [f"queue={job.queue!r}", str(job.state)]
    if (due := job.row["due_at"]) is not None:
        facts.append(f"not before {format_instant(due)}")
    if job.row["priority"]:
        facts.append(f"priority={job.row['priority']}")
    if job.meta:
        facts.append(f"meta={_shown(job.meta)}")
    return f"{job.type}({arguments}) {', '.join(facts)}"


def _shown(value: Any) -> str:
    text = value.isoformat() if isinstance(value, dt.datetime) else repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."


def _as_sent(value: Any) -> Any:
    """The value as it comes back from JSON; as it is where it is no JSON, such as `mock.ANY`."""
    try:
        return jsontext.loads(jsontext.dumps(value))
    except (TypeError, ValueError):
        return value


def _has_args(job: JobHandle, wanted: Sequence[Any]) -> bool:
    return bool([_as_sent(value) for value in wanted] == job.args)


def _has_meta(job: JobHandle, wanted: Mapping[str, Any]) -> bool:
    return all(name in job.meta and _as_sent(value) == job.meta[name] for name, value in wanted.items())


def _has_tags(job: JobHandle, wanted: Iterable[str]) -> bool:
    return set(wanted) <= set(job.envelope.get("tags") or ())


def _has_priority(job: JobHandle, wanted: int | str) -> bool:
    return bool(job.row["priority"] == priorities.parse(wanted, ojs_settings.PRIORITY_LEVELS))


def _starts_at(job: JobHandle, wanted: dt.datetime) -> bool:
    due = job.row["due_at"]
    return bool(due is not None and abs(due - wanted) <= _CLOSE)


def _is_delayed(job: JobHandle, wanted: Duration) -> bool:
    due, delay = job.row["due_at"], dt.timedelta(milliseconds=milliseconds(wanted, "delay"))
    return bool(abs((due or job.row["created_at"]) - job.row["created_at"] - delay) <= _CLOSE)


_READERS: Mapping[str, Any] = {
    "args": _has_args, "queue": lambda job, wanted: job.queue == wanted, "meta": _has_meta, "tags": _has_tags,
    "priority": _has_priority, "at": _starts_at, "delay": _is_delayed,
    "state": lambda job, wanted: job.state == wanted,
}  # fmt: skip
