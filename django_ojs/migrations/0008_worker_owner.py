"""The caller that registered a worker, whose name others may not use."""

from django.db import migrations, models

from django_ojs.migrations._limited import LimitedMigration


class Migration(LimitedMigration):
    dependencies = [
        ("django_ojs", "0007_postgresql_workflows"),
    ]

    operations = [
        migrations.AddField(
            model_name="worker",
            name="owner",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                help_text="The caller that registered it: key or user, and its primary key. Empty: an ojs_worker, or nobody.",
                max_length=255,
            ),
        ),
    ]
