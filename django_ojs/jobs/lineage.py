"""Tells which job enqueued which (extensions 7): the parent of a job, the first of its line, and its descendants.

A job that a handler enqueues has `parent_id` and `root_id`; the library sets them, and clients may.
"""

from __future__ import annotations

import uuid
from typing import Any

from django_ojs import jsontext
from django_ojs.access import UNLIMITED, Limits
from django_ojs.database import database
from django_ojs.models import Job
from django_ojs.models.job import JobRow
from django_ojs.models.workflow import name_workflows
from django_ojs.rules.ids import parse_id

#: How far down descendants are told, and how many of them at most; how far up the first of a line is looked for.
DEPTH, NUMBER, HEIGHT = 5, 1000, 100


def of_job(row: JobRow, *, limits: Limits = UNLIMITED, using: str | None = None) -> dict[str, Any]:
    """The lineage of the job in `row`. Descendants outside of the limits are left out, with theirs.

    `truncated`: there are more than are told.
    """
    using = database(using)
    given = jsontext.loads(row["extra"]) if row["extra"] else {}
    name_workflows([row], using)
    children, truncated = _descendants(row["id"], limits, using)
    return {
        "job_id": row["id"],
        "parent_id": row["parent_id"],
        "workflow_id": row.get("lineage", row)["workflow_id"],
        "root_id": parse_id(given.get("root_id")) or _root(row, limits, using),
        "children": children,
        "truncated": truncated,
    }


def _root(row: JobRow, limits: Limits, using: str) -> uuid.UUID:
    """The first of its line that is there, or that its descendants name."""
    seen: set[uuid.UUID] = {row["id"]}
    root: uuid.UUID = row["id"]
    parent = row["parent_id"]
    while parent is not None and parent not in seen and len(seen) <= HEIGHT:
        root = parent
        seen.add(root)
        above = Job.objects.using(using).filter(limits.condition(), pk=root).values_list("parent_id", flat=True)
        parent = above.first()
    return root


def _descendants(root: uuid.UUID, limits: Limits, using: str) -> tuple[list[dict[str, Any]], bool]:
    """The children of a job with theirs, each generation in the order in which it was made; and whether there are more.
    A job comes once, whatever they say of each other."""
    tree: list[dict[str, Any]] = []
    generation: dict[uuid.UUID, list[dict[str, Any]]] = {root: tree}
    seen = {root}
    for depth in range(DEPTH + 1):
        jobs = Job.objects.using(using).filter(limits.condition(), parent_id__in=list(generation))
        room = NUMBER + 1 - len(seen) if depth < DEPTH else 0
        found = list(jobs.exclude(pk__in=seen).order_by("pk").values_list("pk", "parent_id")[: room + 1])
        below: dict[uuid.UUID, list[dict[str, Any]]] = {}
        for pk, parent in found[:room]:
            assert parent is not None
            below[pk] = []
            generation[parent].append({"job_id": str(pk), "children": below[pk]})
        if len(found) > room or not below:
            return tree, len(found) > room
        seen |= below.keys()
        generation = below
    return tree, False
