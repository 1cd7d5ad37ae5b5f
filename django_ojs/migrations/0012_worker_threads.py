"""How many threads of a worker have died and were replaced."""

from django.db import migrations, models

from django_ojs.migrations._limited import LimitedMigration


class Migration(LimitedMigration):
    dependencies = [("django_ojs", "0011_worker_deaths")]

    operations = [
        migrations.AddField(
            model_name="worker",
            name="threads_replaced",
            field=models.PositiveIntegerField(
                db_default=0, default=0, help_text="Threads of its handlers that have died and were replaced."
            ),
        ),
    ]
