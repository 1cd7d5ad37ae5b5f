"""What all our migrations are: a process that is stopped in the middle of one holds its locks for some seconds only."""

from __future__ import annotations

from typing import Any

from django.db import migrations

from django_ojs import idleness


class LimitedMigration(migrations.Migration):
    """A migration whose transaction is limited, where it has one of its own: it may lock tables."""

    def apply(self, project_state: Any, schema_editor: Any, collect_sql: bool = False) -> Any:
        return super().apply(project_state, self._limited(schema_editor, collect_sql), collect_sql)

    def unapply(self, project_state: Any, schema_editor: Any, collect_sql: bool = False) -> Any:
        return super().unapply(project_state, self._limited(schema_editor, collect_sql), collect_sql)

    def _limited(self, schema_editor: Any, collect_sql: bool) -> Any:
        connection = schema_editor.connection
        if not collect_sql and schema_editor.atomic_migration and len(connection.atomic_blocks) == 1:
            idleness.limit_open(connection)
        return schema_editor
