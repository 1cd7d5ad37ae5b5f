"""How far a bulk action has erased the history."""

from django.db import migrations, models

from django_ojs.migrations._limited import LimitedMigration


class Migration(LimitedMigration):
    dependencies = [
        ("django_ojs", "0023_approval_mail"),
    ]

    operations = [
        migrations.AddField(
            model_name="bulkaction", name="after_event", field=models.BigIntegerField(blank=True, null=True)
        ),
        migrations.AlterField(
            model_name="bulkaction",
            name="expected",
            field=models.PositiveIntegerField(help_text="What fitted when it was asked for."),
        ),
        migrations.AlterField(
            model_name="bulkaction",
            name="matched",
            field=models.PositiveIntegerField(default=0, help_text="What was looked at."),
        ),
    ]
