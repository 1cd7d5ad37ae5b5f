"""`manage.py ojs_workers`: list workers, and let them go quiet, go on or end."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_ojs import audit, clock, jsontext
from django_ojs.database import database
from django_ojs.errors import NotFound
from django_ojs.management.shell import ShellCommand, table
from django_ojs.models import Worker
from django_ojs.queues import maintenance
from django_ojs.rules.durations import format_instant
from django_ojs.workers.directory import is_stale, state_of, with_held
from django_ojs.workers.registration import direct

VERBS = {"quiet": "quiet", "resume": "running", "terminate": "terminate"}


class Command(ShellCommand):
    help = (
        "Lists the workers of every language, or gives some of them an order. They get it with their next heartbeat; "
        "it stays in force until another order or the worker's end. A process that was ordered to terminate is not "
        "replaced by its supervisor."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", metavar="list|quiet|resume|terminate", required=True)
        listing = actions.add_parser("list", help="show all workers")
        listing.add_argument("--json", action="store_true", help="as JSON, one array")
        for verb, text in (
            ("quiet", "let them finish their jobs and claim no more"),
            ("resume", "let quiet ones work again"),
            ("terminate", "let them finish their jobs or hand them back, and end"),
        ):
            action = actions.add_parser(verb, help=text)
            whom = "a worker's id, or the name of an ojs_worker, which means all its processes"
            action.add_argument("names", nargs="*", metavar="NAME", help=whom)
            action.add_argument("--all", action="store_true", dest="everybody", help="all workers")
            if verb == "resume":
                continue
            action.add_argument("--dry-run", action="store_true", help="only show which")
            if verb == "terminate":
                action.add_argument("--yes", action="store_true", help="do not ask")

    def handle(self, *args: Any, action: str, **options: Any) -> None:
        using = database(None)
        if action == "list":
            workers = list(with_held(Worker.objects.using(using)))
            self.stdout.write(_json(workers, using) if options["json"] else _table(workers, using))
            if not options["json"] and maintenance.is_on(using=using):
                self.stdout.write("Maintenance mode is on: none of them gets a job. See `ojs_maintenance status`.")
            return
        chosen = self._chosen(options["names"], options["everybody"], using)
        if not chosen:
            self.stdout.write("There are no workers.")
        if options.get("dry_run"):
            for worker_id in chosen:
                self.stdout.write(f"{worker_id} would be told: {action}")
            return
        if action == "terminate" and chosen:
            whom = f"the worker {chosen[0]}" if len(chosen) == 1 else f"{len(chosen)} workers"
            self.confirm(f"Terminate {whom}?", yes=options["yes"])
        for worker_id in chosen:
            try:
                entry = audit.Act(audit.by_command(), f"worker.{action}", worker_id, door="command")
                audit.perform(partial(direct, worker_id, VERBS[action], using=using), entry, using=using)
            except NotFound:  # it has ended meanwhile
                self.stderr.write(f"{worker_id}: gone")
            else:
                self.stdout.write(f"{worker_id}: {action}")

    def _chosen(self, names: list[str], everybody: bool, using: str) -> list[str]:
        if bool(names) == everybody:
            raise CommandError("Name the workers, or say --all.")
        known = list(Worker.objects.using(using).values_list("pk", flat=True))
        if everybody:
            return known
        chosen: dict[str, None] = {}
        for name in names:
            process = re.compile(rf"{re.escape(name)}-\d+")
            meant = [worker_id for worker_id in known if worker_id == name or process.fullmatch(worker_id)]
            if not meant:
                raise CommandError(f"There is no worker {name!r}. `ojs_workers list` shows who is there.")
            chosen.update(dict.fromkeys(meant))
        return list(chosen)


def _json(workers: list[Worker], using: str) -> str:
    now = clock.now(using)
    rows = [
        {
            "id": worker.pk, "state": state_of(worker, now), "directive": worker.directive or None,
            "stale": is_stale(worker, now), "hostname": worker.hostname, "pid": worker.pid,
            "queues": worker.queues or [], "active_jobs": worker.held, "concurrency": worker.concurrency,
            "jobs_completed": worker.jobs_completed, "memory_mb": worker.memory_mb, "cpu_percent": worker.cpu_percent,
            "version": worker.version, "started_at": format_instant(worker.started_at),
            "last_seen_at": format_instant(worker.last_seen_at),
        }
        for worker in workers
    ]  # fmt: skip
    return jsontext.dumps(rows)


_HEADINGS = ("NAME", "STATE", "TOLD", "JOBS", "DONE", "MEMORY", "CPU", "SEEN", "QUEUES")


def _table(workers: list[Worker], using: str) -> str:
    if not workers:
        return "There are no workers."
    now = clock.now(using)
    rows = [_HEADINGS]
    for worker in workers:
        memory = "" if worker.memory_mb is None else f"{worker.memory_mb:.0f} MB"
        cpu = "" if worker.cpu_percent is None else f"{worker.cpu_percent:.0f} %"
        seen = f"{(now - worker.last_seen_at).total_seconds():.0f} s ago"
        jobs = f"{worker.held}/{worker.concurrency}"
        queues = ",".join(worker.queues or []) or "-"
        told = worker.directive or "-"
        done = str(worker.jobs_completed)
        rows.append((worker.pk, state_of(worker, now), told, jobs, done, memory, cpu, seen, queues))
    return "\n".join(table(rows))
