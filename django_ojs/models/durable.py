"""What a job keeps of its work between two attempts: its checkpoint.

These rows are beside the job's own, so that no other verb pays for them. `Job.resumable` says that there are any. They
go when the job is deleted, and are written under the lock of the job's row.
"""

from __future__ import annotations

from django.db import models

from django_ojs.models.fields import JSONTextField, MomentField, OJSModel
from django_ojs.models.job import Job


class JobCheckpoint(OJSModel):
    """The state that a handler saved last (orchestration 5.2): the next attempt goes on from it.

    `state` and `metadata` are kept as the text that was sent. A `state` of null is a value, too.
    """

    job = models.OneToOneField(Job, models.DO_NOTHING, primary_key=True, related_name="+", db_constraint=False)
    state = JSONTextField()
    sequence = models.BigIntegerField(help_text="Grows with each save, over all attempts of the job.")
    step_index = models.BigIntegerField(null=True, blank=True, help_text="A number of the client's own.")
    metadata = JSONTextField(default=None, blank=True, help_text="Texts of the client's own, by name.")
    size = models.PositiveIntegerField(help_text="Bytes of `state` and `metadata` as compact JSON.")
    created_at = MomentField(help_text="When it was saved.")

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.job_id}: {self.sequence}"
