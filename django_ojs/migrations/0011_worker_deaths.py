"""Jobs that are run alone, because a process of a worker died while they ran, and how it died."""

from django.db import migrations, models

from django_ojs.migrations._limited import LimitedMigration


class Migration(LimitedMigration):
    dependencies = [
        ("django_ojs", "0010_schedules_declared"),
    ]

    operations = [
        migrations.AddField(
            model_name="job",
            name="suspected",
            field=models.BooleanField(
                blank=True,
                help_text="A worker's process died while it ran; until a run of it has ended it is run alone. Null: no.",
                null=True,
            ),
        ),
        migrations.CreateModel(
            name="WorkerDeath",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("at", models.DateTimeField(db_index=True)),
                ("worker_id", models.CharField(max_length=255)),
                ("job_id", models.UUIDField(db_index=True)),
                ("job_type", models.CharField(max_length=255)),
                (
                    "signal",
                    models.CharField(
                        default="", help_text="SIGKILL, for example; empty: none, or not known.", max_length=16
                    ),
                ),
                ("exit_code", models.IntegerField(help_text="Null: it was a signal, or nothing is known.", null=True)),
                (
                    "memory_mb",
                    models.FloatField(
                        help_text="The most that it had; of a silent worker, what it said last.", null=True
                    ),
                ),
                ("alone", models.BooleanField(default=False)),
                ("open", models.BooleanField(default=True, help_text="The job may wait to be run alone.")),
            ],
            options={
                "default_permissions": (),
                "indexes": [models.Index(fields=["open", "id"], name="ojs_death_open")],
            },
        ),
    ]
