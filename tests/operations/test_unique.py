"""Unique jobs: one of each, whatever the strategy, the batch or the number of producers."""

from __future__ import annotations

import datetime as dt
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from django_ojs import clock, states
from django_ojs.errors import Duplicate, InvalidRequest, OJSError
from django_ojs.events import log
from django_ojs.jobs.cancel import cancel_one
from django_ojs.jobs.candidates import Pushed
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack_one, fail_one
from django_ojs.jobs.push import push, push_each
from django_ojs.jobs.read import info
from django_ojs.models import Job, UniqueLock
from django_ojs.queues import configuration
from django_ojs.rules import envelope
from django_ojs.rules.ids import new_job_id
from django_ojs.store import store_of
from django_ojs.store.postgresql import PostgreSQLStore

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("long_memory")]


def job(args: Any = (1,), /, type: str = "test.unique", **unique: Any) -> dict[str, Any]:
    return {"type": type, "args": list(args), "unique": unique}


def make(*args: Any, **unique: Any) -> Any:
    return push([job(*args, **unique)])[0].row


def make_with(policy: dict[str, Any], **more: Any) -> Any:
    return push([{**job(["bm9uc2Vuc2U="]), "unique": policy, **more}])[0].row


def state(row: Any) -> str:
    return str(info(row["id"])["state"])


class TestReject:
    def test_the_same_job_is_refused_and_the_existing_one_named(self) -> None:
        row = make()
        with pytest.raises(Duplicate) as refusal:
            make()
        details = refusal.value.details
        assert details["existing_job_id"] == str(row["id"])
        assert details["existing_job_state"] == details["existing_state"] == "available"
        assert details["unique_key"] == details["uniqueness_key"] == row["unique_key"]
        assert Job.objects.count() == 1

    @pytest.mark.parametrize(
        "other", [job([2]), job(type="test.other"), job([1, 1]), {"type": "test.unique", "args": [1]}]
    )
    def test_other_work_is_not(self, other: dict[str, Any]) -> None:
        make()
        push([other])
        assert Job.objects.count() == 2

    def test_a_job_without_a_policy_is_in_nobodys_way(self) -> None:
        push([{"type": "test.unique", "args": [1]}])
        make()
        assert Job.objects.count() == 2

    @pytest.mark.parametrize("mark", [{"ojs_encoded": True}, {"ojs.codec.encodings": ["binary/encrypted"]}])
    def test_encoded_arguments_make_no_key(self, mark: dict[str, Any]) -> None:
        """Neither one of their own nor one of what is left; keys of other things are made (orchestration 7)."""
        encoded = {"meta": {**mark, "key": "7"}}
        for policy in ({}, {"keys": ["queue", "args"]}, {"args_keys": ["customer"]}):
            for _ in range(2):
                assert make_with(policy, **encoded)["unique_key"] == ""
        for policy in ({"keys": ["type"]}, {"keys": ["queue"]}, {"keys": ["meta"], "meta_keys": ["key"]}):
            assert make_with(policy, **encoded)["unique_key"]
            with pytest.raises(Duplicate):
                make_with(policy, **encoded)
        with pytest.raises(InvalidRequest):
            make_with({"on_conflict": "no"}, **encoded)

    def test_the_order_and_spelling_of_arguments_do_not_matter(self) -> None:
        make([{"b": 1.0, "a": "e\u0301"}])
        with pytest.raises(Duplicate):
            make([{"a": "\u00e9", "b": 1}])

    def test_large_numbers_stay_apart(self) -> None:
        make([9007199254740993])
        make([9007199254740992])

    def test_only_the_named_arguments_count(self) -> None:
        make([{"user": 1, "at": 5}], args_keys=["user"])
        with pytest.raises(Duplicate):
            make([{"user": 1, "at": 6}], args_keys=["user"])
        make([{"user": 2, "at": 5}], args_keys=["user"])

    def test_the_queue_counts_only_where_the_policy_says_so(self) -> None:
        push([job(keys=["type"]) | {"queue": "a"}])
        with pytest.raises(Duplicate):
            push([job(keys=["type"]) | {"queue": "b"}])
        push([job(keys=["type", "queue"]) | {"queue": "a"}])
        push([job(keys=["type", "queue"]) | {"queue": "b"}])

    def test_meta_counts_by_its_named_keys(self) -> None:
        policy = {"keys": ["type", "meta"], "meta_keys": ["tenant", "absent"]}
        push([job(**policy) | {"meta": {"tenant": 1, "trace_id": "a"}}])
        with pytest.raises(Duplicate):
            push([job(**policy) | {"meta": {"tenant": 1, "trace_id": "b"}}])
        push([job(**policy) | {"meta": {"tenant": 2}}])

    @pytest.mark.parametrize("name, blocks", [("active", True), ("retryable", True), ("scheduled", True),
                                              ("pending", True), ("completed", False), ("cancelled", False),
                                              ("discarded", False)])  # fmt: skip
    def test_live_jobs_block_and_ended_ones_do_not(self, name: str, blocks: bool) -> None:
        bring(name)
        if blocks:
            with pytest.raises(Duplicate):
                make()
        else:
            make()

    @pytest.mark.parametrize("name", ["completed", "cancelled", "discarded"])
    def test_ended_jobs_block_where_the_policy_lists_their_state(self, name: str) -> None:
        row = bring(name)
        with pytest.raises(Duplicate) as refusal:
            make(states=[name])
        assert refusal.value.details["existing_job_id"] == str(row["id"])

    def test_a_state_that_the_new_policy_leaves_out_does_not_block(self) -> None:
        make()
        make(states=["active"])

    def test_the_period_runs_from_the_creation_of_the_existing_job(self, frozen_clock: Any) -> None:
        make(period="PT2S")
        frozen_clock.advance(seconds=1.999)
        with pytest.raises(Duplicate):
            make(period="PT2S")
        frozen_clock.advance(seconds=0.001)
        make(period="PT2S")
        with pytest.raises(Duplicate):
            make()


