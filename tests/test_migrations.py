"""What the migration makes beside what the models say. That it makes no less, `makemigrations --check` sees."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth.models import Permission
from django.contrib.contenttypes.models import ContentType
from django.db import connection

from django_ojs.models import IdempotencyKey, Job, Ticket, Workflow
from django_ojs.models.fields import NameField

pytestmark = pytest.mark.django_db

postgresql = import_module("django_ojs.migrations.0004_postgresql")
room = import_module("django_ojs.migrations.0007_postgresql_workflows")
permissions = import_module("django_ojs.migrations.0016_permission_names")


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
def test_the_columns_of_names_compare_bytes_in_mariadb() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT table_name, column_name FROM information_schema.columns "
            "WHERE table_schema = DATABASE() AND collation_name = 'utf8mb4_nopad_bin'"
        )
        exact = set(cursor.fetchall())
    names = {
        (model._meta.db_table, field.column)
        for model in apps.get_app_config("django_ojs").get_models()
        for field in model._meta.local_fields
        if isinstance(field, NameField)
    }
    assert names == exact
    assert ("django_ojs_worker", "id") in names


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


def work_permission() -> Permission:
    return Permission.objects.get(content_type__app_label="django_ojs", codename="ojs_work")


def rename_permission(direction: str) -> None:
    """Without an editor of the schema, which SQLite cannot have within a test's transaction."""
    getattr(permissions, direction)(apps, SimpleNamespace(connection=connection))


def test_a_stored_permission_has_the_name_of_the_model_and_the_way_back_the_name_before() -> None:
    assert (work_permission().codename, work_permission().name) in Job._meta.permissions
    before = work_permission()
    rename_permission("backwards")
    assert work_permission().name == permissions.OLD
    rename_permission("forwards")
    assert (work_permission().pk, work_permission().name) == (before.pk, before.name)


def test_a_name_that_a_site_has_given_a_permission_and_those_of_its_own_stay() -> None:
    Permission.objects.filter(codename="ojs_work").update(name="Workers")
    of_the_site = ContentType.objects.create(app_label="shop", model="job")
    Permission.objects.create(codename="ojs_work", name=permissions.OLD, content_type=of_the_site)
    for direction in ("backwards", "forwards"):
        rename_permission(direction)
        assert work_permission().name == "Workers"
    assert Permission.objects.get(content_type=of_the_site).name == permissions.OLD


def test_permissions_are_renamed_where_users_are_and_not_where_jobs_are(monkeypatch: pytest.MonkeyPatch) -> None:
    rename_permission("backwards")
    asked: list[tuple[str, Any]] = []

    def allow_migrate_model(alias: str, model: Any) -> bool:
        asked.append((alias, model))
        return False

    monkeypatch.setattr(permissions.router, "allow_migrate_model", allow_migrate_model)
    permissions.forwards(apps, SimpleNamespace(connection=SimpleNamespace(alias="jobs")))
    assert asked == [("jobs", Permission)]
    assert work_permission().name == permissions.NEW


def test_where_users_have_no_tables_yet_or_are_not_installed_there_is_nothing_to_rename(
    monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: Any
) -> None:
    monkeypatch.setattr(Permission._meta, "db_table", "not_there")
    rename_permission("forwards")
    monkeypatch.setattr(permissions.installed, "is_installed", lambda name: False)
    with django_assert_num_queries(0):
        permissions.forwards(apps, SimpleNamespace(connection=connection))
