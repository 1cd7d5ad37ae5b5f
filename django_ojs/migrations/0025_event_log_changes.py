"""Which run of a server has put the log in order, and how often its history may have changed."""

from django.db import migrations, models

from django_ojs.migrations._limited import LimitedMigration


class Migration(LimitedMigration):
    dependencies = [("django_ojs", "0024_history")]

    operations = [
        migrations.AddField(
            model_name="eventlog",
            name="run",
            field=models.CharField(
                db_default="",
                default="",
                help_text="Which run of which server made the last ordering pass.",
                max_length=64,
            ),
        ),
        migrations.AddField(
            model_name="eventlog",
            name="kept_to",
            field=models.BigIntegerField(
                help_text="The event that was the last in order when newer ones may have been lost.", null=True
            ),
        ),
        migrations.AddField(
            model_name="eventlog",
            name="changes",
            field=models.PositiveIntegerField(
                db_default=0,
                default=0,
                help_text="How often the log has met another history: failovers and restores.",
            ),
        ),
        migrations.AddField(
            model_name="webhookrelay",
            name="changes",
            field=models.PositiveIntegerField(
                db_default=0, default=0, help_text="Of how many changes of the log's history receivers have been told."
            ),
        ),
    ]