def bring(name: str) -> Any:
    """A unique job in this state."""
    times = {"scheduled_at": (clock.now() + dt.timedelta(hours=1)).isoformat()} if name == "scheduled" else {}
    row: Any = push([job() | times | {"pending": name == "pending", "retry": {"max_attempts": 1}}])[0].row
    if name == "cancelled":
        cancel_one(row["id"])
    if name in ("active", "completed", "discarded", "retryable"):
        fetch(Fetch(["default"]))
    if name == "retryable":
        Job.objects.filter(pk=row["id"]).update(max_attempts=5)
    if name in ("discarded", "retryable"):
        fail_one(Failure(row["id"], {"message": "no"}))
    if name == "completed":
        ack_one(Ack(row["id"]))
    assert state(row) == name
    return row


class TestIgnore:
    def test_the_existing_job_comes_back_untouched(self) -> None:
        row = make()
        (again,) = push([job(on_conflict="ignore")])
        assert (again.status, again.row["id"] if again.row else None) == ("duplicate", row["id"])
        assert [event["type"] for event in log.read().events] == ["job.enqueued"]

    def test_a_taken_id_is_refused_all_the_same(self) -> None:
        row = make()
        with pytest.raises(Duplicate) as refusal:
            push([job(on_conflict="ignore") | {"id": str(row["id"])}])
        assert refusal.value.details["job_id"] == str(row["id"])


class TestReplace:
    @pytest.mark.parametrize("name", ["available", "scheduled", "pending", "active", "retryable"])
    def test_a_live_job_is_cancelled_and_the_new_one_stored(self, name: str) -> None:
        old = bring(name) if name != "available" else make()
        new = make(on_conflict="replace")
        assert (state(old), state(new)) == ("cancelled", "available")
        assert new["id"] != old["id"]
        cancelled = log.read(job_id=old["id"], types=["job.cancelled"]).events[0]["data"]
        assert (cancelled["cancelled_by"], cancelled["previous_state"]) == ("system:unique", name)

    def test_all_that_are_in_the_way_go(self) -> None:
        rows = [make(), make(states=["active"]), make(states=["active"])]
        make(on_conflict="replace")
        assert [state(row) for row in rows] == ["cancelled"] * 3

    def test_a_finished_job_stays_and_the_new_one_is_stored(self) -> None:
        old = bring("completed")
        new = make(on_conflict="replace", states=["completed", "available"])
        assert (state(old), state(new)) == ("completed", "available")

    def test_the_schedule_can_be_kept(self, frozen_clock: Any) -> None:
        old = bring("scheduled")
        new = push([job(on_conflict="replace_except_schedule") | {"priority": 5}])[0].row
        assert new is not None
        assert state(old) == "cancelled"
        shown = envelope.render(info(new["id"]))
        assert (shown["state"], shown["priority"]) == ("scheduled", 5)
        assert shown["scheduled_at"] == envelope.render(old)["scheduled_at"]
        assert new["due_at"] == old["due_at"] == new["wake_at"]
        assert [e["type"] for e in log.read(job_id=new["id"]).events] == ["job.scheduled"]

    def test_without_a_schedule_it_is_a_plain_replace(self) -> None:
        old = make()
        new = push([job(on_conflict="replace_except_schedule") | {"scheduled_at": "2100-01-01T00:00:00Z"}])[0].row
        assert (state(old), state(new)) == ("cancelled", "scheduled")


