"""What durable jobs ask people, and whom they ask."""

from __future__ import annotations

import django.db.models.deletion
from django.db import migrations, models

from django_ojs.migrations._limited import LimitedMigration
from django_ojs.models.fields import JSONTextField, MomentField


class Migration(LimitedMigration):
    dependencies = [("django_ojs", "0019_children")]

    operations = [
        migrations.CreateModel(
            "Approval",
            [
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                ("job_id", models.UUIDField(db_index=True)),
                ("type", models.CharField(max_length=255, help_text="The type of the job.")),
                ("queue", models.CharField(max_length=128, help_text="The queue of the job.")),
                ("name", models.CharField(max_length=200, help_text="The name of the step that waits.")),
                ("title", models.CharField(max_length=200)),
                ("details", JSONTextField(null=True, blank=True, help_text="What who decides should know.")),
                (
                    "form",
                    models.CharField(max_length=255, default="", blank=True, help_text="The place of its Django form."),
                ),
                ("schema", JSONTextField(null=True, blank=True, help_text="The JSON schema of the data.")),
                (
                    "state",
                    models.CharField(
                        max_length=9,
                        default="open",
                        choices=[(state, state) for state in ("open", "approved", "rejected", "timed_out", "closed")],
                    ),
                ),
                (
                    "default",
                    models.BooleanField(null=True, blank=True, help_text="What counts if nobody decides. Null: no."),
                ),
                ("requested_at", MomentField()),
                ("due_at", MomentField(null=True, blank=True, help_text="Until when it can be decided.")),
                ("escalate_at", MomentField(null=True, blank=True, help_text="When more people are asked.")),
                ("escalate_to", JSONTextField(null=True, blank=True, help_text="Who is asked then.")),
                ("next_at", MomentField(null=True, blank=True, db_index=True)),
                ("changes", models.PositiveIntegerField(default=0, help_text="How often other people were asked.")),
                ("decided_at", MomentField(null=True, blank=True, db_index=True)),
                (
                    "decided_by",
                    models.CharField(max_length=255, default="", blank=True, help_text="user:NAME or key:NAME."),
                ),
                ("comment", models.TextField(default="", blank=True)),
                ("data", JSONTextField(null=True, blank=True, help_text="What was entered into the form.")),
            ],
            options={
                "default_permissions": ("view",),
                "permissions": [("decide_approval", "Can decide what durable jobs ask")],
                "indexes": [models.Index(fields=["state", "requested_at"], name="ojs_approval_state")],
            },
        ),
        migrations.CreateModel(
            "ApprovalAssignee",
            [
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "approval",
                    models.ForeignKey(
                        "django_ojs.approval", django.db.models.deletion.CASCADE, related_name="assignees"
                    ),
                ),
                (
                    "kind",
                    models.CharField(
                        max_length=5, choices=[("user", "user"), ("group", "group"), ("perm", "permission")]
                    ),
                ),
                ("key", models.CharField(max_length=255, help_text="The primary key, or the permission.")),
                ("name", models.CharField(max_length=255, help_text="What people know it by.")),
            ],
            options={
                "default_permissions": (),
                "constraints": [
                    models.UniqueConstraint(fields=["approval", "kind", "key"], name="ojs_approval_assignee")
                ],
                "indexes": [models.Index(fields=["kind", "key"], name="ojs_approval_of")],
            },
        ),
    ]
