"""Decides what a unique policy says of a job that is pushed (jobs 2.4 to 2.6).

`lock_keys` makes pushes of one key take turns; what is read after it stays true until the commit. Jobs without a unique
policy come past none of this.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from django_ojs import jsontext, states
from django_ojs.access import UNLIMITED, Limits
from django_ojs.errors import Duplicate
from django_ojs.messages import phrase
from django_ojs.models import UniqueLock
from django_ojs.models.job import JobRow
from django_ojs.rules import envelope, redaction
from django_ojs.rules.envelope import JobSpec
from django_ojs.rules.unique import Strategy
from django_ojs.states import State
from django_ojs.store import store_of


def may_ignore(spec: JobSpec) -> bool:
    return spec.unique_policy is not None and spec.unique_policy.on_conflict is Strategy.IGNORE


#: Who cancelled a job that a newer one replaced.
REPLACER = "system:unique"


class UniqueDecision(NamedTuple):
    """What a unique policy says: refuse, take the existing job, or replace these (none: nothing is in the way)."""

    error: Duplicate | None = None
    existing: JobRow | None = None
    replaced: Sequence[JobRow] = ()


#: What most policies say: nothing is in the way.
FREE = UniqueDecision()


def lock_keys(specs: Iterable[JobSpec], using: str) -> None:
    """Wait for all pushes of one of these keys, and make later ones wait."""
    stripes = sorted({UniqueLock.of(spec.unique_key) for spec in specs if spec.unique_key})
    if stripes:
        store_of(using).lock_stripes(stripes)


class Ledger:
    """The jobs with the keys of a push: those that were there, and those that the push has added so far."""

    def __init__(self, rows: Iterable[JobRow]) -> None:
        self._rows: dict[str, list[JobRow]] = defaultdict(list)
        self._ended: dict[object, str] = {}
        for row in rows:
            self._rows[row["unique_key"]].append(row)

    @classmethod
    def read(cls, specs: Iterable[JobSpec], using: str) -> Ledger:
        policies = {spec.unique_key: spec.unique_policy for spec in specs if spec.unique_policy}
        wanted = {state for spec in specs if spec.unique_policy for state in spec.unique_policy.states}
        return cls(store_of(using).same_key(list(policies), states.ordered(wanted)) if policies else ())

    def is_free_for(self, specs: Sequence[JobSpec]) -> bool:
        """Whether nothing is in the way of any of these jobs, nor they in the way of each other."""
        keys = [spec.unique_key for spec in specs if spec.unique_key]
        return not self._rows and len(set(keys)) == len(keys)

    def judge(self, spec: JobSpec, now: dt.datetime, limits: Limits = UNLIMITED) -> UniqueDecision:
        """What the policy of this job says of those that are there. A job beyond the caller's limits that is in its way
        refuses it, whatever the policy wants to do, and nothing is told of that job."""
        policy = spec.unique_policy
        if policy is None or spec.unique_key not in self._rows:
            return FREE
        met = [row for row in self._rows[spec.unique_key] if policy.conflicts(self._state(row), row["created_at"], now)]
        if not met:
            return FREE
        if not limits.unlimited and not all(map(limits.covers_row, met)):
            return UniqueDecision(error=_duplicate_beyond(spec))
        met.sort(key=lambda row: (self._state(row) in states.LIVE, row["created_at"]), reverse=True)
        match policy.on_conflict:
            case Strategy.REJECT:
                return UniqueDecision(error=_duplicate_of_key(spec, met[0], self._state(met[0])))
            case Strategy.IGNORE:
                return UniqueDecision(existing=met[0])
        return UniqueDecision(replaced=[row for row in met if self._state(row) in states.LIVE])

    def mark_ended(self, rows: Iterable[JobRow], state: State) -> None:
        """Note that the push ends these jobs, so that they no longer count as live ones."""
        self._ended.update((row["id"], state) for row in rows)

    def add(self, row: JobRow) -> None:
        if row["unique_key"]:
            self._rows[row["unique_key"]].append(row)

    def _state(self, row: JobRow) -> str:
        return self._ended.get(row["id"]) or row["state"]


def rescheduled(spec: JobSpec, replaced: Iterable[JobRow]) -> JobSpec:
    """`spec` with the start of the scheduled job that it replaces, where its policy says so; else as it is."""
    policy = spec.unique_policy
    if policy is None or policy.on_conflict is not Strategy.REPLACE_EXCEPT_SCHEDULE:
        return spec
    waiting = [row for row in replaced if row["state"] == State.SCHEDULED]
    if not waiting:
        return spec
    first = min(waiting, key=lambda row: row["due_at"])
    shown = envelope.render(first)["scheduled_at"]
    extra = {**spec.extra, "scheduled_at": shown}
    return dataclasses.replace(
        spec, pending=False, scheduled_at=first["due_at"], extra=extra, extra_text=jsontext.dumps(extra), form=None
    )


def _duplicate_beyond(spec: JobSpec) -> Duplicate:
    key = redaction.unique_key(spec.unique_key, spec.type, spec.meta)
    details = {"unique_key": key, "uniqueness_key": key}
    message = phrase(
        "A job with the unique key of this '%(type)s' exists already, beyond the limits of this API key.",
        type=spec.type,
    )  # fmt: skip
    return Duplicate(
        message, details=details, hint="Name `queue` among the keys of the policy, to compare jobs of one queue only."
    )


def _duplicate_of_key(spec: JobSpec, row: JobRow, state: str) -> Duplicate:
    job_id = str(row["id"])
    # Who makes a schedule fire, or retries a step, gets this too, and may not know the arguments.
    key = redaction.unique_key(spec.unique_key, spec.type, spec.meta)
    details = {
        "existing_job_id": job_id, "existing_job_state": str(state), "existing_state": str(state),
        "unique_key": key, "uniqueness_key": key,
    }  # fmt: skip
    message = phrase(
        "A unique job of type '%(type)s' exists already: '%(job)s' is %(state)s.",
        type=spec.type, job=job_id, state=str(state),
    )  # fmt: skip
    choices = ", ".join(f"'{strategy.value}'" for strategy in Strategy)
    hint = f"Wait for the existing job, or say in on_conflict of the unique policy what shall be done: {choices}."
    return Duplicate(message, details=details, hint=hint)
