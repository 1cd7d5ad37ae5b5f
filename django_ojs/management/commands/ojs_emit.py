"""`manage.py ojs_emit`: emits an event for the durable jobs that wait for it."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_ojs import audit, jsontext
from django_ojs.jobs import durableevents
from django_ojs.management.shell import ShellCommand, entry
from django_ojs.messages import jobs
from django_ojs.rules.durableevents import Emitted
from django_ojs.rules.durations import format_instant


class Command(ShellCommand):
    help = (
        "Emit an event for the durable jobs that wait for it, now or later. The first event of a name and a key "
        "counts; another changes nothing, and the command says so."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", help="what has happened, such as order.paid")
        parser.add_argument("key", nargs="?", default="", help="what it is about, such as the id of an order")
        parser.add_argument("--payload", default="null", metavar="JSON", help="what the handlers get, as JSON")
        parser.add_argument("--json", action="store_true", help="as JSON, one object")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            payload = jsontext.dumps(jsontext.loads(options["payload"]))
        except jsontext.JSONTextError as error:
            raise CommandError(f"--payload is not JSON: {error}") from error
        act = entry("durable_event.emit", f"{options['name']} {options['key']}".rstrip())

        def emit() -> Emitted:
            done = durableevents.emit(options["name"], options["key"], payload, component="api")
            act.detail = {"is_new": done.is_new, "jobs": len(done.job_ids)}
            return done

        done = audit.perform(emit, act)
        if options["json"]:
            shown = {"name": done.name, "key": done.key, "is_new": done.is_new, "payload": done.payload,
                     "created_at": format_instant(done.created_at), "jobs_woken": len(done.job_ids)}  # fmt: skip
            self.write_json(shown)
        elif done.is_new:
            self.stdout.write(f"Emitted: {jobs(len(done.job_ids))} waited for it.")
        else:
            self.stdout.write(f"It was emitted at {format_instant(done.created_at)} already: nothing has changed.")
