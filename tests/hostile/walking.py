"""What the walks over all doors share: which of the values a place gets, and whether a call has changed rows."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from django.db import connection, transaction

from tests.rights import world as rows

T = TypeVar("T")
#: Whether the walks take the time for many values of every place: at night.
FULL = os.environ.get("OJS_TEST_FULL") == "1"
_WRITES = ("INSERT", "UPDATE", "DELETE", "REPLACE", "WITH", "MERGE")


def some(values: Sequence[T], count: int, *place: Any) -> list[T]:
    """So many of the values: others for each place, and always the same ones."""
    size = len(values)
    begin = zlib.crc32(repr(place).encode(errors="replace"))
    step = next((step for step in (7, 11, 13, 17) if size % step), 1)  # so that none comes twice
    return [values[(begin + step * number) % size] for number in range(min(count, size))]


class Writes:
    """Undoes what is done, and says whether it has changed rows."""

    def __init__(self) -> None:
        self.before = rows.snapshot()
        self.wrote = False

    def during(self, act: Callable[[], T], failed: Callable[[T], bool]) -> tuple[T, bool]:
        """What `act` returns, and whether rows have changed though it has failed."""
        self.wrote = changed = False
        with transaction.atomic():
            with connection.execute_wrapper(self._look):
                found = act()
            if self.wrote and failed(found):
                changed = rows.snapshot() != self.before
            transaction.set_rollback(True)
        if self.wrote:
            rows.forget()
        return found, changed

    def _look(self, execute: Any, sql: str, params: Any, many: Any, context: Any) -> Any:
        self.wrote |= sql.lstrip(" (").upper().startswith(_WRITES)
        return execute(sql, params, many, context)


def report(faults: Sequence[str]) -> str:
    """The faults as the text of a failed assertion."""
    return "\n".join([f"{len(faults)} faults", *(fault[:600] for fault in faults[:50])])
