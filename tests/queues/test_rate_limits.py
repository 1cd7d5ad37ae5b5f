"""Limits that are overshot, that block what they should not, or that outlive their reason."""

from __future__ import annotations

import datetime as dt
import json
import sqlite3
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_ojs import clock, spellings
from django_ojs.access import Limits
from django_ojs.errors import InvalidPayload, InvalidRequest, NotFound
from django_ojs.events import log
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack, ack_one, fail_one
from django_ojs.jobs.push import push
from django_ojs.jobs.timers import apply_due
from django_ojs.limits import claim as limited_claim
from django_ojs.limits import ratelimits
from django_ojs.models import Job, Queue, RateLimit, RateStart
from django_ojs.queues import configuration
from django_ojs.queues.configuration import configure, pause, resume
from django_ojs.queues.deletion import remove
from django_ojs.retention import prune
from django_ojs.rules import ratelimit
from django_ojs.rules.ratelimit import RatePolicy, Window
from tests.queues.conftest import assert_exact

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("long_memory")]


def make(count: int = 1, queue: str = "q", type: str = "a.b", **fields: Any) -> list[Any]:
    rows = [item.row for item in push([{"type": type, "args": [i], "queue": queue, **fields} for i in range(count)])]
    return [row["id"] for row in rows if row]


def claim(count: int = 10, queue: str = "q", **options: Any) -> list[Any]:
    return [row["id"] for row in fetch(Fetch([queue], count=count, **options))]


def done(ids: list[Any]) -> None:
    ack([Ack(job) for job in ids])


class TestForms:
    @pytest.mark.parametrize(
        "given, policy",
        [
            (
                {"key": "k", "concurrency": 3, "rate": {"limit": 5, "period": "PT1M"}, "on_limit": "drop"},
                RatePolicy("k", 3, Window(5, 60_000), on_limit="drop"),
            ),
            ({"key": "k", "rate": 1, "period": "second"}, RatePolicy("k", rate=Window(1, 1_000))),
            ({"key": "k", "rate": 2, "period_ms": 250}, RatePolicy("k", rate=Window(2, 250))),
            ({"key": "k", "throttle": {"limit": 2, "period_seconds": 3}}, RatePolicy("k", throttle=Window(2, 3_000))),
            ({"max_per_second": 4}, RatePolicy(throttle=Window(4, 1_000))),
            ({"max_per_second": 0.5}, RatePolicy(throttle=Window(1, 2_000))),
            (
                {"max_per_second": 4, "concurrency": 2, "limit": 7, "period": "1h", "on_limit": "drop"},
                RatePolicy("", 2, Window(7, 3_600_000), Window(4, 1_000), "drop"),
            ),
            ({"max_per_second": 4, "throttle": {"limit": 1, "period": "1s"}}, RatePolicy(throttle=Window(1, 1_000))),
            ({"limit": 7, "period": "1h"}, RatePolicy(rate=Window(7, 3_600_000))),
            ({"key": "k", "concurrency": 0}, RatePolicy("k", 0)),
            ({"key": "only.key"}, RatePolicy("only.key")),
        ],
    )
    def test_every_form_is_read_and_kept(self, given: Any, policy: RatePolicy) -> None:
        assert spellings.read_override(given) == policy
        assert ratelimit.from_json(ratelimit.to_json(policy)) == policy

    @pytest.mark.parametrize(
        "given",
        [
            5, [], {}, {"key": "-x", "concurrency": 1}, {"key": 5, "concurrency": 1}, {"key": "k", "concurrency": -1},
            {"key": "k", "concurrency": True}, {"key": "k", "rate": 1},
            {"key": "k", "rate": {"limit": 0, "period": "1s"}},
            {"key": "k", "rate": {"limit": 1, "period": "PT0S"}}, {"key": "k", "throttle": 5}, {"max_per_second": 0},
            {"max_per_second": "1"}, {"max_per_second": 1, "on_limit": "explode"},
            {"max_per_second": 1, "concurrency": 0}, {"key": "k", "concurrency": 1, "on_limit": "explode"},
            {"key": "k" * 256},
            {"key": "k", "concurrency": 1, "scope": "moon"}, {"on_limit": "wait"}, {"max_per_second": float("inf")},
            {"key": "queue:other", "concurrency": 1}, {"key": "type:pay.run"}, {"key": "queue:", "concurrency": 1},
            {"key": "k", "concurrency": 0}, {"concurrency": 0},
        ],
    )  # fmt: skip
    def test_a_bad_policy_is_refused_and_stores_nothing(self, given: Any) -> None:
        with pytest.raises(InvalidPayload):
            make(rate_limit=given)
        assert not Job.objects.exists()


