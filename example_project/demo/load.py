"""A few jobs a second, for as long as the demo runs: `ERRANDS` says which and how often."""

from __future__ import annotations

import dataclasses
import datetime as dt
import random
import time
from collections.abc import Callable, Iterable

from django.db import transaction
from django.utils import timezone

from django_ojs import enqueue_many
from django_ojs.models import Job
from django_ojs.states import State
from example_project import jobs, library

BACKLOG = 200  #: no new jobs while so many wait: the worker is gone, or a queue is paused
MODULES = 8  #: at most so many modules in one report
CLOSED_PORT = 9  #: "discard", a service that no machine has run for decades
REMOVED = ("binhex.py", "formatter.py", "macpath.py", "symbol.py")  #: modules of older Pythons


@dataclasses.dataclass(frozen=True)
class Errand:
    """Something to enqueue every so many seconds. `act` is given the port of the demo's server."""

    every: float
    act: Callable[[int], object]


class Load:
    """`run_once()` now and then does the errands that are due."""

    def __init__(self, port: int, errands: Iterable[Errand] | None = None) -> None:
        self._port = port
        self._due = dict.fromkeys(ERRANDS if errands is None else errands, 0.0)

    def run_once(self) -> None:
        now = time.monotonic()
        due = [errand for errand, at in self._due.items() if at <= now]
        if due and not _is_backlogged():
            for errand in due:
                self._due[errand] = now + errand.every
                errand.act(self._port)


def survey(port: int) -> None:
    """Hash and count the modules of a package, report on them, and send a reminder if the report is late.

    All in one transaction: there is never a report without the jobs it reports on.
    """
    package = _pick(library.packages())
    modules = library.package(package)
    chosen = random.sample(modules, min(len(modules), MODULES))
    steps = [step.s(module) for module in chosen for step in (jobs.hash_module, jobs.count_words)]
    late = f"The report on {package} is late."
    with transaction.atomic():
        parts = enqueue_many(steps)
        reminder = jobs.send_message.options(delay="1m").enqueue("editor@example.com", late, "It should be done.")
        jobs.render_report.options(
            delay="3s", expires_at=timezone.now() + dt.timedelta(minutes=10), tags=["report", package],
            meta={"asked_by": "ojs_demo"},
        ).enqueue(package, [str(part.id) for part in parts], str(reminder.id))  # fmt: skip


def copy(port: int) -> None:
    jobs.copy_module.enqueue(_pick(library.modules()))


def comments(port: int) -> None:
    jobs.lines_per_comment.enqueue(_pick(library.modules()))


def hash_removed(port: int) -> None:
    """A list of modules made with an older Python is where such a job comes from."""
    jobs.hash_module.enqueue(_pick(REMOVED))


def count_names(port: int) -> None:
    jobs.count_names.enqueue()


def probe(port: int) -> None:
    jobs.probe.enqueue(port)


def probe_nobody(port: int) -> None:
    jobs.probe.enqueue(CLOSED_PORT)


def publish(port: int) -> None:
    """It asks whether to publish, and the demo's user finds that among the approvals in the admin."""
    jobs.publish_list.enqueue(_pick(library.packages()))


def tidy(port: int) -> None:
    jobs.tidy.options(delay="30s").enqueue()


#: About four jobs a second. Each errand is done once right at the start.
ERRANDS = (
    Errand(6, survey),
    Errand(2, probe),
    Errand(2, copy),
    Errand(10, comments),
    Errand(60, hash_removed),
    Errand(60, count_names),
    Errand(60, tidy),
    Errand(90, probe_nobody),
    Errand(300, publish),
)


def _is_backlogged() -> bool:
    return Job.objects.filter(state=State.AVAILABLE)[:BACKLOG].count() >= BACKLOG


def _pick(choices: tuple[str, ...]) -> str:
    return random.choice(choices)  # noqa: S311 - decides nothing secret
