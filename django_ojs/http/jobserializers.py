"""Jobs in answers, and the bodies of the calls about one job. Answers are supersets of what clients expect."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from django_ojs import jsontext
from django_ojs.http import fields, shown
from django_ojs.http.auditing import MAX_REASON
from django_ojs.http.joblists import ENDS
from django_ojs.http.serializers import (
    AnswerSerializer,
    BodySerializer,
    EnvelopeSerializer,
    FlagField,
    InstantField,
    ObjectField,
    StateField,
    TextField,
    WarningSerializer,
    rendered_by_show,
)
from django_ojs.jobs.progress import MAX_DATA_BYTES, MAX_MESSAGE
from django_ojs.models.fields import RawJSON
from django_ojs.models.job import JobRow
from django_ojs.rules import envelope
from django_ojs.rules import retry as retry_policy
from django_ojs.rules.durations import format_instant, format_iso
from django_ojs.rules.faults import fault
from django_ojs.states import State

#: What an answer says about itself beside `job`: a member of a job that has such a name is shown under `job` alone.
OWN = frozenset({"job", "deduplicated", "dropped", "warnings", "previous_priority"})
#: What FAIL repeats beside the envelope, where the outcome has it (jobs 1.7).
_FAIL_KEYS = ("state", "attempt", "max_attempts", "retry_delay_ms", "next_attempt_at", "next_retry_at",
              "discarded_at", "completed_at")  # fmt: skip
MAX_DEPTH = 32  #: of arrays and objects in the `data` of a report on progress
#: The names under which progress is reported -> what makes percent of it.
_SCALES = {"progress": 100.0, "percentage": 1.0, "progress_percent": 1.0}


@rendered_by_show
class JobSerializer(AnswerSerializer):
    """A job: its envelope, with what the server knows of it, and without what the site hides."""

    also = ("Envelope",)

    specversion = serializers.CharField()
    id = serializers.CharField()
    type = serializers.CharField()
    queue = serializers.CharField()
    args = serializers.JSONField()
    meta = serializers.DictField()
    priority = serializers.IntegerField()
    state = StateField()
    attempt = serializers.IntegerField()
    max_attempts = serializers.IntegerField()
    created_at = serializers.CharField()

    def show(self, instance: JobRow) -> dict[str, Any]:
        return shown.job(instance)


class JobAnswerSerializer(JobSerializer):
    """One job, flat and once more under `job`, as `answer` makes it."""

    job = JobSerializer(required=False)
    deduplicated = serializers.BooleanField(required=False)
    warnings = WarningSerializer(many=True, required=False)


class JobPrioritisedSerializer(JobAnswerSerializer):
    previous_priority = serializers.IntegerField(required=False)


class JobDroppedSerializer(serializers.Serializer[Any]):
    """A push that enqueue middleware, or a full queue, has dropped."""

    job = serializers.JSONField(required=False)
    dropped = serializers.BooleanField()


@rendered_by_show
class JobDetailSerializer(JobSerializer):
    """A job as operators see it, flat; `meta` and `errors` are always there, and backtraces are lists."""

    errors = serializers.ListField(child=serializers.DictField())  # type: ignore[assignment]
    retry_policy = serializers.DictField()
    metadata = serializers.DictField()

    def show(self, instance: JobRow) -> dict[str, Any]:
        job = shown.job(instance)
        history = [_with_lines(error) for error in job.get("errors", [])]
        job |= {
            "errors": history,
            "retry_policy": _retry_policy(instance["retry"]),
            "metadata": _times(instance),
            "dead_letter": instance["dead_letter"],
        }
        return job | ({"error": history[-1]} if "error" in job and history else {})


@rendered_by_show
class JobLineSerializer(AnswerSerializer):
    """A job in a list, behind both doors."""

    id = serializers.CharField()
    type = serializers.CharField()
    queue = serializers.CharField()
    state = StateField()
    priority = serializers.IntegerField()
    attempt = serializers.IntegerField()
    max_attempts = serializers.IntegerField()
    dead_letter = serializers.BooleanField()
    created_at = InstantField()
    enqueued_at = InstantField(required=False)
    scheduled_at = InstantField(required=False)
    started_at = InstantField(required=False)
    completed_at = InstantField(required=False)
    discarded_at = InstantField(required=False)
    cancelled_at = InstantField(required=False)
    worker_id = serializers.CharField(required=False)
    workflow_id = serializers.CharField(required=False)

    def show(self, instance: JobRow) -> dict[str, Any]:
        names = ("type", "queue", "state", "priority", "attempt", "max_attempts", "dead_letter")
        line = {"id": str(instance["id"]), **{name: instance[name] for name in names}, **_times(instance)}
        if instance["worker_id"]:
            line["worker_id"] = instance["worker_id"]
        return line | ({"workflow_id": str(instance["workflow_id"])} if instance["workflow_id"] else {})


class JobBatchSerializer(BodySerializer):
    jobs: Any = serializers.ListSerializer(child=EnvelopeSerializer(), min_length=1)


class JobBatchAnswerSerializer(serializers.Serializer[Any]):
    jobs = JobSerializer(many=True)
    count = serializers.IntegerField()
    warnings = WarningSerializer(many=True, required=False)


@rendered_by_show
class RetriesSerializer(AnswerSerializer):
    """The attempts that failed, oldest first, as far as their errors are kept."""

    job_id = serializers.CharField()
    state = StateField()
    attempt = serializers.IntegerField()
    max_attempts = serializers.IntegerField()
    retry_policy = serializers.DictField()
    retries = serializers.ListField(child=serializers.DictField())
    items = serializers.ListField(child=serializers.DictField())
    total = serializers.IntegerField()

    def show(self, instance: JobRow) -> dict[str, Any]:
        job = shown.job(instance)
        failed = job.get("errors", [])
        facts: dict[str, Any] = {
            name: job[name] for name in ("state", "attempt", "max_attempts", "next_attempt_at") if name in job
        }
        listed = {"retries": failed, "items": failed, "total": len(failed)}
        return {"job_id": job["id"], **facts, "retry_policy": _retry_policy(instance["retry"]), **listed}


class ResultSerializer(serializers.Serializer[Any]):
    job_id = serializers.CharField()
    state = StateField()
    result = serializers.JSONField(required=False)
    error = serializers.JSONField(required=False)


class ResultsSerializer(serializers.Serializer[Any]):
    results = serializers.DictField()


class ProgressSerializer(serializers.Serializer[Any]):
    job_id = serializers.CharField()
    state = StateField()
    progress = serializers.FloatField(allow_null=True, min_value=0, max_value=1)
    data = serializers.JSONField()  # type: ignore[assignment]
    message = serializers.CharField(allow_null=True)
    updated_at = InstantField(allow_null=True)


# What ACK and FAIL take and answer. `fields` reads it, and `acknowledged` and `failed` write it: they have to be fast.


class AckOfPathSerializer(BodySerializer):
    """ACK, where the path names the job."""

    needed = False

    worker_id = serializers.CharField(required=False)
    result = serializers.JSONField(required=False)


class AckSerializer(AckOfPathSerializer):
    needed = True

    job_id = serializers.CharField()


class NackOfPathSerializer(BodySerializer):
    """FAIL, where the path names the job."""

    worker_id = serializers.CharField(required=False)
    error = serializers.DictField(required=False)


class NackSerializer(NackOfPathSerializer):
    job_id = serializers.CharField()


class NackAnswerSerializer(serializers.Serializer[Any]):
    job_id = serializers.CharField()
    state = StateField()
    job = JobSerializer()


class AckAnswerSerializer(NackAnswerSerializer):
    acknowledged = serializers.BooleanField()


class ReasonSerializer(BodySerializer):
    """Why an operator does it: for the event and the audit log."""

    needed = False

    reason = TextField(max_length=MAX_REASON)


class RetrySerializer(BodySerializer):
    """The body of an operator's retry; other members are refused."""

    needed = False
    closed = True

    reason = TextField(max_length=MAX_REASON)
    confirm = FlagField()

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        fields.only(data, "reason", "confirm")
        return {"reason": fields.text(data, "reason", maximum=MAX_REASON)}