class TestConcurrency:
    def test_one_claim_for_many_never_overshoots_and_ends_free_room(self) -> None:
        make(8, rate_limit={"key": "k", "concurrency": 3})
        first = claim(8)
        assert (len(first), claim(8)) == (3, [])
        done(first[:2])
        assert len(claim(8)) == 2
        assert_exact()

    def test_a_full_key_blocks_neither_other_keys_nor_free_jobs(self) -> None:
        make(5, rate_limit={"key": "a", "concurrency": 1}, priority=9)
        other = make(1, rate_limit={"key": "b", "concurrency": 1})
        free = make(2)
        assert set(claim(10)) >= {*other, *free}
        assert len(Job.objects.filter(state="active", rate_key="a")) == 1

    def test_more_blocked_jobs_than_one_look_takes_in_do_not_hide_the_rest(self) -> None:
        make(450, rate_limit={"key": "a", "concurrency": 1}, priority=9)
        free = make(2)
        assert set(claim(3)) > set(free)

    def test_a_job_behind_more_shut_keys_than_one_claim_looks_at_is_reached(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(limited_claim, "LEAST", 2)
        monkeypatch.setattr(limited_claim, "ROUNDS", 2)
        monkeypatch.setattr(limited_claim, "LEFT_OUT_SECONDS", 1000.0)
        for number in range(11):
            make(2, rate_limit={"key": f"k{number}", "concurrency": 1})
        running = claim(50)
        free = make(3)
        assert [claim(1) for _ in range(4)] == [[], [], free[:1], free[1:2]], "four keys of eleven at a time"
        done(running[6:7])
        assert claim(1) == free[2:], "the open key is one that is still left out"
        monkeypatch.setattr(limited_claim, "LEFT_OUT_SECONDS", 0.0)
        assert claim(1) == []
        assert [bool(claim(1)) for _ in range(3)] == [False, True, False], "all keys are looked at again"

    def test_no_number_of_shut_keys_is_too_many(self) -> None:
        """On SQLite 1,000 conditions were: a FETCH was answered with 500, for as long as so many keys were shut."""
        limits = [{"key": f"k{number}", "concurrency": 1} for number in range(1100)]
        push([{"type": "a.b", "args": [], "queue": "q", "rate_limit": limit} for limit in limits * 2])
        assert len(claim(1000)) + len(claim(1000)) == 1100
        free = make()
        assert [*claim(), *claim()] == free

    @pytest.mark.sqlite
    def test_more_shut_keys_than_a_statement_takes_parameters_are_not_too_many(self) -> None:
        """SQLite takes 32,766 where it is built as it comes, and a claim of 450 jobs looks at more than 16,000 keys."""
        limits = [{"key": f"k{number}", "concurrency": 1} for number in range(600)]
        push([{"type": "a.b", "args": [], "queue": "q", "rate_limit": limit} for limit in limits * 2])
        assert len(claim(1000)) == 600
        free = make()
        most = connection.connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 1100)
        try:
            assert claim(1) == free
        finally:
            connection.connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, most)

    def test_an_operators_zero_stops_a_key(self) -> None:
        make(1, rate_limit={"key": "k", "concurrency": 1})
        ratelimits.override("k", {"concurrency": 0})
        assert claim() == []

    def test_a_key_holds_across_queues_and_each_job_is_tested_by_its_own_numbers(self) -> None:
        make(2, "a", rate_limit={"key": "k", "concurrency": 1})
        make(2, "b", rate_limit={"key": "k", "concurrency": 3})
        assert len(fetch(Fetch(["a", "b"], count=10))) == 3
        assert Job.objects.filter(queue="b", state="active").count() == 2

    def test_a_queues_concurrency(self) -> None:
        make(4)
        running = claim(1)
        configure("q", {"concurrency": 2})
        assert (len(claim(10)), claim(10)) == (1, [])
        make(4, "other")
        assert len(claim(10, "other")) == 4
        done(running)
        assert len(claim(10)) == 1
        configure("q", {"concurrency": None})
        assert len(claim(10)) == 1
        assert not Queue.objects.get(name="q").limited

    def test_without_a_key_it_counts_those_of_the_queue_that_say_so(self) -> None:
        free = make(2)
        assert claim() == free
        own = make(3, rate_limit={"concurrency": 2})
        assert claim() == own[:2]
        shown = ratelimits.inspect("queue:q")
        assert (shown["concurrency"], shown["waiting"]) == ({"limit": 2, "active": 2, "available": 0}, 1)
        done(free)
        assert claim() == []
        done(own[:1])
        configure("q", {"concurrency": 2})
        make(1, priority=1)
        assert len(claim()) == 1

    def test_those_that_wait_for_it_do_not_hide_the_rest_of_the_queue(self) -> None:
        make(450, rate_limit={"concurrency": 1}, priority=9)
        free = make(2)
        assert set(claim(3)) > set(free)

    def test_the_template_limits_each_queue_by_itself(self) -> None:
        configure("_default", {"concurrency": 1})
        configure("b", {"concurrency": 2})
        make(3, "a")
        make(3, "b")
        assert (len(claim(9, "a")), len(claim(9, "b"))) == (1, 2)

    def test_a_job_type_is_limited_in_every_queue(self) -> None:
        make(2, "a", type="slow.thing")
        make(2, "b", type="slow.thing")
        free = make(1, "b", type="fast.thing")
        ratelimits.override("type:slow.thing", {"concurrency": 1})
        assert len(fetch(Fetch(["a", "b"], count=9))) == 2
        assert Job.objects.get(pk=free[0]).state == "active"
        ratelimits.clear_override("type:slow.thing")
        assert len(fetch(Fetch(["a", "b"], count=9))) == 3
        assert not Queue.objects.get(name="_default").limited

    def test_a_paused_queue_stays_paused(self) -> None:
        make(1, rate_limit={"key": "k", "concurrency": 1})
        pause("q")
        assert claim() == []


