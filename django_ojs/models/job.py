"""The job row, and the rows beside it: schemas of arguments, progress, locks of unique keys, the outbox.

A job's row holds what the client sent, where the job is in its life, and what happened to it.

The verbs alone (`django_ojs.jobs` and others) change a job's state, by the statements of `django_ojs.store`, each of
which says in its WHERE clause from which states it may start. `save()`, `update()`, `bulk_update()` and `bulk_create()`
refuse to write a state around them.
"""

from __future__ import annotations

import datetime as dt
import functools
import operator
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Self

from django.db import models
from django.db.models import Exists, F, Func, OuterRef, Q
from django.db.models.expressions import ExpressionWrapper

from django_ojs import jsontext, states
from django_ojs.errors import InvalidStateTransition
from django_ojs.models.fields import JSONTextField, MomentField, NameField, NaturalKeys, OJSModel, RowManager, Rows
from django_ojs.models.queue import TEMPLATE, Queue
from django_ojs.rules import envelope
from django_ojs.rules.ids import new_job_id
from django_ojs.states import State

#: A job as a plain dict of column values with JSON columns as text: what the engine passes around.
JobRow = dict[str, Any]

#: Where jobs wait that cannot be claimed yet: the part of a queue's depth that no other index knows.
STAGED: tuple[State, ...] = (State.SCHEDULED, State.PENDING, State.RETRYABLE)

#: Columns that only a transition may write.
GUARDED = frozenset({"state"})


class JobQuerySet(Rows["Job"]):
    """The queryset of jobs, to read them: only the verbs change their states, and write the event of the change too."""

    def update(self, **kwargs: Any) -> int:
        _refuse(kwargs, "update()")
        return super().update(**kwargs)

    def bulk_update(self, objs: Iterable[Job], fields: Iterable[str], batch_size: int | None = None) -> int:
        fields = list(fields)
        _refuse(fields, "bulk_update()")
        return super().bulk_update(objs, fields, batch_size)

    def bulk_create(self, objs: Iterable[Job], *args: Any, **kwargs: Any) -> list[Job]:
        objs = list(objs)
        for job in objs:
            _refuse_birth(job)
        _refuse(kwargs.get("update_fields") or (), "bulk_create()")
        return super().bulk_create(objs, *args, **kwargs)

    def rows(self, columns: Sequence[str] | None = None) -> list[JobRow]:
        """These jobs as plain dicts with JSON columns as stored text, ready for `envelope.render()` if whole.

        `LIMITED` may be among the columns.
        """
        names = COLUMNS if columns is None else columns
        return [dict(zip(names, values, strict=True)) for values in self.values_list(*_raw(tuple(names)))]

    def live(self) -> Self:
        return self.filter(in_states(states.ordered(states.LIVE)))

    def dead_letters(self) -> Self:
        """The dead letter queue: discarded jobs whose client did not ask to be left out of it."""
        # All of them have ended, but the index of ended jobs is found only where that is said.
        return self.filter(state=State.DISCARDED, dead_letter=True, finished_at__isnull=False)