class PrioritySerializer(BodySerializer):
    """The change of a job: `priority` is the only attribute that can be changed."""

    priority = serializers.JSONField()

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        others = sorted(data.keys() - {"priority"})
        if others or data.get("priority") is None:
            name = others[0] if others else "priority"
            raise fault(name, "cannot be changed; send priority" if others else "must be given", data.get(name))
        return {"priority": data["priority"]}


class ProgressReportSerializer(BodySerializer):
    """What a worker reports: a number, by the scale of its name, or data, or both.

    `progress` runs from 0 to 1, `percentage` and `progress_percent` from 0 to 100.
    """

    progress = serializers.FloatField(required=False, allow_null=True, help_text="From 0 to 1.")
    percentage = serializers.FloatField(required=False, allow_null=True, help_text="From 0 to 100.")
    progress_percent = serializers.FloatField(required=False, allow_null=True, help_text="From 0 to 100.")
    data = ObjectField()  # type: ignore[assignment]
    message = TextField(max_length=MAX_MESSAGE)
    worker_id = TextField()
    attempt = serializers.IntegerField(required=False, allow_null=True)

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        percent, facts = _percent(data), fields.member(data, "data")
        if percent is None and facts is None:
            raise fault("progress", "must be there, from 0 to 1, unless there is data", None)
        if facts is not None and jsontext.is_deeper(facts, MAX_DEPTH):
            raise fault("data", f"must not nest deeper than {MAX_DEPTH} levels", facts)
        if facts is not None and (size := len(jsontext.dumps(facts).encode())) > MAX_DATA_BYTES:
            raise fault("data", f"must be at most {MAX_DATA_BYTES} bytes of JSON, not {size}", facts)
        return {
            "percent": percent,
            "message": fields.text(data, "message", maximum=MAX_MESSAGE),
            "data": facts,
            "worker_id": fields.claimant(data),
            "attempt": fields.integer(data, "attempt", minimum=1),
        }


