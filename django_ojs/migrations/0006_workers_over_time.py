"""What workers did over time, the releases of the site's code that they run, and alerts in every language."""

from django.db import migrations, models

import django_ojs.models.fields
from django_ojs.migrations._limited import LimitedMigration


class Migration(LimitedMigration):
    dependencies = [
        ("django_ojs", "0005_alerts"),
    ]

    operations = [
        migrations.CreateModel(
            name="Release",
            fields=[
                ("name", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("first_seen_at", models.DateTimeField(db_index=True)),
            ],
            options={
                "default_permissions": (),
            },
        ),
        migrations.AddField(
            model_name="alert",
            name="phrases",
            field=django_ojs.models.fields.JSONTextField(
                default=dict, help_text="What `says` and `mend` are made of, to be translated."
            ),
        ),
        migrations.AddField(
            model_name="worker",
            name="release",
            field=models.CharField(
                blank=True, default="", help_text="Of the site's own code (RELEASE).", max_length=64
            ),
        ),
        migrations.AlterField(
            model_name="worker",
            name="directive",
            field=models.CharField(
                blank=True,
                choices=[
                    ("", "none"),
                    ("running", "running"),
                    ("quiet", "quiet"),
                    ("terminate", "terminate"),
                    ("restart", "restart"),
                ],
                default="",
                max_length=9,
            ),
        ),
        migrations.CreateModel(
            name="WorkerMinute",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("worker_id", models.CharField(max_length=255)),
                ("minute", models.DateTimeField(db_index=True)),
                ("active_jobs", models.PositiveIntegerField(default=0)),
                ("concurrency", models.PositiveIntegerField(default=1)),
                ("memory_mb", models.FloatField(null=True)),
                ("cpu_percent", models.FloatField(null=True)),
            ],
            options={
                "default_permissions": (),
                "constraints": [models.UniqueConstraint(fields=("worker_id", "minute"), name="ojs_worker_minute_once")],
            },
        ),
    ]
