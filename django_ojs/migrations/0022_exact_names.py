"""Names that differ in case, accents or final spaces become different names in MariaDB, as they are elsewhere.

Other databases have nothing to do. In MariaDB (10.11) a column without an index changes at once, and one with an index
while others read and write: only the index is made anew. Worker, CronSchedule, Release and RateLimit, small tables, are
copied, since the name is their primary key. The way back leaves the columns as they are: the code before works with
them, and it had no place for two names that differ in case.
"""

from __future__ import annotations

from typing import Any

from django.db import migrations

from django_ojs.migrations._limited import LimitedMigration
from django_ojs.models.fields import NameField


class Exact(migrations.AlterField):
    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if schema_editor.connection.vendor == "mysql":
            super().database_forwards(app_label, schema_editor, from_state, to_state)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        pass


class Migration(LimitedMigration):
    dependencies = [("django_ojs", "0021_event_log_server")]

    operations = [
        Exact(
            model_name="alert",
            name="about",
            field=NameField(default="", help_text="The queue, job type or worker; empty: the whole.", max_length=255),
        ),
        Exact(
            model_name="alert",
            name="key",
            field=NameField(max_length=330, null=True, unique=True),
        ),
        Exact(
            model_name="apikey",
            name="name",
            field=NameField(max_length=100, unique=True),
        ),
        Exact(
            model_name="approvalassignee",
            name="key",
            field=NameField(help_text="The primary key, or the permission.", max_length=255),
        ),
        Exact(
            model_name="bulkaction",
            name="actor",
            field=NameField(max_length=255),
        ),
        Exact(
            model_name="cronrun",
            name="name",
            field=NameField(help_text="The schedule's name.", max_length=255),
        ),
        Exact(
            model_name="cronschedule",
            name="name",
            field=NameField(max_length=255, primary_key=True, serialize=False),
        ),
        Exact(
            model_name="durableevent",
            name="key",
            field=NameField(
                blank=True, default="", help_text="What it is about, such as an order's id.", max_length=200
            ),
        ),
        Exact(
            model_name="durableevent",
            name="name",
            field=NameField(max_length=200),
        ),
        Exact(
            model_name="event",
            name="worker_id",
            field=NameField(default="", max_length=255),
        ),
        Exact(
            model_name="job",
            name="rate_key",
            field=NameField(blank=True, default="", help_text="The rate limit it is under.", max_length=255),
        ),
        Exact(
            model_name="job",
            name="worker_id",
            field=NameField(blank=True, default="", help_text="Holder of the reservation.", max_length=255),
        ),
        Exact(
            model_name="jobattempt",
            name="release",
            field=NameField(blank=True, default="", help_text="Of the site's own code (RELEASE).", max_length=64),
        ),
        Exact(
            model_name="jobattempt",
            name="worker_id",
            field=NameField(blank=True, default="", max_length=255),
        ),
        Exact(
            model_name="jobreplay",
            name="rule",
            field=NameField(max_length=128),
        ),
        Exact(
            model_name="jobschema",
            name="uri",
            field=NameField(max_length=512, unique=True),
        ),
        Exact(
            model_name="jobschema",
            name="version",
            field=NameField(help_text="1 and the text 1 are one version.", max_length=64),
        ),
        Exact(
            model_name="jobstep",
            name="event_key",
            field=NameField(blank=True, max_length=200, null=True),
        ),
        Exact(
            model_name="jobstep",
            name="event_name",
            field=NameField(blank=True, help_text="The event that it waits for.", max_length=200, null=True),
        ),
        Exact(
            model_name="jobstep",
            name="name",
            field=NameField(max_length=200),
        ),
        Exact(
            model_name="lease",
            name="holder",
            field=NameField(max_length=255),
        ),
        Exact(
            model_name="ratelimit",
            name="key",
            field=NameField(max_length=255, primary_key=True, serialize=False),
        ),
        Exact(
            model_name="ratestart",
            name="key",
            field=NameField(max_length=255),
        ),
        Exact(
            model_name="release",
            name="name",
            field=NameField(max_length=64, primary_key=True, serialize=False),
        ),
        Exact(
            model_name="replayrule",
            name="name",
            field=NameField(max_length=128, unique=True),
        ),
        Exact(
            model_name="webhookdelivery",
            name="subject",
            field=NameField(max_length=255),
        ),
        Exact(
            model_name="worker",
            name="id",
            field=NameField(max_length=255, primary_key=True, serialize=False),
        ),
        Exact(
            model_name="worker",
            name="release",
            field=NameField(blank=True, default="", help_text="Of the site's own code (RELEASE).", max_length=64),
        ),
        Exact(
            model_name="workerdeath",
            name="worker_id",
            field=NameField(max_length=255),
        ),
        Exact(
            model_name="workerminute",
            name="worker_id",
            field=NameField(max_length=255),
        ),
        Exact(
            model_name="workerrelease",
            name="release",
            field=NameField(max_length=64),
        ),
        Exact(
            model_name="workerrelease",
            name="worker_id",
            field=NameField(max_length=255),
        ),
        Exact(
            model_name="workflow",
            name="own_id",
            field=NameField(help_text="The client's id, where it is no UUID.", max_length=128, null=True, unique=True),
        ),
    ]
