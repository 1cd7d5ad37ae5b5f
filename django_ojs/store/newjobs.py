"""Makes the columns of an insert of new jobs: what all jobs of a push have alike is sent only once."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from django_ojs.models.job import BLANK, JobRow

#: What the row of a new job says; all other columns begin at their defaults.
NEW_COLUMNS = ("id", "type", "queue", "state", "priority", "max_attempts", "args", "meta", "extra", "retry",
                 "timeout_ms", "visibility_ms", "heartbeat_ms", "grace_ms", "trace_id", "created_at", "enqueued_at",
                 "due_at", "expires_at", "start_by", "deadline_at", "wake_at", "unique_key", "workflow_id",
                 "parent_id", "result_ttl", "rate_key", "rate_limit")  # fmt: skip
#: What a new job has in them that says nothing.
NEW_DEFAULTS = {name: BLANK[name] for name in NEW_COLUMNS}
_new_values = itemgetter(*NEW_COLUMNS)


def said(row: JobRow) -> dict[str, Any]:
    """What a new job says: its columns that are not at their defaults."""
    pairs = zip(NEW_COLUMNS, _new_values(row), strict=True)
    return {name: value for name, value in pairs if value != NEW_DEFAULTS[name]}


def compared(rows: Sequence[JobRow]) -> tuple[dict[str, Any], dict[str, tuple[Any, ...] | str]]:
    """What new jobs say: the columns in which all say the same with that value, and the others with a value for each
    job, or with the name of the column that has the same values.

    So of a thousand like jobs only the ids and the times travel a thousand times.
    """
    alike: dict[str, Any] = {}
    varying: dict[str, tuple[Any, ...] | str] = {}
    for name, column in zip(NEW_COLUMNS, zip(*map(_new_values, rows), strict=True), strict=True):
        first = column[0]
        if column.count(first) < len(column):
            varying[name] = next((other for other, found in varying.items() if found == column), column)
        elif first != NEW_DEFAULTS[name]:
            alike[name] = first
    return alike, varying


def new_constant(name: str) -> str:
    """What a new job has by default in a column, in SQL: null, a number, or a text without quotes in it."""
    value = NEW_DEFAULTS[name]
    return "NULL" if value is None else f"'{value}'" if isinstance(value, str) else str(value)
