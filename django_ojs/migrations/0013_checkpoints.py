"""Checkpoints of jobs: the state from which the next attempt goes on."""

import django.db.models.deletion
from django.db import migrations, models

import django_ojs.models.fields
from django_ojs.migrations._limited import LimitedMigration


class Migration(LimitedMigration):
    dependencies = [
        ("django_ojs", "0012_worker_threads"),
    ]

    operations = [
        migrations.AddField(
            model_name="job",
            name="resumable",
            field=models.BooleanField(
                blank=True,
                help_text="The next attempt has something to go on from, in rows beside this one (models.durable). Null: no.",
                null=True,
            ),
        ),
        migrations.CreateModel(
            name="JobCheckpoint",
            fields=[
                (
                    "job",
                    models.OneToOneField(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        primary_key=True,
                        related_name="+",
                        serialize=False,
                        to="django_ojs.job",
                    ),
                ),
                ("state", django_ojs.models.fields.JSONTextField()),
                (
                    "sequence",
                    models.BigIntegerField(help_text="Grows with each save, over all attempts of the job."),
                ),
                (
                    "step_index",
                    models.BigIntegerField(blank=True, help_text="A number of the client's own.", null=True),
                ),
                (
                    "metadata",
                    django_ojs.models.fields.JSONTextField(
                        blank=True, default=None, help_text="Texts of the client's own, by name."
                    ),
                ),
                ("size", models.PositiveIntegerField(help_text="Bytes of `state` and `metadata` as compact JSON.")),
                ("created_at", models.DateTimeField(help_text="When it was saved.")),
            ],
            options={
                "default_permissions": (),
            },
        ),
    ]
