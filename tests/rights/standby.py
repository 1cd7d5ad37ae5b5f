"""A replica that stands still: it has our tables, and nothing in them. All that should reach it is named."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.another import another_database

ALIAS = "standby"


class Router:
    """Sends all reads of our tables to the replica, as sites do that spread their reads."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return ALIAS if model._meta.app_label == "django_ojs" else None

    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        return "default" if model._meta.app_label == "django_ojs" else None

    def allow_relation(self, *objects: Any, **hints: Any) -> bool:
        return True


class Standby:
    """What has reached the replica, in every thread: the place in the package from which it came."""

    def __init__(self) -> None:
        self.reached: list[str] = []

    def note(self) -> None:
        frames = [frame for frame in traceback.extract_stack() if "django_ojs" in frame.filename]
        self.reached.append(" < ".join(f"{Path(one.filename).name}:{one.lineno}" for one in reversed(frames[-4:])))

    def take(self) -> list[str]:
        """What has reached it since this was last asked, each place once."""
        found, self.reached = sorted(set(self.reached)), []
        return found


@pytest.fixture
def standby(settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Standby]:
    found = Standby()
    with another_database(ALIAS, tmp_path, monkeypatch, found.note):
        found.take()
        settings.DATABASE_ROUTERS = [f"{__name__}.{Router.__name__}"]
        yield found
