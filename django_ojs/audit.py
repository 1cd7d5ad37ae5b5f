"""Write what operators do into the audit log, in the transaction of the act: neither is stored without the other.

Except for acts on an outbox that is in another database than the jobs: they are committed there first, and are done
without an entry if that cannot be written afterwards. No entry is there without its act.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import getpass
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

from django_ojs import clock, tenants
from django_ojs.database import atomic, database, retried
from django_ojs.models import AuditEntry
from django_ojs.rules.names import storable

T = TypeVar("T")
#: Entries of acts that change nothing, such as refused calls, that a process writes of one actor in a minute: each user
#: of the site could fill the log. And the actors whose entries are counted at a time.
MOST_NOTES, MINUTE, _MOST_ACTORS = 60, 60.0, 10_000
_LENGTHS = {"actor": 255, "action": 64, "target_type": 32, "target": 512, "source_ip": 64, "request_id": 128}


@dataclasses.dataclass(slots=True)
class Act:
    """An operator's act, as the audit log will have it. The act itself may fill in `target` and `detail`.

    Attributes:
        actor: `user:NAME`, `key:NAME`, `command:NAME` or `anonymous`.
        action: kind of the target and verb, such as `queue.pause`.
        target: its id or name; '' for an act on many.
        detail: what else is worth knowing: never arguments, results or credentials.
    """

    actor: str
    action: str
    target: str = ""
    detail: dict[str, Any] = dataclasses.field(default_factory=dict)
    door: str = ""
    source_ip: str = ""
    request_id: str = ""
    outcome: str = AuditEntry.Outcome.SUCCESS.value


def perform(change: Callable[[], T], act: Act, *, using: str | None = None) -> T:
    """Do `change` and write `act` into the log, together or not at all; again from the start where it loses a race.

    What `change` does in another database is not undone with it.
    """
    return _perform(change, act, using=database(using))


@retried
def _perform(change: Callable[[], T], act: Act, *, using: str) -> T:
    with atomic(using=using):
        done = change()
        append([act], using)
    return done


def append(acts: list[Act], using: str) -> None:
    """Write acts into the log, in the caller's transaction."""
    if acts:
        now = clock.now(using)
        AuditEntry.objects.using(using).bulk_create([_row(act, now) for act in acts])


def note(act: Act, *, using: str | None = None) -> None:
    """Write the entry of an act that changes nothing. Beyond `MOST_NOTES` of one actor in a minute there is none, and
    the next one says how many were left out."""
    using = database(using)
    left_out = _notes.left_out((tenants.scope(using), act.actor))
    if left_out is not None:
        act.detail |= {"left_out": left_out} if left_out else {}
        perform(lambda: None, act, using=using)


@dataclasses.dataclass(slots=True)
class _Count:
    """The entries of an actor in the minute that `began` then (by `time.monotonic`)."""

    began: float
    written: int = 0
    left_out: int = 0  #: since the last one that was written


class _Notes:
    def __init__(self) -> None:
        self._counts: dict[Hashable, _Count] = {}
        self._lock = threading.Lock()

    def left_out(self, actor: Hashable) -> int | None:
        """How many entries were left out before this one; None where this one is to be left out, too."""
        now = time.monotonic()
        with self._lock:
            if len(self._counts) >= _MOST_ACTORS:
                self._counts.clear()
            count = self._counts.setdefault(actor, _Count(now))
            if now - count.began >= MINUTE:
                count.began, count.written = now, 0
            if count.written >= MOST_NOTES:
                count.left_out += 1
                return None
            count.written += 1
            left_out, count.left_out = count.left_out, 0
            return left_out

    def forget(self) -> None:
        self._counts.clear()


_notes = _Notes()


def forget() -> None:
    """As if nothing had been noted, as tests begin."""
    _notes.forget()


def name_targets(act: Act, done: Sequence[object], matched: int) -> None:
    """Say which objects were changed: the only one as the target, several in the detail."""
    act.target = str(done[0]) if len(done) == 1 else ""
    act.detail = {"matched": matched, "succeeded": len(done)}
    if len(done) > 1:
        act.detail["targets"] = [str(name) for name in done]


def by_command() -> str:
    """The actor of a management command: who runs the process."""
    try:
        return storable(f"command:{getpass.getuser()}")
    except (OSError, KeyError, ImportError):  # no such user, as in a container with a bare uid
        return "command"


def prune(edge: dt.datetime | None, batch: int, using: str) -> int:
    """Forget at most `batch` entries from before `edge`; None keeps them for ever."""
    if edge is None:
        return 0
    entries = AuditEntry.objects.using(using)
    old = list(entries.filter(time__lt=edge).order_by("time").values_list("pk", flat=True)[:batch])
    return int(entries.filter(pk__in=old)._raw_delete(using)) if old else 0


def _row(act: Act, now: dt.datetime) -> AuditEntry:
    kind = act.action.partition(".")[0]
    facts = {"actor": act.actor, "action": act.action, "target_type": kind, "target": act.target,
             "source_ip": act.source_ip, "request_id": act.request_id}  # fmt: skip
    cut = {name: storable(text)[: _LENGTHS[name]] for name, text in facts.items()}
    rest: dict[str, Any] = {"door": act.door, "outcome": act.outcome, "detail": act.detail or None}
    return AuditEntry(time=now, **rest, **cut)
