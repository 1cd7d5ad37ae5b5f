"""The answers about one job, of ACK, FAIL, BEAT and worker health: supersets of what sources and readers expect."""

from __future__ import annotations

from typing import Any

from django_ojs import jsontext
from django_ojs.models.fields import RawJSON
from django_ojs.models.job import JobRow
from django_ojs.rules import envelope

#: What FAIL repeats beside the envelope, where the outcome has it (jobs 1.7).
_FAIL_KEYS = ("state", "attempt", "max_attempts", "retry_delay_ms", "next_attempt_at", "next_retry_at",
              "discarded_at", "completed_at")  # fmt: skip


#: What an answer says about itself beside `job`: a member of a job that has such a name is shown under `job` alone.
OWN = frozenset({"job", "deduplicated", "dropped", "warnings", "previous_priority"})


def one(job: dict[str, Any], **beside: Any) -> RawJSON:
    """The answer about one job, as `text` has it."""
    return RawJSON(text(job, **beside))


def text(job: dict[str, Any], **beside: Any) -> str:
    """The JSON of the answer about one job: under `job`, and its members beside it for clients that look there.

    Args:
        job: the job as it is shown to this caller.
        beside: what the answer says about itself; every name of these is one of `OWN`.
    """
    whole = flat = jsontext.dumps(job)
    around = f'"job":{whole}' + "".join(f",{jsontext.dumps(name)}:{jsontext.dumps(beside[name])}" for name in beside)
    if not OWN.isdisjoint(job):
        flat = jsontext.dumps({name: value for name, value in job.items() if name not in OWN})
    return f"{{{around},{flat[1:]}"


def acknowledged(row: JobRow) -> dict[str, Any]:
    job = envelope.render(row)
    return {
        "acknowledged": True,
        "id": job["id"],
        "job_id": job["id"],
        "state": job["state"],
        "completed_at": job["completed_at"],
        "job": job,
    }


def failed(row: JobRow) -> dict[str, Any]:
    """`attempt` is the one that failed; retry and end times as the outcome has them."""
    job = envelope.render(row)
    names = _FAIL_KEYS if job["state"] != "available" else _FAIL_KEYS[:3]
    outcome = {name: job[name] for name in names if name in job}
    return {"id": job["id"], "job_id": job["id"], **outcome, "job": job}
