"""`manage.py ojs_status`: how the site's jobs stand, once or again and again, for people and for scripts."""

from __future__ import annotations

import datetime as dt
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from django.core.management.base import CommandParser
from django.db import connections

from django_ojs import clock
from django_ojs.database import database
from django_ojs.http.server import rendered
from django_ojs.management.commands.ojs_queues import queue_facts
from django_ojs.management.shell import IN_PART, ShellCommand, duration, positive, table
from django_ojs.messages import jobs_wait
from django_ojs.models import Queue, Worker
from django_ojs.models.queue import TEMPLATE
from django_ojs.queues import maintenance
from django_ojs.rules.durations import format_instant
from django_ojs.scheduler.service import ERRORS
from django_ojs.states import State
from django_ojs.statistics.counters import count_all, totals
from django_ojs.statistics.latency import fronts
from django_ojs.workers.directory import silent, state_of, unserved_queues, unserved_types, with_held


class Limits(NamedTuple):
    """What a queue may have without needing attention; None for no limit."""

    backlog: int | None = None  #: available jobs
    age: dt.timedelta | None = None  #: since when the longest waiting of them has been available


NO_LIMITS = Limits()


class Command(ShellCommand):
    help = (
        "Shows queues, workers and counts, and what needs attention. With --check it exits with 3 when something does."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="as JSON, one object a line")
        parser.add_argument("--watch", nargs="?", const=2, type=positive, metavar="SECONDS",
                            help="show it again every SECONDS (2) until Ctrl-C")  # fmt: skip
        parser.add_argument("--check", action="store_true", help="exit with 3 when something needs attention")
        parser.add_argument("--max-backlog", type=positive, metavar="N",
                            help="a queue with more available jobs than this needs attention")  # fmt: skip
        parser.add_argument("--max-age", type=duration, metavar="AGE",
                            help="a queue in which a job has waited longer needs attention: 90s, 15m, 2h")  # fmt: skip

    def handle(self, *args: Any, **options: Any) -> None:
        limits = Limits(options["max_backlog"], options["max_age"])
        if options["watch"]:
            self._watch(options["watch"], self._json if options["json"] else self._screen, limits)
            return
        facts = status(limits)
        (self._json if options["json"] else self._page)(facts)
        if options["check"] and facts["attention"]:
            sys.exit(IN_PART)

    def _watch(self, seconds: int, show: Callable[[dict[str, Any]], None], limits: Limits) -> None:
        """Show it again and again until Ctrl-C. A database that is away is said, and waited for."""
        try:
            while True:
                try:
                    show(status(limits))
                except ERRORS as error:
                    self.stderr.write(f"The database does not answer: {str(error).strip()}")
                    connections[database(None)].close()
                time.sleep(seconds)
        except KeyboardInterrupt:
            return

    def _json(self, facts: dict[str, Any]) -> None:
        self.write_json(facts)
        self.stdout.flush()

    def _page(self, facts: dict[str, Any]) -> None:
        self.stdout.write(_page(facts))

    def _screen(self, facts: dict[str, Any]) -> None:
        """On a terminal each page takes the place of the one before."""
        self.stdout.write(f"\x1b[H\x1b[2J{_page(facts)}" if self.stdout.isatty() else f"{_page(facts)}\n")
        self.stdout.flush()


def status(limits: Limits = NO_LIMITS) -> dict[str, Any]:
    """Everything that the command says."""
    using = database(None)
    now = clock.now(using)
    counted = count_all(using=using)
    queues = [queue_facts(q, counted.get(q.name)) for q in Queue.objects.using(using).exclude(pk=TEMPLATE)]
    workers = [
        {"id": worker.pk, "state": state_of(worker, now), "active_jobs": worker.held,
         "concurrency": worker.concurrency}
        for worker in with_held(Worker.objects.using(using))
    ]  # fmt: skip
    jobs = totals(counted.values()) | {"dead": sum(counts.dead for counts in counted.values())}
    facts: dict[str, Any] = {
        "time": format_instant(now), "maintenance": rendered(maintenance.current(using=using)), "jobs": jobs,
        "queues": queues, "workers": workers,
    }  # fmt: skip
    running = any(worker["state"] == "running" for worker in workers)
    unserved = unserved_queues(counted, using=using) if running else {}
    facts["unserved_queues"] = unserved
    return {**facts, "attention": [*_attention(facts, using), *_beyond(limits, facts["queues"], now, using)]}


def _beyond(limits: Limits, queues: list[dict[str, Any]], now: dt.datetime, using: str) -> Iterator[str]:
    """Which queues have more jobs, or older ones, than the operator allows."""
    waiting = {queue["name"]: queue[State.AVAILABLE] for queue in queues if queue[State.AVAILABLE]}
    for name, number in waiting.items():
        if limits.backlog is not None and number > limits.backlog:
            yield f"{jobs_wait(number)} in {name}, more than {limits.backlog}."
    if limits.age is None:
        return
    for name, front in fronts(sorted(waiting), now, using=using).items():
        if front.oldest is not None and now - front.oldest > limits.age:
            yield f"A job in {name} has been waiting since {format_instant(front.oldest)}."


def _attention(facts: dict[str, Any], using: str) -> list[str]:
    """What an operator should look at."""
    found = _closed(facts["maintenance"], facts["time"])
    waiting = facts["jobs"][State.AVAILABLE]
    if waiting and not any(worker["state"] == "running" for worker in facts["workers"]):
        found.append(f"{jobs_wait(waiting)}, and no worker runs.")
    found += [f"The worker {worker.pk} is silent." for worker in silent(using)]
    unserved = unserved_types(using) if facts["workers"] else {}
    found += [f"{jobs_wait(count, f' of the type {name}')}, and no worker has it." for name, count in unserved.items()]
    alone = facts["unserved_queues"].items()
    found += [f"{jobs_wait(count)} in {name}, and no worker serves this queue." for name, count in alone]
    held = (queue for queue in facts["queues"] if queue["status"] == "paused" and queue[State.AVAILABLE])
    found += [f"{jobs_wait(queue[State.AVAILABLE])} in {queue['name']}, which is paused." for queue in held]
    return found


def _closed(mode: dict[str, Any], now: str) -> list[str]:
    """Maintenance mode, and whether it takes longer than it should. All instants are written alike, and compare so."""
    if not mode["enabled"]:
        return []
    since = f"Maintenance mode is on since {mode['started_at']}" + (f" ({mode['reason']})" if mode["reason"] else "")
    if mode["ends_at"] and mode["ends_at"] <= now:
        return [f"{since}; it should have ended at {mode['ends_at']}."]
    return [f"{since}: no worker gets a job{' until about ' + mode['ends_at'] if mode['ends_at'] else ''}."]


def _page(facts: dict[str, Any]) -> str:
    totals = ", ".join(f"{number} {name}" for name, number in facts["jobs"].items() if number) or "no jobs"
    names = ("name", "status", State.AVAILABLE, State.ACTIVE, State.SCHEDULED, State.RETRYABLE, "dead")
    queues = [[name.upper() for name in names], *([str(q[name]) for name in names] for q in facts["queues"])]
    workers = [
        ["WORKER", "STATE", "JOBS"],
        *([w["id"], w["state"], f"{w['active_jobs']}/{w['concurrency']}"] for w in facts["workers"]),
    ]
    parts = [[f"{facts['time']}: {totals}"], table(queues), table(workers)]
    if facts["attention"]:
        parts.append([f"! {line}" for line in facts["attention"]])
    return "\n\n".join("\n".join(part) for part in parts)
