"""A second database with our tables, beside the one that the tests have."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_ojs.database import parse_url


def _unnoticed() -> None:
    pass


@contextlib.contextmanager
def another_database(
    alias: str, folder: Path, patch: pytest.MonkeyPatch, note: Callable[[], None] = _unnoticed
) -> Iterator[None]:
    """A file of SQLite under this alias, with our tables and nothing in them. `note` is called when it is reached."""
    entry = {**connections.settings["default"], **parse_url(f"sqlite:///{folder}/{alias}", folder)}
    patch.setitem(connections.settings, alias, entry)
    elsewhere: Any = BaseDatabaseWrapper.ensure_connection  # which lets a test have the databases of the settings only

    def ensure(self: BaseDatabaseWrapper) -> None:
        if self.alias != alias:
            elsewhere(self)
            return
        note()
        if self.connection is None:
            with self.wrap_database_errors:
                self.connect()

    patch.setattr(BaseDatabaseWrapper, "ensure_connection", ensure)
    with connections[alias].schema_editor() as editor:
        for model in apps.get_app_config("django_ojs").get_models():
            editor.create_model(model)
    try:
        yield
    finally:
        connections[alias].close()
        del connections[alias]
