"""The session behind the ticket of a user. Code of before stores rows without it."""

from __future__ import annotations

from django.db import migrations, models

from django_ojs.migrations._limited import LimitedMigration


class Migration(LimitedMigration):
    dependencies = [("django_ojs", "0026_undo")]

    operations = [
        migrations.AddField(
            model_name="ticket",
            name="session",
            field=models.CharField(
                db_default="",
                default="",
                help_text="The session of the user, to be read with the ticket only; empty: none.",
                max_length=255,
            ),
        ),
    ]
