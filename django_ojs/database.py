"""The database that holds the jobs: its alias, transactions on it, and what says that it was not migrated."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from django.apps import apps
from django.db import DEFAULT_DB_ALIAS, Error, router, transaction

from django_ojs.errors import BackendUnavailable

P = ParamSpec("P")
T = TypeVar("T")
#: What PostgreSQL and MariaDB call a missing table; SQLite has only words.
_NO_TABLE = frozenset({"42P01", 1146})

atomic = transaction.atomic


def database(using: str | None) -> str:
    """The alias of the database that jobs are written to."""
    if using:
        return using
    from django_ojs.models import Job  # Django may not have loaded the models when this module is imported

    return router.db_for_write(Job)


def unmigrated(error: BaseException) -> str:
    """The sentence that says to migrate, where `error` is a database's and about a missing table of a model of this
    site; '' for any other error. It asks no database: a transaction may be broken by now."""
    if not isinstance(error, Error):
        return ""
    text = str(error)
    code = getattr(error.__cause__, "sqlstate", None) or (error.args[0] if error.args else None)
    if code not in _NO_TABLE and "no such table" not in text:
        return ""
    found = set(re.findall(r"\w+", text))
    missing = next((model for model in apps.get_models() if model._meta.db_table in found), None)
    if missing is None:
        return ""
    using = router.db_for_write(missing)
    option = "" if using == DEFAULT_DB_ALIAS else f" --database {using}"
    return f"The database '{using}' lacks tables of this site: run manage.py migrate{option}."


def or_migrate(operation: Callable[P, T]) -> Callable[P, T]:
    """Let an operation that finds no tables raise BackendUnavailable with the sentence that says to migrate."""

    @functools.wraps(operation)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return operation(*args, **kwargs)
        except Error as error:
            if sentence := unmigrated(error):
                raise BackendUnavailable(sentence, hint=sentence) from error
            raise

    return wrapper
