"""Jobs in answers, and the bodies of the calls about one job. Answers are supersets of what clients expect."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.fields import SkipField

from django_ojs import jsontext, spellings
from django_ojs.http import fields, redacted
from django_ojs.http.auditing import MAX_AUDIT_REASON
from django_ojs.http.joblists import ENDS
from django_ojs.http.serializers import (
    AnswerSerializer,
    BodySerializer,
    DocumentField,
    EnvelopeSerializer,
    FlagField,
    InstantField,
    JSONValueField,
    NumberField,
    ObjectField,
    StateField,
    TextField,
    WarningSerializer,
    rendered_by_show,
)
from django_ojs.jobs.candidates import Pushed
from django_ojs.jobs.checkpoints import NOTHING
from django_ojs.jobs.joblog import SentLine
from django_ojs.jobs.progress import MAX_MESSAGE
from django_ojs.models.fields import RawJSON
from django_ojs.models.job import JobRow
from django_ojs.rules import envelope, errorobjects, joblogs, retrypolicy
from django_ojs.rules.durations import format_instant, format_iso, parse_instant
from django_ojs.rules.faults import checked, fault
from django_ojs.rules.steps import MAX_STEP_NAME
from django_ojs.states import State

#: What an answer says about itself beside `job`: a member of a job that has such a name is shown under `job` alone.
OWN = frozenset({"job", "deduplicated", "dropped", "warnings", "previous_priority"})
#: What FAIL repeats beside the envelope, where the outcome has it (jobs 1.7).
_FAIL_KEYS = ("state", "attempt", "max_attempts", "retry_delay_ms", "next_attempt_at", "next_retry_at",
              "discarded_at", "completed_at")  # fmt: skip
MAX_SENT = 1_000  #: lines of logs that one call sends
MAX_SENT_MESSAGE = 100_000  #: characters of a message in it; fewer are kept (`OJS["JOB_LOG_LINE_LENGTH"]`)
MAX_DEPTH = 32  #: of arrays and objects in the `fields` of a line of a log


class FailureField(DocumentField):
    """An error of a job. A worker may have reported more than this."""

    def __init__(self, **given: Any) -> None:
        names = ("type", "code", "message", "retryable", "details", "backtrace")
        named: dict[str, Any] = {name: {} for name in names}
        counted = {"attempt": {"type": "integer"}, "occurred_at": {"type": "string", "format": "date-time"}}
        super().__init__({**named, **counted}, **given)


@rendered_by_show
class StoredJobSerializer(AnswerSerializer):
    """A job: its envelope, with what its row has beside that, and without what the site hides."""

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
    workflow_id = serializers.CharField(required=False)
    parent_id = serializers.CharField(required=False, help_text="The job that enqueued it.")
    root_id = serializers.CharField(required=False, help_text="The first job of its lineage.")
    x_previous_errors = serializers.JSONField(required=False, help_text="The errors before an operator's retry.")

    def show(self, instance: JobRow) -> dict[str, Any]:
        return redacted.job(instance)


@rendered_by_show
class JobSerializer(StoredJobSerializer):
    """A job, with all that the server knows of it."""

    worker_id = serializers.CharField(required=False)
    workflow_step = serializers.IntegerField(required=False)
    parent_results = serializers.ListField(child=serializers.JSONField(), required=False)
    parent_results_by_step = serializers.DictField(required=False)
    parent_errors = serializers.DictField(required=False)
    progress = NumberField(required=False)
    progress_message = serializers.CharField(required=False)
    progress_data = serializers.DictField(required=False)
    progress_updated_at = InstantField(required=False)
    result = serializers.JSONField(required=False)
    result_stored_at = InstantField(required=False)
    result_size_bytes = serializers.IntegerField(required=False)
    result_expires_at = InstantField(required=False)
    previous_state = StateField(required=False, help_text="In the answer to a call that has changed the state.")
    re_enqueued_at = InstantField(required=False, help_text="In the answer to the retry of a dead letter.")


class JobAnswerSerializer(JobSerializer):
    """One job, flat and once more under `job`, as `answer` makes it."""

    job = JobSerializer(required=False)
    deduplicated = serializers.BooleanField(required=False)
    warnings = WarningSerializer(many=True, required=False)
    previous_priority = serializers.IntegerField(required=False)


class JobDroppedSerializer(AnswerSerializer):
    """A push that enqueue middleware, or a full queue, has dropped: there is no job."""

    job = JSONValueField({"type": "null"})
    dropped = serializers.BooleanField()


class RetryPolicySerializer(AnswerSerializer):
    """The retry policy in force."""

    max_attempts = serializers.IntegerField()
    initial_interval = serializers.CharField()
    backoff_coefficient = NumberField()
    max_interval = serializers.CharField()
    jitter = serializers.BooleanField()
    non_retryable_errors = serializers.ListField(child=serializers.CharField())
    retryable_errors = serializers.ListField(child=serializers.CharField(), required=False)
    backoff_strategy = serializers.CharField()
    on_exhaustion = serializers.CharField(required=False)


class JobTimesSerializer(AnswerSerializer):
    """What happened to a job when; it has ended at `completed_at`, however it ended."""

    created_at = InstantField()
    enqueued_at = InstantField(required=False)
    scheduled_at = InstantField(required=False)
    started_at = InstantField(required=False)
    completed_at = InstantField(required=False)
    discarded_at = InstantField(required=False)
    cancelled_at = InstantField(required=False)


@rendered_by_show
class JobDetailSerializer(JobSerializer):
    """A job as operators see it, flat; `meta` and `errors` are always there, and backtraces are lists."""

    re_enqueued_at = None  # type: ignore[assignment]  # of answers of the public door
    errors = serializers.ListField(child=FailureField())  # type: ignore[assignment]
    retry_policy = RetryPolicySerializer()
    metadata = JobTimesSerializer()
    dead_letter = serializers.BooleanField()
    previous_priority = serializers.IntegerField(required=False, help_text="In the answer to a change of priority.")
    copy_of = serializers.CharField(required=False, help_text="In the answer to the copy of a job.")

    def show(self, instance: JobRow) -> dict[str, Any]:
        job = redacted.job(instance)
        history = [_with_lines(error) for error in job.get("errors", [])]
        job |= {
            "errors": history,
            "retry_policy": _retry_policy(instance["retry"]),
            "metadata": _times(instance),
            "dead_letter": instance["dead_letter"],
        }
        return job | ({"error": history[-1]} if "error" in job and history else {})


@rendered_by_show
class JobLineSerializer(JobTimesSerializer):
    """A job in a list, behind both doors."""

    id = serializers.CharField()
    type = serializers.CharField()
    queue = serializers.CharField()
    state = StateField()
    priority = serializers.IntegerField()
    attempt = serializers.IntegerField()
    max_attempts = serializers.IntegerField()
    dead_letter = serializers.BooleanField()
    worker_id = serializers.CharField(required=False)
    workflow_id = serializers.CharField(required=False)

    def show(self, instance: JobRow) -> dict[str, Any]:
        names = ("type", "queue", "state", "priority", "attempt", "max_attempts", "dead_letter")
        line = {"id": str(instance["id"]), **{name: instance[name] for name in names}, **_times(instance)}
        if instance["worker_id"]:
            line["worker_id"] = instance["worker_id"]
        return line | ({"workflow_id": instance["lineage"]["workflow_id"]} if instance["workflow_id"] else {})


class JobBatchSerializer(BodySerializer):
    jobs: Any = serializers.ListSerializer(child=EnvelopeSerializer(), min_length=1)


class BatchJobSerializer(JobSerializer):
    """A job of a batch, as it is stored; or the job that was there already, which is that of another caller."""

    previous_state = re_enqueued_at = None  # type: ignore[assignment]  # of answers about one job
    progress = progress_message = progress_data = progress_updated_at = None  # type: ignore[assignment]
    deduplicated = serializers.BooleanField(required=False)


@rendered_by_show
class JobBatchAnswerSerializer(AnswerSerializer):
    """The jobs of a batch in their order. None is missing: a batch is stored whole or not at all. The published command
    line prints `enqueued` and `failed`."""

    jobs = BatchJobSerializer(many=True)
    count = serializers.IntegerField()
    enqueued = serializers.IntegerField()
    failed = serializers.IntegerField()
    warnings = WarningSerializer(many=True, required=False)

    def show(self, instance: list[Pushed]) -> dict[str, Any]:
        jobs = [_in_batch(item, item.row) for item in instance if item.row is not None]
        warnings = [{"index": i, **warning} for i, item in enumerate(instance) for warning in item.warnings]
        counts = {"count": len(jobs), "enqueued": sum(item.status == "created" for item in instance), "failed": 0}
        return {"jobs": jobs, **counts} | ({"warnings": warnings} if warnings else {})


class RetriesSerializer(AnswerSerializer):
    """The attempts that failed, oldest first, as far as their errors are kept.

    The published command line reads `policy`, and of an attempt `error` as a text and `failed_at`."""

    job_id = serializers.CharField(source="id")
    state = StateField()
    attempt = serializers.IntegerField()
    max_attempts = serializers.IntegerField()
    next_attempt_at = InstantField(required=False)
    retry_policy = RetryPolicySerializer()
    policy = RetryPolicySerializer(source="retry_policy")
    retries = serializers.ListField(child=FailureField(), source="errors")
    items = serializers.ListField(child=FailureField(), source="errors")
    total = serializers.SerializerMethodField()

    def get_total(self, job: dict[str, Any]) -> int:
        return len(job["errors"])

    def gather(self, instance: JobRow) -> dict[str, Any]:
        job = redacted.job(instance)
        failed = [
            error | {"error": error["message"], "failed_at": error["occurred_at"]} for error in job.get("errors", ())
        ]
        return {**job, "errors": failed, "retry_policy": _retry_policy(instance["retry"])}


class _ValueField(serializers.JSONField):
    """Any JSON, which may be null, or not be there."""

    def __init__(self) -> None:
        super().__init__(required=False, allow_null=True)

    def get_attribute(self, instance: Any) -> Any:
        if self.field_name not in instance:
            raise SkipField
        return instance[self.field_name]


class OutcomeSerializer(AnswerSerializer):
    """How a job ended, or that it has not."""

    state = StateField()
    result = _ValueField()
    error = _ValueField()


class ResultSerializer(OutcomeSerializer):
    first = ("job_id",)

    job_id = serializers.CharField()


class ResultsSerializer(AnswerSerializer):
    results = serializers.DictField(child=OutcomeSerializer(allow_null=True))


class ProgressSerializer(AnswerSerializer):
    job_id = serializers.CharField()
    state = StateField()
    progress = serializers.FloatField(allow_null=True, min_value=0, max_value=1)
    data = serializers.DictField(allow_null=True)  # type: ignore[assignment]
    message = serializers.CharField(allow_null=True)
    updated_at = InstantField(allow_null=True)


# What ACK and FAIL take, which `fields` reads, and what they answer, which `show` renders: they have to be fast.


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


@rendered_by_show
class NackAnswerSerializer(AnswerSerializer):
    """What FAIL answers: `attempt` is the one that failed. A job that is available again was handed back."""

    id = serializers.CharField()
    job_id = serializers.CharField()
    state = StateField()
    attempt = serializers.IntegerField()
    max_attempts = serializers.IntegerField()
    retry_delay_ms = serializers.IntegerField(required=False)
    next_attempt_at = InstantField(required=False)
    next_retry_at = InstantField(required=False)
    discarded_at = InstantField(required=False)
    completed_at = InstantField(required=False)
    job = JobSerializer()

    def show(self, instance: JobRow) -> dict[str, Any]:
        """The times of a retry and of the end as the outcome has them."""
        job = redacted.whole(instance)
        names = _FAIL_KEYS if job["state"] != "available" else _FAIL_KEYS[:3]
        outcome = {name: job[name] for name in names if name in job}
        return {"id": job["id"], "job_id": job["id"], **outcome, "job": job}


@rendered_by_show
class AckAnswerSerializer(AnswerSerializer):
    """What ACK answers."""

    acknowledged = serializers.BooleanField()
    id = serializers.CharField()
    job_id = serializers.CharField()
    state = StateField()
    completed_at = InstantField()
    job = JobSerializer()

    def show(self, instance: JobRow) -> dict[str, Any]:
        job = redacted.whole(instance)
        return {
            "acknowledged": True,
            "id": job["id"],
            "job_id": job["id"],
            "state": job["state"],
            "completed_at": job["completed_at"],
            "job": job,
        }


class ReasonSerializer(BodySerializer):
    """Why an operator does it: for the event and the audit log."""

    needed = False

    reason = TextField(max_length=MAX_AUDIT_REASON)


class RetrySerializer(BodySerializer):
    """The body of an operator's retry; other members are refused."""

    needed = False
    closed = True

    reason = TextField(max_length=MAX_AUDIT_REASON)
    confirm = FlagField()
    clear_checkpoint = FlagField()
    from_step = TextField(
        max_length=MAX_STEP_NAME,
        help_text="The step of a durable job that is done again, with all that were recorded after it.",
    )

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        fields.only(data, *self.fields)
        given = {
            "reason": fields.text(data, "reason", maximum=MAX_AUDIT_REASON),
            "clear_checkpoint": fields.flag(data, "clear_checkpoint"),
            "from_step": fields.text(data, "from_step", maximum=MAX_STEP_NAME),
        }
        if given["clear_checkpoint"] and given["from_step"]:
            raise fault("from_step", "must be absent beside clear_checkpoint, which forgets all steps")
        return given


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
    progress_message = TextField(max_length=MAX_MESSAGE)
    checkpoint = serializers.JSONField(required=False, allow_null=True, help_text="The state to save with it.")
    worker_id = TextField()
    attempt = serializers.IntegerField(required=False, allow_null=True)

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        percent, facts = spellings.percent(data), fields.member(data, "data")
        if percent is None and facts is None:
            raise fault("progress", "must be there, from 0 to 1, unless there is data", None)
        if facts is not None and (problem := errorobjects.fault_of_progress_data(facts)):
            raise fault("data", problem, facts)
        return {
            "percent": percent,
            "message": fields.text(data, spellings.PROGRESS.name_in(data, "message"), maximum=MAX_MESSAGE),
            "data": facts,
            "worker_id": fields.claimant(data),
            "attempt": fields.integer(data, "attempt", minimum=1),
            "checkpoint": NOTHING if data.get("checkpoint") is None else data["checkpoint"],
        }


