"""Run other jobs from a durable handler: what they are enqueued as, and what the handler gets when they have ended.

@job("order.fulfil", durable=True)
def fulfil(context, order_id):
    invoice = context.run(make_invoice.s(order_id))
    labels = context.run_all([make_label.s(parcel) for parcel in parcels], limit=50)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from django_ojs.messages import shown

if TYPE_CHECKING:
    from django_ojs.client.definition import PreparedJob

#: Characters of a child's error that the error of its parent repeats.
_SAID = 1000


class ChildFailed(Exception):
    """A job that `context.run` or `context.run_all` has run did not complete. Later runs of the handler get it again.

    Attributes:
        job_id: the job, as text. `get_job` finds it.
        job_type: its type.
        state: `discarded` or `cancelled`; None where it could not be enqueued, or is not there any more.
        error: its latest error: `code`, `type` and `message`.
    """

    __module__ = "django_ojs"

    def __init__(self, job_id: str, job_type: str, state: str | None, error: Mapping[str, Any]) -> None:
        super().__init__(job_id, job_type, state, error)  # so that it can be pickled
        self.job_id, self.job_type, self.state, self.error = job_id, job_type, state, dict(error)

    def __str__(self) -> str:
        said = f"{self.error.get('type')}: {self.error.get('message')}"[:_SAID]
        return (
            f"The child job {self.job_id} ({self.job_type}) is {self.state or 'not there'}: {said} To go on without "
            "it, catch ChildFailed, or call run_all with raise_errors=False. To run it anew, retry this job with "
            "clear_checkpoint, which starts its handler over."
        )


def document_of(
    jobs: Sequence[PreparedJob], *, id: str, name: str, line: dict[str, str]
) -> dict[str, Any]:  # fmt: skip
    """The workflow of these jobs, as clients send it. `line` says of each where it comes from."""
    documents = [job.member() for job in jobs]
    return {
        "id": id, "type": "group", "name": name,
        "jobs": [document if "parent_id" in document else document | line for document in documents],
    }  # fmt: skip


def checked(jobs: Any, limit: Any) -> list[PreparedJob]:
    """The jobs. Raises TypeError and ValueError for what is none, and for a limit that is no number above 0."""
    found: list[Any] = list(jobs) if isinstance(jobs, Iterable) and not isinstance(jobs, str | Mapping) else [jobs]
    for job in found:
        if not hasattr(job, "member"):
            raise TypeError(f"run takes handler.s(...) and run_all a list of them, not {shown(job)}.")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise ValueError(
            f"limit={shown(limit)} is not a whole number from 1 on: leave it out to enqueue all jobs at once."
        )
    return found


def values(outcomes: Sequence[Mapping[str, Any]], *, raise_errors: bool) -> list[Any]:
    """The result of each job, or a `ChildFailed` in its place, which is raised with `raise_errors`."""
    found = [
        outcome["result"] if "result" in outcome
        else ChildFailed(outcome["id"], outcome["type"], outcome["state"], outcome["error"])
        for outcome in outcomes
    ]  # fmt: skip
    if raise_errors:
        for value in found:
            if isinstance(value, ChildFailed):
                raise value
    return found