class TestBatch:
    def test_items_conflict_with_earlier_ones_and_nothing_is_stored(self) -> None:
        with pytest.raises(Duplicate) as refusal:
            push([job(), job([2]), job()])
        assert refusal.value.details["index"] == 2
        assert not Job.objects.exists()

    def test_an_ignored_item_points_to_the_earlier_one(self) -> None:
        first, second, third = push([job(), job(on_conflict="ignore"), job([2])])
        assert first.row is not None
        assert second.row is not None
        assert (second.status, second.row["id"], third.status) == ("duplicate", first.row["id"], "created")
        assert Job.objects.count() == 2

    def test_a_replaced_item_is_stored_cancelled(self) -> None:
        first, second = push([job(), job(on_conflict="replace")])
        assert first.row is not None
        assert second.row is not None
        assert (first.row["state"], state(first.row), state(second.row)) == ("cancelled", "cancelled", "available")
        assert [e["type"] for e in log.read(job_id=first.row["id"]).events] == ["job.enqueued", "job.cancelled"]

    def test_a_conflict_keeps_what_an_earlier_item_would_have_replaced(self) -> None:
        old, blocking = make([1]), make([2])
        with pytest.raises(Duplicate):
            push([job([1], on_conflict="replace"), job([2])])
        assert (state(old), state(blocking)) == ("available", "available")

    def test_partly_each_item_has_its_own_fate(self) -> None:
        make([1])
        taken = push([{"type": "a.b", "args": []}])[0].row
        assert taken is not None
        repeated = str(new_job_id())
        outcomes = push_each(
            [
                job([1]), job([2]), {"type": "a.b"}, job([2]), job([2], on_conflict="ignore"),
                {"type": "a.b", "args": [], "id": str(taken["id"])}, {"type": "a.b", "args": [], "id": repeated},
                {"type": "a.b", "args": [], "id": repeated},
            ]
        )  # fmt: skip
        said = [outcome.error_code if isinstance(outcome, OJSError) else outcome.status for outcome in outcomes]
        assert said == ["duplicate", "created", "invalid_payload", "duplicate", "duplicate", "duplicate", "created",
                        "duplicate"]  # fmt: skip
        assert isinstance(outcomes[3], Duplicate)
        assert isinstance(outcomes[4], Pushed)
        assert Job.objects.count() == 4

    def test_many_cost_what_few_do(self) -> None:
        costs: dict[str, list[int]] = {}
        for count in (10, 200):
            for strategy in ("replace", "ignore"):
                documents = [job([i], on_conflict=strategy) for i in range(count)]
                push(documents)
                configuration.forget()
                with CaptureQueriesContext(connection) as captured:
                    push(documents)
                costs.setdefault(strategy, []).append(len(captured))
        for strategy, (few, many) in costs.items():
            assert few == many, (strategy, few, many)
            assert many <= 24, (strategy, many)

    @pytest.mark.skipif(connection.vendor == "mysql", reason="the ORM's inserts are several statements")
    def test_one_with_a_policy_costs_three_statements_at_most(self) -> None:
        """On SQLite one more than a plain job, which takes three there."""
        make([1])
        costs = {}
        for name, document in (("plain", {"type": "a.b", "args": []}), ("unique", job([2]))):
            with CaptureQueriesContext(connection) as captured:
                push([document])
            costs[name] = [query["sql"] for query in captured if "SAVEPOINT" not in query["sql"]]
        assert len(costs["unique"]) <= max(3, len(costs["plain"]) + 1), costs

    @pytest.mark.parametrize("together", [True, False], ids=["together", "one by one"])
    @pytest.mark.django_db(transaction=True)
    def test_inside_a_transaction_a_refused_job_leaves_the_rest(
        self, together: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also where the site has the server put in the parameters, so that statements are sent one by one."""
        monkeypatch.setattr(PostgreSQLStore, "takes_scripts", together)
        with transaction.atomic():
            first = make([1])
            with pytest.raises(Duplicate):
                make([1])
            with pytest.raises(Duplicate):
                push([job([2]) | {"id": str(first["id"])}])
            make([3])
        assert set(Job.objects.values_list("state", flat=True)) == {"available"}
        assert Job.objects.count() == 2

    def test_jobs_without_a_policy_pay_nothing(self) -> None:
        push([{"type": "a.b", "args": []}])
        with CaptureQueriesContext(connection) as captured:
            push([{"type": "a.b", "args": []}])
        assert not any(UniqueLock._meta.db_table in query["sql"] for query in captured)
        assert len(captured) <= 5


@pytest.mark.parametrize(
    "unique, field",
    [
        ({"keys": ["type", "colour"]}, "unique.keys"), ({"keys": "type"}, "unique.keys"),
        ({"key": "user"}, "unique.key"), ({"keys": ["meta"]}, "unique.meta_keys"),
        ({"keys": ["type"], "args_keys": ["a"]}, "unique.args_keys"), ({"args_keys": ["nope"]}, "unique.args_keys"),
        ({"meta_keys": ["a"]}, "unique.meta_keys"), ({"period": 5}, "unique.period"),
        ({"period": "PT0S"}, "unique.period"), ({"period_ms": "1"}, "unique.period_ms"),
        ({"states": ["gone"]}, "unique.states"), ({"on_conflict": "merge"}, "unique.on_conflict"),
    ],
)  # fmt: skip
def test_a_malformed_policy_is_refused_with_its_member(unique: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        push([{"type": "a.b", "args": [{"b": 1}], "unique": unique}])
    assert refusal.value.details["field"] == field
    assert not Job.objects.exists()


def test_the_search_for_a_key_does_not_read_the_table() -> None:
    rows = [make([i]) for i in range(30)]
    with CaptureQueriesContext(connection) as captured:
        found = store_of("default").lock_live([rows[0]["unique_key"]], states.ordered(states.LIVE))
    assert [row["id"] for row in found] == [rows[0]["id"]]
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute(f"EXPLAIN {'QUERY PLAN' if connection.vendor == 'sqlite' else ''} {captured[0]['sql']}")
        plan = str(cursor.fetchall())
    assert "ojs_job_unique" in plan, plan


PRODUCERS = 20


@pytest.mark.django_db(transaction=True)
class TestConcurrency:
    def race(self, act: Any) -> list[Any]:
        """`act(i)` in many threads at once, each with a connection of its own."""
        gate = threading.Barrier(PRODUCERS)

        def run(i: int) -> Any:
            try:
                connection.ensure_connection()
                gate.wait(60)
                return act(i)
            except Duplicate as refusal:
                return refusal
            finally:
                connections.close_all()

        with ThreadPoolExecutor(PRODUCERS) as pool:
            return list(pool.map(run, range(PRODUCERS)))

    def test_of_many_producers_of_one_key_one_wins(self) -> None:
        outcomes = self.race(lambda i: make())
        won = [outcome for outcome in outcomes if not isinstance(outcome, Duplicate)]
        assert len(won) == 1
        assert Job.objects.count() == 1
        assert {o.details["existing_job_id"] for o in outcomes if isinstance(o, Duplicate)} == {str(won[0]["id"])}

    def test_everybody_who_ignores_gets_the_same_job(self) -> None:
        outcomes = self.race(lambda i: push([job(on_conflict="ignore")])[0])
        assert sorted(outcome.status for outcome in outcomes) == ["created", *["duplicate"] * (PRODUCERS - 1)]
        assert len({outcome.row["id"] for outcome in outcomes}) == 1

    def test_of_all_who_replace_the_last_is_left(self) -> None:
        self.race(lambda i: push([job(on_conflict="replace")]))
        assert Job.objects.filter(state="available").count() == 1
        assert Job.objects.filter(state="cancelled").count() == PRODUCERS - 1

    def test_overlapping_batches_in_any_order_neither_deadlock_nor_double(self) -> None:
        documents = [job([n], on_conflict="ignore") for n in range(20)]
        self.race(lambda i: push(documents if i % 2 else documents[::-1]))
        assert Job.objects.count() == 20

    def test_a_key_is_held_until_the_callers_commit(self) -> None:
        if connection.vendor == "sqlite":
            pytest.skip("the second writer waits for the first, whatever it writes")
        pushed, go_on = threading.Event(), threading.Event()

        def slow() -> None:
            try:
                with transaction.atomic():
                    make()
                    pushed.set()
                    assert go_on.wait(60)
            finally:
                connections.close_all()

        def second() -> str:
            try:
                make([2])  # another key is free
                go_on.set()
                make()
            except Duplicate:
                return "refused"
            finally:
                connections.close_all()
            return "stored"

        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(slow)
            assert pushed.wait(20)
            assert pool.submit(second).result(30) == "refused"
            first.result(30)
        assert Job.objects.count() == 2