class LogLineSerializer(AnswerSerializer):
    """A line that a handler has logged; one with `dropped` says how many lines are missing at its place."""

    id = serializers.CharField(help_text="Its place: the cursor behind it.")
    attempt = serializers.IntegerField()
    attempt_started_at = InstantField()
    time = InstantField()
    level = serializers.ChoiceField(choices=[*joblogs.LEVELS], required=False)
    logger = serializers.CharField(required=False)
    message = serializers.CharField(required=False)
    fields = serializers.DictField(required=False)  # type: ignore[assignment]
    exception = serializers.CharField(required=False)
    dropped = serializers.IntegerField(required=False)


class LogsSerializer(AnswerSerializer):
    """A page of the lines, oldest first; `cursor` is where to go on."""

    job_id = serializers.CharField()
    state = StateField()
    attempt = serializers.IntegerField()
    items = LogLineSerializer(many=True)
    cursor = serializers.CharField(allow_null=True)
    has_more = serializers.BooleanField()


class SentLineSerializer(BodySerializer):
    """A line of a handler in another language."""

    message = serializers.CharField(max_length=MAX_SENT_MESSAGE)
    level = serializers.ChoiceField(choices=[*joblogs.LEVELS], required=False)
    time = serializers.DateTimeField(required=False)
    logger = serializers.CharField(required=False, max_length=255)
    fields = serializers.DictField(required=False)  # type: ignore[assignment]
    exception = serializers.CharField(required=False)


