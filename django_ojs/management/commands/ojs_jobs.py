"""`manage.py ojs_jobs`: jobs by hand."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError, CommandParser

from django_ojs import jsontext, output, states
from django_ojs.database import database, leave_old_server
from django_ojs.errors import OJSError
from django_ojs.http import redacted
from django_ojs.jobs import joblog
from django_ojs.jobs.attempts import Attempt
from django_ojs.jobs.bulk import JOBS, How
from django_ojs.jobs.read import info
from django_ojs.jobs.retry import restart_from
from django_ojs.management.shell import JobAction, Operator, last_error, positive
from django_ojs.models.job import JobRow
from django_ojs.models.workflow import name_workflows
from django_ojs.rules import envelope, joblogs, redaction
from django_ojs.rules.durations import format_instant
from django_ojs.rules.faults import shorten
from django_ojs.states import State

PAUSE = 0.5  #: seconds between two looks at the lines of a job that is followed


class Command(Operator):
    help = (
        "Lists and shows jobs and what their handlers log, tries them again, cancels and purges them. Without --state: "
        "those that the verb is for."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(
            dest="action", metavar="list|show|attempts|logs|retry|run|cancel|purge", required=True
        )
        self.add_list(actions.add_parser("list", help="the newest jobs"))
        actions.add_parser("show", help="one job, as the wire shows it, as JSON").add_argument("id")
        tried = actions.add_parser("attempts", help="the attempts of a job, newest first")
        tried.add_argument("id")
        tried.add_argument("--json", action="store_true", help="print JSON, with whole errors")
        logs = actions.add_parser("logs", help="what the handler of one job has logged")
        logs.add_argument("id")
        logs.add_argument("--attempt", type=positive, metavar="N", help="one attempt (default: all)")
        logs.add_argument("--level", default="debug", choices=[*joblogs.LEVELS], help="the lowest level that is shown")
        logs.add_argument("--follow", "-f", action="store_true", help="go on until the job has ended")
        for verb, text in (
            ("retry", "make failed jobs available now: discarded ones, and those that wait for their next attempt"),
            ("run", "make scheduled jobs, and those that wait for their next attempt, available now"),
            ("cancel", "stop jobs that have not ended; without --state those that are not running"),
            ("purge", "delete jobs that have ended, for good"),
        ):
            parser = actions.add_parser(verb, help=text)
            self.add_verb(parser)
            if verb == "retry":
                parser.add_argument(
                    "--from-step", default="", metavar="STEP",
                    help="let these durable jobs do this step and all later ones again",
                )  # fmt: skip

    def do_list(self, options: dict[str, Any]) -> None:
        self.write_jobs(options, list(State), _COLUMNS, "There are no such jobs.")

    def do_show(self, options: dict[str, Any]) -> None:
        from django_ojs.client.handle import get_job

        row = info(get_job(options["id"]).id)
        name_workflows([row], database(None))
        shown = redaction.job(envelope.render(row))
        members = (f"  {jsontext.dumps(name)}: {jsontext.dumps(value)}" for name, value in shown.items())
        self.stdout.write("{\n" + ",\n".join(map(jsontext.printable, members)) + "\n}")

    def do_attempts(self, options: dict[str, Any]) -> None:
        from django_ojs.client.handle import get_job

        job = get_job(options["id"])
        found = [one.redacted(job.type, job.meta) for one in job.attempts()]
        if options["json"]:
            self.write_json([_as_json(one) for one in found])
            return
        rows = [[show(one) for show in _ATTEMPT_COLUMNS.values()] for one in found]
        self.write_table(list(_ATTEMPT_COLUMNS), rows, "No attempts of this job are known.")

    def do_logs(self, options: dict[str, Any]) -> None:
        from django_ojs.client.handle import get_job

        row = info(get_job(options["id"]).id)
        mask = redacted.mask_of_logs(row)
        lines = joblog.Follower(row["id"], attempt=options["attempt"], level=joblogs.LEVELS[options["level"]])
        try:
            while True:
                ended = row["state"] in states.TERMINAL  # what is stored of it is stored before that
                while found := lines.new():
                    for line in found:
                        self.stdout.write(output.lines(redacted.log_text(redacted.log_line(line, mask))))
                self.flush()
                if ended or not options["follow"]:
                    return
                time.sleep(PAUSE)
                leave_old_server(database(None))
                row = info(row["id"])
        except KeyboardInterrupt:
            return

    def do_retry(self, options: dict[str, Any]) -> None:
        step = options["from_step"]
        if step and not options["ids"]:
            raise CommandError("--from-step takes the ids of jobs: others may have a step of that name, too.")
        verb = dataclasses.replace(JOBS["retry"], apply=functools.partial(_restart, step)) if step else JOBS["retry"]
        noted = {"from_step": step} if step else {}
        self.act(options, JobAction(verb, "Retry", "retried", "job.retry", noted=noted))

    def do_run(self, options: dict[str, Any]) -> None:
        self.act(options, JobAction(JOBS["run"], "Run", "made available", "job.run"))

    def do_cancel(self, options: dict[str, Any]) -> None:
        waiting = states.ordered(states.WAITING)
        self.act(options, JobAction(JOBS["cancel"], "Cancel", "cancelled", "job.cancel", default=waiting))

    def do_purge(self, options: dict[str, Any]) -> None:
        self.act(options, JobAction(JOBS["delete"], "Delete", "deleted", "job.purge"))


def _restart(step: str, ids: Sequence[UUID], how: How, using: str) -> list[JobRow | OJSError]:
    done: list[JobRow | OJSError] = []
    for pk in ids:
        try:
            done.append(restart_from(pk, step, using=using))
        except OJSError as error:
            done.append(error)
    return done


def _as_json(one: Attempt) -> dict[str, Any]:
    times = {"started_at": format_instant(one.started_at), "ended_at": one.ended_at and format_instant(one.ended_at)}
    return {
        "round": one.round, "attempt": one.attempt, "outcome": one.outcome, "worker_id": one.worker_id,
        "release": one.release, **times, "duration_ms": one.duration_ms, "error": one.error,
    }  # fmt: skip


_ATTEMPT_COLUMNS: dict[str, Callable[[Attempt], str]] = {
    "ROUND": lambda one: str(one.round),
    "ATTEMPT": lambda one: str(one.attempt),
    "OUTCOME": lambda one: one.outcome,
    "STARTED": lambda one: format_instant(one.started_at),
    "SECONDS": lambda one: "" if one.duration_ms is None else f"{one.duration_ms / 1000:g}",
    "WORKER": lambda one: one.worker_id,
    "RELEASE": lambda one: one.release,
    "ERROR": lambda one: shorten(f"{one.error.get('type')}: {one.error.get('message')}") if one.error else "",
}


_COLUMNS: dict[str, Callable[[JobRow], str]] = {
    "ID": lambda row: str(row["id"]),
    "TYPE": lambda row: row["type"],
    "QUEUE": lambda row: row["queue"],
    "STATE": lambda row: row["state"],
    "ATTEMPT": lambda row: f"{row['attempt']}/{row['max_attempts'] + (row['uncounted'] or 0)}",
    "ENQUEUED": lambda row: format_instant(row["enqueued_at"] or row["created_at"]),
    "ERROR": last_error,
}
