"""What handlers log, a row for each line."""

from django.db import migrations, models

import django_ojs.models.fields
from django_ojs.migrations._limited import LimitedMigration


class Migration(LimitedMigration):
    dependencies = [
        ("django_ojs", "0016_permission_names"),
    ]

    operations = [
        migrations.CreateModel(
            name="JobLog",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("job_id", models.UUIDField()),
                ("attempt", models.PositiveIntegerField()),
                ("started_at", models.DateTimeField(help_text="When the attempt started.")),
                ("sequence", models.BigIntegerField(help_text="The place of the line in its attempt.")),
                ("time", models.DateTimeField()),
                ("level", models.PositiveSmallIntegerField(help_text="As in Python's logging: 20 is INFO.")),
                ("logger", models.CharField(blank=True, default="", max_length=255)),
                ("message", models.TextField(blank=True, default="")),
                (
                    "fields",
                    django_ojs.models.fields.JSONTextField(
                        blank=True, help_text="What the handler said beside the message, as an object.", null=True
                    ),
                ),
                (
                    "exception",
                    models.TextField(blank=True, default="", help_text="The traceback that was logged with it."),
                ),
                (
                    "dropped",
                    models.PositiveBigIntegerField(blank=True, help_text="How many lines are missing here.", null=True),
                ),
            ],
            options={
                "default_permissions": (),
                "constraints": [
                    models.UniqueConstraint(fields=("job_id", "started_at", "sequence"), name="ojs_log_place")
                ],
            },
        ),
    ]
