"""What is looked at while the load runs: memory, connections, tables, what waits."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence

from django.db import connection, models

from django_ojs.models import EventLog, Lease, Worker
from django_ojs.statistics import counters
from django_ojs.testing.database import TRANSIENT
from django_ojs.worker import processinfo

EVERY = 5.0  #: seconds between two samples
TABLES: tuple[type[models.Model], ...] = (*TRANSIENT, EventLog, Lease)

_SIZES = {
    "postgresql": "SELECT pg_total_relation_size(%s::regclass)",
    "mysql": "SELECT data_length + index_length FROM information_schema.tables "
             "WHERE table_schema = database() AND table_name = %s",
}  # fmt: skip


class Gauges:
    """`look()` takes one sample of everything. Tables in which nothing ever was have none."""

    def __init__(self, parent: int) -> None:
        self._parent = parent  #: process id of the supervisor
        self.series: dict[str, list[float]] = defaultdict(list)
        self.processes: dict[str, set[int]] = defaultdict(set)  #: worker -> its process ids so far

    def look(self) -> None:
        for worker in Worker.objects.all():
            if worker.pid is not None:
                self.processes[worker.pk].add(worker.pid)
                self._note(f"memory of {worker.pk}, MB", processinfo.memory_mb(worker.pid))
        self._note("memory of the supervisor, MB", processinfo.memory_mb(self._parent))
        self._note("memory of the producer, MB", processinfo.memory_mb())
        self._note("connections", _connections())
        self._note("jobs that have not ended", sum(count.depth for count in counters.count_all().values()))
        for model in TABLES:
            name = model._meta.db_table
            rows = model._default_manager.count()
            if rows or f"rows of {name}" in self.series:
                self._note(f"rows of {name}", rows)
                self._note(f"size of {name}, MB", _size_mb(name))
        self._note("size of the database file, MB", _file_mb())

    def _note(self, name: str, value: float | None) -> None:
        if value is not None:
            self.series[name].append(value)


def thirds(values: Sequence[float]) -> tuple[float, float]:
    """The medians of the first third and of the last."""
    length = max(1, len(values) // 3)
    return statistics.median(values[:length]), statistics.median(values[-length:])


def notes() -> list[str]:
    """What else explains the numbers."""
    if connection.vendor == "postgresql" and _ask(
        "SELECT (setting = 'off')::int FROM pg_settings WHERE name = 'autovacuum'"
    ):
        return ["autovacuum is off on this server, so the sizes of tables grow with every change of a row."]
    return []


def _connections() -> int | None:
    if connection.vendor != "postgresql":
        return None
    return int(_ask("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"))


def _size_mb(table: str) -> float | None:
    question = _SIZES.get(connection.vendor)
    return None if question is None else _ask(question, table) / 2**20


def _file_mb() -> float | None:
    if connection.vendor != "sqlite":
        return None
    return _ask("PRAGMA page_count") * _ask("PRAGMA page_size") / 2**20


def _ask(question: str, *params: str) -> float:
    with connection.cursor() as cursor:
        cursor.execute(question, params)
        return float(cursor.fetchone()[0])
