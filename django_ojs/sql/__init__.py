"""The statements of the hot path, per database: push, claim, complete, fail, append events.

`store(using)` gives the one for a database alias. `base.Store` does everything through the ORM, readably
and on any database; the others replace what their database can do better. One behaviour suite runs on all.
"""

from __future__ import annotations

from functools import lru_cache

from django.db import connections

from django_ojs.sql.base import Store
from django_ojs.sql.mysql import MySQLStore
from django_ojs.sql.postgresql import PostgreSQLStore
from django_ojs.sql.sqlite import SQLiteStore

__all__ = ["Store", "store"]

_VENDORS: dict[str, type[Store]] = {
    "mysql": MySQLStore,
    "postgresql": PostgreSQLStore,
    "sqlite": SQLiteStore,
}


@lru_cache(maxsize=16)
def store(using: str) -> Store:
    """The statements for the database behind this alias."""
    return _VENDORS.get(connections[using].vendor, Store)(using)
