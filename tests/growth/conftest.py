"""A database that PostgreSQL takes for one of ten million ended jobs, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.test import TransactionTestCase

from benchmarks import longhistory
from django_ojs.models import Event, EventCommit, Job

JOBS, BELIEVED = 40_000, 10_000_000


@pytest.fixture(scope="module")
def history(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Forty thousand jobs with three events each. The planner is told that each of their pages holds as many rows as
    if there were ten million, so that it plans as it would then.

    Without a superuser nothing can be told to it. The tests leave to the next what they commit.
    """
    if connection.vendor != "postgresql":
        pytest.skip("needs PostgreSQL")
    with django_db_blocker.unblock():
        with connection.cursor() as cursor:
            cursor.execute("SELECT usesuper FROM pg_user WHERE usename = current_user")
            if not cursor.fetchone()[0]:
                pytest.skip("needs a superuser, who may change what the planner believes")
            tables = [model._meta.db_table for model in (Job, Event, EventCommit)]
            for table in tables:
                cursor.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = false)")
        longhistory.make(JOBS, days=6)
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE pg_class SET reltuples = reltuples * %s WHERE oid = ANY(%s::regclass[]) OR oid IN "
                "(SELECT indexrelid FROM pg_index WHERE indrelid = ANY(%s::regclass[]))",
                [BELIEVED / JOBS, tables, tables],
            )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", lambda case: None)
        yield
    with django_db_blocker.unblock():
        with connection.cursor() as cursor:
            cursor.execute(f"TRUNCATE {', '.join(tables)}")
            for table in tables:
                cursor.execute(f"ALTER TABLE {table} RESET (autovacuum_enabled)")
        TransactionTestCase()._fixture_teardown()  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def _pages_of_ten_millions(history: None, transactional_db: None) -> Iterator[None]:
    """The planner sees how many pages a table really has, so reading all of it would seem as cheap as it is here."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('seq_page_cost', %s, false)", [str(BELIEVED / JOBS)])
    yield
    with connection.cursor() as cursor:
        cursor.execute("RESET seq_page_cost")