class SentLogsSerializer(BodySerializer):
    """Lines that a worker sends of the attempt that it runs."""

    lines: Any = serializers.ListSerializer(child=SentLineSerializer(), min_length=1, max_length=MAX_SENT)
    worker_id = TextField()
    attempt = serializers.IntegerField(required=False, allow_null=True)

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        given = data.get("lines")
        if not isinstance(given, list) or not 1 <= len(given) <= MAX_SENT:
            raise fault("lines", f"must be an array of 1 to {MAX_SENT} lines", given)
        return {
            "lines": [_sent(line, f"lines[{number}]") for number, line in enumerate(given)],
            "worker_id": fields.claimant(data),
            "attempt": fields.integer(data, "attempt", minimum=1),
        }


class TakenLogsSerializer(AnswerSerializer):
    """How many of the lines were stored: none where the attempt is no longer this worker's."""

    job_id = serializers.CharField()
    accepted = serializers.IntegerField()


def _sent(line: Any, path: str) -> SentLine:
    """A line as `append` takes it. Raises InvalidRequest."""
    if not isinstance(line, dict):
        raise fault(path, "must be an object with a message", line)
    message, level = line.get("message"), line.get("level")
    if not isinstance(message, str) or len(message) > MAX_SENT_MESSAGE:
        raise fault(f"{path}.message", f"must be a string of at most {MAX_SENT_MESSAGE} characters", message)
    if level is not None and not isinstance(level, str):
        raise fault(f"{path}.level", f"must be one of {', '.join(joblogs.LEVELS)}", level)
    number = joblogs.LEVELS["info"] if level is None else checked(spellings.read_log_level, level, f"{path}.level")
    for name in ("logger", "exception", "time"):
        if line.get(name) is not None and not isinstance(line[name], str):
            raise fault(f"{path}.{name}", "must be a string", line[name])
    given = line.get("fields")
    if given is not None and (not isinstance(given, dict) or jsontext.is_deeper(given, MAX_DEPTH)):
        raise fault(f"{path}.fields", f"must be an object that nests at most {MAX_DEPTH} levels", given)
    time = line.get("time")
    moment = checked(parse_instant, time, f"{path}.time") if time is not None else None
    return SentLine(message, number, moment, line.get("logger") or "", given, line.get("exception") or "")


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


