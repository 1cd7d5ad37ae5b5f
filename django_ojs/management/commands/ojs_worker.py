"""`manage.py ojs_worker`: run the jobs of this site."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.core.checks import Tags
from django.core.management.base import CommandError, CommandParser

from django_ojs.conf import grace_from_environment, ojs_settings
from django_ojs.database import database
from django_ojs.faults import suppress_passing
from django_ojs.guard import get_logger
from django_ojs.management.shell import (
    SteadyCommand,
    path_argument,
    positive,
    refuse_faulty_handlers,
    refuse_unmigrated,
)
from django_ojs.registry import registry
from django_ojs.rules import names
from django_ojs.worker import memory, processinfo, supervisor
from django_ojs.worker.execution import leave_pools
from django_ojs.worker.middleware import show_logs
from django_ojs.worker.process import WorkerOptions, WorkerProcess
from django_ojs.worker.processinfo import HealthFile
from django_ojs.worker.supervisor import Supervisor

logger = get_logger(__name__)


class Command(SteadyCommand):
    help = (
        "Claims jobs and runs their handlers. SIGTERM or Ctrl-C finishes the running jobs and hands the others back, "
        "a second one hands all back at once; SIGTSTP stops claiming, SIGCONT claims again."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--queues", type=_queues, default=[], metavar="A,B",
                            help="serve these queues, strictly from left to right (default: all)")  # fmt: skip
        parser.add_argument(
            "--concurrency", type=positive, default=10, metavar="N", help="jobs at a time, per process (default: 10)"
        )
        parser.add_argument("--processes", type=positive, default=1, metavar="N",
                            help="processes, each with an id of its own: NAME-1, NAME-2 (default: 1)")  # fmt: skip
        parser.add_argument("--name", type=_name,
                            help="the worker's id, which no other worker has (default: host:pid:random)")  # fmt: skip
        parser.add_argument(
            "--no-scheduler", action="store_true", help="leave scheduled jobs and timeouts to other processes"
        )
        parser.add_argument("--until-empty", action="store_true", help="end when no job is left that could run now")
        parser.add_argument(
            "--max-jobs", type=positive, metavar="N", help="replace a process after it has run this number of jobs"
        )
        parser.add_argument("--max-memory", type=positive, metavar="MB",
                            help="replace a process that takes more memory than this")  # fmt: skip
        parser.add_argument("--health-file", type=path_argument, metavar="PATH",
                            help="touch this file while the worker is healthy, for a liveness probe")  # fmt: skip
        parser.add_argument("--reload", action="store_true", help="restart when the code changes (development)")

    def handle(self, *args: Any, **options: Any) -> None:
        show_logs(options["verbosity"])
        if options["reload"] and options["processes"] > 1:
            raise CommandError("--reload runs one process: leave out --processes.")
        self._check_grace()
        types = registry.types()
        if not types and not registry.faults():
            raise CommandError(
                f"There is nothing to run: no app has a {ojs_settings.JOBS_MODULE}.py with a @job. "
                "A site whose workers are all elsewhere runs `manage.py ojs_scheduler` instead."
            )
        if options["reload"] and not supervisor.is_inner_process():
            sys.exit(supervisor.restart_on_change())
        refuse_faulty_handlers()
        refuse_unmigrated()
        self._check_database(options["skip_checks"])
        if options["verbosity"] > 1:
            self.say(f"job types: {', '.join(types)}")
        if not self._run(options):
            sys.exit(1)

    def _check_grace(self) -> None:
        if "SHUTDOWN_GRACE_PERIOD" not in (getattr(settings, "OJS", None) or {}):
            try:
                grace_from_environment()
            except ValueError as error:
                raise CommandError(str(error)) from error

    def _run(self, options: dict[str, Any]) -> bool:
        health = HealthFile(options["health_file"]) if options["health_file"] else None
        asked = WorkerOptions(
            queues=options["queues"], concurrency=options["concurrency"],
            name=options["name"] or processinfo.default_name(), scheduler=not options["no_scheduler"],
            until_empty=options["until_empty"], max_jobs=options["max_jobs"], max_memory=options["max_memory"],
        )  # fmt: skip
        forks = self._may_fork(options)
        if forks or self.from_command_line:
            leave_pools()
        if self.from_command_line:
            memory.configure_gc()
        if forks:
            parts = self._announcer(options, 1), self._announcer(options, 2)
            return Supervisor(asked, options["processes"], *parts, health).run()
        worker = WorkerProcess(asked, self._announcer(options, 1), health=health)
        if not options["reload"]:
            return worker.run()
        watch = supervisor.Reloader(worker.lifecycle)
        watch.start()
        fine = worker.run()
        watch.stop()
        supervisor.end_inner_process(watch, fine=fine)
        return fine

    def _may_fork(self, options: dict[str, Any]) -> bool:
        """One process in itself serves call_command(), --reload, and systems without fork."""
        if options["reload"]:
            return False
        if not hasattr(os, "fork"):
            if options["processes"] > 1:
                logger.warning("This system cannot fork: running one process. Start the command several times.")
            return False
        return self.from_command_line or options["processes"] > 1

    def _check_database(self, skip: bool) -> None:
        """Report faults in the setup of the database; Django checks databases only on request."""
        if not skip:
            with suppress_passing():  # one that is away is waited for later
                self.check(tags=[Tags.database], databases=[database(None)])

    def _announcer(self, options: dict[str, Any], verbosity: int) -> Callable[[str], None]:
        return self.say if options["verbosity"] >= verbosity else lambda line: None


def _queues(text: str) -> list[str]:
    found = [name.strip() for name in text.split(",") if name.strip()]
    for name in found:
        try:
            names.check_queue(name)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"the queue {name!r} {error}") from None
    if not found:
        raise argparse.ArgumentTypeError("name at least one queue, or leave the option out for all")
    return list(dict.fromkeys(found))


def _name(text: str) -> str:
    try:
        return names.check_worker_id(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"the name {error}") from None
