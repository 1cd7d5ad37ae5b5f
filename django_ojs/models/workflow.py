"""A workflow: jobs that belong together, what each waits for, and how far they are."""

from __future__ import annotations

import datetime as dt
import math
import time
import uuid
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from django.db import models
from django.db.models import Q

from django_ojs.models.fields import JSONTextField, NameField, OJSModel
from django_ojs.models.job import Job, JobRow
from django_ojs.rules import workflowgraph
from django_ojs.rules.ids import new_id
from django_ojs.rules.workflowgraph import Graph


class Workflow(OJSModel):
    """One workflow (orchestration 1). `graph` never changes; `progress` has a letter for each of its nodes.

    A settled member costs one small update of this row: the letters are read and written under its lock, and
    what may follow is decided by `rules.workflowgraph` without reading the other members.
    """

    class State(models.TextChoices):
        RUNNING = "running", "running"
        COMPLETED = "completed", "completed"
        FAILED = "failed", "failed"
        CANCELLED = "cancelled", "cancelled"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    own_id = NameField(  # null, so that many can have none
        max_length=128, null=True, unique=True, help_text="The client's id, where it is no UUID."
    )
    name = models.CharField(max_length=255, default="", blank=True)
    type = models.CharField(max_length=5, help_text="chain, group, batch or dag.")
    state = models.CharField(max_length=9, choices=State.choices, default=State.RUNNING)
    graph = models.TextField()
    progress = models.TextField(help_text="One letter per node, see rules/workflowgraph.py.")
    facts = models.TextField(help_text="What all its events say of it: the inside of a JSON object.")
    job_count = models.PositiveIntegerField(help_text="Jobs, callbacks left out.")
    error = JSONTextField(default=None, blank=True)
    limits = JSONTextField(
        default=None,
        null=True,
        blank=True,
        editable=False,
        help_text="What its creator reaches (access.py); null: everything.",
    )
    created_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True, blank=True)
    # NULL in workflows that no job runs, which pay for none of the indexes.
    parent_id = models.UUIDField(null=True, blank=True, help_text="The job whose handler runs it.")
    awaited = models.BooleanField(
        null=True, blank=True, editable=False, help_text="Whether its parent is still to be told of its end. Null: no."
    )
    outlives_parent = models.BooleanField(
        null=True, blank=True, editable=False, help_text="Whether it goes on when its parent has ended. Null: no."
    )

    class Meta:
        ordering = ["-created_at", "-id"]
        indexes = [
            models.Index(fields=["-created_at", "-id"], name="ojs_workflow_newest"),
            models.Index(fields=["state", "-created_at"], name="ojs_workflow_state"),
            models.Index(fields=["finished_at"], name="ojs_workflow_done", condition=Q(finished_at__isnull=False)),
            models.Index(fields=["parent_id"], name="ojs_workflow_parent", condition=Q(parent_id__isnull=False)),
            models.Index(
                fields=["parent_id"], name="ojs_workflow_follow",
                condition=Q(parent_id__isnull=False, state="running"),
            ),
            models.Index(
                fields=["finished_at"], name="ojs_workflow_untold",
                condition=Q(awaited=True, finished_at__isnull=False),
            ),
        ]  # fmt: skip

    def __str__(self) -> str:
        return f"{self.name or self.type} {self.public_id}"

    @property
    def public_id(self) -> str:
        return self.own_id or str(self.pk)

    @property
    def shape(self) -> Graph:
        return workflowgraph.decode(self.graph)

    @property
    def word(self) -> str:
        """The state as the wire shows it: one without a name is `active` rather than `running`."""
        return "active" if self.state == self.State.RUNNING and not self.name else self.state

    @property
    def started_at(self) -> dt.datetime | None:
        """When its first member was claimed."""
        start: WorkflowStart | None = getattr(self, "start", None)
        return start.started_at if start else None


class _KnownId(NamedTuple):
    own: str  #: '' where the client gave none, or the workflow is not there
    until: float


