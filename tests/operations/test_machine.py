"""Random verbs on a real database, compared step by step with the transition table."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from django_ojs import clock, states
from django_ojs.errors import InvalidStateTransition, NotFound
from django_ojs.events import log
from django_ojs.jobs.cancel import cancel_one
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack_one, fail_one, requeue
from django_ojs.jobs.promote import activate_one
from django_ojs.jobs.push import push
from django_ojs.jobs.retry import retry_one
from django_ojs.jobs.timers import apply_due
from django_ojs.models import Job
from django_ojs.states import State, Verb

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
#: What each event type says about the state of its job.
STATE_OF = {
    "job.enqueued": {"available"}, "job.scheduled": {"scheduled"}, "job.started": {"active"},
    "job.completed": {"completed"}, "job.failed": {"retryable", "discarded"}, "job.retrying": {"retryable"},
    "job.discarded": {"discarded"}, "job.cancelled": {"cancelled"}, "job.expired": {"discarded"},
}  # fmt: skip


class Walk(RuleBasedStateMachine):
    """Each rule tries one verb on some job; `known` is what the table says the state must be."""

    jobs = Bundle("jobs")

    @initialize()
    def begin(self) -> None:
        self.known: dict[uuid.UUID, State] = {}
        self.attempts: dict[uuid.UUID, int] = {}
        clock.freeze(START)

    def teardown(self) -> None:
        clock.freeze(None)
        Job.objects.all()._raw_delete("default")  # type: ignore[attr-defined]

    @rule(
        target=jobs,
        delay=st.none() | st.integers(-5, 20), ttl=st.none() | st.integers(1, 30), pending=st.booleans(),
        attempts=st.integers(0, 3), queue=st.sampled_from(["a", "b"]), timeout=st.integers(1, 20),
    )  # fmt: skip
    def push(
        self, delay: int | None, ttl: int | None, pending: bool, attempts: int, queue: str, timeout: int
    ) -> uuid.UUID:
        now = clock.now()
        document: dict[str, Any] = {"type": "x.y", "args": [], "queue": queue, "pending": pending, "timeout": timeout}
        document["retry"] = {"max_attempts": attempts, "initial_interval": "3s", "jitter": False}
        if delay is not None:
            document["scheduled_at"] = (now + dt.timedelta(seconds=delay)).isoformat()
        if ttl is not None:
            document["expires_at"] = (now + dt.timedelta(seconds=ttl)).isoformat()
        row = push([document])[0].row
        assert row is not None
        job_id: uuid.UUID = row["id"]
        self.moved(Verb.PUSH, job_id, None)
        self.attempts[job_id] = 0
        return job_id

    @rule(count=st.integers(1, 4), visibility=st.integers(1, 15), queues=st.permutations(["a", "b"]))
    def fetch(self, count: int, visibility: int, queues: list[str]) -> None:
        before = self.stored()
        rows = fetch(Fetch(queues, count=count, worker_id="w", visibility_ms=visibility * 1000))
        self.settled(before, claimed={row["id"] for row in rows})
        for row in rows:
            self.attempts[row["id"]] += 1
            assert row["attempt"] == self.attempts[row["id"]]

    @rule(job=jobs)
    def ack(self, job: uuid.UUID) -> None:
        self.attempt(Verb.ACK, job, lambda: ack_one(Ack(job, "1")))

    @rule(job=jobs, retryable=st.booleans())
    def fail(self, job: uuid.UUID, retryable: bool) -> None:
        error = {"message": "no", "type": "E", "retryable": retryable}
        self.attempt(Verb.FAIL, job, lambda: fail_one(Failure(job, error)))

    @rule(job=jobs)
    def hand_back(self, job: uuid.UUID) -> None:
        before = self.known[job]
        returned = requeue([job])
        assert bool(returned) == (before in states.sources(Verb.REQUEUE))
        if returned:
            self.moved(Verb.REQUEUE, job, before)

    @rule(job=jobs)
    def cancel(self, job: uuid.UUID) -> None:
        if self.known[job] is State.CANCELLED:
            assert not cancel_one(job).changed
        else:
            self.attempt(Verb.CANCEL, job, lambda: cancel_one(job))

    @rule(job=jobs)
    def activate(self, job: uuid.UUID) -> None:
        self.attempt(Verb.ACTIVATE, job, lambda: activate_one(job))

    @rule(job=jobs)
    def retry(self, job: uuid.UUID) -> None:
        self.attempt(Verb.RETRY, job, lambda: retry_one(job))
        if Job.objects.get(pk=job).attempt == 0:
            self.attempts[job] = 0

    @rule(seconds=st.integers(1, 12))
    def time_passes(self, seconds: int) -> None:
        clock.advance(seconds=seconds)
        before = self.stored()
        apply_due()
        self.settled(before, claimed=set())

    @rule(job=consumes(jobs))
    def forget(self, job: uuid.UUID) -> None:
        self.known.pop(job, None)

    @invariant()
    def every_job_is_where_the_table_put_it(self) -> None:
        stored = self.stored()
        assert {job: stored[job] for job in self.known} == self.known

    @invariant()
    def the_latest_event_tells_the_state(self) -> None:
        for job in list(self.known)[-2:]:
            for event in log.read(job_id=job, limit=1000).events:
                allowed = STATE_OF.get(event["type"])
                assert allowed is None or event["data"]["state"] in allowed

    def attempt(self, verb: Verb, job: uuid.UUID, act: Any) -> None:
        """Try a verb: it must succeed exactly when the table has a row for it."""
        before = self.known[job]
        if before in states.sources(verb):
            act()
            self.moved(verb, job, before)
        else:
            with pytest.raises((InvalidStateTransition, NotFound)):
                act()

    def moved(self, verb: Verb, job: uuid.UUID, before: State | None) -> None:
        after = State(Job.objects.get(pk=job).state)
        assert states.is_legal(verb, before, after), (verb, before, after)
        self.known[job] = after

    def settled(self, before: dict[uuid.UUID, State], claimed: set[uuid.UUID]) -> None:
        """After time or a fetch: each change is one or two legal steps of the timers (and the claim)."""
        timers = (Verb.PROMOTE, Verb.EXPIRE, Verb.FAIL, Verb.RESCUE)
        for job, after in self.stored().items():
            was = before[job]
            if job in claimed:
                assert after is State.ACTIVE
                assert was is State.AVAILABLE or states.is_legal(Verb.PROMOTE, was, State.AVAILABLE)
            elif after is not was:
                assert any(states.is_legal(verb, was, after) for verb in timers), (was, after)
            if job in self.known:
                self.known[job] = after

    def stored(self) -> dict[uuid.UUID, State]:
        return {pk: State(state) for pk, state in Job.objects.values_list("pk", "state")}


@pytest.mark.django_db
def test_random_verbs_never_leave_the_table() -> None:
    steps = settings(stateful_step_count=40, derandomize=False, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(Walk, settings=steps)
