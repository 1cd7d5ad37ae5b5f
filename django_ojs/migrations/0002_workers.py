"""Attempts that do not count, the process behind a worker's name, and whether it counts its jobs."""

from django.db import migrations, models

from django_ojs.migrations._limited import LimitedMigration


class Migration(LimitedMigration):
    dependencies = [
        ("django_ojs", "0001_initial"),
    ]

    operations = [
        migrations.AddField(
            model_name="job",
            name="uncounted",
            field=models.PositiveIntegerField(
                blank=True,
                help_text="Attempts that do not count against max_attempts: the handler snoozed, or never ran. Null: none.",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="worker",
            name="counts_itself",
            field=models.BooleanField(
                default=False, help_text="It says how many jobs it completed; else they are counted from the event log."
            ),
        ),
        migrations.AddField(
            model_name="worker",
            name="incarnation",
            field=models.CharField(
                blank=True,
                default="",
                help_text="Which process has this name; empty: a worker that says nothing.",
                max_length=64,
            ),
        ),
    ]
