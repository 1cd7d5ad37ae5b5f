"""Sites whose database connection shows each caller other data: schemas, roles, row-level security.

What calls share within a process (commit groups, and what is remembered of API keys, queues, schemas and the log) is
shared only by calls with the same key. A schema that the connection names is found by itself, as django-tenants names
it; for all else the site says the key (`OJS["GROUP_KEY"]`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from typing import Any

from django.conf import settings
from django.db import connections
from django.utils.module_loading import import_string

from django_ojs.conf import ojs_settings
from django_ojs.errors import Unsupported

#: How the schema is read of connections of each class; None: they have none.
_readers: dict[type, Callable[[Any], Hashable] | None] = {}
#: The databases whose connections have none.
_without_schemas: set[str] = set()


def key(using: str) -> Hashable:
    """Whose data this thread's connection shows now: calls with different keys share nothing. None: all the same."""
    given = ojs_settings.GROUP_KEY
    if given is not None:
        found: Hashable = (import_string(given) if isinstance(given, str) else given)()
        return found
    if using in _without_schemas:
        return None
    connection = connections[using]
    kind = type(connection)
    try:
        reader = _readers[kind]
    except KeyError:
        reader = _readers[kind] = _reader(connection)
    if reader is None:
        _without_schemas.add(using)
        return None
    return reader(connection)


def scope(using: str) -> Hashable:
    """By what a process remembers something of a database: its alias, and the key where there is one."""
    if using in _without_schemas and ojs_settings.GROUP_KEY is None:
        return using
    found = key(using)
    return using if found is None else (using, found)


def has_schemas(using: str) -> bool:
    """Whether the connections to this database name the schema that they show."""
    return _reader(connections[using]) is not None


def separates(using: str) -> bool:
    """Whether callers may see other jobs than each other, so that no thread of ours can work for all of them.

    A site of schemas may keep our tables in the one that all share.
    """
    if ojs_settings.GROUP_KEY is not None:
        return True
    return has_schemas(using) and "django_ojs" in getattr(settings, "TENANT_APPS", ("django_ojs",))


def refuse_streams(using: str) -> None:
    """Raise Unsupported where tenants are apart: one thread reads the log for all the streams of a process."""
    if separates(using):
        raise Unsupported(
            "This site shows each tenant other events, and streams read them for all clients at once.",
            hint="Read the events by polling: GET /ojs/v1/events.",
        )


def carried(using: str) -> Callable[[], None] | None:
    """What lets another thread's connection show what this one shows; None where that cannot be done."""
    if key(using) is None:
        return _nothing
    here: Any = connections[using]
    if ojs_settings.GROUP_KEY is not None or not hasattr(here, "set_tenant"):
        return None
    tenant = here.tenant

    def show() -> None:
        there: Any = connections[using]
        there.set_tenant(tenant)

    return show


def shows_elsewhere(using: str) -> Callable[[], None] | None:
    """`carried`, also None where the site has said that calls cannot be told apart: only this thread's connection is
    known to show what it shows, so no other connection may look in its stead, and this one must stay open while a call
    lasts."""
    return carried(using) if ojs_settings.GROUP_CALLS else None


def bound(act: Callable[[], None], using: str) -> Callable[[], None]:
    """`act`, for behind a commit: done for whom it was meant, though the caller may have gone on to another tenant.

    Where the connection cannot be told whose data to show, it is left out then.
    """
    meant, show = key(using), carried(using)
    if meant is None:
        return act

    def call() -> None:
        if key(using) == meant:
            act()
        elif show is not None and (back := carried(using)) is not None:
            show()
            try:
                act()
            finally:
                back()

    return call


def _nothing() -> None:
    """All connections show the same."""


def _reader(connection: Any) -> Callable[[Any], Hashable] | None:
    if hasattr(connection, "schema_name"):
        return _schema_name
    return _get_schema if callable(getattr(connection, "get_schema", None)) else None


def _schema_name(connection: Any) -> Hashable:
    found: Hashable = connection.schema_name
    return found


def _get_schema(connection: Any) -> Hashable:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        found: Hashable = connection.get_schema()
    return found
