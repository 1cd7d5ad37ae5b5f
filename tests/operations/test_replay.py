"""Rules retry dead letters by themselves: after the delay, up to the cap, at the pace, and only what may be retried."""

from __future__ import annotations

import dataclasses
import datetime as dt
import threading
import uuid
from typing import Any

import pytest
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext

from django_ojs import jsontext
from django_ojs.access import Limits
from django_ojs.errors import Conflict, InvalidRequest, NotFound
from django_ojs.jobs import replay
from django_ojs.jobs.copy import duplicate
from django_ojs.jobs.delete import delete
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Failure, fail_one
from django_ojs.jobs.push import push
from django_ojs.jobs.read import info
from django_ojs.jobs.retry import retry_one
from django_ojs.jobs.timers import apply_due
from django_ojs.models import Event, Job, JobReplay, ReplayRule
from django_ojs.queues import maintenance
from django_ojs.queues.configuration import configure, pause
from django_ojs.rules import replayrules
from django_ojs.scheduler.scheduler import ReplayDeadLetters
from django_ojs.store import store_of

HOUR = dt.timedelta(hours=1)
pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("frozen_clock")]


def rule(name: str = "again", **members: Any) -> replayrules.Rule:
    made = replayrules.parse({"name": name, "filter": {"queue": "default"}, **members})
    replay.put(made)
    return made


def dead(error: str = "Broken", **members: Any) -> uuid.UUID:
    """A new dead letter, with an error of this type."""
    row = push([{"type": "a.b", "args": [], "retry": {"max_attempts": 1}, **members}])[0].row
    assert row is not None
    die(row["queue"], error)
    return row["id"]


def die(queue: str = "default", error: str = "Broken") -> None:
    (row,) = fetch(Fetch([queue], count=1))
    assert fail_one(Failure(row["id"], {"type": error, "message": "no"}))["state"] == "discarded"


def state(job_id: uuid.UUID) -> str:
    return str(info(job_id)["state"])


def test_a_dead_letter_is_retried_after_the_delay_and_not_before(frozen_clock: Any) -> None:
    job_id = dead()
    rule(delay="PT1H")
    frozen_clock.advance(seconds=3599)
    assert (replay.replay(), state(job_id)) == (0, "discarded")
    frozen_clock.advance(seconds=1)
    assert (replay.replay(), state(job_id)) == (1, "available")
    row = info(job_id)
    assert (row["attempt"], row["errors"], row["dead_letter"]) == (0, "", False)
    assert jsontext.loads(row["extra"])["x_previous_errors"][0]["type"] == "Broken"


def test_a_retry_by_a_rule_writes_its_own_event_and_notes_itself_in_meta(frozen_clock: Any) -> None:
    job_id = dead(meta={"kept": 1.10, "trace": "x"})
    rule(delay="PT0S")
    frozen_clock.advance(seconds=1)
    replay.replay()
    event = Event.objects.get(type="dead_letter.replayed")
    assert (event.job_id, event.component, event.data) == (
        job_id, "scheduler", {"rule": "again", "count": 1},
    )  # fmt: skip
    assert not Event.objects.filter(type="dead_letter.retried").exists()
    assert jsontext.loads(info(job_id)["meta"]) == {
        "kept": 1.10, "trace": "x", "ojs.replay_count": 1, "ojs.replay_rule": "again",
        "ojs.last_replayed_at": frozen_clock.now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    }  # fmt: skip


def test_no_job_is_retried_more_often_than_the_rule_allows_whatever_an_operator_did_between(frozen_clock: Any) -> None:
    job_id = dead()
    rule(delay="PT1M", max_replays=2)
    for _ in range(2):
        frozen_clock.advance(seconds=60)
        assert replay.replay() == 1
        die()
    frozen_clock.advance(seconds=3600)
    assert (replay.replay(), state(job_id)) == (0, "discarded")
    retry_one(job_id, override={"meta": {}})  # what notes the retries is gone, the cap is not
    die()
    frozen_clock.advance(seconds=3600)
    assert (replay.replay(), state(job_id)) == (0, "discarded")