class TestRate:
    def test_the_window_slides(self, frozen_clock: Any) -> None:
        make(9, rate_limit={"key": "k", "rate": {"limit": 2, "period": "PT10S"}})
        assert len(claim(1)) == 1
        frozen_clock.advance(seconds=6)
        assert (len(claim(9)), claim(9)) == (1, [])
        frozen_clock.advance(seconds=5)
        assert (len(claim(9)), claim(9)) == (1, [])
        frozen_clock.advance(seconds=6)
        assert len(claim(9)) == 1

    def test_retries_consume_slots(self, frozen_clock: Any) -> None:
        (job,) = make(1, rate_limit={"key": "k", "rate": {"limit": 1, "period": "PT1M"}},
                      retry={"initial_interval": "1s", "jitter": False})  # fmt: skip
        claim()
        fail_one(Failure(job, {"message": "no"}))
        frozen_clock.advance(seconds=2)
        assert claim() == []
        assert Job.objects.get(pk=job).state == "available"
        frozen_clock.advance(seconds=60)
        assert claim() == [job]

    def test_a_retry_that_has_just_come_due_is_claimed_by_the_same_fetch(self, frozen_clock: Any) -> None:
        (job,) = make(1, rate_limit={"key": "k", "concurrency": 1}, retry={"initial_interval": "1s", "jitter": False})
        claim()
        fail_one(Failure(job, {"message": "no"}))
        frozen_clock.advance(seconds=2)
        assert claim() == [job]

    def test_a_queues_rate_counts_all_of_its_jobs(self, frozen_clock: Any) -> None:
        configure("q", {"rate_limit": {"limit": 3, "period": "PT1M"}})
        make(3)
        make(3, rate_limit={"key": "k", "concurrency": 9})
        assert (len(claim(9)), claim(9)) == (3, [])
        frozen_clock.advance(seconds=61)
        assert len(claim(9)) == 3

    def test_a_start_is_kept_for_the_longest_window_of_the_jobs_that_wait(self, frozen_clock: Any) -> None:
        first = make(1, rate_limit={"key": "k", "rate": {"limit": 9, "period": "PT1S"}}, priority=2)
        plain = make(1, rate_limit={"key": "k", "concurrency": 9}, priority=1)
        (patient,) = make(1, rate_limit={"key": "k", "rate": {"limit": 2, "period": "PT1H"}})
        assert (claim(1), claim(1)) == (first, plain)
        frozen_clock.advance(minutes=30)
        assert claim() == [], "both have started within the hour"
        frozen_clock.advance(minutes=31)
        assert claim() == [patient]

    def test_old_starts_are_forgotten(self, frozen_clock: Any) -> None:
        make(2, rate_limit={"key": "k", "rate": {"limit": 2, "period": "PT10S"}})
        claim(2)
        assert RateStart.objects.get().count == 2
        frozen_clock.advance(seconds=11)
        prune()
        assert not RateStart.objects.exists()


