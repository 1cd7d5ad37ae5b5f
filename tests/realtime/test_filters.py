"""The log and the hub agree on every filter: what one shows, the other does too."""

from __future__ import annotations

import re
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_ojs import clock, keys
from django_ojs.errors import InvalidRequest
from django_ojs.events import filters, history, ids, log, order
from django_ojs.events.catalogue import CATALOGUE, Record, of_cron, of_queue, of_worker
from django_ojs.events.filters import Filter
from django_ojs.models import Event
from django_ojs.realtime import messages

IDS = [uuid.UUID(int=(n << 80) | (7 << 76) | (2 << 62) | n) for n in range(1, 4)]
SERVICE = "ojs://django-ojs/"
TYPES = [
    "job.*",
    "*",
    "job.completed",
    "job.sch*",
    "worker.*",
    "job.stalled",
    "job.dead",
    "job.state_changed",
    "x",
    "*.y",
]
QUEUES = ["default", "mail", "Mail", "nowhere", "mail "]
JOB_TYPES = ["a.one", "a.two", "A.ONE", "b"]
SOURCES = [
    "*", "ojs://*", SERVICE, f"{SERVICE}*", f"{SERVICE}api", f"{SERVICE}a*", f"{SERVICE}workers", f"{SERVICE}workers/*",
    f"{SERVICE}workers/w%2F1", f"{SERVICE}workers/W*", f"{SERVICE}workers/w%25*", f"{SERVICE}workers/w_1", "ojs://other/*",
    f"{SERVICE}workers/%00*", f"{SERVICE}cron", f"{SERVICE}*/x",
]  # fmt: skip