class Job(OJSModel):
    """One job (core section 5). Column names follow the spec where the spec has a name."""

    id = models.UUIDField(primary_key=True, default=new_job_id, editable=False)
    type = models.CharField(max_length=255)
    queue = models.CharField(max_length=128, default="default")
    state = models.CharField(max_length=9, choices=[(s.value, s.value) for s in State], default=State.AVAILABLE)
    priority = models.SmallIntegerField(default=0, help_text="Higher is fetched first.")
    attempt = models.PositiveIntegerField(default=0, help_text="Grows by one with each FETCH.")
    max_attempts = models.PositiveIntegerField(default=3)
    uncounted = models.PositiveIntegerField(
        null=True,
        blank=True,
        help_text="Attempts that do not count against max_attempts: the handler snoozed, or never ran. Null: none.",
    )

    round = models.PositiveIntegerField(
        null=True, blank=True, help_text="How often it was retried from the beginning, at attempt 0. Null: never."
    )

    args = JSONTextField(default=list)
    meta = JSONTextField(default=dict, blank=True)
    extra = JSONTextField(default=None, blank=True, help_text="Whatever else the client sent, as it was sent.")
    retry = models.TextField(default="", blank=True, help_text="The retry policy in force; empty: the default.")
    timeout_ms = models.BigIntegerField(null=True, blank=True, help_text="Execution timeout in force.")
    visibility_ms = models.BigIntegerField(null=True, blank=True, help_text="The job's own reservation length.")
    heartbeat_ms = models.BigIntegerField(
        null=True, blank=True, help_text="How long its worker may be silent about it before the attempt has failed."
    )
    grace_ms = models.BigIntegerField(
        null=True, blank=True, help_text="How long after its execution timeout the server leaves it to the worker."
    )
    trace_id = models.CharField(max_length=64, default="", blank=True)

    created_at = MomentField()
    enqueued_at = MomentField(null=True, blank=True, help_text="Last entry to `available`; decides FIFO.")
    due_at = MomentField(null=True, blank=True, help_text="When a scheduled or retryable job is due.")
    expires_at = MomentField(null=True, blank=True)
    start_by = MomentField(null=True, blank=True, help_text="End of the time for its first start.")
    deadline_at = MomentField(null=True, blank=True, help_text="End of its time as a whole, waits included.")
    activated_at = MomentField(null=True, blank=True)
    started_at = MomentField(null=True, blank=True)
    finished_at = MomentField(null=True, blank=True, help_text="Entry to a terminal state.")
    visible_until = MomentField(null=True, blank=True, help_text="End of the worker's reservation.")
    timeout_at = MomentField(null=True, blank=True, help_text="End of the execution timeout.")
    wake_at = MomentField(
        null=True, blank=True, help_text="The next instant at which the scheduler has to look at this job."
    )

    worker_id = NameField(max_length=255, default="", blank=True, help_text="Holder of the reservation.")
    lease_ms = models.BigIntegerField(null=True, blank=True, help_text="Reservation length granted at the claim.")
    losses = models.PositiveSmallIntegerField(default=0, help_text="Reservations in a row that expired unanswered.")
    suspected = models.BooleanField(
        null=True,
        blank=True,
        help_text="A worker's process died while it ran; until a run of it has ended it is run alone. Null: no.",
    )
    resumable = models.BooleanField(
        null=True,
        blank=True,
        help_text="The next attempt has something to go on from, in rows beside this one (models.durable). Null: no.",
    )
    retry_delay_ms = models.BigIntegerField(null=True, blank=True)
    errors = JSONTextField(default=None, blank=True)
    result = JSONTextField(null=True, blank=True)
    result_ttl = models.IntegerField(
        null=True, blank=True, help_text="Seconds for which the result is kept; -1: for ever; null: the site's own."
    )
    dead_letter = models.BooleanField(default=False)
    unique_key = models.CharField(max_length=64, default="", blank=True)
    workflow_id = models.UUIDField(null=True, blank=True)
    parent_id = models.UUIDField(null=True, blank=True, help_text="The job whose handler enqueued it.")
    rate_key = NameField(max_length=255, default="", blank=True, help_text="The rate limit it is under.")
    rate_limit = models.TextField(default="", blank=True, help_text="Its own numbers for that limit.")

    objects = RowManager.from_queryset(JobQuerySet)()  # type: ignore[misc]

    class Meta:
        permissions = [
            ("ojs_push", "Can enqueue jobs over HTTP"),
            ("ojs_work", "Can fetch jobs and report on them over HTTP"),
            ("ojs_read", "Can read jobs, queues and events over HTTP"),
            ("ojs_admin", "Can manage jobs, queues and workers over HTTP"),
        ]
        indexes = [
            # The claim's own order, and nothing in it but jobs that can be claimed.
            models.Index(
                F("queue"), F("priority").desc(), F("enqueued_at"), F("id"),
                name="ojs_job_claim", condition=Q(state="available"),
            ),
            # One index for everything that time brings: promotion, expiry, timeouts, lost reservations.
            models.Index(fields=["wake_at"], name="ojs_job_wake", condition=Q(wake_at__isnull=False)),
            models.Index(fields=["worker_id"], name="ojs_job_holder", condition=Q(state="active")),
            # Jobs under a limit: what runs and waits of a key, and whether a queue has any.
            models.Index(fields=["rate_key", "state"], name="ojs_job_rate", condition=Q(rate_key__gt="")),
            models.Index(
                fields=["queue"], name="ojs_job_limited", condition=Q(state="available") & Q(rate_key__gt="")
            ),
            models.Index(
                fields=["state", "finished_at"], name="ojs_job_finished", condition=Q(finished_at__isnull=False)
            ),
            # Jobs without a unique policy, without a result_ttl, and those that go straight through pay for none.
            models.Index(fields=["unique_key", "state"], name="ojs_job_unique", condition=Q(unique_key__gt="")),
            models.Index(fields=["finished_at"], name="ojs_job_result_ttl", condition=Q(result_ttl__isnull=False)),
            models.Index(fields=["queue"], name="ojs_job_staged", condition=Q(state__in=STAGED)),
            models.Index(fields=["parent_id"], name="ojs_job_parent", condition=Q(parent_id__isnull=False)),
        ]  # fmt: skip
        constraints = [
            models.CheckConstraint(condition=Q(state__in=list(State)), name="ojs_job_state"),
            models.CheckConstraint(
                condition=Q(state__in=states.ordered(states.TERMINAL), finished_at__isnull=False)
                | Q(state__in=states.ordered(states.LIVE), finished_at__isnull=True),
                name="ojs_job_finished_iff_terminal",
            ),
            models.CheckConstraint(
                condition=~Q(state=State.ACTIVE) | Q(visible_until__isnull=False, started_at__isnull=False),
                name="ojs_job_active_is_reserved",
            ),
            models.CheckConstraint(
                condition=~Q(state__in=[State.SCHEDULED, State.RETRYABLE]) | Q(due_at__isnull=False),
                name="ojs_job_waiting_is_due",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.type} {self.id} ({self.state})"

    @classmethod
    def from_db(cls, db: str | None, field_names: Collection[str], values: Collection[Any], **kwargs: Any) -> Self:
        job = super().from_db(db, field_names, values, **kwargs)
        job._loaded_state = job.__dict__.get("state")
        return job

    _loaded_state: str | None = None

    def save(self, **kwargs: Any) -> None:
        if self._state.adding:
            _refuse_birth(self)
        elif "state" in self.__dict__ and self.state != self._loaded_state:
            raise _around("save()", str(self.id), self._loaded_state, self.state)
        super().save(**kwargs)
        self._loaded_state = self.__dict__.get("state")

    def refresh_from_db(self, *args: Any, **kwargs: Any) -> None:
        super().refresh_from_db(*args, **kwargs)
        self._loaded_state = self.__dict__.get("state")

    @property
    def error(self) -> dict[str, Any] | None:
        """The latest error object, unless the job succeeded after all (core 5.3)."""
        return self.errors[-1] if self.errors and self.state != State.COMPLETED else None

    def envelope(self) -> dict[str, Any]:
        """The job as the wire shows it (core section 5)."""
        found = Job.objects.using(self._state.db or None).filter(pk=self.pk)
        (row,) = found.rows()
        if row["workflow_id"] is not None:
            flows: Any = self._meta.apps.get_model("django_ojs", "Workflow")  # whose module imports this one
            if flow := flows.objects.using(found.db).filter(pk=row["workflow_id"]).only("own_id").first():
                row["lineage"] = {"workflow_id": flow.public_id}
        return envelope.render(row)


COLUMNS: tuple[str, ...] = tuple(field.attname for field in Job._meta.concrete_fields)
#: No column, but to be asked for like one: whether a limit counts the job, by its rate key, its queue or its type.
LIMITED = "limited"
JSON_COLUMNS: frozenset[str] = frozenset(f.attname for f in Job._meta.concrete_fields if isinstance(f, JSONTextField))


@functools.lru_cache(maxsize=64)
def _raw(names: tuple[str, ...]) -> tuple[Any, ...]:
    """What to select for these columns. The verbs ask for the same few lists of columns again and again."""
    by_queue = Queue.objects.filter(Q(name=OuterRef("queue")) | Q(name=TEMPLATE), limited=True)
    made: dict[str, Any] = {
        name: ExpressionWrapper(F(name), output_field=models.TextField()) for name in JSON_COLUMNS.intersection(names)
    }
    made[LIMITED] = ExpressionWrapper(Q(rate_key__gt="") | Exists(by_queue), output_field=models.BooleanField())
    return tuple(made.get(name, F(name)) for name in names)


def blank_row(now: dt.datetime, **values: Any) -> JobRow:
    """A row with every column at its default, for an insert."""
    return {**BLANK, "id": uuid.UUID(int=0), "created_at": now, **values}


#: Every column at its default; an id and the time of the creation every row has of its own.
BLANK: Mapping[str, Any] = {
    **{field.attname: field.get_prep_value(field.get_default()) for field in Job._meta.concrete_fields},
    **dict.fromkeys(("id", "created_at")),
    "state": State.AVAILABLE.value,
}


def _refuse(names: Iterable[str], how: str) -> None:
    if GUARDED & set(names):
        raise _around(how, "*", None, "a state of your choice")


def _around(how: str, job_id: str, current: str | None, target: str) -> InvalidStateTransition:
    details = {"job_id": job_id, "current_state": current, "attempted": how, "attempted_state": target}
    said = f"{how} cannot change the state of a job: only its verbs do, such as get_job(id).cancel() and .retry()."
    return InvalidStateTransition(said, details=details)


def _refuse_birth(job: Job) -> None:
    if job.state not in states.INITIAL:
        raise InvalidStateTransition.of(str(job.id), None, "create", job.state)


def in_states(wanted: Collection[State]) -> Q:
    """Jobs in these states, said so that databases find them by the partial indexes: none of those has all states."""
    if len(set(wanted)) == len(State):
        return Q()
    parts = [Q(state=state) for state in (State.AVAILABLE, State.ACTIVE) if state in wanted]
    if staged := [state for state in STAGED if state in wanted]:
        parts.append(_one_of(staged) & _is_staged())
    if ended := [state for state in states.ordered(states.TERMINAL) if state in wanted]:
        parts.append(_one_of(ended) & Q(finished_at__isnull=False))
    return functools.reduce(operator.or_, parts, Q()) if parts else Q(pk__in=[])


def _one_of(wanted: Sequence[State]) -> Q:
    return Q(state=wanted[0]) if len(wanted) == 1 else Q(state__in=wanted)


def _is_staged() -> Q:
    """The condition of the index of staged jobs in its own words: SQLite does not compare an IN with parameters."""
    names = ", ".join(f"'{state.value}'" for state in STAGED)
    return Q(Func(F("state"), template=f"%(expressions)s IN ({names})", output_field=models.BooleanField()))


class JobSchema(OJSModel):
    """One version of the JSON Schema for the arguments of one job type (binding 7).

    `schema` is the document as it was registered.
    """

    job_type = models.CharField(max_length=255)
    version = NameField(max_length=64, help_text="1 and the text 1 are one version.")
    numeric = models.BooleanField(default=False, help_text="Whether the version was registered as a number.")
    uri = NameField(max_length=512, unique=True)
    schema = JSONTextField()
    created_at = models.DateTimeField()

    objects = NaturalKeys["JobSchema"]("uri")  # type: ignore[misc]

    class Meta:
        constraints = [models.UniqueConstraint(fields=["job_type", "version"], name="ojs_schema_version")]

    def __str__(self) -> str:
        return f"{self.job_type} {self.version}"

    def natural_key(self) -> tuple[str]:
        return (self.uri,)

    @property
    def wire_version(self) -> Any:
        """The version as it was registered."""
        return jsontext.loads(self.version) if self.numeric else self.version


class JobProgress(OJSModel):
    """How far a running job says that it is (orchestration 5.1): a row of its own, so that no other verb pays for it.

    It belongs to one attempt, and the next begins without any. It is written under the lock of the job's row.
    """

    job_id = models.UUIDField(primary_key=True)
    attempt = models.PositiveIntegerField()
    percent = models.FloatField(null=True, help_text="0 to 100; never goes back within an attempt.")
    message = models.TextField(default="", blank=True)
    data = JSONTextField(null=True)
    updated_at = models.DateTimeField()
    told_at = models.DateTimeField(null=True, help_text="Up to when its events on progress count, one a second.")
    held = models.BooleanField(default=False, help_text="An event about the latest report is still to be written.")

    class Meta:
        verbose_name_plural = "job progress"
        indexes = [models.Index(fields=["told_at"], name="ojs_progress_held", condition=Q(held=True))]

    def __str__(self) -> str:
        return f"{self.job_id}: {'no number' if self.percent is None else f'{self.percent:g} %'}"


class UniqueLock(OJSModel):
    """A lock by which pushes of unique jobs take turns: each holds the rows of its keys until the commit.

    Many keys share a row. Rows appear as they are needed and stay; there are never more than `STRIPES`.
    """

    STRIPES = 65_536

    stripe = models.PositiveIntegerField(primary_key=True)
    # MariaDB's upsert, which takes the lock in one step, must have something to set, and to change each time.
    used = models.BooleanField(default=True)

    def __str__(self) -> str:
        return str(self.stripe)

    @classmethod
    def of(cls, unique_key: str) -> int:
        """The stripe of a key, from its first 16 bits."""
        return int(unique_key[:4], 16)


class OutboxEntry(OJSModel):
    """A job or workflow on its way from the database of the site's data to the one that holds the jobs.

    It is validated, and written in the caller's transaction to the database that `OJS["OUTBOX"]` names. Its row goes
    when the job is stored; one that PUSH refuses for good stays, `aside` and with the `error`.
    """

    class Kind(models.TextChoices):
        JOB = "job", "job"
        WORKFLOW = "workflow", "workflow"

    id = models.BigAutoField(primary_key=True)
    target_id = models.UUIDField(unique=True, help_text="The id that the job or workflow has already.")
    kind = models.CharField(max_length=8, choices=Kind.choices, default=Kind.JOB)
    type = models.CharField(max_length=255, help_text="The job type; of a workflow its kind.")
    document = JSONTextField(help_text="The envelope, as the enqueue middleware left it.")
    created_at = MomentField(help_text="When it was enqueued: delays count from here.")
    attempts = models.PositiveIntegerField(default=0, help_text="How often the other side said: not now.")
    retry_at = models.DateTimeField(null=True, blank=True)
    aside = models.BooleanField(default=False, help_text="Refused for good; nobody tries again.")
    error = models.TextField(default="", blank=True)

    class Meta:
        verbose_name_plural = "outbox entries"
        indexes = [models.Index(fields=["id"], name="ojs_outbox_waiting", condition=Q(aside=False))]

    def __str__(self) -> str:
        return f"{self.type} {self.target_id}"