#: What this process knows of the ids that clients gave to workflows, and until when (`time.monotonic`) it is believed:
#: jobs and events may outlive a workflow that is pruned, and then all processes have to name it alike to clients; and a
#: restore may bring back one that was not there. Lines of a process's own log go on with what it knew (`known_id`).
_own_ids: dict[uuid.UUID, _KnownId] = {}
_MOST_KNOWN = 50_000
_BELIEVED = 60.0


def know(key: uuid.UUID, own_id: str | None) -> None:
    """Remember the id that its client gave a workflow, which is there."""
    _remember(key, str(own_id or ""), time.monotonic() + _BELIEVED if own_id else math.inf)


def is_there(key: uuid.UUID) -> None:
    """Go on to believe what this process knows of the workflow, which has just been read."""
    known = _own_ids.get(key)
    if known is not None and known.own:
        know(key, known.own)


def _remember(key: uuid.UUID, own: str, until: float) -> None:
    if len(_own_ids) > _MOST_KNOWN:
        _own_ids.clear()
    _own_ids[key] = _KnownId(own, until)


def forget_ids() -> None:
    """Drop what this process knows of the ids of workflows."""
    _own_ids.clear()


def known_id(key: uuid.UUID) -> str:
    """The id by which clients know the workflow, as far as this process knows it: nothing is asked."""
    known = _own_ids.get(key)
    return known.own if known is not None and known.own else str(key)


def own_ids(keys: Iterable[uuid.UUID], using: str) -> dict[uuid.UUID | None, str]:
    """The ids that clients gave these workflows, where they are no UUIDs: by these they are known outside."""
    now, before = time.monotonic(), {key: _own_ids.get(key) for key in keys}
    found = {key: known.own for key, known in before.items() if known is not None and known.until > now}
    if unknown := before.keys() - found:
        rows = Workflow.objects.using(using).filter(pk__in=unknown).order_by().values_list("pk", "own_id")
        there = {key: own_id or "" for key, own_id in rows}
        for key, own in there.items():
            know(key, own)
        for key in unknown.difference(there):
            if _own_ids.get(key) is before[key]:  # or another thread has learnt it meanwhile
                _remember(key, "", now + _BELIEVED)
        found |= there
    return {key: own for key, own in found.items() if own}


def name_workflows(rows: Sequence[JobRow], using: str) -> None:
    """Add to the rows of members that have no `lineage` one with the id by which clients know the workflow."""
    members = [row for row in rows if row.get("workflow_id") is not None and "lineage" not in row]
    if members:
        own = own_ids((row["workflow_id"] for row in members), using)
        for row in members:
            row["lineage"] = {"workflow_id": own.get(row["workflow_id"], str(row["workflow_id"]))}


class WorkflowStep(OJSModel):
    """A node of a workflow's graph, the root excepted: a job that is or will be, or a nested workflow.

    A job has its id from the beginning and is created under it when its turn comes.
    """

    workflow = models.ForeignKey(Workflow, models.DO_NOTHING, related_name="steps", db_constraint=False, db_index=False)
    position = models.PositiveIntegerField(help_text="In the graph.")
    step_id = models.CharField(max_length=512)
    type = models.CharField(max_length=255, help_text="The job type; the kind of a nested workflow.")
    queue = models.CharField(max_length=128, default="")
    job = models.ForeignKey(Job, models.DO_NOTHING, null=True, related_name="+", db_constraint=False, db_index=False)
    document = models.TextField(default="", help_text="The envelope to push, as JSON.")
    error = JSONTextField(default=None, blank=True, help_text="Why its job could not be enqueued.")

    class Meta:
        ordering = ["workflow_id", "position"]
        indexes = [models.Index(fields=["job"], name="ojs_step_job")]
        constraints = [models.UniqueConstraint(fields=["workflow", "position"], name="ojs_step_position")]

    def __str__(self) -> str:
        return f"{self.step_id} ({self.type})"


class WorkflowStart(OJSModel):
    """The row which says that a workflow has begun: each claim of a member tries to insert it, and only the first does.

    So a claim needs no lock on the workflow, and `workflow.started` happens once.
    """

    workflow = models.OneToOneField(
        Workflow, models.DO_NOTHING, primary_key=True, related_name="start", db_constraint=False
    )
    job_id = models.UUIDField(help_text="The member that was claimed first.")
    started_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.workflow_id} since {self.started_at}"
