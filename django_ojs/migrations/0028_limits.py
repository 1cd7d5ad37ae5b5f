"""Keep with a replay rule the limits of the caller who made it, and with a webhook's delivery the queue and the job type
of its event, so that limited callers see only theirs. Older rows have none of these, and older code may go on to write.
"""

from __future__ import annotations

from django.db import migrations, models

import django_ojs.models.fields
from django_ojs.migrations._limited import LimitedMigration


class Migration(LimitedMigration):
    dependencies = [("django_ojs", "0027_ticket_session")]

    operations = [
        migrations.AddField(
            model_name="replayrule",
            name="limits",
            field=django_ojs.models.fields.JSONTextField(
                blank=True,
                default=None,
                editable=False,
                help_text="What who made it reaches (access.py); null: everything.",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="webhookdelivery",
            name="queue",
            field=models.CharField(db_default="", default="", help_text="Of the event; empty: none.", max_length=128),
        ),
        migrations.AddField(
            model_name="webhookdelivery",
            name="type",
            field=models.CharField(db_default="", default="", max_length=255, verbose_name="job type"),
        ),
    ]
