"""The words of other queues beside ours, from the table in `django_ojs/client/otherwords.py`."""

from __future__ import annotations

from collections.abc import Sequence

from django_ojs.client.otherwords import QUEUES, SECTIONS, Row
from ojsdocs.markdown import table

#: Queues that share the last column.
_OTHERS = ("q2", "background", "scheduler")


def render() -> str:
    return "\n".join(f"## {heading}\n\n{_table(rows)}" for heading, rows in SECTIONS.items())


def _table(rows: Sequence[Row]) -> str:
    columns = [(queue.name, (name,)) for name, queue in QUEUES.items() if name not in _OTHERS]
    columns.append(("others", _OTHERS))
    shown = [(title, names) for title, names in columns if any(_cell(row, names) for row in rows)]
    lines = [(row.ours, *(_cell(row, names) for _, names in shown)) for row in rows]
    return table(("django-ojs", *(title for title, _ in shown)), lines)


def _cell(row: Row, names: Sequence[str]) -> str:
    texts = [text for name in names for text in row.theirs.get(name, "").split(", ") if text]
    return ", ".join(dict.fromkeys(texts))
