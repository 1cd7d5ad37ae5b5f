"""`manage.py ojs_scheduler`: run the scheduler alone, for a site whose workers run elsewhere."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import CommandParser

from django_ojs import parts
from django_ojs.management.shell import SteadyCommand, path_argument, refuse_faulty_handlers, refuse_unmigrated
from django_ojs.scheduler.scheduler import Scheduler
from django_ojs.worker.execution import leave_pools
from django_ojs.worker.lifecycle import Lifecycle, Stage, signals
from django_ojs.worker.middleware import show_logs
from django_ojs.worker.processinfo import HealthFile, HealthReporter, default_name


class Command(SteadyCommand):
    help = (
        "Promotes scheduled jobs, ends timeouts, takes jobs back from dead workers and prunes. Every ojs_worker does "
        "this too, unless --no-scheduler is given; one process at a time leads."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--health-file", type=path_argument, metavar="PATH",
                            help="touch this file while the scheduler is healthy, for a liveness probe")  # fmt: skip

    def run_from_argv(self, argv: list[str]) -> None:
        leave_pools()
        super().run_from_argv(argv)

    def handle(self, *args: Any, **options: Any) -> None:
        show_logs(options["verbosity"])
        refuse_unmigrated()
        refuse_faulty_handlers()
        name, lifecycle = default_name(), Lifecycle()
        scheduler = Scheduler(name)
        health = HealthFile(options["health_file"]) if options["health_file"] else None
        with signals(lifecycle):
            scheduler.start()
            self.announce(options, f"ojs_scheduler {name} started.")
            while lifecycle.stage is not Stage.TERMINATE:
                if stuck := parts.stuck():
                    lifecycle.stuck("; ".join(stuck))
                elif health is not None and scheduler.is_healthy():
                    health.touch()
                lifecycle.follow(timeout=HealthReporter.EVERY)
            scheduler.stop(5.0)
            if health is not None:
                health.remove()
            self.announce(options, f"ojs_scheduler {name} stopped.")
        if lifecycle.reason == "error":
            sys.exit(1)  # the service manager starts another
