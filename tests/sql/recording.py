"""Records the statements that a call sends, and writes them as text that a reader and a review can follow."""

from __future__ import annotations

import contextlib
import datetime as dt
import re
import textwrap
import uuid
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

from django.db.backends.utils import CursorWrapper

from tests.sql.layout import WIDTH, laid_out

#: What opens and closes a transaction says nothing about the call.
_TRANSACTION = re.compile(r"(SAVEPOINT|RELEASE|ROLLBACK|BEGIN|COMMIT|SET|DISCARD)\b")

#: How the types of parameters are called in a file.
_TYPES: dict[type, str] = {
    bool: "boolean", int: "integer", float: "number", str: "text", uuid.UUID: "uuid", dt.datetime: "time",
    list: "list", tuple: "list", type(None): "null",
}  # fmt: skip


@contextlib.contextmanager
def recorded() -> Iterator[list[str]]:
    """The statements that all cursors of Django's are given meanwhile, formatted, each once, in the order in which they
    come first."""
    found: dict[str, None] = {}
    own_execute, own_executemany = CursorWrapper.execute, CursorWrapper.executemany

    def execute(cursor: Any, sql: Any, params: Any = None) -> Any:
        if not _TRANSACTION.match(sql):
            found[_described(sql, params)] = None
        return own_execute(cursor, sql, params)

    def executemany(cursor: Any, sql: Any, param_list: Any) -> Any:
        rows = list(param_list)
        found[_described(sql, rows[0] if rows else None, many=True)] = None
        return own_executemany(cursor, sql, rows)

    statements: list[str] = []
    with mock.patch.multiple(CursorWrapper, execute=execute, executemany=executemany):
        yield statements
    statements += found


def file_of(description: str, statements: list[str]) -> str:
    """The text of a golden file."""
    head = "\n".join(f"-- {line}" for line in textwrap.wrap(" ".join(description.split()), WIDTH - 3))
    return head + "\n\n" + "\n\n".join(statements or ["-- Nothing is sent."]) + "\n"


def _described(sql: str, params: Any, *, many: bool = False) -> str:
    lines = ["-- sent once for each row"] if many else []
    if given := _named(sql, params):
        lines += [f"-- {line}" for line in textwrap.wrap(f"parameters: {', '.join(given)}", WIDTH - 3)]
    return "\n".join([*lines, *(f"{laid_out(one)};" for one in sql.strip().rstrip(";").split("; "))])


def _named(sql: str, params: Any) -> list[str]:
    if isinstance(params, Mapping):
        return [f"{name} {_type(value)}" for name, value in params.items() if f"%({name})s" in sql]
    return [_type(value) for value in params or ()]


def _type(value: Any) -> str:
    known = next((name for kind, name in _TYPES.items() if type(value) is kind), None)
    return known or ("text" if isinstance(value, str) else type(value).__name__)
