"""Which PostgreSQL the event log was written on, and up to where it was in order there."""

from django.db import migrations, models

from django_ojs.migrations._limited import LimitedMigration


class Migration(LimitedMigration):
    dependencies = [("django_ojs", "0020_approvals")]

    operations = [
        migrations.AddField(
            model_name="eventlog",
            name="server",
            field=models.CharField(
                db_default="",
                default="",
                help_text="PostgreSQL: which server numbers the transactions.",
                max_length=64,
            ),
        ),
        migrations.AlterField(
            model_name="eventlog",
            name="last_seq",
            field=models.BigIntegerField(
                default=0,
                help_text="MariaDB: the last place given out. PostgreSQL: events that have places have ids up to this.",
            ),
        ),
    ]
