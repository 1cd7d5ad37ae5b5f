"""`manage.py ojs_workers`: list workers, and let them go quiet, go on, end or restart."""

from __future__ import annotations

import datetime as dt
import re
from functools import partial
from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_ojs import audit, clock
from django_ojs.database import database
from django_ojs.errors import NotFound
from django_ojs.management.shell import ShellCommand, entry
from django_ojs.models import Worker
from django_ojs.queues import maintenance
from django_ojs.rules.durations import format_instant
from django_ojs.workerregistry.directory import state_of, with_held
from django_ojs.workerregistry.registration import direct


class Command(ShellCommand):
    help = (
        "Lists the workers of every language, or gives some of them an order. They get it with their next heartbeat; "
        "it stays in force until another order or the worker's end. A process that was ordered to terminate is not "
        "replaced by its supervisor; one that was ordered to restart is."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", metavar="list|quiet|resume|terminate|restart", required=True)
        listing = actions.add_parser("list", help="show all workers")
        listing.add_argument("--json", action="store_true", help="as JSON, one array")
        for verb, text in (
            ("quiet", "let them finish their jobs and claim no more"),
            ("resume", "let quiet ones work again"),
            ("terminate", "let them finish their jobs or hand them back, and end"),
            ("restart", "the same, and let their supervisors start other processes in their places"),
        ):
            action = actions.add_parser(verb, help=text)
            which = "a worker's id, or the name of an ojs_worker, which means all its processes"
            action.add_argument("names", nargs="*", metavar="NAME", help=which)
            action.add_argument("--all", action="store_true", help="all workers")
            if verb == "resume":
                continue
            action.add_argument("--dry-run", action="store_true", help="only show which")
            if verb == "terminate":
                action.add_argument("--yes", action="store_true", help="do not ask")

    def do_list(self, options: dict[str, Any]) -> None:
        using = database(None)
        workers, now = list(with_held(Worker.objects.using(using))), clock.now(using)
        if options["json"]:
            self.write_json([_facts(worker, now) for worker in workers])
            return
        self.write_table(_HEADINGS, [_cells(worker, now) for worker in workers], "There are no workers.")
        if maintenance.is_on(using=using):
            self.stdout.write("Maintenance mode is on: none of them gets a job. See `ojs_maintenance status`.")

    def do_quiet(self, options: dict[str, Any]) -> None:
        self._direct(options, "quiet")

    def do_resume(self, options: dict[str, Any]) -> None:
        self._direct(options, "running")

    def do_terminate(self, options: dict[str, Any]) -> None:
        self._direct(options, "terminate")

    def do_restart(self, options: dict[str, Any]) -> None:
        self._direct(options, "restart")

    def _direct(self, options: dict[str, Any], directive: str) -> None:
        action, using = options["action"], database(None)
        chosen = self._chosen(options["names"], options["all"], using)
        if not chosen:
            self.stdout.write("There are no workers.")
        if options.get("dry_run"):
            for worker_id in chosen:
                self.stdout.write(f"{worker_id} would be told: {action}")
            return
        if directive == "terminate" and chosen:
            which = f"the worker {chosen[0]}" if len(chosen) == 1 else f"{len(chosen)} workers"
            self.confirm(f"Terminate {which}?", yes=options["yes"])
        for worker_id in chosen:
            try:
                act = entry(f"worker.{action}", worker_id)
                audit.perform(partial(direct, worker_id, directive, using=using), act, using=using)
            except NotFound:  # it has ended meanwhile
                self.stderr.write(f"{worker_id}: gone")
            else:
                self.stdout.write(f"{worker_id}: {action}")

    def _chosen(self, names: list[str], all_workers: bool, using: str) -> list[str]:
        if bool(names) == all_workers:
            raise CommandError("Name the workers, or say --all.")
        known = list(Worker.objects.using(using).values_list("pk", flat=True))
        if all_workers:
            return known
        chosen: dict[str, None] = {}
        for name in names:
            process = re.compile(rf"{re.escape(name)}-\d+")
            meant = [worker_id for worker_id in known if worker_id == name or process.fullmatch(worker_id)]
            if not meant:
                raise CommandError(f"There is no worker {name!r}. `ojs_workers list` shows who is there.")
            chosen.update(dict.fromkeys(meant))
        return list(chosen)


def _facts(worker: Worker, now: dt.datetime) -> dict[str, Any]:
    return {
        "id": worker.pk, "state": state_of(worker, now), "directive": worker.directive or None,
        "stale": worker.is_stale(now), "hostname": worker.hostname, "pid": worker.pid,
        "queues": worker.queues or [], "active_jobs": worker.held, "concurrency": worker.concurrency,
        "jobs_completed": worker.jobs_completed, "memory_mb": worker.memory_mb, "cpu_percent": worker.cpu_percent,
        "version": worker.version, "release": worker.release or None, "started_at": format_instant(worker.started_at),
        "last_seen_at": format_instant(worker.last_seen_at),
    }  # fmt: skip


_HEADINGS = ("NAME", "STATE", "TOLD", "JOBS", "DONE", "MEMORY", "CPU", "SEEN", "QUEUES")


def _cells(worker: Worker, now: dt.datetime) -> tuple[str, ...]:
    memory = "" if worker.memory_mb is None else f"{worker.memory_mb:.0f} MB"
    cpu = "" if worker.cpu_percent is None else f"{worker.cpu_percent:.0f} %"
    seen = f"{(now - worker.last_seen_at).total_seconds():.0f} s ago"
    jobs = f"{worker.held}/{worker.concurrency}"
    queues = ",".join(worker.queues or []) or "-"
    directive, done = worker.directive or "-", str(worker.jobs_completed)
    return worker.pk, state_of(worker, now), directive, jobs, done, memory, cpu, seen, queues
