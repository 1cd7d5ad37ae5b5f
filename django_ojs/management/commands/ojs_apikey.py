"""`manage.py ojs_apikey`: make, list and revoke the keys with which programs call the HTTP binding."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import re
from collections.abc import Callable
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import CommandError, CommandParser
from django.db import router
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime

from django_ojs import audit, clock, keys
from django_ojs.database import atomic, database
from django_ojs.management.shell import ShellCommand, entry, name_argument
from django_ojs.models import APIKey

_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def expiry(text: str) -> dt.datetime:
    """`90d` from now, `2027-01-01` (the first moment of that day) or `2027-01-01T12:00+01:00`."""
    if match := re.fullmatch(r"([1-9]\d{0,3})([mhdw])", text):
        return clock.now() + dt.timedelta(**{_UNITS[match[2]]: int(match[1])})
    try:
        if day := parse_date(text):
            return timezone.make_aware(dt.datetime.combine(day, dt.time.min))
        moment = parse_datetime(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"'{text}': {error}.") from error
    if moment is None:
        raise argparse.ArgumentTypeError(f"'{text}' is no time: write 90d, 12h or 2027-01-01.")
    return moment if timezone.is_aware(moment) else timezone.make_aware(moment)


class Command(ShellCommand):
    help = "Make, list and revoke API keys."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True, metavar="create|list|revoke")
        create = actions.add_parser("create", help="Make a key and show it, this once.")
        create.add_argument("name", help="What the key is for; shown in lists and logs.")
        scopes: str = "|".join(APIKey.Scope.values)
        many: dict[str, Any] = {"action": "append", "default": []}
        create.add_argument("--scope", **many, dest="scopes", metavar=scopes, help="Repeatable; admin has all.")
        create.add_argument("--queue", **many, dest="queues", metavar="QUEUE", help="Limit the key to this queue.")
        create.add_argument("--type", **many, dest="types", metavar="TYPE", help="Limit it to this type, or mail.*")
        create.add_argument("--expires", type=expiry, metavar="90d|2027-01-01", help="Default: never.")
        create.add_argument("--json", action="store_true", help="One JSON object, with the key, for scripts.")
        listing = actions.add_parser("list", help="Show all keys; their text cannot be shown again.")
        listing.add_argument("--json", action="store_true", help="One JSON array.")
        revoke = actions.add_parser("revoke", help="Make a key useless at once and for ever.")
        revoke.add_argument("name", type=name_argument)
        revoke.add_argument("--yes", action="store_true", help="Do not ask.")

    def do_create(self, options: dict[str, Any]) -> None:
        scopes = [scope for text in options["scopes"] for scope in text.split(",")]
        limits = {"queues": options["queues"], "job_types": options["types"], "expires_at": options["expires"]}
        try:
            act = entry("apikey.create", options["name"], {"scopes": scopes})
            # In one transaction: a key that was not shown is of no use.
            with atomic(using=router.db_for_write(APIKey)), atomic(using=database(None)):
                key, text = audit.perform(lambda: keys.create(options["name"], scopes, **limits), act)
                self._show(key, text, as_json=options["json"])
                if (fault := self.unread()) is not None:
                    raise CommandError(f"The key could not be shown, so there is none: {fault}")
        except ValidationError as error:
            raise CommandError("\n".join(_advice(error))) from error

    def _show(self, key: APIKey, text: str, *, as_json: bool) -> None:
        if as_json:
            self.write_json({**_facts(key), "key": text})
            return
        self.stdout.write(f"API key '{key.name}' made: {_summary(key)}.")
        self.stdout.write(self.style.WARNING("This is the only time it is shown. Use it as a bearer token:\n"))
        self.stdout.write(f"    export OJS_API_KEY={text}")
        self.stdout.write(f'    curl -H "Authorization: Bearer $OJS_API_KEY" {_example(key)}')

    def do_list(self, options: dict[str, Any]) -> None:
        found = list(APIKey.objects.order_by("name"))
        if options["json"]:
            self.write_json([_facts(key) for key in found])
            return
        empty = "There are no API keys. Make one: manage.py ojs_apikey create NAME --scope push"
        self.write_table(list(_COLUMNS), [[cell(key) for cell in _COLUMNS.values()] for key in found], empty)

    def do_revoke(self, options: dict[str, Any]) -> None:
        name = options["name"]
        key = APIKey.objects.filter(name=name).first()
        if key is None:
            raise CommandError(f"There is no API key named '{name}'. See them all: manage.py ojs_apikey list")
        if key.revoked_at is None:
            used = f"last used at {_time(key.last_used_at)}" if key.last_used_at else "never used"
            self.confirm(f"Revoke the API key '{name}' ({used}) for ever?", yes=options["yes"])
        if key.revoked_at is not None or not audit.perform(lambda: keys.revoke(key), entry("apikey.revoke", name)):
            raise CommandError(f"The API key '{name}' was revoked already, at {_time(key.revoked_at)}.")
        self.stdout.write(self.style.SUCCESS(f"API key '{name}' is revoked: calls with it are refused from now on."))


def _advice(error: ValidationError) -> list[str]:
    options = {"scopes": "--scope: ", "queues": "--queue: ", "job_types": "--type: ", "expires_at": "--expires: "}
    return [options.get(field, "") + text for field, texts in error.message_dict.items() for text in texts]


def _summary(key: APIKey) -> str:
    parts = [f"scopes {_words(key.scopes)}", f"queues {_words(key.queues)}", f"job types {_words(key.job_types)}"]
    return "; ".join([*parts, f"expires {_time(key.expires_at)}"])


def _facts(key: APIKey) -> dict[str, Any]:
    times = ("created_at", "expires_at", "revoked_at", "last_used_at")
    facts = {name: getattr(key, name) for name in ("name", "prefix", "scopes", "queues", "job_types")}
    return facts | {"status": keys.status(key)} | {name: _iso(getattr(key, name)) for name in times}


def _iso(instant: dt.datetime | None) -> str | None:
    return instant.astimezone(dt.UTC).isoformat() if instant else None


def _time(instant: dt.datetime | None) -> str:
    return timezone.localtime(instant).strftime("%Y-%m-%d %H:%M") if instant else "never"


def _words(entries: list[str] | None) -> str:
    return ", ".join(entries) if entries else "all"


_COLUMNS: dict[str, Callable[[APIKey], str]] = {
    "NAME": lambda key: key.name,
    "KEY": lambda key: f"{key.prefix}…",
    "STATUS": keys.status,
    "SCOPES": lambda key: _words(key.scopes),
    "QUEUES": lambda key: _words(key.queues),
    "JOB TYPES": lambda key: _words(key.job_types),
    "EXPIRES": lambda key: _time(key.expires_at),
    "LAST USED": lambda key: _time(key.last_used_at),
}


def _example(key: APIKey) -> str:
    """The rest of a curl line that this key may send."""
    queue = key.queues[0] if key.queues else "default"
    base = "https://your.site/ojs/v1"
    if {"read", "admin"} & set(key.scopes):
        return f"{base}/queues"
    document: dict[str, Any] = {"queues": [queue]}
    if "push" in key.scopes:
        job_type = key.job_types[0].replace("*", "name") if key.job_types else "demo.echo"
        document = {"type": job_type, "args": [], "queue": queue}
    path = "jobs" if "push" in key.scopes else "workers/fetch"
    return f"-H 'Content-Type: application/json' -d '{json.dumps(document)}' {base}/{path}"
