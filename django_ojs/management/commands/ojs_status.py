"""`manage.py ojs_status`: how the site's jobs stand, once or again and again, for people and for scripts."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable
from typing import Any

from django.core.management.base import CommandParser
from django.db import connections
from django.db.models import Count, Q

from django_ojs import doctor, outbox
from django_ojs.backoff import Backoff
from django_ojs.conf import ojs_settings
from django_ojs.database import database, leave_old_server, note_read_only
from django_ojs.faults import passes
from django_ojs.http.server import rendered
from django_ojs.management.commands.ojs_queues import queue_facts
from django_ojs.management.shell import IN_PART, ShellCommand, duration_argument, positive, table
from django_ojs.models import OutboxEntry, Queue, Worker
from django_ojs.models.queue import ALL_DRAIN, TEMPLATE
from django_ojs.output import one_line
from django_ojs.rules import alertrules
from django_ojs.rules.alertrules import AlertRules
from django_ojs.rules.durations import format_instant
from django_ojs.states import State
from django_ojs.statistics.counters import totals
from django_ojs.workerregistry.directory import state_of, unserved_queues, with_held

FIRST_PAUSE, LONGEST_PAUSE = 2.0, 15.0  #: seconds until a database that was away is asked again, at least


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
                            help="a queue with more available jobs than this needs attention, whatever "
                            "OJS['ALERTS'] says")  # fmt: skip
        parser.add_argument("--max-age", type=duration_argument, metavar="AGE",
                            help="a queue in which a job has waited longer needs attention: 90s, 15m, 2h")  # fmt: skip

    def handle(self, *args: Any, **options: Any) -> None:
        forced = {"backlog": options["max_backlog"], "oldest_wait": options["max_age"]}
        rules = alertrules.parse(ojs_settings.ALERTS)
        limits = dataclasses.replace(rules, forced={name: one for name, one in forced.items() if one is not None})
        if options["watch"]:
            self._watch(options["watch"], self._json if options["json"] else self._screen, limits)
            return
        facts = status(limits)
        (self._json if options["json"] else self._page)(facts)
        if options["check"] and facts["attention"]:
            sys.exit(IN_PART)

    def _watch(self, seconds: int, show: Callable[[dict[str, Any]], None], limits: AlertRules) -> None:
        """Show it again and again until Ctrl-C. A database that is away is said, and waited for."""
        tries = Backoff("Looking", FIRST_PAUSE, LONGEST_PAUSE, tell=self.stderr.write)
        try:
            while True:
                pause = float(seconds)
                try:
                    leave_old_server(database(None))
                    show(status(limits))
                except Exception as error:
                    if not passes(error):
                        raise
                    note_read_only(error)
                    connections[database(None)].close()
                    pause = max(pause, tries.failed())
                else:
                    tries.worked()
                time.sleep(pause)
        except KeyboardInterrupt:
            return

    def _json(self, facts: dict[str, Any]) -> None:
        self.write_json(facts)
        self.flush()

    def _page(self, facts: dict[str, Any]) -> None:
        self.stdout.write(_page(facts))

    def _screen(self, facts: dict[str, Any]) -> None:
        """On a terminal each page takes the place of the one before."""
        self.stdout.write(f"\x1b[H\x1b[2J{_page(facts)}" if self.stdout.isatty() else f"{_page(facts)}\n")
        self.flush()


def status(rules: AlertRules | None = None) -> dict[str, Any]:
    """Everything that the command says. `rules` are the limits; None: those of the settings."""
    site = doctor.Site(database(None), rules=rules)
    rows = Queue.objects.using(site.using).exclude(pk=TEMPLATE).annotate(**ALL_DRAIN)
    queues = [queue_facts(queue, site.counted.get(queue.name)) for queue in rows]
    workers = [
        {"id": worker.pk, "state": state_of(worker, site.now), "active_jobs": worker.held,
         "concurrency": worker.concurrency}
        for worker in with_held(Worker.objects.using(site.using))
    ]  # fmt: skip
    jobs = totals(site.counted.values()) | {"dead": sum(counts.dead for counts in site.counted.values())}
    running = any(worker["state"] == "running" for worker in workers)
    findings = doctor.attention(site)
    return {
        "time": format_instant(site.now), "maintenance": rendered(site.maintenance), "jobs": jobs, "outbox": _outbox(),
        "queues": queues,
        "workers": workers, "unserved_queues": unserved_queues(site.counted, using=site.using) if running else {},
        "attention": [str(finding.says) for finding in findings],
        "findings": [finding.as_dict() for finding in findings],
    }  # fmt: skip


def _outbox() -> dict[str, int] | None:
    """How many jobs and workflows have not come to the jobs' database; None on a site without an outbox."""
    if ojs_settings.OUTBOX is None:
        return None
    return OutboxEntry.objects.using(outbox.home()).aggregate(
        waiting=Count("pk", filter=Q(aside=False)), aside=Count("pk", filter=Q(aside=True))
    )


def _page(facts: dict[str, Any]) -> str:
    totals = ", ".join(f"{number} {name}" for name, number in facts["jobs"].items() if number) or "no jobs"
    names = ("name", "status", State.AVAILABLE, State.ACTIVE, State.SCHEDULED, State.RETRYABLE, "dead")
    queues = [[name.upper() for name in names], *([str(q[name]) for name in names] for q in facts["queues"])]
    workers = [
        ["WORKER", "STATE", "JOBS"],
        *([w["id"], w["state"], f"{w['active_jobs']}/{w['concurrency']}"] for w in facts["workers"]),
    ]
    parts = [[f"{facts['time']}: {totals}"], table(queues), table(workers)]
    if facts["outbox"] and any(facts["outbox"].values()):
        parts[0].append("The outbox has {waiting} that wait and {aside} set aside.".format_map(facts["outbox"]))
    if facts["attention"]:
        parts.append([one_line(f"! {line}") for line in facts["attention"]])
    return "\n\n".join("\n".join(part) for part in parts)
