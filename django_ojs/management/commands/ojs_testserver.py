"""`manage.py ojs_testserver`: an OJS server to test a client against."""

from __future__ import annotations

import argparse
import logging
import os
from typing import Any

from django.core.management.base import BaseCommand

from django_ojs.scheduler.scheduler import Scheduler
from django_ojs.testing import server


class Command(BaseCommand):
    help = (
        "Serves OJS on a throwaway database, scheduler included: anonymous, on loopback, with the published "
        "suite's test hooks and POST /ojs/v1/admin/reset. Prints one line that begins with `ready` and the URL."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--port", type=int, default=8080, help="0 takes a free one. Default: 8080.")
        parser.add_argument("--dialect", choices=["spec", "published"], default="spec")
        parser.add_argument("--database", default="", help="URL of a server to make the database on. Default: SQLite.")

    def handle(self, *args: Any, **options: Any) -> None:
        logging.getLogger("django.request").setLevel(logging.ERROR)  # refusals are what clients test
        with server.test_settings(options["dialect"]), server.throwaway_database(options["database"]) as url:
            self.stderr.write(f"database {url}")
            scheduler = Scheduler(f"testserver-{os.getpid()}")
            scheduler.start()
            try:
                server.serve(options["port"], self._ready)
            finally:
                scheduler.stop(5.0)

    def _ready(self, url: str) -> None:
        self.stdout.write(f"ready {url}")
        self.stdout.flush()