class TestThrottle:
    def test_starts_are_spaced_evenly(self, frozen_clock: Any) -> None:
        make(5, rate_limit={"key": "k", "throttle": {"limit": 2, "period": "PT10S"}})
        assert (len(claim(5)), claim(5)) == (1, [])
        frozen_clock.advance(seconds=4.9)
        assert claim(5) == []
        frozen_clock.advance(seconds=0.1)
        assert len(claim(5)) == 1

    def test_max_per_second_without_a_key_holds_for_those_of_the_queue_that_say_so(self, frozen_clock: Any) -> None:
        make(3, rate_limit={"max_per_second": 1})
        assert (len(claim(5)), claim(5)) == (1, [])
        plain = make(2)
        assert claim(5) == plain
        frozen_clock.advance(seconds=1.5)
        assert len(claim(5)) == 1
        assert ratelimits.inspect("queue:q")["throttle"]["limit"] == 1

    def test_of_a_queue_with_limits_it_changes_nothing_and_holds(self, frozen_clock: Any) -> None:
        configure(
            "q", {"rate_limit": {"throttle": {"limit": 1, "period": "PT1S"}, "rate": {"limit": 9, "period": "P1D"}}}
        )
        first, second = make(2, rate_limit={"throttle": {"limit": 1, "period": "PT1H"}}, priority=2)
        counted = make(2, rate_limit={"rate": {"limit": 2, "period": "PT2H"}}, priority=1)
        free = make(3)
        started = []
        for _ in range(5):
            started += claim()
            frozen_clock.advance(seconds=2)
        assert started == [first, counted[0], *free]
        frozen_clock.advance(hours=1)
        assert claim() == [second]
        frozen_clock.advance(hours=3)
        assert claim() == counted[1:]

    def test_of_a_queue_with_limits_each_keeps_its_own_distance_to_the_start_before(self, frozen_clock: Any) -> None:
        def own(period: str, priority: int) -> Any:
            throttle = {"limit": 1, "period": period}
            return make(1, rate_limit={"throttle": throttle, "on_limit": "reschedule"}, priority=priority)

        configure("q", {"concurrency": 99})
        slow, quick = own("PT1H", 2), own("PT1S", 1)
        assert claim() == slow
        frozen_clock.advance(seconds=1)
        assert claim() == quick

    @pytest.mark.parametrize("limit", [{"max_per_second": 0.001}, {"concurrency": 1}, {"limit": 1, "period": "P1D"}])
    def test_a_jobs_own_limit_changes_nothing_of_the_queue(self, limit: Any) -> None:
        make(1, rate_limit=limit)
        queue = Queue.objects.get(name="q")
        assert (queue.config or {}, queue.limited) == ({}, False)
        claim(1)
        plain = make(2)
        assert claim(5) == plain

    def test_what_an_operator_set_is_not_replaced_by_a_job(self) -> None:
        configure("q", {"rate_limit": {"limit": 5, "period": "PT1M"}})
        make(1, rate_limit={"max_per_second": 100})
        assert Queue.objects.get(name="q").config["rate_limit"] == {"limit": 5, "period": "PT1M"}


class TestOnLimit:
    def test_reschedule_puts_the_job_off_until_there_is_room(self, frozen_clock: Any) -> None:
        policy = {"key": "k", "rate": {"limit": 1, "period": "PT10S"}, "on_limit": "reschedule"}
        make(2, rate_limit=policy)
        claim(1)
        frozen_clock.advance(seconds=4)
        assert claim() == []
        waiting = Job.objects.get(state="available")
        assert waiting.due_at == clock.now() + dt.timedelta(seconds=6)
        frozen_clock.advance(seconds=6)
        assert claim() == [waiting.pk]
        assert_exact()

    def test_drop_discards_and_says_why(self) -> None:
        make(3, rate_limit={"key": "k", "concurrency": 1, "on_limit": "drop"})
        assert len(claim(9)) == 1
        dropped = Job.objects.filter(state="discarded")
        assert {job.error["type"] for job in dropped} == {"rate_limited"}
        assert len(dropped) == 2
        assert [event["type"] for event in log.read(job_id=dropped[0].pk).events] == ["job.enqueued", "job.discarded"]
        assert len(log.read(types=["rate_limit.dropped"]).events) == 2
        assert_exact()


