"""What whoever created a workflow or a schedule reaches: their jobs are pushed within those limits."""

from django.db import migrations

import django_ojs.models.fields
from django_ojs.migrations._limited import LimitedMigration


class Migration(LimitedMigration):
    dependencies = [
        ("django_ojs", "0008_worker_owner"),
    ]

    operations = [
        migrations.AddField(
            model_name="cronschedule",
            name="limits",
            field=django_ojs.models.fields.JSONTextField(
                blank=True,
                default=None,
                editable=False,
                null=True,
                help_text="What who defined it reaches (access.py); null: everything.",
            ),
        ),
        migrations.AddField(
            model_name="workflow",
            name="limits",
            field=django_ojs.models.fields.JSONTextField(
                blank=True,
                default=None,
                editable=False,
                null=True,
                help_text="What its creator reaches (access.py); null: everything.",
            ),
        ),
    ]
