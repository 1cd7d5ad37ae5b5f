"""Decide the fate of a job from inside its handler (`Retry`, `Fail`, `Discard` and `Snooze`), or end its run early."""

from __future__ import annotations

from django_ojs.client.options import Duration, milliseconds
from django_ojs.guard import Interrupted
from django_ojs.rules.durations import spell


class Directive(Exception):
    """Base of `Retry`, `Fail`, `Discard` and `Snooze`. But for `Fail` they are no errors of the handler, and are not
    logged as errors.

    Their module is the one that sites import them from, because a job's error shows it as `error_class`.
    """

    __module__ = "django_ojs"


class Retry(Directive):
    """`raise Retry("rate limited", after="5m")` fails this attempt, and starts the next one after that time.

    Without `after` the backoff of the retry policy applies. The attempt counts: after the last one the job is
    discarded. With `from error` the history of the job shows that error.
    """

    __module__ = "django_ojs"

    def __init__(self, reason: str = "", *, after: Duration | None = None) -> None:
        super().__init__(reason or "The handler asked for a retry.")
        self.after_ms = None if after is None else milliseconds(after, "after")


class Fail(Directive):
    """`raise Fail("no such customer") from error` fails the job for good, however many attempts it has left.

    It is a failure like any other: the job becomes a dead letter (unless its `on_exhaustion` is `discard`), and error
    reporters, `job_failed`, the log and alerts tell of it. With `from error` the history of the job shows that error,
    with this reason as its message.
    """

    __module__ = "django_ojs"

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "")

    def __str__(self) -> str:
        cause = "" if self.__cause__ is None else str(self.__cause__)
        return super().__str__() or cause or "The handler failed the job for good."


class Discard(Directive):
    """`raise Discard("why")` ends the job quietly, whatever the retry policy says: it is discarded with its reason, and
    neither a dead letter nor reported. `Fail` is the loud one."""

    __module__ = "django_ojs"

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "The handler discarded the job.")


class Snooze(Directive):
    """`raise Snooze("1h")` puts the job off: it runs again after that time.

    The next run has the next number in `context.attempt`, but this one does not count against `max_attempts`.
    """

    __module__ = "django_ojs"

    def __init__(self, delay: Duration) -> None:
        self.delay_ms = milliseconds(delay, "delay")
        super().__init__(f"The handler asked to run again after {spell(self.delay_ms)}.")


class StepBoundary(Interrupted):
    """Ends a run between two of its steps, because the worker stops or the job is no longer the run's.

    Nothing is lost: what was done is recorded, and the next run goes on from there.
    """


class Suspended(BaseException):
    """Ends a run that goes on later: the job sleeps, a step waits for its next try, or the job waits for an event.

    Not an Exception, so that no `except Exception` in a handler keeps it. `finally` blocks run.

    Attributes:
        delay_ms: after how long the job goes on at the latest.
        waits: the names of the steps that an event may end before; then the job goes on at once.
    """

    def __init__(self, delay_ms: int, waits: tuple[str, ...] = ()) -> None:
        super().__init__(f"The job goes on after {delay_ms / 1000:g} s{', or with an event' if waits else ''}.")
        self.delay_ms, self.waits = delay_ms, waits