def test_the_first_rule_with_retries_left_has_the_say_and_all_count_together(frozen_clock: Any) -> None:
    job_id = dead()
    rule("first", filter={"type": "a.*"}, delay="PT1H", max_replays=1)
    rule("second", delay="PT1M", max_replays=1)
    frozen_clock.advance(seconds=60)
    assert replay.replay() == 0  # the first is for this job, and has it wait longer
    frozen_clock.advance(seconds=3600)
    assert replay.replay() == 1
    die()
    frozen_clock.advance(seconds=60)
    assert replay.replay() == 1
    meta = jsontext.loads(info(job_id)["meta"])
    assert (meta["ojs.replay_rule"], meta["ojs.replay_count"]) == ("second", 2)


@pytest.mark.parametrize(
    "filter",
    [{"queue": "other"}, {"type": "a.c"}, {"error_type": "Other"}, {"until": "2000-01-01T00:00:00Z"},
     {"since": "2999-01-01T00:00:00Z"}],
)  # fmt: skip
def test_a_rule_leaves_alone_what_its_filter_does_not_mean(frozen_clock: Any, filter: dict[str, str]) -> None:
    dead()
    rule(filter=filter, delay="PT0S")
    frozen_clock.advance(seconds=1)
    assert replay.replay() == 0


def expired(clock: Any) -> uuid.UUID:
    at = (clock.now + dt.timedelta(seconds=1)).isoformat()
    row = push([{"type": "a.b", "args": [], "options": {"expires_at": at}}])[0].row
    assert row is not None
    clock.advance(seconds=2)
    apply_due()
    return row["id"]


def test_jobs_that_expired_are_retried_only_by_a_rule_that_names_it(frozen_clock: Any) -> None:
    job_id = expired(frozen_clock)
    rule("all", delay="PT0S")
    frozen_clock.advance(seconds=1)
    assert (replay.replay(), state(job_id)) == (0, "discarded")
    rule("expired", filter={"queue": "default", "error_type": "expired"}, delay="PT0S")
    assert (replay.replay(), state(job_id)) == (1, "available")


def test_a_lost_reservation_before_an_ordinary_failure_does_not_keep_a_job_from_its_retry(frozen_clock: Any) -> None:
    row = push([{"type": "a.b", "args": [], "retry": {"max_attempts": 2}, "visibility_timeout": 1}])[0].row
    assert row is not None
    fetch(Fetch(["default"], count=1))
    frozen_clock.advance(seconds=5)
    apply_due()
    die()
    assert [error["type"] for error in jsontext.loads(info(row["id"])["errors"])] == ["visibility_timeout", "Broken"]
    rule(delay="PT0S")
    frozen_clock.advance(seconds=1)
    assert replay.replay() == 1


def test_a_rule_keeps_its_pace_and_takes_the_oldest_first(frozen_clock: Any) -> None:
    jobs = []
    for _ in range(5):
        jobs.append(dead())
        frozen_clock.advance(seconds=1)
    rule(delay="PT0S", per_minute=2)
    assert (replay.replay(), replay.replay()) == (2, 0)
    assert [state(job_id) for job_id in jobs] == ["available"] * 2 + ["discarded"] * 3
    frozen_clock.advance(seconds=61)
    assert replay.replay() == 2
    assert [state(job_id) for job_id in jobs][:4] == ["available"] * 4


def test_what_was_retried_while_the_clock_was_ahead_does_not_count_for_the_pace(frozen_clock: Any) -> None:
    jobs = [dead() for _ in range(3)]
    rule(delay="PT0S", per_minute=2)
    frozen_clock.advance(days=1)
    assert replay.replay() == 2
    frozen_clock.advance(days=-1, seconds=1)
    assert replay.replay() == 1
    assert {state(job_id) for job_id in jobs} == {"available"}


def test_nothing_is_retried_in_maintenance_nor_into_a_queue_that_is_paused_or_draining(frozen_clock: Any) -> None:
    job_id = dead()
    rule(delay="PT0S")
    frozen_clock.advance(seconds=1)
    maintenance.start()
    assert replay.replay() == 0
    maintenance.stop()
    configure("_default", {"draining": True})
    assert replay.replay() == 0
    configure("_default", {"draining": None})
    pause("default")
    assert (replay.replay(), state(job_id)) == (0, "discarded")


