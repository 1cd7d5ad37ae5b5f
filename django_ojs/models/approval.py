"""What durable jobs ask people, and whom they ask."""

from __future__ import annotations

from django.db import models

from django_ojs.models.fields import JSONTextField, MomentField, NameField, OJSModel
from django_ojs.rules.approvals import MAX_TITLE, ApprovalState

STATES = [(state.value, state.value) for state in ApprovalState]


class Approval(OJSModel):
    """A question of a durable job that a person decides.

    It belongs to the step of the job that waits for it, and stays when the job is deleted. `next_at` is when the
    scheduler has something to do with it: to escalate it, or to say that no user has decided in time.
    """

    id = models.UUIDField(primary_key=True)
    job_id = models.UUIDField(db_index=True)
    type = models.CharField(max_length=255, help_text="The type of the job.")
    queue = models.CharField(max_length=128, help_text="The queue of the job.")
    name = models.CharField(max_length=200, help_text="The name of the step that waits.")
    title = models.CharField(max_length=MAX_TITLE)
    details = JSONTextField(null=True, blank=True, help_text="What who decides should know.")
    form = models.CharField(max_length=255, default="", blank=True, help_text="The place of its Django form.")
    schema = JSONTextField(null=True, blank=True, help_text="The JSON schema of the data.")
    state = models.CharField(max_length=9, choices=STATES, default=ApprovalState.OPEN.value)
    default = models.BooleanField(null=True, blank=True, help_text="What counts if nobody decides. Null: no.")
    requested_at = MomentField()
    due_at = MomentField(null=True, blank=True, help_text="Until when it can be decided.")
    escalate_at = MomentField(null=True, blank=True, help_text="When more people are asked.")
    escalate_to = JSONTextField(null=True, blank=True, help_text="Who is asked then.")
    next_at = MomentField(null=True, blank=True, db_index=True)
    changes = models.PositiveIntegerField(default=0, help_text="How often other people were asked.")
    mail_due = models.BooleanField(
        default=False, db_default=False, help_text="Whether some of those who are asked get a mail."
    )
    decided_at = MomentField(null=True, blank=True, db_index=True)
    decided_by = models.CharField(max_length=255, default="", blank=True, help_text="user:NAME or key:NAME.")
    comment = models.TextField(default="", blank=True)
    data = JSONTextField(null=True, blank=True, help_text="What was entered into the form.")

    class Meta:
        default_permissions = ("view",)
        permissions = [("decide_approval", "Can decide what durable jobs ask")]
        indexes = [models.Index(fields=["state", "requested_at"], name="ojs_approval_state")]

    def __str__(self) -> str:
        return self.title


class ApprovalAssignee(OJSModel):
    """Who may decide an approval: a user, the members of a group, or who has a permission.

    Users may be in another database than jobs, so they are known by their primary keys as text.
    """

    class Kind(models.TextChoices):
        USER = "user", "user"
        GROUP = "group", "group"
        PERMISSION = "perm", "permission"

    id = models.BigAutoField(primary_key=True)
    approval = models.ForeignKey(Approval, models.CASCADE, related_name="assignees")
    kind = models.CharField(max_length=5, choices=Kind.choices)
    key = NameField(max_length=255, help_text="The primary key, or the permission.")
    name = models.CharField(max_length=255, help_text="What people know it by.")
    told = models.BooleanField(default=False, db_default=False, help_text="Whether the mail was sent.")

    class Meta:
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["approval", "kind", "key"], name="ojs_approval_assignee")]
        indexes = [models.Index(fields=["kind", "key"], name="ojs_approval_of")]

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"
