"""The log in numbers: how often each kind of job event happened from a place on, in the log's total order.

One statement reads a stretch of the log and groups it in the database, so that what comes back is as short for
ten thousand events as for ten. Times are those that the events carry as the first member of their data.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, NamedTuple

from django.db import connections

from django_ojs.models import Event, EventCommit

_EVENT, _COMMIT = Event._meta.db_table, EventCommit._meta.db_table

#: The events that measure a time, by the member that holds it.
MEASURED = {"job.completed": "duration_ms", "job.failed": "duration_ms", "job.started": "wait_ms"}


class Place(NamedTuple):
    """Up to where a reader has come: the transaction's or event's number, and the event's id."""

    seq: int = 0
    event: int = 0


class Group(NamedTuple):
    """`number` events that are alike and of one minute. `ms` is what each of them measured, None for those without;
    `worker_id` who completed the jobs, empty for other events."""

    event: str
    job_type: str
    queue: str
    label: str
    ms: int | None
    number: int
    minute: dt.datetime
    worker_id: str = ""


class Stretch(NamedTuple):
    """What was read: the groups of the job events, the number of all events, and the place behind the last."""

    groups: list[Group]
    events: int
    place: Place


def read(after: Place, limit: int, using: str) -> Stretch:
    """The next events behind `after`, at most `limit`, in one statement. What is not in order yet is not there."""
    vendor = connections[using].vendor
    source, params, last = _SOURCES.get(vendor, _by_number)(after)
    ms = _ms(_FIRST_NUMBER.get(vendor, _FIRST_NUMBER["sqlite"]))
    with connections[using].cursor() as cursor:
        cursor.execute(
            f"SELECT type, job_type, queue, label, ms, minute, worker, count(*), {last} "
            f"FROM (SELECT e.id, {source[0]} AS seq, "
            f"e.type, e.job_type, e.queue, {_LABEL} AS label, {ms} AS ms, {_MINUTES.get(vendor, _MINUTES['sqlite'])} "
            f"AS minute, {_WORKER} AS worker {source[1]} LIMIT {int(limit)}) AS stretch "
            f"GROUP BY type, job_type, queue, label, ms, minute, worker",
            params,
        )
        rows = cursor.fetchall()
    groups = [
        Group(event, job_type, queue, label, None if ms is None else int(ms), int(number), _minute(minute), worker)
        for event, job_type, queue, label, ms, minute, worker, number, _, _ in rows
        if event.startswith("job.")
    ]
    ends = [Place(int(seq or 0), int(event)) for *_, seq, event in rows]
    return Stretch(groups, sum(int(row[7]) for row in rows), max(ends, default=after))


_LABEL = (
    "CASE WHEN e.type = 'job.started' THEN CASE WHEN e.attempt = 1 THEN 'first' ELSE 'again' END "
    "WHEN e.type IN ('job.completed', 'job.failed') THEN e.state ELSE '' END"
)
_WORKER = "CASE WHEN e.type = 'job.completed' THEN e.worker_id ELSE '' END"
#: The number with which a text begins. SQLite's CAST stops at what is none.
_FIRST_NUMBER = {
    "sqlite": "CAST({} AS INTEGER)",
    "postgresql": "CAST(split_part(split_part({}, ',', 1), '}}', 1) AS bigint)",
    "mysql": "CAST(substring_index(substring_index({}, ',', 1), '}}', 1) AS SIGNED)",
}
#: The minute of an event as a text: columns hold UTC on every database.
_MINUTES = {
    "sqlite": "substr(e.time, 1, 16)",
    "postgresql": "to_char(e.time AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI')",
    "mysql": "date_format(e.time, '%%Y-%%m-%%d %%H:%%i')",
}


def _minute(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)


def _ms(number: str) -> str:
    cases = []
    for event, member in MEASURED.items():
        begin = f'{{"{member}":'
        size = len(begin)
        value = number.format(f"substr(e.data, {size + 1}, 18)")
        cases.append(f"WHEN e.type = '{event}' AND substr(e.data, 1, {size}) = '{begin}' THEN {value}")
    return f"CASE {' '.join(cases)} END"


_Source = tuple[tuple[str, str], list[Any], str]


def _by_id(after: Place) -> _Source:
    """SQLite: ids are the order."""
    return ("0", f"FROM {_EVENT} e WHERE e.id > %s ORDER BY e.id"), [after.event], "0, max(id)"


def _by_transaction(after: Place) -> _Source:
    """PostgreSQL: the number of the transaction, then the id.

    OFFSET 0 makes it look for each transaction's events by their index. The planner, before it has been told how
    large the tables are, would rather read all of the log.
    """
    joined = (
        f"FROM {_COMMIT} c CROSS JOIN LATERAL (SELECT * FROM {_EVENT} WHERE txid = c.txid OFFSET 0) e "
        "WHERE c.seq >= %s AND (c.seq > %s OR e.id > %s) ORDER BY c.seq, e.id"
    )
    last = "(max(ARRAY[seq, id]))[1], (max(ARRAY[seq, id]))[2]"
    return ("c.seq", joined), [after.seq, after.seq, after.event], last


def _by_number(after: Place) -> _Source:
    """MariaDB: the number that the relay has stamped."""
    return ("e.seq", f"FROM {_EVENT} e WHERE e.seq > %s ORDER BY e.seq"), [after.seq], "max(seq), max(id)"


_SOURCES = {"sqlite": _by_id, "postgresql": _by_transaction}
