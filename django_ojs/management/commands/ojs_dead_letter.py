"""`manage.py ojs_dead_letter`: the jobs that failed for good and wait for somebody to look at them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_ojs import audit, jsontext
from django_ojs.errors import InvalidRequest, OJSError
from django_ojs.jobs import replay
from django_ojs.jobs.bulk import DEAD_LETTERS
from django_ojs.jobs.verbs import check_override
from django_ojs.management.commands.ojs_jobs import last_error
from django_ojs.management.operating import Deed, Operator
from django_ojs.management.shell import member, positive, table
from django_ojs.messages import jobs
from django_ojs.rules import envelope, redaction, replayrules
from django_ojs.rules.durations import format_instant
from django_ojs.states import State

_COLUMNS = ("id", "type", "queue", "state", "attempt", "finished_at", "errors")
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
                    "--set", action="append", default=[], type=member, dest="changes", metavar="KEY=JSON",
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

    def handle(self, *args: Any, action: str, **options: Any) -> None:
        if action == "list":
            self._list(options)
        elif action == "retry":
            self._retry(options)
        elif action in _RULE_ACTIONS:
            try:
                _RULE_ACTIONS[action](self, options)
            except OJSError as error:
                raise CommandError(error.message) from error
        else:
            self.act(options, _DEAD, Deed(DEAD_LETTERS["delete"], "Delete", "deleted", "job.delete"))

    def _retry(self, options: dict[str, Any]) -> None:
        changes = dict(options["changes"])
        try:
            check_override(changes)
        except InvalidRequest as error:
            raise CommandError(error.message) from None
        self.act(options, _DEAD, Deed(DEAD_LETTERS["retry"], "Retry", "retried", "job.retry", changes or None))

    def _list(self, options: dict[str, Any]) -> None:
        if options["json"]:
            rows = self.rows(options, _DEAD)
            self.stdout.write(jsontext.dumps([redaction.job(envelope.render(row)) for row in rows]))
            return
        rows = [
            (str(row["id"]), row["type"], row["queue"], str(row["attempt"]), format_instant(row["finished_at"]),
             last_error(row))
            for row in self.rows(options, _DEAD, _COLUMNS)
        ]  # fmt: skip
        headings = ("ID", "TYPE", "QUEUE", "ATTEMPTS", "DISCARDED", "ERROR")
        self.stdout.write("\n".join(table([headings, *rows])) if rows else "There are no such dead letters.")

    def _rules(self, options: dict[str, Any]) -> None:
        found = replay.rules()
        if options["json"]:
            self.stdout.write(jsontext.dumps([rule.facts() | {"source": rule.source} for rule in found]))
            return
        rows = [
            (rule.name, ", ".join(f"{name} {value}" for name, value in rule.filter.items()), rule.facts()["delay"],
             str(rule.max_replays), str(rule.per_minute), "yes" if rule.enabled else "no", rule.source)
            for rule in found
        ]  # fmt: skip
        headings = ("NAME", "FOR", "DELAY", "MOST", "A MINUTE", "ENABLED", "FROM")
        self.stdout.write("\n".join(table([headings, *rows])) if rows else "There are no rules.")

    def _set_rule(self, options: dict[str, Any]) -> None:
        given: dict[str, Any] = {name: options[name.replace("-", "_")] for name in _RULE}
        given = {name.replace("-", "_"): value for name, value in given.items() if value is not None}
        narrowed = {name: given.pop(name) for name in replayrules.FILTERS if name in given}
        rule = replayrules.parse(
            {"name": options["name"], "filter": narrowed, "enabled": not options["disabled"], **given}
        )
        entry = audit.Act(audit.by_command(), "replayrule.set", rule.name, {"rule": rule.facts()}, "command")
        new = audit.perform(lambda: replay.put(rule), entry)
        self.stdout.write(f"{rule.name} {'made' if new else 'changed'}: {_fit(replay.preview(rule))}")

    def _preview_rule(self, options: dict[str, Any]) -> None:
        self.stdout.write(_fit(replay.preview(replay.find(options["name"]))))

    def _delete_rule(self, options: dict[str, Any]) -> None:
        entry = audit.Act(audit.by_command(), "replayrule.delete", options["name"], door="command")
        rule = audit.perform(lambda: replay.delete(options["name"]), entry)
        self.stdout.write(f"{rule.name} deleted.")


def _fit(found: replay.Preview) -> str:
    return f"{jobs(found.matched)} fit, {found.due} of them due now, {found.exhausted} without a retry left."


_RULE_ACTIONS: dict[str, Callable[[Command, dict[str, Any]], None]] = {
    "rules": Command._rules, "set-rule": Command._set_rule, "preview-rule": Command._preview_rule,
    "delete-rule": Command._delete_rule,
}  # fmt: skip
