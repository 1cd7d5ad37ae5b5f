"""What a handler raises to decide the fate of its job itself."""

from __future__ import annotations

from django_ojs.client.options import Duration, milliseconds


class Directive(Exception):
    """Base of the three: neither is an error of the handler, and none is logged as one."""


class Retry(Directive):
    """`raise Retry("rate limited", after="5m")`: this attempt failed, try again after so long.

    Without `after` the policy's backoff applies. It counts as an attempt: after the last one the job is
    discarded. With `from error` the job's history shows that error.
    """

    def __init__(self, reason: str = "", *, after: Duration | None = None) -> None:
        super().__init__(reason or "The handler asked for a retry.")
        self.after_ms = None if after is None else milliseconds(after, "after")


class Discard(Directive):
    """`raise Discard("why")`: failed for good, whatever the retry policy says, and not worth a dead letter."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "The handler discarded the job.")


class Snooze(Directive):
    """`raise Snooze("1h")`: not now. The job runs again after so long, as if this attempt had not been."""

    def __init__(self, delay: Duration) -> None:
        super().__init__(f"The handler asked to run again after {delay}.")
        self.delay_ms = milliseconds(delay, "delay")


class Interrupted(BaseException):
    """Raised by the worker inside a handler that has to stop.

    Not an Exception, so that no `except Exception` in a handler keeps it.
    """
