"""`manage.py ojs_dead_letter`: the jobs that failed for good and wait for an operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.management.base import CommandParser

from django_ojs import audit
from django_ojs.jobs import replay
from django_ojs.jobs.bulk import DEAD_LETTERS
from django_ojs.jobs.retry import check_override
from django_ojs.management.shell import JobAction, Operator, entry, last_error, member_argument, positive
from django_ojs.messages import jobs
from django_ojs.models.job import JobRow
from django_ojs.rules import replayrules
from django_ojs.rules.durations import format_instant
from django_ojs.states import State

_DEAD = [State.DISCARDED]
#: What a rule is made of, as arguments.
_RULE = {
    "queue": "only dead letters of this queue", "type": "only this job type; `mail.*` for all that begin so",
    "error-type": "only jobs with an error of this type", "since": "only jobs made then or later, an instant",
    "until": "only jobs made before then", "delay": "how long after its end a job is retried: PT1H, 30m (default: 1h)",
    "max-replays": "how often one job is retried (default: 3)",
    "per-minute": "how many jobs are retried in a minute at most (default: 60)",
}  # fmt: skip
_NUMBERS = ("max-replays", "per-minute")


class Command(Operator):
    help = "Lists dead letters, makes them available again as if they had never run, or deletes them for good."
    dead_letters = True

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(
            dest="action", metavar="list|retry|delete|rules|set-rule|preview-rule|delete-rule", required=True
        )
        self.add_list(actions.add_parser("list", help="the newest dead letters"), states=False)
        for verb, text in (("retry", "make them available again"), ("delete", "forget them")):
            action = actions.add_parser(verb, help=text)
            self.add_verb(action, states=False)
            if verb == "retry":
                action.add_argument(
                    "--set", action="append", default=[], type=member_argument, dest="changes", metavar="KEY=JSON",
                    help="retry with another args, meta, queue, priority or retry; repeat it for several",
                )  # fmt: skip

        listing = actions.add_parser("rules", help="the rules that retry dead letters by themselves")
        listing.add_argument("--json", action="store_true", help="as JSON, an array of rules")
        setting = actions.add_parser("set-rule", help="make a rule, or replace the one of this name")
        setting.add_argument("name")
        for name, text in _RULE.items():
            setting.add_argument(
                f"--{name}", help=text, metavar=name.upper(), type=positive if name in _NUMBERS else str
            )
        setting.add_argument("--disabled", action="store_true", help="let it do nothing yet")
        for called, about in (
            ("preview-rule", "say how many dead letters it would retry"),
            ("delete-rule", "forget it; what it has retried stays as it is"),
        ):
            actions.add_parser(called, help=about).add_argument("name")

    def do_list(self, options: dict[str, Any]) -> None:
        self.write_jobs(options, _DEAD, _COLUMNS, "There are no such dead letters.")

    def do_retry(self, options: dict[str, Any]) -> None:
        changes = dict(options["changes"])
        check_override(changes)
        self.act(options, JobAction(DEAD_LETTERS["retry"], "Retry", "retried", "job.retry", changes or None))

    def do_delete(self, options: dict[str, Any]) -> None:
        self.act(options, JobAction(DEAD_LETTERS["delete"], "Delete", "deleted", "job.delete"))

    def do_rules(self, options: dict[str, Any]) -> None:
        found = replay.rules()
        if options["json"]:
            self.write_json([rule.facts() | {"source": rule.source} for rule in found])
            return
        rows = [
            (rule.name, ", ".join(f"{name} {value}" for name, value in rule.filter.items()), rule.facts()["delay"],
             str(rule.max_replays), str(rule.per_minute), "yes" if rule.enabled else "no", rule.source)
            for rule in found
        ]  # fmt: skip
        headings = ("NAME", "FOR", "DELAY", "MOST", "A MINUTE", "ENABLED", "FROM")
        self.write_table(headings, rows, "There are no rules.")

    def do_set_rule(self, options: dict[str, Any]) -> None:
        given: dict[str, Any] = {name: options[name.replace("-", "_")] for name in _RULE}
        given = {name.replace("-", "_"): value for name, value in given.items() if value is not None}
        narrowed = {name: given.pop(name) for name in replayrules.FILTERS if name in given}
        rule = replayrules.parse(
            {"name": options["name"], "filter": narrowed, "enabled": not options["disabled"], **given}
        )
        new = audit.perform(lambda: replay.put(rule), entry("replayrule.set", rule.name, {"rule": rule.facts()}))
        self.stdout.write(f"{rule.name} {'made' if new else 'changed'}: {_fit(replay.preview(rule))}")

    def do_preview_rule(self, options: dict[str, Any]) -> None:
        self.stdout.write(_fit(replay.preview(replay.find(options["name"]))))

    def do_delete_rule(self, options: dict[str, Any]) -> None:
        name = options["name"]
        rule = audit.perform(lambda: replay.delete(name), entry("replayrule.delete", name))
        self.stdout.write(f"{rule.name} deleted.")


def _fit(found: replay.Preview) -> str:
    return f"{jobs(found.matched)} fit, {found.due} of them due now, {found.exhausted} without a retry left."


_COLUMNS: dict[str, Callable[[JobRow], str]] = {
    "ID": lambda row: str(row["id"]),
    "TYPE": lambda row: row["type"],
    "QUEUE": lambda row: row["queue"],
    "ATTEMPTS": lambda row: str(row["attempt"]),
    "DISCARDED": lambda row: format_instant(row["finished_at"]),
    "ERROR": last_error,
}
