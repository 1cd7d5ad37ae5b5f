"""What a job weighs on PostgreSQL: bytes of its rows, and of the write-ahead log from its enqueue to its end."""

from __future__ import annotations

from typing import NamedTuple

from django.db import connection

from benchmarks import measures
from django_ojs.models import Event, Job

_STATISTICS = (
    "SELECT coalesce(sum(n_tup_upd), 0), coalesce(sum(n_tup_hot_upd), 0) FROM pg_stat_user_tables WHERE relname = %s"
)


class Weight(NamedTuple):
    """Bytes for one job, and the share of its updates that touched no index (HOT)."""

    job: float
    events: float
    log: float
    hot: float


def available() -> bool:
    return connection.vendor == "postgresql"


def weigh(jobs: int, database: str) -> Weight:
    """Enqueue and drain so many plain jobs."""
    with connection.cursor() as cursor:
        cursor.execute("CHECKPOINT")  # the log then has whole pages once, as it has after any checkpoint

        def value(statement: str, *params: str) -> tuple[float, ...]:
            cursor.execute(statement, params)
            return tuple(map(float, cursor.fetchone() or ()))

        place, updates = value("SELECT pg_current_wal_insert_lsn() - '0/0'"), value(_STATISTICS, Job._meta.db_table)
        measures.drain(jobs, "inline", 1, database)
        log = value("SELECT pg_current_wal_insert_lsn() - '0/0'")[0] - place[0]
        sizes = [value("SELECT pg_total_relation_size(%s)", model._meta.db_table)[0] for model in (Job, Event)]
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        total, hot = (new - old for new, old in zip(value(_STATISTICS, Job._meta.db_table), updates, strict=True))
    return Weight(sizes[0] / jobs, sizes[1] / jobs, log / jobs, hot / total if total else 0.0)