class JobIdsSerializer(BodySerializer):
    """`ids`, as texts: what is no id of ours is unknown rather than wrong."""

    ids = serializers.ListField(child=serializers.CharField(max_length=255))

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        ids = data.get("ids")
        if not isinstance(ids, list) or not all(isinstance(item, str) and len(item) <= 255 for item in ids):
            raise fault("ids", "must be an array of job ids", ids)
        return {"ids": ids}


def answer(job: dict[str, Any], **beside: Any) -> RawJSON:
    """The answer about one job, as `answer_text` has it."""
    return RawJSON(answer_text(job, **beside))


def answer_text(job: dict[str, Any], **beside: Any) -> str:
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
    """What ACK answers."""
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
    """What FAIL answers: `attempt` is the one that failed; retry and end times as the outcome has them."""
    job = envelope.render(row)
    names = _FAIL_KEYS if job["state"] != "available" else _FAIL_KEYS[:3]
    outcome = {name: job[name] for name in names if name in job}
    return {"id": job["id"], "job_id": job["id"], **outcome, "job": job}


def _retry_policy(text: str) -> dict[str, Any]:
    """The retry policy in force, in the wire's words."""
    policy = retry_policy.from_json(text)
    found = {
        "max_attempts": policy.max_attempts,
        "initial_interval": format_iso(policy.initial_ms),
        "backoff_coefficient": policy.coefficient,
        "max_interval": format_iso(policy.max_ms),
        "jitter": policy.jitter,
        "non_retryable_errors": list(policy.non_retryable),
        "backoff_strategy": policy.strategy,
    }
    return found | ({"on_exhaustion": policy.on_exhaustion} if policy.on_exhaustion else {})


def _percent(body: dict[str, Any]) -> float | None:
    for name, scale in _SCALES.items():
        value = body.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float | jsontext.ExactNumber):
            raise fault(name, "must be a number", value)
        return float(min(max(value, 0), 100)) * scale
    return None


def _with_lines(error: Any) -> Any:
    trace = error.get("backtrace") if isinstance(error, dict) else None
    return {**error, "backtrace": trace.splitlines()} if isinstance(trace, str) else error


def _times(row: JobRow) -> dict[str, str]:
    columns = ("created_at", "enqueued_at", "started_at")
    times = {name: format_instant(row[name]) for name in columns if row[name] is not None}
    if row["finished_at"] is not None:
        times[ENDS[State(row["state"])]] = times["completed_at"] = format_instant(row["finished_at"])
    return times | ({"scheduled_at": format_instant(row["due_at"])} if row["due_at"] else {})
