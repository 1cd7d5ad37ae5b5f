"""Which approvals are to be told by mail, and who was told. Code of before stores rows without them."""

from __future__ import annotations

from django.db import migrations, models

from django_ojs.migrations._limited import LimitedMigration


class Migration(LimitedMigration):
    dependencies = [("django_ojs", "0022_exact_names")]

    operations = [
        migrations.AddField(
            model_name="approval",
            name="mail_due",
            field=models.BooleanField(
                default=False, db_default=False, help_text="Whether some of those who are asked get a mail."
            ),
        ),
        migrations.AddField(
            model_name="approvalassignee",
            name="told",
            field=models.BooleanField(default=False, db_default=False, help_text="Whether the mail was sent."),
        ),
    ]
