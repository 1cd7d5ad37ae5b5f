"""PostgreSQL: vacuum the jobs early, and keep no index by prefixes of digests. No lock that stops a reader or a writer of jobs."""

from __future__ import annotations

from typing import Any

from django.db import migrations

from django_ojs.migrations._limited import LimitedMigration

#: A claim passes the index entries of all jobs that were claimed since the last vacuum: 60,000 make the claim of one job
#: take twice as long. By default a table of ten million ended jobs is vacuumed after a million claims. Where few
#: of its pages have changed, only `vacuum_index_cleanup` makes a vacuum look at the indexes. A vacuum of two million jobs
#: takes 0.3 s.
VACUUM = {
    "autovacuum_vacuum_scale_factor": "0.01",
    "autovacuum_vacuum_threshold": "5000",
    "vacuum_index_cleanup": "on",
}
#: Django makes an index by prefixes for each unique text. No query asks for a part of a digest.
PREFIXES = {
    "IdempotencyKey": "django_ojs_idempotencykey_digest_47b82cf2_like",
    "Ticket": "django_ojs_ticket_digest_a91e8da7_like",
}


def settings_of(schema_editor: Any, table: str) -> dict[str, str]:
    with schema_editor.connection.cursor() as cursor:
        cursor.execute("SELECT unnest(reloptions) FROM pg_class WHERE oid = %s::regclass", [table])
        return dict(row[0].split("=", 1) for row in cursor.fetchall())


def forwards(apps: Any, schema_editor: Any) -> None:
    if schema_editor.connection.vendor != "postgresql":
        return
    table = apps.get_model("django_ojs", "Job")._meta.db_table
    known = settings_of(schema_editor, table)
    if missing := [f"{name} = {value}" for name, value in VACUUM.items() if name not in known]:  # the site's own stay
        schema_editor.execute(f"ALTER TABLE {table} SET ({', '.join(missing)})")
    for index in PREFIXES.values():
        schema_editor.execute(f"DROP INDEX IF EXISTS {index}")


def backwards(apps: Any, schema_editor: Any) -> None:
    if schema_editor.connection.vendor != "postgresql":
        return
    table = apps.get_model("django_ojs", "Job")._meta.db_table
    known = settings_of(schema_editor, table)
    if ours := [name for name, value in VACUUM.items() if known.get(name) == value]:
        schema_editor.execute(f"ALTER TABLE {table} RESET ({', '.join(ours)})")
    for model, index in PREFIXES.items():
        owner = apps.get_model("django_ojs", model)._meta.db_table
        schema_editor.execute(f"CREATE INDEX IF NOT EXISTS {index} ON {owner} (digest varchar_pattern_ops)")


class Migration(LimitedMigration):
    dependencies = [
        ("django_ojs", "0003_replay_rules"),
    ]

    operations = [
        # The hint: only in the database that has the tables.
        migrations.RunPython(forwards, backwards, hints={"model_name": "job"}),
    ]
