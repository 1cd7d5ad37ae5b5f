"""`manage.py ojs_scheduler`: run the scheduler alone, for a site whose workers run elsewhere."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from django_ojs.management.shell import refuse_faulty_handlers, refuse_unmigrated
from django_ojs.scheduler.scheduler import Scheduler
from django_ojs.worker.execution import leave_pools
from django_ojs.worker.lifecycle import Lifecycle, Stage, signals
from django_ojs.worker.middleware import show_logs
from django_ojs.worker.processinfo import default_name


class Command(BaseCommand):
    help = (
        "Promotes scheduled jobs, ends timeouts, takes jobs back from dead workers and prunes. Every ojs_worker does "
        "this too, unless --no-scheduler is given; one process at a time leads."
    )

    def run_from_argv(self, argv: list[str]) -> None:
        leave_pools()
        super().run_from_argv(argv)

    def handle(self, *args: Any, **options: Any) -> None:
        show_logs(options["verbosity"])
        refuse_unmigrated()
        refuse_faulty_handlers()
        name, lifecycle = default_name(), Lifecycle()
        scheduler = Scheduler(name)
        with signals(lifecycle):
            scheduler.start()
            self._announce(options, f"ojs_scheduler {name} started.")
            while lifecycle.follow() is not Stage.TERMINATE:
                pass
            scheduler.stop(5.0)
            self._announce(options, f"ojs_scheduler {name} stopped.")

    def _announce(self, options: dict[str, Any], line: str) -> None:
        if options["verbosity"]:
            self.stdout.write(line)
            self.stdout.flush()
