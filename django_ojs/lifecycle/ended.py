"""Tells workflows and schedules what becomes of their jobs, in the transaction of the change.

The verbs that end, revive, read or claim jobs call the functions here; whoever follows jobs subscribes to them
(`django_ojs.apps` loads the subscribers). So the verbs know no workflow and no schedule.

    @ended.jobs_ended.subscribe
    def on_jobs_ended(rows, now, using, found=None): ...
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, ParamSpec, TypeVar

from django_ojs.models.job import JobRow
from django_ojs.store.values import EndedMembers

P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., Any])


class Told(Generic[P]):
    """Calls its subscribers in the order in which they subscribed. What one of them raises ends the change."""

    def __init__(self, described: Callable[P, None]) -> None:
        self.__doc__ = described.__doc__
        self.subscribers: list[Callable[P, None]] = []

    def subscribe(self, function: F) -> F:
        """Have `function` called; it returns the function, so that it can be a decorator."""
        if function not in self.subscribers:
            self.subscribers.append(function)
        return function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for subscriber in self.subscribers:
            subscriber(*args, **kwargs)


@Told
def jobs_ended(rows: Sequence[JobRow], now: dt.datetime, using: str, found: EndedMembers | None = None) -> None:
    """These jobs may have ended; `rows` need `id`, `workflow_id` and `state`. Their own events were written before.

    Where the members of workflows among them have been locked and read already, `found` is what was found.
    """


@Told
def jobs_revived(rows: Sequence[JobRow], using: str, limits: Mapping[str, Any] | None = None) -> None:
    """These dead letters run again. `limits` are those of the caller, as `Limits.to_json` makes them."""


@Told
def jobs_read(rows: Sequence[JobRow], using: str) -> None:
    """These jobs were claimed or are read: whoever knows more of them adds it to their rows."""


@Told
def queues_claimed(queues: Sequence[str], using: str) -> None:
    """A worker asks for jobs of these queues. The schedules that postponed runs there let those go that may run now."""