def test_a_rule_that_is_switched_off_does_nothing_and_makes_room_for_the_next(frozen_clock: Any) -> None:
    dead()
    rule("off", delay="PT0S", enabled=False)
    frozen_clock.advance(seconds=1)
    assert replay.replay() == 0
    rule("on", delay="PT0S")
    assert replay.replay() == 1


def test_jobs_whose_client_kept_them_out_of_the_dead_letter_queue_stay_where_they_are(frozen_clock: Any) -> None:
    dead(retry={"max_attempts": 1, "on_exhaustion": "discard"})
    rule(delay="PT0S")
    frozen_clock.advance(seconds=1)
    assert replay.replay() == 0


def test_rules_of_the_setting_come_first_and_cannot_be_changed(frozen_clock: Any, settings: Any) -> None:
    job_id = dead()
    rule("made", delay="PT0S")
    settings.OJS = {"REPLAY_RULES": [{"name": "fixed", "filter": {"type": "a.b"}, "delay": "PT0S"}]}
    assert [(one.name, one.source) for one in replay.rules()] == [("fixed", "settings"), ("made", "api")]
    frozen_clock.advance(seconds=1)
    assert replay.replay() == 1
    assert jsontext.loads(info(job_id)["meta"])["ojs.replay_rule"] == "fixed"
    with pytest.raises(Conflict):
        rule("fixed")
    with pytest.raises(Conflict):
        replay.delete("fixed")


def test_a_copy_of_a_retried_job_begins_without_the_notes_of_its_retries(frozen_clock: Any) -> None:
    job_id = dead(meta={"mine": 1})
    rule(delay="PT0S")
    frozen_clock.advance(seconds=1)
    replay.replay()
    assert jsontext.loads(duplicate(job_id)["meta"]) == {"mine": 1}


def test_what_is_noted_of_a_job_goes_with_it(frozen_clock: Any) -> None:
    job_id = dead()
    rule(delay="PT0S")
    frozen_clock.advance(seconds=1)
    replay.replay()
    assert JobReplay.objects.count() == 1
    die()
    delete([job_id])
    assert JobReplay.objects.count() == 0


def test_the_preview_counts_and_changes_nothing(frozen_clock: Any) -> None:
    first = dead()
    one = rule(delay="PT1H", max_replays=1)
    frozen_clock.advance(seconds=3600)
    replay.replay()
    die()
    frozen_clock.advance(seconds=3600)
    dead()
    assert replay.preview(one) == replay.Preview(matched=2, exhausted=1, due=0, looked_at=0)
    frozen_clock.advance(seconds=3600)
    assert replay.preview(one) == replay.Preview(matched=2, exhausted=1, due=1, looked_at=1)
    assert state(first) == "discarded"


def test_without_rules_the_scheduler_asks_one_question(frozen_clock: Any) -> None:
    dead()
    with CaptureQueriesContext(connection) as queries:
        assert ReplayDeadLetters().run_once("default") == ReplayDeadLetters.IDLE
    assert len(queries) == 1


def test_many_are_retried_in_a_constant_number_of_statements(frozen_clock: Any) -> None:
    rule(delay="PT0S", per_minute=1000)

    def statements(number: int) -> int:
        for _ in range(number):
            dead()
        frozen_clock.advance(seconds=61)
        with CaptureQueriesContext(connection) as queries:
            assert replay.replay() == number
        fetch(Fetch(["default"], count=100))
        return len(queries)

    statements(1)  # what a process reads once and keeps
    assert statements(2) == statements(20)


