"""Alerts, notes about dead letters, the figures of job types by the minute, and bulk actions with a rate."""

from django.db import migrations, models

import django_ojs.models.fields
from django_ojs.migrations._limited import LimitedMigration


class Migration(LimitedMigration):
    dependencies = [
        ("django_ojs", "0004_postgresql"),
    ]

    operations = [
        migrations.CreateModel(
            name="ErrorNote",
            fields=[
                ("key", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("job_type", models.CharField(max_length=255)),
                ("error", models.CharField(blank=True, default="", help_text="The kind of the error.", max_length=255)),
                (
                    "message",
                    models.CharField(blank=True, default="", help_text="Without numbers and ids.", max_length=255),
                ),
                ("note", models.TextField(blank=True, default="")),
                ("muted", models.BooleanField(default=False, help_text="The page of dead letters shows them folded.")),
                ("changed_by", models.CharField(default="", max_length=255)),
                ("changed_at", models.DateTimeField()),
            ],
            options={
                "default_permissions": (),
            },
        ),
        migrations.AddField(
            model_name="bulkaction",
            name="next_at",
            field=models.DateTimeField(blank=True, help_text="When its next batch may come; null: at once.", null=True),
        ),
        migrations.AddField(
            model_name="bulkaction",
            name="per_minute",
            field=models.PositiveIntegerField(
                blank=True,
                help_text="How many jobs are acted on in a minute at most; null: as fast as it goes.",
                null=True,
            ),
        ),
        migrations.CreateModel(
            name="Alert",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("key", models.CharField(max_length=330, null=True, unique=True)),
                ("kind", models.CharField(help_text="The kind of finding, such as queue-unserved.", max_length=64)),
                (
                    "about",
                    models.CharField(
                        default="", help_text="The queue, job type or worker; empty: the whole.", max_length=255
                    ),
                ),
                ("says", models.TextField(help_text="What is wrong, as it was found last.")),
                ("mend", models.TextField(default="", help_text="What to do about it.")),
                ("figures", django_ojs.models.fields.JSONTextField(default=dict)),
                ("raised_at", models.DateTimeField()),
                ("seen_at", models.DateTimeField(help_text="When it was found last.")),
                ("cleared_at", models.DateTimeField(blank=True, null=True)),
                (
                    "untold",
                    models.CharField(
                        choices=[("raised", "raised"), ("cleared", "cleared")],
                        default="",
                        help_text="What no mail has told yet.",
                        max_length=7,
                    ),
                ),
            ],
            options={
                "default_permissions": ("view",),
                "indexes": [models.Index(fields=["cleared_at"], name="ojs_alert_cleared")],
            },
        ),
        migrations.CreateModel(
            name="TypeMinute",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("job_type", models.CharField(max_length=255)),
                ("minute", models.DateTimeField(db_index=True)),
                ("completed", models.BigIntegerField(db_default=0, default=0)),
                ("failed", models.BigIntegerField(db_default=0, default=0, help_text="Attempts that failed.")),
                ("discarded", models.BigIntegerField(db_default=0, default=0, help_text="Jobs that a failure ended.")),
                (
                    "run_ms",
                    models.BigIntegerField(db_default=0, default=0, help_text="Time that the completed jobs took."),
                ),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("job_type", "minute"), name="ojs_type_minute_once")],
            },
        ),
    ]