class TestDynamic:
    def test_a_worker_may_shut_a_key_for_a_while(self, frozen_clock: Any) -> None:
        first, second = make(2, rate_limit={"key": "k", "concurrency": 9})
        claim(1)
        until = (clock.now() + dt.timedelta(minutes=5)).isoformat()
        fail_one(Failure(first, {"message": "429", "rate_limit_until": until}))
        frozen_clock.advance(minutes=4)
        assert claim() == []
        assert "blocked_until" in ratelimits.inspect("k")
        frozen_clock.advance(minutes=2)
        assert set(claim()) == {first, second}
        (event,) = log.read(types=["rate_limit.dynamic_adjusted"]).events
        assert event["data"]["key"] == "k"

    def test_an_instant_that_has_passed_tells_of_nothing(self) -> None:
        first, second = make(2, rate_limit={"key": "k", "concurrency": 9})
        claim(1)
        past = (clock.now() - dt.timedelta(seconds=1)).isoformat()
        fail_one(Failure(first, {"message": "429", "rate_limit_until": past}))
        assert claim() == [second]
        assert not log.read(types=["rate_limit.dynamic_adjusted"]).events

    def test_who_shuts_the_key_of_a_queue_shuts_it_for_those_that_name_a_limit(self) -> None:
        configure("q", {"concurrency": 9})
        (first, second), free = make(2, rate_limit={"max_per_second": 1000}, priority=1), make(1, type="of.others")
        assert claim(1) == [first]
        until = (clock.now() + dt.timedelta(hours=1)).isoformat()
        fail_one(Failure(first, {"message": "slow down", "rate_limit_until": until}, limits=Limits(types=("a.*",))))
        assert claim(1) == free
        assert Job.objects.get(pk=second).state == "available"
        make(1)
        assert len(claim(5)) == 1

    def test_a_bad_instant_is_refused_before_anything_happens(self) -> None:
        (job,) = make(1, rate_limit={"key": "k", "concurrency": 9})
        claim()
        with pytest.raises(InvalidRequest):
            fail_one(Failure(job, {"message": "no", "rate_limit_until": "tomorrow"}))
        assert Job.objects.get(pk=job).state == "active"


class TestOverride:
    def test_it_replaces_what_jobs_and_queue_say_until_it_ends(self, frozen_clock: Any) -> None:
        make(5, rate_limit={"key": "k", "concurrency": 1})
        until = (clock.now() + dt.timedelta(minutes=5)).isoformat()
        ratelimits.override("k", {"concurrency": 3, "expires_at": until})
        assert len(claim(9)) == 3
        frozen_clock.advance(minutes=6)
        assert claim(9) == []
        prune()
        assert RateLimit.objects.get(key="k").override is None

    @pytest.mark.parametrize(
        "template, own",
        [
            ({"concurrency": 1}, {"rate_limit": {"concurrency": 2}}),
            ({"rate_limit": {"concurrency": 1}}, {"concurrency": 2}),
        ],
    )
    def test_what_a_queue_says_counts_over_the_template_in_whatever_words(
        self, template: dict[str, Any], own: dict[str, Any]
    ) -> None:
        configure("_default", template)
        configure("q", own)
        make(3)
        assert len(claim()) == 2

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("again", [make, lambda: (pause("q"), resume("q"), make())])
    def test_it_holds_for_a_queue_that_was_deleted_and_comes_back(self, again: Any) -> None:
        make()
        ratelimits.override("queue:q", {"concurrency": 0})
        remove("q", "discard")
        again()
        assert claim() == []

    @pytest.mark.parametrize("given", [{}, {"concurrency": "x"}, {"expires_at": "2026-01-01"}, {"limit": 5}])
    def test_nonsense_is_refused(self, given: Any) -> None:
        with pytest.raises(InvalidRequest):
            ratelimits.override("k", given)
        assert not RateLimit.objects.exists()

    def test_what_nobody_named_cannot_be_cleared(self) -> None:
        with pytest.raises(NotFound):
            ratelimits.clear_override("k")

    def test_keys_that_differ_in_case_are_two(self) -> None:
        make(1, rate_limit={"key": "Key", "concurrency": 1})
        make(1, rate_limit={"key": "key", "concurrency": 1})
        assert len(claim(9)) == 2