def _in_batch(item: Pushed, row: JobRow) -> dict[str, Any]:
    return redacted.job(row) | {"deduplicated": True} if item.status == "duplicate" else envelope.render(row)


def _retry_policy(text: str) -> dict[str, Any]:
    """The retry policy in force, in the wire's words."""
    policy = retrypolicy.from_json(text)
    found = {
        "max_attempts": policy.max_attempts,
        "initial_interval": format_iso(policy.initial_ms),
        "backoff_coefficient": policy.coefficient,
        "max_interval": format_iso(policy.max_ms),
        "jitter": policy.jitter,
        "non_retryable_errors": list(policy.non_retryable),
        "backoff_strategy": policy.strategy,
    }
    if policy.retryable:
        found["retryable_errors"] = list(policy.retryable)
    return found | ({"on_exhaustion": policy.on_exhaustion} if policy.on_exhaustion else {})


def _with_lines(error: Any) -> Any:
    trace = error.get("backtrace") if isinstance(error, dict) else None
    return {**error, "backtrace": trace.splitlines()} if isinstance(trace, str) else error


def _times(row: JobRow) -> dict[str, str]:
    columns = ("created_at", "enqueued_at", "started_at")
    times = {name: format_instant(row[name]) for name in columns if row[name] is not None}
    if row["finished_at"] is not None:
        times[ENDS[State(row["state"])]] = times["completed_at"] = format_instant(row["finished_at"])
    return times | ({"scheduled_at": format_instant(row["due_at"])} if row["due_at"] else {})
