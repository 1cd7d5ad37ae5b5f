"""How PostgreSQL finds the rows of a statement: its plan, and the rows of large tables that it looks at."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from django.db import DatabaseError, connection, transaction

from django_ojs.models import Event, EventCommit, Job

JOB, EVENT, COMMIT = (model._meta.db_table for model in (Job, Event, EventCommit))
#: The rows of each large table that one statement may look at: a search's `OJS["SEARCH_DEPTH"]` jobs and half as many
#: beside them, and the latest 50,000 events, of which a dashboard's pages are made (`events.log.WINDOW`).
LIMITS = {JOB: 32_000, EVENT: 51_000, COMMIT: 51_000}


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """What one statement does: its plan as text, the large tables that it reads from end to end, and how many rows of
    each large table it looks at."""

    sql: str
    text: str
    scanned: frozenset[str]
    looked_at: Counter[str]

    def faults(self) -> list[str]:
        found = [f"reads all of {table}" for table in sorted(self.scanned)]
        return found + [f"looks at {rows} rows of {table}" for table, rows in self.looked_at.items()
                        if rows > LIMITS[table]]  # fmt: skip


@contextlib.contextmanager
def watched() -> Iterator[list[Plan]]:
    """The plans of all statements about jobs and events that run meanwhile.

    Each is run twice: first for its plan, in a transaction that is rolled back.
    """
    plans: list[Plan] = []
    busy = False

    def watch(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        nonlocal busy
        if not busy and _is_about_large_tables(sql) and not connection.needs_rollback:
            busy = True
            try:
                plans.append(_plan_of(sql, params[0] if many else params))
            except DatabaseError:  # it fails by itself too, as a lock that is not to be had does
                pass
            finally:
                busy = False
        return execute(sql, params, many, context)

    with connection.execute_wrapper(watch):
        yield plans


def _is_about_large_tables(sql: str) -> bool:
    begins = sql.lstrip(" (").split(None, 1)[0].upper()
    words = set(sql.replace('"', " ").replace(".", " ").replace("(", " ").replace(")", " ").split())
    return begins in ("SELECT", "INSERT", "UPDATE", "DELETE", "WITH") and not words.isdisjoint(LIMITS)


def _plan_of(sql: str, params: Any) -> Plan:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", params)
        (found,) = cursor.fetchone()
        transaction.set_rollback(True)
    (root,) = json.loads(found) if isinstance(found, str) else found
    scanned, lines = set(), list[str]()
    rows_of, entries_of = Counter[str](), Counter[str]()
    for depth, node in _nodes(root["Plan"], 0):
        table = _table_of(node)
        rows = _rows_of(node)
        lines.append(f"{'  ' * depth}{node['Node Type']} {node.get('Index Name') or node.get('Relation Name') or ''} "
                     f"{node.get('Index Cond', '')} ({rows} rows)")  # fmt: skip
        if table is not None:
            (entries_of if node["Node Type"] == "Bitmap Index Scan" else rows_of)[table] += rows
            if node["Node Type"].endswith("Seq Scan"):
                scanned.add(table)
    return Plan(sql, "\n".join(lines), frozenset(scanned), rows_of | entries_of)  # the larger of both


def _nodes(node: dict[str, Any], depth: int) -> Iterator[tuple[int, dict[str, Any]]]:
    yield depth, node
    for child in node.get("Plans", ()):
        yield from _nodes(child, depth + 1)


def _table_of(node: dict[str, Any]) -> str | None:
    if node["Node Type"] == "ModifyTable":
        return None
    if node.get("Relation Name") in LIMITS:
        return str(node["Relation Name"])
    return _INDEXED.get(str(node.get("Index Name")))


def _rows_of(node: dict[str, Any]) -> int:
    left_out = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
    return round((node.get("Actual Rows", 0) + left_out) * node.get("Actual Loops", 0))


#: The large tables by their indexes: the node of a bitmap's index does not name the table.
_INDEXED = {f"{table}_pkey": table for table in LIMITS} | {f"{COMMIT}_txid_key": COMMIT}
_INDEXED |= {index.name: model._meta.db_table for model in (Job, Event) for index in model._meta.indexes}
