"""Ended attempts of jobs, the releases that workers ran, and which job enqueued which."""

from django.db import migrations, models
from django.db.models import Q

from django_ojs.migrations._limited import LimitedMigration
from django_ojs.models.fields import JSONTextField

OUTCOMES = ["failed", "timed_out", "lost", "released", "snoozed", "cancelled"]


class Migration(LimitedMigration):
    dependencies = [("django_ojs", "0014_steps")]

    operations = [
        migrations.AddField(
            model_name="job",
            name="round",
            field=models.PositiveIntegerField(
                blank=True,
                help_text="How often it was retried from the beginning, at attempt 0. Null: never.",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="job",
            name="parent_id",
            field=models.UUIDField(blank=True, help_text="The job whose handler enqueued it.", null=True),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(fields=["parent_id"], name="ojs_job_parent", condition=Q(parent_id__isnull=False)),
        ),
        migrations.CreateModel(
            name="JobAttempt",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("job_id", models.UUIDField()),
                (
                    "round",
                    models.PositiveIntegerField(help_text="How often the job had been retried from the beginning."),
                ),
                ("attempt", models.PositiveIntegerField(help_text="The number of the attempt in its round.")),
                ("worker_id", models.CharField(blank=True, default="", max_length=255)),
                (
                    "release",
                    models.CharField(
                        blank=True, default="", help_text="Of the site's own code (RELEASE).", max_length=64
                    ),
                ),
                ("started_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField()),
                (
                    "outcome",
                    models.CharField(choices=[(name, name.replace("_", " ")) for name in OUTCOMES], max_length=9),
                ),
                (
                    "error",
                    JSONTextField(
                        blank=True, default=None, help_text="With its traceback; empty: it ended without an error."
                    ),
                ),
            ],
            options={
                "default_permissions": (),
                "constraints": [
                    models.UniqueConstraint(fields=["job_id", "round", "attempt"], name="ojs_attempt_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="WorkerRelease",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("worker_id", models.CharField(max_length=255)),
                ("release", models.CharField(max_length=64)),
                ("since", models.DateTimeField()),
            ],
            options={
                "default_permissions": (),
                "indexes": [models.Index(fields=["worker_id", "since"], name="ojs_worker_release")],
            },
        ),
    ]