class TestEvents:
    def test_a_limit_is_told_when_it_is_met_and_when_it_is_left_not_in_between(self) -> None:
        make(2, rate_limit={"key": "k", "concurrency": 1})
        (running,) = claim()
        for _ in range(5):
            claim()
        ack_one(Ack(running))
        claim()
        found = log.read(types=["rate_limit.exceeded", "rate_limit.released"]).events
        assert [event["type"] for event in found] == ["rate_limit.exceeded", "rate_limit.released"]
        assert (found[0]["data"]["strategy"], found[0]["data"]["limit"], found[0]["subject"]) == ("concurrency", 1, "k")


class TestCost:
    def test_jobs_without_limits_pay_nothing_and_limited_ones_a_constant(self) -> None:
        def cost(count: int) -> int:
            configuration.forget()
            with CaptureQueriesContext(connection) as captured:
                assert len(claim(count)) == count
            return len(captured)

        make(200)
        plain = cost(1)
        configure("elsewhere", {"concurrency": 1})
        make(1, "elsewhere", rate_limit={"key": "k", "concurrency": 1})
        assert (cost(1), cost(50)) == (plain, plain)
        make(200, "r", rate_limit={"key": "r", "concurrency": 500})
        costs = []
        for count in (10, 90):
            configuration.forget()
            with CaptureQueriesContext(connection) as captured:
                assert len(claim(count, "r")) == count
            costs.append(len(captured))
        assert costs[0] == costs[1]
        assert costs[0] < 22

    def test_idle_keys_are_forgotten(self, frozen_clock: Any) -> None:
        make(1, rate_limit={"key": "k", "concurrency": 1})
        done(claim())
        apply_due()
        frozen_clock.advance(days=8)
        prune()
        prune()
        assert not RateLimit.objects.filter(key="k").exists()

    def test_keys_of_queues_that_are_gone_are_forgotten(self, frozen_clock: Any) -> None:
        configure("_default", {"concurrency": 5})
        for queue in ("q", "gone"):
            make(queue=queue)
            claim(queue=queue)
        ratelimits.override("type:a.b", {"concurrency": 1})
        ratelimits.override("type:c.d", {"concurrency": 1})
        ratelimits.clear_override("type:c.d")
        ratelimits.override("queue:kept", {"concurrency": 1})
        remove("gone", "discard")
        remove("kept")
        prune()
        assert RateLimit.objects.filter(key="queue:gone").exists()
        frozen_clock.advance(days=2)
        prune()
        assert set(RateLimit.objects.values_list("key", flat=True)) == {"queue:q", "queue:kept", "type:a.b"}

    def test_a_key_that_holds_back_is_kept_without_jobs(self, frozen_clock: Any) -> None:
        make(rate_limit={"key": "k", "throttle": {"limit": 1, "period": "P30D"}})
        (first,) = claim()
        done([first])
        Job.objects.filter(pk=first).delete()
        frozen_clock.advance(days=8)
        prune()
        make(rate_limit={"key": "k", "throttle": {"limit": 1, "period": "P30D"}})
        assert claim() == []


