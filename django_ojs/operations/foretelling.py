"""What an operator's act on named jobs would be refused, without doing it: for dry runs."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from django_ojs import states
from django_ojs.errors import NotFound, OJSError
from django_ojs.models import Job
from django_ojs.models.job import JobRow
from django_ojs.operations.bulk import DELETE_STATES, RETRY_STATES
from django_ojs.operations.common import database, refuse
from django_ojs.operations.delete import refused as not_deleted
from django_ojs.states import State, Verb

#: The states that each act can take, by what bulk actions call it.
TAKES: dict[str, Sequence[State]] = {
    "retry": RETRY_STATES,
    "run": states.ordered(states.sources(Verb.PROMOTE)),
    "cancel": states.ordered(states.sources(Verb.CANCEL)),
    "delete": DELETE_STATES,
}
_CHUNK = 500
_COLUMNS = ("id", "state", "dead_letter")


def foretold(
    act: str, ids: Sequence[uuid.UUID], *, dead_letters: bool = False, using: str | None = None
) -> list[tuple[uuid.UUID, OJSError]]:
    """Those of `ids` that would refuse, in their order, each with the error that it would be.

    Args:
        act: one of `TAKES`.
        dead_letters: the act is one of the dead letter queue, and takes nothing else.
    """
    using = database(using)
    found: list[tuple[uuid.UUID, OJSError]] = []
    for start in range(0, len(ids), _CHUNK):
        part = ids[start : start + _CHUNK]
        rows = {row["id"]: row for row in Job.objects.using(using).filter(pk__in=part).rows(_COLUMNS)}
        told = ((job_id, _refusal(act, job_id, rows.get(job_id), dead_letters)) for job_id in part)
        found += [(job_id, error) for job_id, error in told if error is not None]
    return found


def _refusal(act: str, job_id: uuid.UUID, row: JobRow | None, dead_letters: bool) -> OJSError | None:
    if dead_letters and (row is None or row["state"] == State.DISCARDED or act == "delete"):
        fine = row is not None and row["state"] == State.DISCARDED and row["dead_letter"]
        return None if fine else NotFound.resource("dead_letter_job" if row or act == "delete" else "job", str(job_id))
    if row is None:
        return NotFound.resource("job", str(job_id))
    takes = (State.DISCARDED,) if dead_letters else TAKES[act]
    if row["state"] in takes or (act == "cancel" and row["state"] == State.CANCELLED):  # which is no error
        return None
    match act:
        case "delete":
            return not_deleted(row)
        case "run":
            return refuse(row, Verb.PROMOTE, State.AVAILABLE, called="run")
        case "cancel":
            return refuse(row, Verb.CANCEL, State.CANCELLED)
    return refuse(row, Verb.RETRY, State.AVAILABLE, expected_state=[state.value for state in takes])
