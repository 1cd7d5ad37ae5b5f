"""Checkpoints as operations (orchestration 5.2): what is stored, what refuses a save, what takes a checkpoint along."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from django_ojs import jsontext, retention
from django_ojs.errors import Conflict, NotFound, PayloadTooLarge, ReservationLost
from django_ojs.events import history, log
from django_ojs.jobs import checkpoints, replay
from django_ojs.jobs.cancel import cancel_one
from django_ojs.jobs.checkpoints import NewCheckpoint
from django_ojs.jobs.delete import delete_ended
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack_one, fail_one, requeue
from django_ojs.jobs.push import push
from django_ojs.jobs.retry import retry_one
from django_ojs.jobs.timers import apply_due
from django_ojs.models import Job, JobCheckpoint
from django_ojs.models.job import JobRow
from django_ojs.rules import envelope, replayrules
from django_ojs.workerregistry.dead import hand_back, rescue_dead_workers
from django_ojs.workerregistry.deaths import Death
from django_ojs.workerregistry.heartbeat import Beat, beat

pytestmark = pytest.mark.django_db

UNKNOWN = uuid.UUID("019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f")


def pushed(**attributes: Any) -> uuid.UUID:
    (done,) = push([{"type": "etl.load", "args": [], **attributes}])
    job_id: uuid.UUID = done.row["id"]  # type: ignore[union-attr, index]
    return job_id


def claimed(worker_id: str = "w1", count: int = 1) -> JobRow:
    return fetch(Fetch(["default"], count, worker_id))[0]


def save(job_id: uuid.UUID, state: Any = None, **more: Any) -> int:
    return checkpoints.save(NewCheckpoint(job_id, state, **more)).sequence


def dead(**attributes: Any) -> uuid.UUID:
    job_id = pushed(retry={"max_attempts": 1}, **attributes)
    claimed()
    save(job_id, "so far")
    fail_one(Failure(job_id, error={"message": "broken"}))
    return job_id


class TestSaving:
    @pytest.mark.parametrize(
        "text",
        [
            "{}",
            "[]",
            "0",
            '""',
            "false",
            "null",
            "1e400",
            "0.1000000000000000055",
            "12345678901234567890123",
            '{"a":[1.0,"\\u0000é"]}',
        ],
    )
    def test_ckp_1_any_value_is_kept_as_it_was_sent(self, text: str) -> None:
        job_id = pushed()
        saved = checkpoints.save(NewCheckpoint(job_id, jsontext.loads(text)))
        assert jsontext.dumps(saved.state) == text
        found = checkpoints.read(job_id)
        assert found is not None
        assert jsontext.dumps(found.state) == text
        row = claimed()
        assert jsontext.dumps(envelope.render(row)["checkpoint"]) == f'{{"state":{text},"sequence":1}}'
        assert jsontext.dumps(envelope.render(row)["last_checkpoint"]) == text

    def test_ckp_2_a_save_replaces_all_of_the_one_before(self) -> None:
        job_id = pushed()
        save(job_id, {"a": 1, "b": 2}, step_index=3, metadata={"k": "v"})
        save(job_id, {"b": 3})
        found = checkpoints.read(job_id)
        assert found is not None
        assert (found.state, found.step_index, found.metadata, found.size) == ({"b": 3}, None, None, 7)
        assert JobCheckpoint.objects.count() == 1

    def test_ckp_3_sequences_go_on_over_attempts_and_begin_anew_after_a_delete(self) -> None:
        job_id = pushed()
        claimed()
        assert [save(job_id, 1), save(job_id, 2)] == [1, 2]
        fail_one(Failure(job_id, error={"message": "broken"}))
        assert save(job_id, 3) == 3
        assert checkpoints.clear(job_id) is True
        assert checkpoints.clear(job_id) is False
        assert save(job_id, 4) == 1

    def test_ckp_4_a_sequence_must_be_greater_than_the_stored_one(self) -> None:
        job_id = pushed()
        assert save(job_id, "first", sequence=0) == 0
        assert save(job_id, "next") == 1
        assert save(job_id, "far", sequence=70) == 70
        for sequence in (70, 5, 0):
            with pytest.raises(Conflict, match="not greater than the stored 70") as refused:
                save(job_id, "late", sequence=sequence)
            assert refused.value.details["stored_sequence"] == 70
        found = checkpoints.read(job_id)
        assert found is not None
        assert (found.state, found.sequence) == ("far", 70)
        assert save(job_id) == 71

    def test_ckp_6_so_many_bytes_and_not_one_more(self, settings: Any) -> None:
        job_id = pushed()
        for state in ("x" * (1_048_576 - 2), "é" * ((1_048_576 - 2) // 2)):
            save(job_id, state)
            with pytest.raises(PayloadTooLarge) as refused:
                save(job_id, f"{state}x")
            assert refused.value.details == {
                "actual_bytes": 1_048_577, "max_bytes": 1_048_576, "field": "checkpoint",
            }  # fmt: skip
            found = checkpoints.read(job_id)
            assert found is not None
            assert (found.state, found.size) == (state, 1_048_576)
        settings.OJS = {"MAX_CHECKPOINT_BYTES": 20}
        with pytest.raises(PayloadTooLarge):
            save(job_id, "1234567890", metadata={"a": "12"})
        assert save(job_id, "1234567890", metadata={}) == 3

    @pytest.mark.parametrize("end", ["complete", "cancel", "discard"])
    def test_ckp_7_a_job_that_has_ended_takes_none(self, end: str) -> None:
        job_id = pushed(retry={"max_attempts": 1})
        claimed()
        save(job_id, "so far")
        if end == "complete":
            ack_one(Ack(job_id, None))
        elif end == "cancel":
            cancel_one(job_id)
        else:
            fail_one(Failure(job_id, error={"message": "broken"}))
        for worker_id in ("", "w1"):
            with pytest.raises(Conflict) as refused:
                save(job_id, "late", worker_id=worker_id)
            assert refused.value.error_code == "conflict"
            assert refused.value.details["attempted"] == "checkpoint"
        found = checkpoints.read(job_id)
        assert found is not None
        assert found.state == "so far"

    def test_ckp_8_and_9_who_may_save(self, settings: Any) -> None:
        job_id = pushed()
        assert save(job_id, worker_id="anyone") == 1
        row = claimed("w1")
        assert save(job_id) == 2
        assert save(job_id, worker_id="w1") == 3
        assert save(job_id, worker_id="w1", attempt=1) == 4
        for fence in ({"worker_id": "w2"}, {"worker_id": "w1", "attempt": 2}, {"attempt": 2}):
            with pytest.raises(ReservationLost) as refused:
                save(job_id, **fence)
            assert refused.value.details["reason"] == "not_claimant"
        requeue([row["id"]], worker_id="w1")
        with pytest.raises(ReservationLost):
            save(job_id, worker_id="w1", attempt=1)
        assert save(job_id, worker_id="w1") == 5
        settings.OJS = {"STRICT_CHECKPOINTS": True}
        with pytest.raises(Conflict, match="it is available, not active"):
            save(job_id, worker_id="w1")
        claimed("w2")
        with pytest.raises(Conflict, match="without a worker_id"):
            save(job_id)
        with pytest.raises(ReservationLost):
            save(job_id, worker_id="w1")
        assert save(job_id, worker_id="w2") == 6

    def test_ckp_9_strict_ownership_asks_for_the_worker_of_an_active_job(self, settings: Any) -> None:
        settings.OJS = {"STRICT_OWNERSHIP": True}
        job_id = pushed()
        assert save(job_id) == 1
        claimed("w1")
        with pytest.raises(Conflict, match="without a worker_id"):
            save(job_id)
        assert save(job_id, worker_id="w1") == 2

    def test_unknown_jobs(self) -> None:
        for call in (checkpoints.read, checkpoints.clear, save):
            with pytest.raises(NotFound):
                call(UNKNOWN)

    def test_ckp_14_the_holder_renews_its_reservation(self, frozen_clock: Any) -> None:
        job_id = pushed()
        before = claimed("w1")["visible_until"]
        frozen_clock.advance(seconds=10)
        save(job_id)
        assert Job.objects.get(pk=job_id).visible_until == before
        save(job_id, worker_id="w1")
        job = Job.objects.get(pk=job_id)
        assert (job.visible_until - before).total_seconds() == 10  # type: ignore[operator]

    def test_ckp_14_a_job_with_a_reservation_of_its_own_keeps_it(self, frozen_clock: Any) -> None:
        job_id = pushed(visibility_timeout_ms=60_000)
        before = claimed("w1")["visible_until"]
        frozen_clock.advance(seconds=10)
        save(job_id, worker_id="w1", attempt=1)
        assert Job.objects.get(pk=job_id).visible_until == before

    def test_ckp_15_an_event_where_the_site_asks_for_it(self, settings: Any) -> None:
        job_id = pushed()
        save(job_id, "none")
        assert log.read(types=["job.checkpointed"]).events == []
        settings.OJS = {"EXTENSION_EVENTS": True}
        save(job_id, "seven")
        (event,) = log.read(types=["job.checkpointed"]).events
        assert {name: event["data"][name] for name in ("job_id", "sequence", "size_bytes")} == {
            "job_id": str(job_id), "sequence": 2, "size_bytes": 7,
        }  # fmt: skip
        assert "seven" not in str(event)
        assert history.entry(event)["event_type"] == "job.checkpoint_saved"


class TestItsLife:
    def test_ckp_10_it_survives_what_happens_to_a_job(self, frozen_clock: Any) -> None:
        job_id = pushed(retry={"max_attempts": 5, "backoff": {"initial_interval_ms": 1}})
        claimed()
        save(job_id, "kept")
        fail_one(Failure(job_id, error={"message": "broken"}))
        frozen_clock.advance(seconds=60)
        assert envelope.render(claimed())["checkpoint"] == {"state": "kept", "sequence": 1}
        requeue([job_id])
        (row,) = fetch(Fetch(["default"], 1, "w2", visibility_ms=1000))
        assert envelope.render(row)["checkpoint"] == {"state": "kept", "sequence": 1}
        frozen_clock.advance(seconds=2)
        apply_due()
        assert Job.objects.get(pk=job_id).state == "available"
        assert envelope.render(claimed())["last_checkpoint"] == "kept"

    def test_ckp_10_it_survives_its_worker(self, frozen_clock: Any) -> None:
        job_id = pushed(visibility_timeout_ms=3_600_000)
        beat(Beat("silent"))
        claimed("silent")
        save(job_id, "kept", worker_id="silent")
        frozen_clock.advance(seconds=600)
        assert rescue_dead_workers() == 1
        beat(Beat("killed"))
        row = claimed("killed")
        assert envelope.render(row)["checkpoint"] == {"state": "kept", "sequence": 1}
        hand_back("killed", death=Death("SIGKILL", running=frozenset({(job_id, row["attempt"])})))
        assert Job.objects.get(pk=job_id).state == "available"
        assert envelope.render(claimed())["last_checkpoint"] == "kept"

    def test_ckp_11_without_it_the_next_attempt_has_none(self) -> None:
        job_id = pushed()
        claimed()
        save(job_id, "kept")
        requeue([job_id])
        checkpoints.clear(job_id)
        assert envelope.render(claimed()).keys().isdisjoint({"checkpoint", "last_checkpoint"})

    @pytest.mark.parametrize("end", ["complete", "cancel"])
    def test_ckp_12_it_goes_some_minutes_after_the_end(self, end: str, frozen_clock: Any) -> None:
        job_id, other = pushed(), pushed()
        claimed(count=2)
        save(job_id, "kept")
        save(other, "live")
        if end == "complete":
            ack_one(Ack(job_id, None))
        else:
            cancel_one(job_id)
        frozen_clock.advance(seconds=299)
        assert retention.prune()["checkpoints"] == 0
        found = checkpoints.read(job_id)
        assert found is not None
        assert found.state == "kept"
        frozen_clock.advance(seconds=1, milliseconds=1)  # the two were pushed one after the other
        assert retention.prune()["checkpoints"] == 1
        assert checkpoints.read(job_id) is None
        assert Job.objects.get(pk=job_id).resumable is None
        assert Job.objects.get(pk=other).resumable is True

    def test_ckp_12_it_is_readable_for_a_minute_whatever_the_site_sets(self, frozen_clock: Any, settings: Any) -> None:
        settings.OJS = {"CHECKPOINT_TTL": 0}
        job_id = pushed()
        save(job_id, "kept")
        cancel_one(job_id)
        assert retention.prune()["checkpoints"] == 0
        frozen_clock.advance(seconds=60, milliseconds=1)
        assert retention.prune()["checkpoints"] == 1

    def test_ckp_12_a_dead_letter_keeps_it_until_it_is_pruned(self, frozen_clock: Any) -> None:
        job_id = dead()
        frozen_clock.advance(days=100)
        assert retention.prune()["checkpoints"] == 0
        assert checkpoints.read(job_id) is not None
        frozen_clock.advance(days=100)
        assert retention.prune()["jobs"] == 1
        assert not JobCheckpoint.objects.exists()

    def test_ckp_12_a_pass_goes_on_where_the_one_before_ended(
        self, frozen_clock: Any, monkeypatch: pytest.MonkeyPatch, settings: Any
    ) -> None:
        jobs = [pushed() for _ in range(7)]
        for job_id in jobs:
            save(job_id, 1)
        for job_id in (jobs[1], jobs[4], jobs[6]):
            cancel_one(job_id)
        frozen_clock.advance(seconds=301)
        monkeypatch.setattr(checkpoints, "_STRETCH", 2)
        settings.OJS = {"SEARCH_SECONDS": 0}
        assert [retention.prune()["checkpoints"] for _ in range(5)] == [1, 0, 1, 1, 0]
        assert JobCheckpoint.objects.count() == 4

    def test_ckp_13_a_retry_keeps_it(self) -> None:
        job_id = dead()
        retry_one(job_id)
        assert envelope.render(claimed())["last_checkpoint"] == "so far"
        assert save(job_id, "next") == 2

    def test_ckp_13_a_retry_by_a_rule_keeps_it(self, frozen_clock: Any) -> None:
        dead()
        replay.put(replayrules.parse({"name": "again", "filter": {"queue": "default"}, "delay": "PT1M"}))
        frozen_clock.advance(seconds=61)
        assert replay.replay() == 1
        assert envelope.render(claimed())["last_checkpoint"] == "so far"

    def test_ckp_16_deleting_a_job_takes_it_along(self) -> None:
        gone, kept = dead(), dead()
        delete_ended([gone])
        assert list(JobCheckpoint.objects.values_list("pk", flat=True)) == [kept]

    def test_a_save_belongs_to_the_callers_transaction(self) -> None:
        job_id = pushed()
        save(job_id, "before")
        with transaction.atomic():
            save(job_id, "inside")
            transaction.set_rollback(True)
        found = checkpoints.read(job_id)
        assert found is not None
        assert (found.state, found.sequence) == ("before", 1)


class TestStatements:
    def test_ckp_16_a_claim_asks_for_them_where_a_job_has_one_and_once(self) -> None:
        def statements() -> tuple[int, int]:
            with CaptureQueriesContext(connection) as context:
                rows = fetch(Fetch(["default"], 10))
            table = JobCheckpoint._meta.db_table
            return len(rows), sum(table in query["sql"] for query in context.captured_queries)

        for _ in range(3):
            pushed()
        assert statements() == (3, 0)
        jobs = [pushed() for _ in range(4)]
        for job_id in jobs[:2]:
            save(job_id, 1)
        assert statements() == (4, 1)

    def test_ckp_16_deleting_jobs_without_one_asks_for_none(self) -> None:
        job_id = pushed()
        cancel_one(job_id)
        with CaptureQueriesContext(connection) as context:
            delete_ended([job_id])
        assert JobCheckpoint._meta.db_table not in str(context.captured_queries)

    def test_a_save_is_four_statements_and_the_first_three(self) -> None:
        job_id = pushed()
        row = claimed("w1")

        def statements(act: Callable[[], Any]) -> list[str]:
            with CaptureQueriesContext(connection) as context:
                act()
            texts = [query["sql"].removeprefix("1 times: ") for query in context.captured_queries]
            return [text.split()[0] for text in texts if not text.startswith(("SAVEPOINT", "RELEASE", "DELETE"))]

        def saving() -> None:
            save(job_id, 1, worker_id="w1", attempt=row["attempt"])

        assert statements(saving) == ["SELECT", "INSERT", "UPDATE"]
        assert statements(saving) == ["SELECT", "SELECT", "UPDATE", "UPDATE"]


@pytest.mark.django_db(transaction=True)
def test_ckp_5_saves_of_several_threads_take_turns() -> None:
    job_id = pushed()
    claimed("w1")
    sequences: list[int] = []
    start = threading.Barrier(6)

    def work() -> None:
        start.wait()
        try:
            sequences.extend(save(job_id, {"by": n}, worker_id="w1") for n in range(5))
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(sequences) == list(range(1, 31))
    found = checkpoints.read(job_id)
    assert found is not None
    assert found.sequence == 30


@pytest.mark.django_db(transaction=True)
def test_ckp_4_of_saves_with_the_same_sequence_one_counts() -> None:
    job_id = pushed()
    claimed("w1")
    start = threading.Barrier(4)
    kept: dict[int, list[int]] = {}

    def work(number: int) -> None:
        try:
            for sequence in range(1, 6):
                start.wait(60)
                with contextlib.suppress(Conflict):
                    save(job_id, number, sequence=sequence, worker_id="w1")
                    kept.setdefault(sequence, []).append(number)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(kept[sequence]) for sequence in range(1, 6)] == [1] * 5
    found = checkpoints.read(job_id)
    assert found is not None
    assert (found.sequence, [found.state]) == (5, kept[5])
