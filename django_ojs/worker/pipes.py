"""Connect the supervisor and a worker process by two pipes: orders go down, reports come up.

An order is one byte. It is not a signal, because the child may get the same signal itself, from a terminal or
from systemd, and the second of two signals means something else than the first. The end of the pipe means
that the supervisor is gone, however it ended: the worker then drains by itself.
"""

from __future__ import annotations

import contextlib
import os
import signal

from django_ojs.scheduler.service import Service
from django_ojs.worker.lifecycle import SUPERVISOR, Lifecycle, Order

ORDERS = {Order.STOP: b"s", Order.STOP_NOW: b"h", Order.QUIET: b"q", Order.RESUME: b"r"}
_MEANING = {code: order for order, code in ORDERS.items()}


class SupervisorLink(Service):
    """The worker's end: a thread that reads orders, and `report()`, which never blocks."""

    name = "supervisor link"

    def __init__(self, orders: int, reports: int, lifecycle: Lifecycle) -> None:
        super().__init__(lambda name: lifecycle.give(Order.CRASH, f"the {name} crashed"))
        self._orders, self._reports, self._lifecycle = orders, reports, lifecycle

    def run(self) -> None:
        while data := os.read(self._orders, 64):
            for code in data:
                self._lifecycle.give(_MEANING[bytes([code])], SUPERVISOR)
        self._lifecycle.give(Order.STOP, "the supervisor is gone")

    def set_alarm(self, seconds: float) -> None:
        """Let the kernel end this process if this is not called again within so many seconds.

        A handler may hold the interpreter for ever in a C call. The supervisor kills such a process; this is
        for the one whose supervisor has been killed. No thread has to run for it, and a handler's own
        processes do not inherit it.
        """
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def report(self, *, healthy: bool, completed: int) -> None:
        """Say that this process lives, whether it is healthy, and how many jobs it has completed."""
        self._send(b"%d %d" % (healthy, completed))

    def say_goodbye(self, *, replace: bool, refused: bool = False) -> None:
        """Send the last message. An exit code would not do: a handler can call `os._exit(0)`."""
        self._send(b"refused" if refused else b"replace" if replace else b"done")

    def _send(self, line: bytes) -> None:
        with contextlib.suppress(BlockingIOError, BrokenPipeError):
            os.write(self._reports, line + b"\n")


class Pipes:
    """Both ends, made before the fork; each side keeps its own."""

    def __init__(self) -> None:
        self.orders_out, self._orders_in = os.pipe()
        self._reports_out, self.reports_in = os.pipe()
        os.set_blocking(self.reports_in, False)
        os.set_blocking(self._reports_out, False)
        self._rest = b""
        self.healthy, self.completed = False, 0
        self.goodbye = ""  #: how the child ended by itself: "done", "replace", or "refused" if its name was taken

    def keep_childs_end(self) -> None:
        self.close()

    def keep_parents_end(self) -> None:
        os.close(self.orders_out)
        os.close(self.reports_in)

    def give(self, order: Order) -> None:
        """For the parent: send an order. A child that has just ended reads nothing any more."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._orders_in, ORDERS[order])

    def read(self) -> bool:
        """For the parent: take in the reports that came; whether there were any."""
        data = b""
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._reports_out, 4096):
                data += chunk
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            healthy, _, completed = line.partition(b" ")
            if completed:
                self.healthy, self.completed = healthy == b"1", int(completed)
            else:
                self.goodbye = line.decode()
        return bool(lines)

    def close(self) -> None:
        """For the parent: the child has ended."""
        os.close(self._orders_in)
        os.close(self._reports_out)
