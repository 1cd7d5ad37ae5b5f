"""Claims from queues whose limits leave room for all that is asked for: no job is asked for its limits."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext

from django_ojs.events import log
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, ack
from django_ojs.jobs.push import push
from django_ojs.limits import ratelimits
from django_ojs.models import Job, RateStart
from django_ojs.queues import configuration
from django_ojs.queues.configuration import configure, pause
from django_ojs.store import store_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("long_memory")]


def make(count: int = 1, queue: str = "q", type: str = "a.b", **fields: Any) -> list[Any]:
    rows = [item.row for item in push([{"type": type, "args": [i], "queue": queue, **fields} for i in range(count)])]
    return [row["id"] for row in rows if row]


def claim(count: int, *queues: str, **options: Any) -> list[Any]:
    return [row["id"] for row in fetch(Fetch(queues or ("q",), count=count, columns=("id",), **options))]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The queues of which a claim read claimable."""
    found: list[str] = []
    real = type(store_of(connection.alias)).claimable

    def claimable(self: Any, choice: Any, queue: str, *args: Any) -> Any:
        found.append(queue)
        return real(self, choice, queue, *args)

    monkeypatch.setattr(type(store_of(connection.alias)), "claimable", claimable)
    return found


def test_jobs_are_claimed_in_their_order_up_to_the_count_and_counted(looks: list[str]) -> None:
    configure("q", {"concurrency": 10, "rate_limit": {"limit": 9, "period": "PT1H"}})
    low, high = make(3), make(2, priority=5)
    assert claim(4) == [*high, *low[:2]]
    assert (looks, list(RateStart.objects.values_list("key", "count"))) == ([], [("queue:q", 4)])
    assert claim(5) == low[2:]
    assert looks == []


def test_with_less_room_than_is_asked_for_the_limit_decides_and_is_told(looks: list[str]) -> None:
    configure("q", {"concurrency": 3})
    jobs = make(5)
    assert (claim(3), looks) == (jobs[:3], [])
    assert (claim(1), looks) == ([], ["q"])
    ack([Ack(job) for job in jobs[:2]])
    assert claim(2) == jobs[3:]
    assert looks == ["q"]
    told = log.read(types=["rate_limit.exceeded", "rate_limit.released"]).events
    assert [event["type"] for event in told] == ["rate_limit.exceeded", "rate_limit.released"]


def test_the_rate_counts_what_was_claimed_this_way(frozen_clock: Any) -> None:
    configure("q", {"rate_limit": {"limit": 5, "period": "PT10S"}})
    make(9)
    assert (len(claim(4)), len(claim(4)), len(claim(4))) == (4, 1, 0)
    frozen_clock.advance(seconds=11)
    assert len(claim(4)) == 4


def test_a_throttle_always_decides_job_by_job(frozen_clock: Any) -> None:
    configure("q", {"rate_limit": {"max_per_second": 1}})
    make(3)
    assert (len(claim(1)), len(claim(1))) == (1, 0)


def test_several_queues_each_have_room_of_their_own(looks: list[str]) -> None:
    configure("a", {"concurrency": 6})
    configure("b", {"concurrency": 4})
    for name in ("a", "b", "free"):
        make(3, name)
    assert len(claim(4, "a", "b", "free")) == 4
    assert Job.objects.filter(queue="a", state="active").count() == 3
    assert (len(claim(3, "a", "b", "free")), looks) == (3, [])
    assert len(claim(2, "b", "free")) == 2
    assert looks == ["b", "free"], "b has no room for two more, so each job is asked"


@pytest.mark.parametrize("allowed", [1, 2])
def test_an_override_and_a_block_count_as_well(allowed: int, frozen_clock: Any) -> None:
    configure("q", {"concurrency": 100})
    make(6)
    ratelimits.override("queue:q", {"concurrency": allowed})
    assert (len(claim(2)), len(claim(2))) == (allowed, 0)
    ratelimits.clear_override("queue:q")
    assert len(claim(2)) == 2


def test_jobs_and_types_with_keys_are_asked(looks: list[str]) -> None:
    configure("q", {"concurrency": 100})
    keyed = make(2, rate_limit={"key": "k", "concurrency": 1}, priority=9)
    make(2)
    assert claim(2)[0] == keyed[0]
    assert looks
    looks.clear()
    ratelimits.override("type:slow", {"concurrency": 1})
    make(3, "q2", type="slow")
    assert (len(claim(3, "q2")), bool(looks)) == (1, True)


def test_other_types_expired_jobs_and_paused_queues_are_left_alone() -> None:
    configure("q", {"concurrency": 100})
    make(1, expires_at="2020-01-01T00:00:00Z")
    wanted, _ = make(1), make(1, type="c.d")
    assert claim(5, types=["a.*"]) == wanted
    pause("q")
    assert claim(5) == []


def test_a_claim_costs_the_same_for_one_and_for_many_and_tries_no_plain_one() -> None:
    configure("q", {"concurrency": 1000, "rate_limit": {"limit": 1000, "period": "PT1M"}})
    make(300)
    claim(1)  # makes the row of the key

    def cost(count: int) -> int:
        configuration.defaults(["q"], connection.alias)
        with CaptureQueriesContext(connection) as captured:
            assert len(claim(count, check_worker=False, optimistic=True)) == count
        return sum("SAVEPOINT" not in query["sql"] for query in captured)

    few, many = cost(1), cost(200)
    assert few == many
    if connection.vendor == "postgresql":
        # what waits; BEGIN; the limits of the queues, its key, what counts, the claim, the starts; COMMIT
        assert few <= 8


@pytest.mark.sqlite_too
def test_claims_at_the_same_time_share_the_room_and_never_overshoot() -> None:
    configure("q", {"concurrency": 7})
    make(60)

    def some(count: int) -> list[Any]:
        try:
            return claim(count)
        finally:
            connections.close_all()

    for _ in range(4):
        with ThreadPoolExecutor(4) as pool:
            taken = [job for jobs in pool.map(some, [1, 2, 3, 2, 3, 1, 2]) for job in jobs]
        active = Job.objects.filter(state="active").count()
        assert len(taken) == len(set(taken)) == active == 7
        ack([Ack(job) for job in taken])