@pytest.mark.parametrize(
    "given, field",
    [
        ({"filter": {"queue": "a"}}, "name"),
        ({"name": "A b", "filter": {"queue": "a"}}, "name"),
        ({"name": "a"}, "filter"),
        ({"name": "a", "filter": {}}, "filter"),
        ({"name": "a", "filter": {"queue": None}}, "filter"),
        ({"name": "a", "filter": {"state": "x"}}, "filter.state"),
        ({"name": "a", "filter": {"queue": "A b"}}, "filter.queue"),
        ({"name": "a", "filter": {"type": "*"}}, "filter.type"),
        ({"name": "a", "filter": {"type": "a*b"}}, "filter.type"),
        ({"name": "a", "filter": {"since": "today"}}, "filter.since"),
        ({"name": "a", "filter": {"queue": "a"}, "delay": 5}, "delay"),
        ({"name": "a", "filter": {"queue": "a"}, "delay": "P2Y"}, "delay"),
        ({"name": "a", "filter": {"queue": "a"}, "max_replays": 0}, "max_replays"),
        ({"name": "a", "filter": {"queue": "a"}, "per_minute": True}, "per_minute"),
        ({"name": "a", "filter": {"queue": "a"}, "enabled": "yes"}, "enabled"),
        ({"name": "a", "filter": {"queue": "a"}, "max_replay": 1}, "max_replay"),
        ([], "rule"),
    ],
)
def test_a_faulty_rule_is_refused_with_the_member_that_is_wrong(given: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        replayrules.parse(given)
    assert refused.value.details["field"] == field


def test_what_is_shown_of_a_rule_makes_the_same_rule() -> None:
    one = rule(delay="P1DT30M", filter={"type": "a.*", "since": "2026-01-01T00:00:00Z"}, max_replays=7, per_minute=5)
    assert replayrules.parse(one.facts() | {"source": "api"}) == replay.find("again") == one


def test_there_is_an_end_to_the_number_of_rules() -> None:
    ReplayRule.objects.bulk_create(
        ReplayRule(name=f"r{i}", filter={"queue": "a"}, delay_ms=0, max_replays=1, per_minute=1,
                   created_at=dt.datetime.now(dt.UTC), updated_at=dt.datetime.now(dt.UTC))
        for i in range(replayrules.MAX_RULES)
    )  # fmt: skip
    with pytest.raises(InvalidRequest):
        rule("one.more")
    rule("r0", max_replays=9)
    assert replay.find("r0").max_replays == 9
    replay.delete("r0")
    with pytest.raises(NotFound):
        replay.delete("r0")


def made(name: str, *queues: str) -> bool:
    """Whether a caller who is limited to these queues has made a new rule."""
    limits = Limits(queues or None).to_json()
    return replay.put(dataclasses.replace(replayrules.parse({"name": name, "filter": {"queue": "a"}}), limits=limits))


def test_limited_callers_leave_rules_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replayrules, "MAX_RULES", 4)
    for number, queues in ((2, ("a",)), (1, ("a", "b")), (1, ())):
        for i in range(number):
            assert made(f"r{len(queues)}{i}", *queues)
        with pytest.raises(InvalidRequest):
            made("one.more", *queues)
        assert not made(f"r{len(queues)}0", *queues)


def test_two_who_make_rules_at_once_do_not_exceed_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who had to wait for the lock sees what the other one has made."""
    monkeypatch.setattr(replayrules, "MAX_RULES", 1)

    def lock(stripes: Any) -> None:
        now = dt.datetime.now(dt.UTC)
        values = {"filter": {"queue": "a"}, "delay_ms": 0, "max_replays": 1, "per_minute": 1}
        ReplayRule.objects.create(name="other", created_at=now, updated_at=now, **values)

    monkeypatch.setattr(store_of(connection.alias), "lock_stripes", lock)
    with pytest.raises(InvalidRequest):
        made("mine")


@pytest.mark.django_db(transaction=True)
def test_two_schedulers_at_once_neither_exceed_the_cap_nor_the_pace(frozen_clock: Any) -> None:
    for _ in range(10):
        dead()
    rule(delay="PT0S", per_minute=6, max_replays=1)
    frozen_clock.advance(seconds=1)
    barrier = threading.Barrier(4)
    done: list[int] = []

    def follow() -> None:
        try:
            barrier.wait()
            done.append(replay.replay())
        finally:
            connections.close_all()

    threads = [threading.Thread(target=follow) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (sum(done), JobReplay.objects.count(), Job.objects.filter(state="available").count()) == (6, 6, 6)