class TestHTTP:
    @pytest.fixture(autouse=True)
    def _anonymous(self, settings: Any) -> None:
        settings.OJS = {"ALLOW_ANONYMOUS": True}

    def call(self, method: str, path: str, body: Any = None) -> Any:
        text = json.dumps(body) if body is not None else ""
        return Client().generic(method, f"/ojs/v1{path}", text, content_type="application/json")

    def test_inspection_from_the_first_enqueue(self) -> None:
        assert self.call("GET", "/rate-limits/api").status_code == 404
        job = {"type": "a.b", "args": [], "queue": "q"}
        policy = {"key": "api", "concurrency": 2, "rate": {"limit": 5, "period": "PT1M"}}
        for _ in range(3):
            pushed = self.call("POST", "/jobs", {**job, "options": {"rate_limit": policy}})
        assert (pushed.status_code, pushed.headers["X-RateLimit-Limit"]) == (201, "5")
        assert pushed.json()["job"]["rate_limit"] == policy
        claim(1)
        body = self.call("GET", "/rate-limits/api").json()
        assert body["concurrency"] == {"limit": 2, "active": 1, "available": 1}
        assert (body["rate"]["current_count"], body["rate"]["period"], body["waiting_count"]) == (1, "PT1M", 2)
        assert (body["active"], body["waiting"], body["limit"], body["period"]) == (1, 2, 5, "PT1M")
        assert [item["key"] for item in self.call("GET", "/rate-limits?per_page=5").json()["items"]] == ["api"]

    def test_a_longer_list_takes_no_more_queries(self) -> None:
        def listed(number: int) -> tuple[int, list[dict[str, Any]]]:
            RateLimit.objects.all().delete()
            for index in range(number):
                kind = ("", "queue:", "type:a.b")[index % 3]
                self.call("PUT", f"/rate-limits/{kind}n{index}", {"limit": 5 + index, "period": f"PT{1 + index % 4}M"})
            with CaptureQueriesContext(connection) as captured:
                body = self.call("GET", "/rate-limits?limit=100").json()
            assert len(body["items"]) == number
            return len(captured), body["items"]

        assert listed(5)[0] == listed(30)[0]

    def test_a_list_says_of_each_what_its_own_page_says(self, frozen_clock: Any) -> None:
        policy = {"key": "rate_key:api", "concurrency": 2, "rate": {"limit": 5, "period": "PT1M"}}
        for queue in ("a", "b"):
            self.call("PUT", f"/admin/queues/{queue}/rate-limit", {"limit": 3, "period": "PT10S"})
            for _ in range(3):
                self.call("POST", "/jobs", {"type": f"t.{queue}", "args": [], "queue": queue, "rate_limit": policy})
        self.call("PUT", "/rate-limits/type:t.a", {"limit": 9, "period": "PT1H"})
        self.call("PUT", "/rate-limits/queue:b", {"concurrency": 9})
        self.call("POST", "/workers/fetch", {"queues": ["a", "b"], "count": 2})
        frozen_clock.advance(seconds=20)
        self.call("PUT", "/rate-limits/queue", {"concurrency": 1})
        items = {item["key"]: item for item in self.call("GET", "/rate-limits").json()["items"]}
        assert {"rate_key:api", "type:t.a", "queue:b", "queue"} <= items.keys()
        for key, item in items.items():
            assert self.call("GET", f"/rate-limits/{key}").json() == item
        assert (items["rate_key:api"]["active"], items["rate_key:api"]["waiting"]) == (2, 4)
        assert items["rate_key:api"]["rate"]["current_count"] == 2
        assert items["queue"]["waiting"] == 0

    def test_override_and_back(self) -> None:
        put = self.call("PUT", "/rate-limits/api", {"limit": 9, "period": "PT1S"})
        assert (put.status_code, put.json()["override"]) == (200, {"rate": {"limit": 9, "period": "PT1S"}})
        assert self.call("DELETE", "/rate-limits/api/override").status_code == 204
        assert "override" not in self.call("GET", "/rate-limits/api").json()
        assert self.call("PUT", "/rate-limits/api", {"limit": -1, "period": "PT1S"}).status_code == 400
        assert self.call("PUT", "/rate-limits/!", {"concurrency": 1}).status_code == 400
        assert self.call("PUT", "/rate-limits/api", {"concurrency": 1, "expires_in": "PT1H"}).status_code == 400

    def test_a_queues_limits_under_admin(self) -> None:
        put = self.call("PUT", "/admin/queues/q/rate-limit", {"concurrency": 2, "limit": 5, "period": "PT1M"})
        assert put.json()["config"] == {"concurrency": 2, "rate_limit": {"limit": 5, "period": "PT1M"}}
        assert self.call("GET", "/rate-limits/queue:q").json()["concurrency"]["limit"] == 2

    def test_a_job_without_limit_has_no_headers(self) -> None:
        pushed = self.call("POST", "/jobs", {"type": "a.b", "args": []})
        assert "X-RateLimit-Limit" not in pushed.headers

    def test_the_headers_tell_of_the_numbers_that_hold(self) -> None:
        job = {"type": "a.b", "args": [], "rate_limit": {"key": "api"}}
        assert "X-RateLimit-Limit" not in self.call("POST", "/jobs", job).headers, "it names a key, and no number"
        self.call("PUT", "/rate-limits/api", {"concurrency": 4})
        for numbers in ({}, {"concurrency": 9}, {"limit": 9, "period": "PT1M"}):
            pushed = self.call("POST", "/jobs", job | {"rate_limit": {"key": "api", **numbers}})
            assert (pushed["X-RateLimit-Limit"], pushed["X-RateLimit-Remaining"]) == ("4", "4")
