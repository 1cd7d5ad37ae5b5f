"""Steps that say what undoes a durable job (`context.on_failure`): only the choices change, not the table."""

from django.db import migrations, models

from django_ojs.migrations._limited import LimitedMigration

KINDS = ("call", "time", "random", "sleep", "arguments", "event", "children", "undo")


class Migration(LimitedMigration):
    dependencies = [("django_ojs", "0025_event_log_changes")]

    operations = [
        migrations.AlterField(
            model_name="jobstep",
            name="kind",
            field=models.CharField(choices=[(kind, kind) for kind in KINDS], default="call", max_length=9),
        )
    ]