def some(values: list[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(st.sampled_from(values), max_size=2).map(tuple)


FILTERS = st.builds(
    Filter, types=some(TYPES), queues=some(QUEUES), job_types=some(JOB_TYPES), sources=some(SOURCES),
    job_ids=some(IDS), workflow_ids=some(IDS), only_queues=st.none() | some(["default", "mail"]),
    only_types=st.none() | some(["a.*", "a.one", "b"]),
)  # fmt: skip


@pytest.fixture
def written(db: None, made_up_events: None) -> list[Event]:
    now = clock.now()
    records: list[Record] = [
        Record(
            name, now, component, "", IDS[n % 3], JOB_TYPES[n % 2] if n % 5 else "b", QUEUES[n % 2], "available",
            worker_id=("w/1", "W_1", "w%1", "w-1")[n % 4] if component == "workers" else "",
            workflow_id=IDS[n % 2] if n % 3 == 0 else None,
        )
        for n, name in enumerate([*(known for known in CATALOGUE if known.startswith("job.")), "job.stalled"] * 3)
        for component in (("workers",) if n % 2 else ("api", "scheduler"))
    ]  # fmt: skip
    records += [of_worker("worker.started", "w/1", now), of_queue("queue.paused", "mail", now)]
    records += [of_cron("cron.triggered", "nightly", "default", now)]
    of_job = ("", IDS[0], "b", "default")
    records.append(Record("job.started", now, "workers", *of_job, "active"))
    records.append(Record("job.failed", now, "scheduler", *of_job, "retryable", worker_id="w/1"))
    log.append(records, "default")
    log.read()
    return list(order.behind("default", order.START))


@given(wanted=FILTERS)
def check(written: list[Event], wanted: Filter) -> None:
    salt = log.ids.salt_of("default")
    expected = [view["id"] for view in log.views(written, wanted, salt)]
    assert {event.pk for event in written if wanted.matches(event)} >= {ids.decode(each, salt)[0] for each in expected}
    assert [event["id"] for event in log.read(wanted=wanted, limit=1000).events] == expected
    routes = wanted.routes()
    if routes is not None:
        found = {("job", event.job_id) for event in written if wanted.matches(event)}
        found |= {("queue", event.queue) for event in written if wanted.matches(event)}
        assert all(
            ("job", e.job_id) in routes or ("queue", e.queue) in routes for e in written if wanted.matches(e)
        ), found  # fmt: skip


def test_the_log_and_memory_agree(written: list[Event]) -> None:
    check(written)


@pytest.mark.parametrize(
    "source", ["api", "workers", "workers/w%2F1", "workers/w%25*", "w*", "scheduler", "scheduler/w%2F1", "scheduler/w*"]
)
def test_a_source_is_the_whole_one_unless_it_ends_in_a_star(written: list[Event], source: str) -> None:
    """Events 6.1: `workers` is no prefix of all workers, and the scheduler's events are no worker's, whatever worker
    they name."""
    salt, source = log.ids.salt_of("default"), SERVICE + source
    begin = source.removesuffix("*")
    written = [event for event in written if event.type in CATALOGUE]  # the others come to who names them
    shown = {event.pk: log.render(event, salt)["source"] for event in written}
    meant = [pk for pk, own in shown.items() if own == source or (begin != source and own.startswith(begin))]
    wanted = Filter(sources=(source,))
    assert [event.pk for event in written if wanted.matches(event)] == meant
    assert list(order.behind("default", order.START).filter(wanted.condition())) == [
        event for event in written if event.pk in meant
    ]


@pytest.mark.parametrize(
    "name, shown",
    [
        ("My Shop", "My%20Shop"), ("team/shop", "team%2Fshop"), ("Läden", "L%C3%A4den"), ("shop:blue", "shop%3Ablue"),
        ("a?b#c%", "a%3Fb%23c%25"), ("shop-1.eu_x~", "shop-1.eu_x~"),
    ],
)  # fmt: skip
def test_a_source_is_a_uri_whatever_the_service_is_called(
    written: list[Event], settings: Any, name: str, shown: str
) -> None:
    """Events 2.4: `ojs://service/component/instance`. A filter finds the events by it, and a history who did it."""
    settings.OJS = {"SERVICE_NAME": name}
    events = log.read(limit=1000).events
    assert log.read(sources=[f"ojs://{shown}/*"], limit=1000).events == events
    for source in {event["source"] for event in events}:
        assert re.fullmatch(rf"ojs://{re.escape(shown)}/(api|scheduler|cron|workers(/[\w%.~-]+)?)", source, re.ASCII)
        found = log.read(sources=[source], limit=1000).events
        assert found == [event for event in events if event["source"] == source]
        if source.partition("/workers/")[1]:
            assert {history.actor(event)["type"] for event in found} == {"worker"}


def test_the_limits_of_a_key_hold_whatever_is_asked_for(written: list[Event]) -> None:
    wanted = Filter(queues=("mail", "default"), only_queues=("mail",))
    assert {event.queue for event in written if wanted.matches(event)} == {"mail"}
    assert not any(Filter(queues=("mail",), only_queues=("default",)).matches(event) for event in written)


@pytest.mark.parametrize(
    "wanted, sees",
    [
        (Filter(), {"job.started"}), (Filter(types=("*",)), {"job.started"}),
        (Filter(types=("job.state_changed",)), {"job.state_changed"}), (Filter(types=("job.*",)), {"job.started"}),
        (Filter(types=("job.*", "job.state_changed")), {"job.started", "job.state_changed"}),
        (Filter(types=("job.completed", "job.state_changed")), {"job.state_changed"}),
        (Filter(types=("worker.*",)), set()),
    ],
)  # fmt: skip
def test_who_sees_the_change_of_state(wanted: Filter, sees: set[str]) -> None:
    data = {"job_id": "1", "queue": "q", "type": "a.b", "state": "active"}
    envelope = {"type": "job.started", "id": ids.encode(1, clock.now(), "salt"), "data": data}
    found = filters.views(wanted.kinds, envelope, "salt", order.LogPosition(1, 1))
    assert {view["type"] for view in found} == sees


@pytest.mark.parametrize(
    "wanted, number",
    [
        (Filter(only_types=(*(f"t{n}.*" for n in range(keys.MAX_LIMITS - 1)), "a.*")), 100),
        (Filter(job_types=(*(f"t{n}" for n in range(2600)), "a.one")), 100),
        (Filter(types=("job.completed",), queues=("mail",)), 1001),
    ],
    ids=["limits", "names", "filters"],
)
def test_many_filters_are_one_condition_that_a_database_takes(
    written: list[Event], wanted: Filter, number: int
) -> None:  # fmt: skip
    """Those of a connection with all its subscriptions."""
    found = set(Event.objects.filter(filters.condition_of([wanted] * number)))
    assert found.issuperset(event for event in written if wanted.matches(event))


@pytest.mark.parametrize("word", sorted(filters.NARROWING - {"filter"}))
def test_what_narrows_events_beside_the_filter_is_refused(word: str) -> None:
    """Passed over, it would let out the events of all."""
    for value in ("x", ["x"], {"queues": ["x"]}):
        with pytest.raises(InvalidRequest) as refused:
            messages.parse({"action": "subscribe", "channel": "events", word: value})
        assert refused.value.details["field"] == word


def test_the_id_of_a_job_is_read_in_capitals_too_as_at_the_other_doors() -> None:
    job_id = "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f"
    for asked in ({"channel": f"job:{job_id.upper()}"}, {"channel": "events", "filter": {"job_ids": [job_id.upper()]}}):
        command = messages.parse({"action": "subscribe", **asked})
        assert isinstance(command, messages.Subscribe)
        assert command.wanted.job_ids == (uuid.UUID(job_id),)
