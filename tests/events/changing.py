"""What a failover or a restore makes of the log, within one database: the newest rows are gone, and what gives out ids
and numbers is where it was."""

from __future__ import annotations

from typing import Any

from django.db import connection, models, transaction

from django_ojs import clock
from django_ojs.events import ids, order
from django_ojs.jobs.push import push
from django_ojs.models import Event, EventCommit, EventLog


def enqueue(*names: str) -> None:
    """Push a job of each type, each in its own transaction."""
    for name in names:
        push([{"type": name, "args": []}])


class Copy:
    """The log as it is now, and the rows of other models, which `come_back` puts in the place of what is there then."""

    def __init__(self, *beside: type[models.Model]) -> None:
        self._beside = {model: list(model._default_manager.all()) for model in beside}
        ids.log_row("default")
        order.catch_up("default")
        self._events = set(Event.objects.values_list("pk", flat=True))
        self._commits = set(EventCommit.objects.values_list("pk", flat=True))
        self._log: dict[str, Any] = EventLog.objects.filter(pk=1).values("last_seq", "pruned_to").get()

    def come_back(self, *new: str, jump: int = 0) -> None:
        """Some seconds later, and with jobs of these types pushed before anybody has looked.

        What gives out ids and numbers goes on `jump` further, as after a crash: PostgreSQL writes down 32 of them at
        once, and begins behind these.
        """
        clock.advance(seconds=5)
        with transaction.atomic():
            EventLog.objects.select_for_update().get(pk=1)
            Event.objects.exclude(pk__in=self._events)._raw_delete("default")
            EventCommit.objects.exclude(pk__in=self._commits)._raw_delete("default")
            EventLog.objects.filter(pk=1).update(**self._log)
            for model, rows in self._beside.items():
                model._default_manager.all().delete()
                model._default_manager.bulk_create(rows)
            _count_on(Event._meta.db_table, "id", max(self._events, default=0) + jump)
            if connection.vendor == "postgresql":
                _count_on(EventCommit._meta.db_table, "seq", max(self._commits, default=0) + jump)
            enqueue(*new)


class LostPasses:
    """The passes from now on, which `happen` takes back: a failover, to a standby that has got all but these."""

    def __init__(self) -> None:
        order.catch_up("default")
        self._commits = set(EventCommit.objects.values_list("pk", flat=True))
        self._stamped = set(Event.objects.filter(seq__isnull=False).values_list("pk", flat=True))
        self._log: dict[str, Any] = EventLog.objects.filter(pk=1).values("last_seq", "snapshot").get()

    def happen(self) -> None:
        EventCommit.objects.exclude(pk__in=self._commits)._raw_delete("default")
        Event.objects.exclude(pk__in=self._stamped).update(seq=None)
        EventLog.objects.filter(pk=1).update(**self._log, run="another@1")


def _count_on(table: str, column: str, last: int) -> None:
    with connection.cursor() as cursor:
        match connection.vendor:
            case "postgresql":
                cursor.execute(
                    f"SELECT setval(pg_get_serial_sequence('{table}', '{column}'), %s, %s)", [last or 1, bool(last)]
                )
            case "sqlite":
                cursor.execute("UPDATE sqlite_sequence SET seq = %s WHERE name = %s", [last, table])
            case _:
                cursor.execute(f"ALTER TABLE {table} AUTO_INCREMENT = {last + 1}")
