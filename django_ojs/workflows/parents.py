"""Tells the job whose handler runs a workflow how it has ended, in the transaction in which it ends.

The parent waits in a step of the kind `children`, which was recorded in the transaction that stored the workflow. So
whoever ends the workflow finds that step. It gets the outcomes as the payload of an event that is not kept
(`rules.durableevents.CHILDREN_ENDED`), and the parent goes on as after every event.

Here the workflow is locked, and a job is to be locked after it, against the order of locks. So a parent that another
transaction has locked is passed by. Its workflow stays `awaited`, and `workflows.children` tells it a moment later.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any, NamedTuple

from django.db.models import ExpressionWrapper, F, Sum, TextField
from django.db.models.functions import Length

from django_ojs import jsontext
from django_ojs.jobs import durableevents
from django_ojs.models import Workflow, WorkflowStep
from django_ojs.rules.durableevents import CHILDREN_ENDED
from django_ojs.states import State
from django_ojs.workflows.graphs import error_of

#: Bytes that the results of all jobs may have together which a handler waits for by one call.
MAX_RESULTS = 8 * 1024 * 1024


class Parent(NamedTuple):
    """The job whose handler runs a workflow. `outlives`: the workflow goes on where the job has ended."""

    job_id: uuid.UUID
    outlives: bool = False


def tell(workflow_ids: Iterable[uuid.UUID], *, using: str) -> None:
    """Give the outcomes of these workflows, which have ended and are locked, to the jobs that wait for them."""
    for pk in workflow_ids:
        if durableevents.give(CHILDREN_ENDED, str(pk), _outcomes(pk, using), using=using):
            Workflow.objects.using(using).filter(pk=pk, awaited=True).update(awaited=None)


def _outcomes(pk: uuid.UUID, using: str) -> str:
    """What became of each job, in their order, as JSON text: `jobs`, or `bytes` where that would be too much."""
    steps = WorkflowStep.objects.using(using).filter(workflow_id=pk)
    size = steps.aggregate(size=Sum(Length("job__result")))["size"] or 0
    if size <= MAX_RESULTS:
        text = "[" + ", ".join(_outcome(entry) for entry in _entries(steps)) + "]"
        size = jsontext.byte_length(text)
        if size <= MAX_RESULTS:
            return f'{{"jobs": {text}}}'
    return jsontext.dumps({"bytes": size})


def _entries(steps: Any) -> list[dict[str, Any]]:
    text: Any = ExpressionWrapper(F("job__result"), output_field=TextField())
    columns = ("job_id", "type", "error", "job__state", "job__attempt")
    errors: Any = ExpressionWrapper(F("job__errors"), output_field=TextField())
    found = steps.annotate(result_text=text, errors_text=errors).order_by("position")
    return list(found.values(*columns, "result_text", "errors_text"))


def _outcome(entry: dict[str, Any]) -> str:
    shown = jsontext.dumps({"id": str(entry["job_id"]), "type": entry["type"], "state": entry["job__state"]})
    if entry["job__state"] == State.COMPLETED:
        return f'{shown[:-1]}, "result": {entry["result_text"] or "null"}}}'
    return f'{shown[:-1]}, "error": {jsontext.dumps(_error(entry))}}}'


def _error(entry: dict[str, Any]) -> dict[str, Any]:
    """Why this job has not completed."""
    row = None
    if entry["job__state"] is not None:
        row = {"id": entry["job_id"], "state": entry["job__state"], "attempt": entry["job__attempt"],
               "errors": entry["errors_text"]}  # fmt: skip
    found = error_of({"job": row, "error": entry["error"]})
    if found is not None:
        return {name: found[name] for name in ("code", "type", "message")}
    message = "It was not enqueued." if row is None else "It had not ended when its workflow was cancelled."
    return {"code": "cancelled", "type": "cancelled", "message": message}
