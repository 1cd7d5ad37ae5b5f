"""Let pruning count the events that it deletes before the relay of webhooks has come to them, so that receivers are
told of just these. Older code writes nothing there.
"""

from __future__ import annotations

from django.db import migrations, models

from django_ojs.migrations._limited import LimitedMigration


class Migration(LimitedMigration):
    dependencies = [("django_ojs", "0028_limits")]

    operations = [
        migrations.AddField(
            model_name="webhookrelay",
            name="missed",
            field=models.PositiveBigIntegerField(
                db_default=0,
                default=0,
                help_text="Events behind the place that are pruned, and receivers not told of it yet.",
            ),
        ),
    ]
