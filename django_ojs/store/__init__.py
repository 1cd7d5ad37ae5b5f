"""The statements of the hot path, per database: push, claim, complete, fail, append events.

`store_of(using)` gives the one for a database alias. `orm.Store` does everything through the ORM, readably
and on any database; the others replace what their database can do better. One behaviour suite runs on all.
"""

from __future__ import annotations

from functools import lru_cache

from django.db import connections

from django_ojs.store.mysql import MySQLStore
from django_ojs.store.orm import Store
from django_ojs.store.postgresql import PostgreSQLStore
from django_ojs.store.sqlite import SQLiteStore

__all__ = ["Store", "store_of"]

_VENDORS: dict[str, type[Store]] = {
    "mysql": MySQLStore,
    "postgresql": PostgreSQLStore,
    "sqlite": SQLiteStore,
}


@lru_cache(maxsize=16)
def store_of(using: str) -> Store:
    """The statements for the database behind this alias."""
    return _VENDORS.get(connections[using].vendor, Store)(using)
