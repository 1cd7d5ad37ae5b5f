"""What the migration makes beside what the models say. That it makes no less, `makemigrations --check` sees."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
from django.apps import apps
from django.db import connection

from django_ojs.models import IdempotencyKey, Job, RateLimit, RateStart, Ticket, Workflow

pytestmark = pytest.mark.django_db

postgresql = import_module("django_ojs.migrations.0004_postgresql")
room = import_module("django_ojs.migrations.0007_postgresql_workflows")


@pytest.mark.mariadb
def test_mariadb_has_whole_indexes_where_it_can_have_no_partial_ones() -> None:
    with connection.cursor() as cursor:
        found = connection.introspection.get_constraints(cursor, Job._meta.db_table)
    columns = {name: found[name]["columns"] for name in found if name.endswith("_mariadb")}
    assert columns == {
        "ojs_job_claim_mariadb": ["state", "queue", "priority", "enqueued_at", "id"],
        "ojs_job_unique_mariadb": ["unique_key", "state"],
        "ojs_job_rate_mariadb": ["rate_key", "state"],
    }


@pytest.mark.mariadb
@pytest.mark.parametrize("model,column", [(Job, "rate_key"), (RateLimit, "key"), (RateStart, "key")])
def test_keys_that_differ_in_their_case_are_two_in_mariadb(model: type, column: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT collation_name FROM information_schema.columns "
            "WHERE table_schema = DATABASE() AND table_name = %s AND column_name = %s",
            [model._meta.db_table, column],  # type: ignore[attr-defined]
        )
        assert cursor.fetchone() == ("utf8mb4_bin",)


def vacuum_settings() -> dict[str, str]:
    with connection.schema_editor() as editor:
        return dict(postgresql.settings_of(editor, Job._meta.db_table))


def indexes_by_prefix(model: Any) -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT indexname FROM pg_indexes WHERE tablename = %s AND indexdef LIKE '%%(digest varchar_pattern_ops)'",
            [model._meta.db_table],
        )
        return [row[0] for row in cursor.fetchall()]


def migrate(direction: str) -> None:
    with connection.schema_editor() as editor:
        getattr(postgresql, direction)(apps, editor)


@pytest.mark.postgres
def test_jobs_are_vacuumed_early_with_their_indexes_and_digests_have_one_index() -> None:
    assert vacuum_settings() == postgresql.VACUUM
    assert indexes_by_prefix(IdempotencyKey) == indexes_by_prefix(Ticket) == []


@pytest.mark.postgres
def test_the_way_back_is_the_schema_before() -> None:
    migrate("backwards")
    assert vacuum_settings() == {}
    assert indexes_by_prefix(IdempotencyKey) == [postgresql.PREFIXES["IdempotencyKey"]]
    assert indexes_by_prefix(Ticket) == [postgresql.PREFIXES["Ticket"]]
    migrate("forwards")
    assert vacuum_settings() == postgresql.VACUUM
    assert indexes_by_prefix(IdempotencyKey) == indexes_by_prefix(Ticket) == []


@pytest.mark.postgres
def test_what_a_site_has_set_for_its_table_stays() -> None:
    own = {"autovacuum_vacuum_scale_factor": "0.005", "autovacuum_vacuum_cost_delay": "0"}
    migrate("backwards")
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {Job._meta.db_table} SET ({', '.join(f'{k} = {v}' for k, v in own.items())})")
    migrate("forwards")
    assert vacuum_settings() == {**postgresql.VACUUM, **own}
    migrate("backwards")
    assert vacuum_settings() == own


def workflow_settings() -> dict[str, str]:
    with connection.schema_editor() as editor:
        return dict(room.settings_of(editor, Workflow._meta.db_table))


def migrate_workflows(direction: str) -> None:
    with connection.schema_editor() as editor:
        getattr(room, direction)(apps, editor)


@pytest.mark.postgres
def test_rows_of_workflows_have_room_beside_them_unless_the_site_says_how_much() -> None:
    assert workflow_settings() == {"fillfactor": room.FULL}
    migrate_workflows("backwards")
    assert workflow_settings() == {}
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {Workflow._meta.db_table} SET (fillfactor = 80)")
    for direction in ("forwards", "backwards"):
        migrate_workflows(direction)
        assert workflow_settings() == {"fillfactor": "80"}
