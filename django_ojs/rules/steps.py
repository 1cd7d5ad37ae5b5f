"""What is recorded of a step of a durable job (extension durable-execution), as a value."""

from __future__ import annotations

import dataclasses
import datetime as dt
from enum import StrEnum
from typing import Any

#: Characters that the name of a step may have.
MAX_STEP_NAME = 200
#: Between the name of a step and those of what its function does by the context: `charge > $random-1`.
INSIDE = " > "
#: What the name of a step begins with that undoes something; then comes the name of the entry that says what.
UNDOING = "$undo:"
#: The name of a row that says that the steps before it were deleted while a run went on: the next run starts over.
#: Without `ended_at` it goes on with those that are left, which begin in the middle.
CLEARED = "$cleared"
#: What a step of the kind `undo` waits for: the end of its job by a discard or a cancellation.
JOB_FAILED = "$job.failed"
#: The member of a job that undoes another one: the id of that.
COMPENSATES = "x_compensates"


class StepKind(StrEnum):
    """What a step does. The first three have these names on the wire."""

    CALL = "call"  #: calls a function
    TIME = "time"  #: looks at the clock
    RANDOM = "random"  #: draws lots
    SLEEP = "sleep"
    ARGUMENTS = "arguments"  #: what the handler was continued as new with
    EVENT = "event"  #: waits for an event
    CHILDREN = "children"  #: runs other jobs, and waits for the event that they have ended
    UNDO = "undo"  #: says what undoes something; its result is the call


class StepExists(Exception):
    """The job has a step of that name already: another run recorded it."""


@dataclasses.dataclass(slots=True)
class Step:
    """One step as it is recorded. `result` is JSON text; None as long as there is none.

    `code` is the mark of the handler's code that recorded it; None: it comes from a client of another language. Without
    `ended_at` it has failed and is tried again, it is a sleep that lasts until `due_at`, or it waits for an event until
    then, without end where there is no `due_at`. A wait that has ended with an `error` has timed out.
    """

    name: str
    kind: str
    began_at: dt.datetime
    attempt: int
    error: dict[str, Any] | None = None
    tries: int = 1
    code: str | None = ""
    ended_at: dt.datetime | None = None
    due_at: dt.datetime | None = None
    event_name: str | None = None
    event_key: str | None = None
    result: str | None = None

    @property
    def event(self) -> tuple[str, str]:
        """The name and the key of the event that it waits for."""
        return self.event_name or "", self.event_key or ""

    @property
    def has_ended(self) -> bool:
        return self.ended_at is not None

    def until(self, now: dt.datetime) -> dt.datetime:
        """When it ended; `now` where it goes on. Nothing is written when a sleep is over."""
        if self.kind == StepKind.SLEEP and self.due_at is not None:
            return min(self.due_at, now)
        return self.ended_at or now
