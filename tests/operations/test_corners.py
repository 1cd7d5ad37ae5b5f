"""The seldom ways through the operations: nothing to do, done already, dropped on the way, more than is kept."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from django_ojs import clock, jsontext, states
from django_ojs.errors import Duplicate, InvalidPayload, InvalidRequest, MiddlewareRejected, NotFound
from django_ojs.events import log
from django_ojs.jobs.cancel import cancel
from django_ojs.jobs.delete import delete
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Failure, ack_one, fail, fail_one
from django_ojs.jobs.push import push
from django_ojs.jobs.read import info
from django_ojs.jobs.retry import retry, retry_one
from django_ojs.jobs.timers import apply_due, next_due
from django_ojs.lifecycle.transitions import wake_at
from django_ojs.models import Event, EventCommit, Job, Queue, Worker
from django_ojs.queues import configuration
from django_ojs.queues.configuration import configure, pause, resume
from django_ojs.retention import prune
from django_ojs.rules import envelope
from django_ojs.rules.ids import new_job_id
from django_ojs.rules.retrypolicy import MAX_ATTEMPTS
from django_ojs.states import State, Verb
from django_ojs.store.values import Ack
from django_ojs.workerregistry.dead import rescue_dead_workers
from django_ojs.workerregistry.heartbeat import Beat, beat
from django_ojs.workerregistry.registration import deregister, direct, register
from tests.middlewares import added

pytestmark = pytest.mark.django_db

JOB = {"type": "a.b", "args": []}
ERROR = {"message": "no"}


def make(**attributes: Any) -> Any:
    return push([JOB | attributes])[0].row


def dead_letters(count: int, **attributes: Any) -> list[uuid.UUID]:
    """Jobs that failed for good, one after the other."""
    ids = []
    for _ in range(count):
        row = make(retry={"max_attempts": 1}, **attributes)
        fetch(Fetch(["default"]))
        ids.append(fail_one(Failure(row["id"], ERROR))["id"])
    return ids


def events(kind: str) -> list[Any]:
    return list(Event.objects.filter(type=kind).order_by("id"))


# PUSH with a middleware


def test_a_middleware_may_change_a_job_and_drop_another() -> None:
    def choose(job: dict[str, Any], next: Any) -> Any:
        return None if job["type"] == "a.drop" else next(job | {"meta": {"seen": True}})

    with added(choose):
        kept, dropped, last = (push([each])[0] for each in (JOB, JOB | {"type": "a.drop"}, JOB))
        with pytest.raises(MiddlewareRejected):  # an atomic batch is stored whole or not at all
            push([JOB, JOB | {"type": "a.drop"}])
    assert [dropped.row, dropped.status] == [None, "dropped"]
    for pushed in (kept, last):
        assert pushed.row is not None
        assert jsontext.loads(pushed.row["meta"]) == {"seen": True}
    assert Job.objects.count() == 2


def test_a_refusal_in_the_chain_names_its_place_and_stores_nothing() -> None:
    def refuse(job: dict[str, Any], next: Any) -> Any:
        if job["args"] == [2]:
            raise MiddlewareRejected("not two")
        return next(job)

    with added(refuse), pytest.raises(MiddlewareRejected) as refusal:
        push([JOB, JOB | {"args": [2]}])
    assert refusal.value.details["index"] == 1
    with added(refuse), pytest.raises(MiddlewareRejected) as refusal:
        push([JOB | {"args": [2]}])
    assert "index" not in refusal.value.details
    assert not Job.objects.exists()


def test_what_a_middleware_made_is_validated_again() -> None:
    def spoil(job: dict[str, Any], next: Any) -> Any:
        return next(job | {"priority": 1000})

    with added(spoil), pytest.raises(InvalidPayload) as refusal:
        push([JOB, JOB])
    assert refusal.value.details["index"] == 0
    assert not Job.objects.exists()


def test_pushing_nothing_is_nothing() -> None:
    assert push([]) == []


@pytest.mark.django_db(transaction=True)
def test_a_taken_id_does_not_spoil_the_callers_transaction() -> None:
    row = make()
    with transaction.atomic():
        with pytest.raises(Duplicate) as refusal:
            push([JOB | {"id": str(row["id"])}])
        assert refusal.value.details["existing_job_state"] == "available"
        assert make()["state"] == "available"
    assert Job.objects.count() == 2


def test_a_transaction_that_is_spoilt_already_is_not_asked() -> None:
    from django_ojs.jobs.candidates import Candidate, duplicate_of_id

    spec = envelope.parse({"type": "a.b", "args": []}, now=clock.now())
    with transaction.atomic():
        transaction.set_rollback(True)
        with pytest.raises(IntegrityError, match="in the way"):
            duplicate_of_id(IntegrityError("in the way"), [Candidate(None, spec)], "default")


def test_an_unknown_queue_gives_no_defaults_and_the_cache_does_not_grow_for_ever() -> None:
    assert configuration.defaults(["nowhere"], "default") == {"nowhere": configuration.PLAIN}
    assert not Queue.objects.exists()
    for number in range(10_001):
        configuration._cache["default", f"q{number}"] = (0.0, configuration.PLAIN)
    configuration._remember({"a": configuration.PLAIN}, "default")
    assert list(configuration._cache) == [("default", "a")]


# Nothing to do


def test_done_twice_is_done_once() -> None:
    assert pause("q").paused
    assert pause("q").paused
    assert not resume("q").paused
    assert not resume("q").paused
    assert not resume("never-paused").paused
    assert [event.type for event in Event.objects.order_by("id")] == ["queue.paused", "queue.resumed"]


def test_ids_that_do_not_exist_change_nothing() -> None:
    unknown = new_job_id()
    for outcome in (*cancel([unknown]), *retry([unknown]), *delete([unknown])):
        assert isinstance(outcome, NotFound)
    for call in (lambda: ack_one(Ack(unknown)), lambda: info(unknown), lambda: direct("nobody", "quiet"),
                 lambda: deregister("nobody")):  # fmt: skip
        with pytest.raises(NotFound):
            call()
    assert not Event.objects.exists()


def test_time_has_nothing_to_do() -> None:
    assert (apply_due(), next_due(), rescue_dead_workers()) == (0, None, 0)
    for state in states.TERMINAL:
        assert wake_at({"state": state.value}) is None


def test_the_empty_site_is_pruned_without_a_word() -> None:
    assert set(prune().values()) == {0}


# Workers


def test_a_dead_worker_without_jobs_is_forgotten(frozen_clock: Any) -> None:
    register("w", {"hostname": "h"})
    frozen_clock.advance(seconds=100)
    assert rescue_dead_workers() == 0
    assert not Worker.objects.exists()
    assert [event.type for event in events("worker.stopped")] == ["worker.stopped"]


def test_a_worker_says_since_when_it_runs_and_that_it_lives_by_fetching(frozen_clock: Any) -> None:
    began = clock.now() - dt.timedelta(hours=1)
    assert register("w", {"started_at": began}).started_at == began
    frozen_clock.advance(seconds=16)
    fetch(Fetch(["a"], worker_id="w"))
    worker = Worker.objects.get(pk="w")
    assert (worker.last_seen_at, worker.queues) == (clock.now(), ["a"])
    frozen_clock.advance(seconds=14)
    fetch(Fetch(["b"], worker_id="w"))
    assert Worker.objects.get(pk="w").queues == ["a"], "not a write for each FETCH"


@pytest.mark.parametrize("order", ["quiet", "terminate", "restart"])
@pytest.mark.parametrize("echo", ["", "quiet"])
def test_a_worker_that_an_operator_makes_quiet_is_told_of_once(order: str, echo: str) -> None:
    beat(Beat("w", active_count=3))
    direct("w", order)
    direct("w", order)
    (event,) = events("worker.quiet")
    assert event.data == {"active_jobs": 3}
    beat(Beat("w", active_count=2, state=echo))
    Worker.objects.update(incarnation="its process")
    deregister("w", incarnation="its process")
    assert len(events("worker.quiet")) == 1


@pytest.mark.parametrize("obeys", [False, True])
def test_a_worker_that_an_operator_lets_run_again_can_become_quiet_again(*, obeys: bool) -> None:
    beat(Beat("w"))
    for order, told in (("quiet", 1), ("running", 1), ("terminate", 2)):
        direct("w", order)
        assert len(events("worker.quiet")) == told
        if obeys:
            beat(Beat("w", state=order))
        assert len(events("worker.quiet")) == told


def test_a_worker_that_obeys_an_order_which_an_operator_has_taken_back_is_told_of_once() -> None:
    beat(Beat("w"))
    direct("w", "quiet")
    assert beat(Beat("w")).state == "quiet"
    direct("w", "running")
    assert beat(Beat("w", state="quiet")).state == "running"
    assert len(events("worker.quiet")) == 1
    Worker.objects.update(incarnation="its process")
    deregister("w", incarnation="its process")
    assert len(events("worker.quiet")) == 2, "it ends, and had jobs until then"


def test_a_registration_which_tells_a_worker_no_order_leaves_one_to_run_in_force() -> None:
    beat(Beat("w", state="quiet"))
    direct("w", "running")
    register("w", {})
    assert beat(Beat("w", state="quiet")).state == "running"
    assert len(events("worker.quiet")) == 1


def test_a_worker_that_runs_again_by_order_may_become_quiet_by_itself() -> None:
    """As by SIGTSTP: nobody has let it run again since then."""
    beat(Beat("w", state="quiet"))
    direct("w", "running")
    beat(Beat("w"))
    assert beat(Beat("w", state="quiet")).state == "quiet"
    assert len(events("worker.quiet")) == 2
    make()
    assert fetch(Fetch(["default"], worker_id="w")) == []


def test_an_operators_word_is_heard_until_it_is_replaced() -> None:
    assert beat(Beat("w", state="quiet")).state == "quiet"
    assert [event.type for event in events("worker.quiet")] == ["worker.quiet"]
    direct("w", "running")
    assert beat(Beat("w", state="quiet")).directive == "continue"
    direct("w", "terminate")
    assert beat(Beat("w")).directive == "terminate"
    make()
    assert fetch(Fetch(["default"], worker_id="w")) == []


# Dead letters


def test_a_revived_job_keeps_what_its_client_called_like_our_history() -> None:
    for sent, kept in ((5, 0), (None, 0), ({"a": 1}, 0), ([1], 1)):
        (job_id,) = dead_letters(1, x_previous_errors=sent)
        extra = jsontext.loads(retry_one(job_id)["extra"])
        assert len(extra["x_previous_errors"]) == kept + 1, sent
        fetch(Fetch(["default"]))


def test_only_dead_letters_are_revived_and_only_they_are_deleted() -> None:
    row = make(retry={"max_attempts": 1, "on_exhaustion": "discard"})
    fetch(Fetch(["default"]))
    fail_one(Failure(row["id"], ERROR))
    for outcome in (*retry([row["id"]]), *delete([row["id"]])):
        assert isinstance(outcome, NotFound)
    assert info(row["id"])["state"] == "discarded"


@pytest.mark.django_db(transaction=True)  # a queue's row is written after the commit
def test_an_override_is_validated_like_a_push_and_may_change_the_policy() -> None:
    (job_id,) = dead_letters(1)
    with pytest.raises(InvalidRequest) as refusal:
        retry_one(job_id, override={"type": "x.y", "state": "active"})
    assert refusal.value.details == {"field": "override.state"}
    with pytest.raises(InvalidPayload):
        retry_one(job_id, override={"priority": 1000})
    assert info(job_id)["state"] == "discarded"
    row = retry_one(job_id, override={"queue": "new", "args": [1], "retry": {"max_attempts": 7}, "meta": None})
    assert (row["queue"], row["args"], row["max_attempts"], row["meta"]) == ("new", "[1]", 7, "{}")
    assert envelope.render(info(job_id))["retry"] == {"max_attempts": 7}
    assert Queue.objects.filter(name="new").exists()


def test_a_policy_that_is_overridden_counts_over_those_of_site_and_queue_as_at_a_push(settings: Any) -> None:
    settings.OJS = {"RETRY": {"max_interval": "PT9M"}}
    configure("default", {"default_retry": {"initial_interval": "PT7S"}})
    given = {"max_attempts": 4}
    (job_id,) = dead_letters(1)
    row = retry_one(job_id, override={"retry": given})
    assert (row["retry"], row["max_attempts"]) == (make(retry=given)["retry"], 4)
    assert "7000" in row["retry"]


def test_of_earlier_errors_as_many_are_kept_as_of_a_jobs_own(settings: Any) -> None:
    settings.OJS = {"ERROR_HISTORY": 10}
    (job_id,) = dead_letters(1)
    for n in range(11):
        retry_one(job_id)
        fetch(Fetch(["default"]))
        fail_one(Failure(job_id, {"message": f"again {n}"}))
    retry_one(job_id)
    earlier = envelope.render(info(job_id))["x_previous_errors"]
    assert [error["message"] for error in earlier] == [f"again {n}" for n in range(1, 11)]


def test_dead_letters_of_one_instant_are_not_thrown_out_together(settings: Any, frozen_clock: Any) -> None:
    settings.OJS = {"DEAD_LETTER_MAX_COUNT": 3}
    ids = [make(retry={"max_attempts": 1})["id"] for _ in range(5)]
    frozen_clock.advance(milliseconds=1)
    fetch(Fetch(["default"], count=5))
    fail([Failure(job_id, ERROR) for job_id in ids])
    assert len({info(job_id)["finished_at"] for job_id in ids}) == 1
    assert prune()["dead_letters"] == 2
    assert [job.pk for job in Job.objects.order_by("pk")] == sorted(ids)[2:]
    assert prune()["dead_letters"] == 0


def test_of_too_many_dead_letters_the_oldest_go_in_batches(settings: Any, frozen_clock: Any) -> None:
    settings.OJS = {"DEAD_LETTER_MAX_COUNT": 1}
    ids = []
    for _ in range(4):
        ids += dead_letters(1)
        frozen_clock.advance(seconds=1)
    assert [prune(batch=2)["dead_letters"] for _ in range(3)] == [2, 1, 0]
    assert [job.pk for job in Job.objects.all()] == ids[3:]


# The log


@pytest.mark.django_db(transaction=True)
def test_old_events_go_with_their_numbers_and_the_reader_is_told_of_the_gap(frozen_clock: Any) -> None:
    make()
    first = log.read().cursor
    frozen_clock.advance(days=8)
    make()
    assert prune()["events"] == 1
    page = log.read(after=first)
    assert [event["type"] for event in page.events] == ["job.enqueued"]
    assert page.gap is not None
    if connection.vendor == "postgresql":
        assert EventCommit.objects.count() == 1


# Limits


def test_a_job_may_snooze_at_the_largest_limit_there_is() -> None:
    row = make(retry={"max_attempts": MAX_ATTEMPTS})
    fetch(Fetch(["default"]))
    row = fail_one(Failure(row["id"], snooze_ms=1000))
    assert (row["state"], row["max_attempts"]) == ("retryable", MAX_ATTEMPTS)


def test_the_table_answers_for_every_pair_of_verb_and_state() -> None:
    for verb in Verb:
        for source in (None, *State):
            for target in State:
                assert states.is_legal(verb, source, target) == (target in states.targets(verb, source))
        assert states.sources(verb) == {t.source for t in states.TRANSITIONS if t.verb is verb and t.source}
