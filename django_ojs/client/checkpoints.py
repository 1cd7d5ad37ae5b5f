"""Checkpoints in Python: a handler saves its state and goes on from it (`CheckpointMethods`), a caller reads it."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from asgiref.sync import sync_to_async

from django_ojs import jsontext
from django_ojs.client.options import check_json

if TYPE_CHECKING:
    from django_ojs.client.context import JobContext
    from django_ojs.models import JobRow


class Checkpoint(NamedTuple):
    """What a job has saved last: any JSON value, the how-manieth save it was, and when.

    A client over HTTP may keep a number and texts beside the state (`step_index`, `metadata`).
    """

    state: Any
    sequence: int
    created_at: dt.datetime
    step_index: int | None = None
    metadata: dict[str, Any] | None = None


class CheckpointLink(Protocol):
    """How a context reaches what is stored. Both calls last until it is done."""

    def save_checkpoint(self, context: JobContext, state: Any) -> int:
        """The sequence of the new checkpoint. Raises `StepBoundary` where the job is no longer this run's."""

    def clear_checkpoint(self, context: JobContext) -> bool:
        """Whether there was one. Raises `StepBoundary` where the job is no longer this run's."""


class CheckpointMethods:
    """What a handler does with the checkpoint of its job (orchestration 5.2)."""

    _row: JobRow
    _link: CheckpointLink
    #: The JSON text of the state, the state of it once it was read, and the sequence; None: there is no checkpoint.
    _state: str | None
    _read: Any
    _sequence: int

    def _begin_checkpoints(self) -> None:
        """Take what the claim brought."""
        kept = self._row.get("checkpoint")
        self._state, self._sequence = (None, 0) if kept is None else kept
        self._read = None

    @property
    def has_checkpoint(self) -> bool:
        """Whether this attempt, or one before it, has saved a checkpoint."""
        return self._state is not None

    @property
    def last_checkpoint(self) -> Any:
        """The state that was saved last, in this attempt or an earlier one; None if there is none."""
        if self._read is None and self._state is not None:
            self._read = jsontext.loads(self._state)
        return self._read

    @property
    def checkpoint_sequence(self) -> int:
        """The number of the latest save, counted over all attempts; 0 if there is no checkpoint."""
        return self._sequence

    def checkpoint(self, state: Any) -> int:
        """Save this state, any JSON value, in place of the one before; return its sequence: 1, 2, 3 and so on.

        It is stored when the call returns, or with the transaction in which it is made. The next attempt finds it as
        `last_checkpoint`, whatever ends this one. It renews the reservation as `heartbeat()` does, but for jobs with a
        length of their own.

        If the job is no longer this run's, it ends the run with an exception that is no `Exception`. Raises TypeError
        for what is not JSON, and PayloadTooLarge for more than `OJS["MAX_CHECKPOINT_BYTES"]`.
        """
        check_json(state, "state")
        self._sequence = self._link.save_checkpoint(self._context, state)
        self._state, self._read = jsontext.dumps(state), None
        return self._sequence

    def clear_checkpoint(self) -> bool:
        """Delete the checkpoint, so that the next attempt starts over; return whether there was one."""
        cleared = self._link.clear_checkpoint(self._context)
        self._state, self._read, self._sequence = None, None, 0
        return cleared

    async def acheckpoint(self, state: Any) -> int:
        """`checkpoint` from an asynchronous handler."""
        return await sync_to_async(self.checkpoint)(state)

    async def aclear_checkpoint(self) -> bool:
        """`clear_checkpoint` from an asynchronous handler."""
        return await sync_to_async(self.clear_checkpoint)()

    @property
    def _context(self) -> JobContext:
        """This context, which all of these methods belong to."""
        return self  # type: ignore[return-value]
