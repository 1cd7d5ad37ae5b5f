"""`manage.py ojs_rate_limits`: rate limits by hand."""

from __future__ import annotations

import shlex
from functools import partial
from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_ojs import audit, clock
from django_ojs.database import database
from django_ojs.errors import NotFound
from django_ojs.limits import ratelimits
from django_ojs.management.shell import ShellCommand, entry, name_argument, positive
from django_ojs.models import RateLimit


class Command(ShellCommand):
    help = "Lists rate limits, and lifts the block that a worker has reported (`rate_limit_until`)."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", metavar="list|lift", required=True)
        listing = actions.add_parser("list", help="the limits that are known, by their keys")
        listing.add_argument("--blocked", action="store_true", help="only those that a worker's report has blocked")
        listing.add_argument("--after", default="", type=name_argument, metavar="KEY", help="those behind this key")
        listing.add_argument("--limit", type=positive, default=50, metavar="N", help="at most this many (default: 50)")
        listing.add_argument("--json", action="store_true", help="as JSON")
        lift = actions.add_parser("lift", help="let jobs start again under these keys")
        lift.add_argument("keys", nargs="+", metavar="KEY", help="such as partner, queue:mail or type:report.make")

    def do_list(self, options: dict[str, Any]) -> None:
        using, limit = database(None), options["limit"]
        found = RateLimit.objects.using(using).filter(key__gt=options["after"]).order_by("key")
        if options["blocked"]:
            found = found.filter(ratelimits.blocked(clock.now(using)))
        page = list(found[: limit + 1])
        facts = ratelimits.describe(page[:limit], using)
        if len(page) > limit:
            self.stderr.write(f"There are more: --limit, or --after {shlex.quote(facts[-1]['key'])}.", str)
        if options["json"]:
            self.write_json(facts)
            return
        names = ("key", "active", "waiting", "blocked_until")
        rows = [[str(fact.get(name, "")) for name in names] for fact in facts]
        empty = "There are no rate limits: they appear with the first job that names one."
        if options["blocked"] or options["after"]:
            empty = "There are no such rate limits."
        self.write_table(["KEY", "ACTIVE", "WAITING", "BLOCKED UNTIL"], rows, empty)

    def do_lift(self, options: dict[str, Any]) -> None:
        for key in options["keys"]:
            act = entry(ratelimits.LIFT, key)
            try:
                audit.perform(partial(ratelimits.lift, key, by=act.actor), act)
            except NotFound as error:
                raise CommandError(
                    f"There is no rate limit {key!r}. `ojs_rate_limits list` shows which there are."
                ) from error
            self.stdout.write(f"{key}: not blocked")
