"""`manage.py ojs_testserver`: an OJS server to test a client against."""

from __future__ import annotations

import argparse
import logging
import os
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError

from django_ojs import output
from django_ojs.management.shell import SteadyCommand, port_argument
from django_ojs.scheduler.scheduler import Scheduler
from django_ojs.testing import server


class Command(SteadyCommand):
    help = (
        "Serves OJS on a throwaway database, scheduler included: anonymous, on loopback, with the published "
        "suite's test hooks and POST /ojs/v1/admin/reset. Prints one line that begins with `ready` and the URL, and "
        "names the address of gRPC, if it is served, after `grpc`."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--port", type=port_argument, default=8080, help="0 takes a free one. Default: 8080.")
        parser.add_argument("--dialect", choices=["spec", "published"], default="spec")
        parser.add_argument("--database", default="", help="URL of a server to make the database on. Default: SQLite.")

        parser.add_argument("--grpc-port", type=port_argument, help="Serve gRPC, too. 0 takes a free port.")

    def handle(self, *args: Any, **options: Any) -> None:
        logging.getLogger("django.request").setLevel(logging.ERROR)  # refusals are what clients test
        grpc = options["grpc_port"] is not None
        with (
            server.test_settings(options["dialect"], GRPC=grpc),
            server.throwaway_database(options["database"]) as url,
        ):
            output.say(self.stderr, f"database {url}")
            scheduler = Scheduler(f"testserver-{os.getpid()}")
            scheduler.start()
            try:
                server.serve(options["port"], self._ready, grpc_port=options["grpc_port"])
            except ImproperlyConfigured as error:  # the address of gRPC
                raise CommandError(str(error)) from error
            finally:
                scheduler.stop(5.0)

    def _ready(self, url: str, grpc: str) -> None:
        self.say(f"ready {url} grpc {grpc}" if grpc else f"ready {url}")
