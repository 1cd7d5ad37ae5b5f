"""What the code said of a schedule when it was last synchronised."""

from django.db import migrations

import django_ojs.models.fields
from django_ojs.migrations._limited import LimitedMigration


class Migration(LimitedMigration):
    dependencies = [
        ("django_ojs", "0009_limits_of_creators"),
    ]

    operations = [
        migrations.AddField(
            model_name="cronschedule",
            name="declared",
            field=django_ojs.models.fields.JSONTextField(
                blank=True,
                editable=False,
                help_text="What the code said of it when it was last synchronised.",
                null=True,
            ),
        ),
    ]
