"""Progress: what is kept, what is told and when, and who may report."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_ojs import clock
from django_ojs.errors import NotFound
from django_ojs.events import log
from django_ojs.jobs.cancel import cancel_one
from django_ojs.jobs.delete import delete_one
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack_one, fail_one
from django_ojs.jobs.progress import BURST, ProgressReport, ReportedJob, describe, log_postponed, report
from django_ojs.jobs.push import push
from django_ojs.jobs.read import info
from django_ojs.jobs.retry import retry_one
from django_ojs.models import Job, JobProgress
from django_ojs.rules import envelope
from django_ojs.scheduler.scheduler import TellProgress
from tests.http.conftest import Api, error_of, with_key  # noqa: F401 - fixture

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _open_site(settings: Any) -> None:
    settings.OJS = {"ALLOW_ANONYMOUS": True}


@pytest.fixture
def api(db: None) -> Api:
    return Api()


def active(worker_id: str = "w1", **attributes: Any) -> Any:
    push([{"type": "data.import", "args": [], **attributes}])
    (row,) = fetch(Fetch(["default"], worker_id=worker_id))
    return row


def say(row: Any, percent: float | None = None, **more: Any) -> ReportedJob:
    (known,) = report([ProgressReport(row["id"], percent, **more)])
    assert isinstance(known, ReportedJob)
    return known


def shown(row: Any) -> Any:
    return envelope.render(info(row["id"])).get("progress")


def told(row: Any) -> list[float]:
    events = log.read(job_id=row["id"], types=["job.progress"]).events
    return [event["data"]["progress_percent"] for event in events]


class TestWhatIsKept:
    def test_numbers_are_cut_to_their_range_and_never_go_back(self, frozen_clock: Any) -> None:
        row = active()
        for given, kept in ((-5, 0.0), (40, 40.0), (30, 40.0), (150, 100.0)):
            known = say(row, given)
            assert known.progress is not None
            assert known.progress.percent == kept

    def test_a_lower_number_still_brings_its_message_and_data(self, frozen_clock: Any) -> None:
        row = active()
        say(row, 40, message="forty", data={"n": 1})
        say(row, 10, message="ten", data={"n": 2})
        found = JobProgress.objects.get()
        assert (found.percent, found.message, found.data) == (40.0, "ten", {"n": 2})

    def test_a_fraction_comes_back_as_it_was_sent(self, frozen_clock: Any, api: Api) -> None:
        row = active()
        for given in (0.07, 0.29, 1 / 3, 0.58):
            api.client.put(f"/ojs/v1/jobs/{row['id']}/progress", {"progress": given}, "application/json")
            assert shown(row) == pytest.approx(given, abs=1e-12)
        assert shown(row) == 0.58

    def test_completion_makes_it_whole_and_failure_leaves_it(self, frozen_clock: Any) -> None:
        done, failed, silent = active(), active(), active()
        say(done, 40)
        say(failed, 40)
        ack_one(Ack(done["id"]))
        ack_one(Ack(silent["id"]))
        fail_one(Failure(failed["id"], {"message": "no"}))
        assert (shown(done), shown(failed), shown(silent)) == (1.0, 0.4, None)

    def test_a_new_attempt_begins_without(self, frozen_clock: Any) -> None:
        row = active(retry={"max_attempts": 3, "initial_interval": "PT1S"})
        say(row, 40, message="forty", data={"n": 1})
        fail_one(Failure(row["id"], {"message": "no"}))
        frozen_clock.advance(hours=1)
        (again,) = fetch(Fetch(["default"], worker_id="w1"))
        assert shown(again) is None
        say(again, 10)
        found = JobProgress.objects.get()
        assert (found.attempt, found.percent, found.message, found.data) == (2, 10.0, "", None)

    def test_a_dead_letter_that_is_retried_does_not_show_its_former_life(self, frozen_clock: Any) -> None:
        row = active(retry={"max_attempts": 1})
        say(row, 40)
        fail_one(Failure(row["id"], {"message": "no"}))
        frozen_clock.advance(seconds=5)
        retry_one(row["id"])
        (again,) = fetch(Fetch(["default"], worker_id="w1"))
        assert (again["attempt"], shown(again)) == (1, None)

    def test_it_goes_with_its_job(self) -> None:
        row = active(retry={"max_attempts": 1})
        say(row, 40)
        fail_one(Failure(row["id"], {"message": "no"}))
        delete_one(row["id"])
        assert not JobProgress.objects.exists()


class TestWhatIsTold:
    def test_a_few_reports_are_told_at_once(self, frozen_clock: Any, api: Api) -> None:
        """Events 4.1: a running job that reports progress is told, also if it ends right after it."""
        row = active()
        for percent in (25, 75):
            body = {"progress_percent": percent, "progress_message": f"{percent} of 100", "worker_id": "w1"}
            assert api.client.put(f"/ojs/v1/jobs/{row['id']}/progress", body, "application/json").status_code == 200
        api.post("/workers/ack", {"job_id": str(row["id"]), "worker_id": "w1"})
        events = log.read(job_id=row["id"]).events
        assert [event["type"] for event in events[2:]] == ["job.progress", "job.progress", "job.completed"]
        assert [event["data"].get("progress_message") for event in events[2:]] == ["25 of 100", "75 of 100", None]

    def test_of_many_one_a_second_is_told_and_the_newest_later(self, frozen_clock: Any) -> None:
        row = active()
        at_once = [float(percent) for percent in range(BURST)]
        for percent in (*at_once, 60.0, 70.0):
            say(row, percent)
        assert told(row) == at_once
        assert shown(row) == 0.7, "what no event has told is kept all the same"
        assert log_postponed() == 0, "too early"
        frozen_clock.advance(seconds=1)
        assert TellProgress().run_once("default") == TellProgress.EVERY
        assert told(row) == [*at_once, 70.0]
        assert log_postponed() == 0, "told once"
        frozen_clock.advance(seconds=1)
        say(row, 80)
        say(row, 90)
        assert told(row) == [*at_once, 70.0, 80.0]
        frozen_clock.advance(seconds=BURST)
        say(row, 95)
        say(row, 96)
        assert told(row) == [*at_once, 70.0, 80.0, 95.0, 96.0]

    def test_what_a_job_may_have_told_at_once_comes_back_one_a_second(self, frozen_clock: Any) -> None:
        """Whichever of its attempts reports."""
        row = active(retry={"max_attempts": 3, "initial_interval": "PT5S", "jitter": False})
        for percent in range(BURST):
            say(row, percent)
        fail_one(Failure(row["id"], {"message": "no"}))
        frozen_clock.advance(seconds=5)
        (again,) = fetch(Fetch(["default"], worker_id="w1"))
        for percent in range(10):
            say(again, percent)
        assert told(row) == [*map(float, range(BURST)), 0.0, 1.0, 2.0, 3.0, 4.0]
        frozen_clock.advance(hours=1)
        for percent in range(10, 15 + BURST):
            say(again, percent)
        assert told(row)[BURST + 5 :] == [float(percent) for percent in range(10, 10 + BURST)]

    def test_one_event_a_second_leaves_the_burst_as_it_is(self, frozen_clock: Any) -> None:
        row = active()
        for percent in range(BURST):
            say(row, percent)
            frozen_clock.advance(seconds=1)
        for percent in range(BURST, 2 * BURST + 1):
            say(row, percent)
        assert told(row) == [float(percent) for percent in range(2 * BURST)]

    @pytest.mark.parametrize("ahead", [dt.timedelta(seconds=5), dt.timedelta(days=1)])
    def test_what_was_told_while_the_clock_was_ahead_holds_nothing_back(
        self, frozen_clock: Any, ahead: dt.timedelta
    ) -> None:
        row = active()
        say(row, 1)
        JobProgress.objects.update(told_at=clock.now() + ahead)
        say(row, 2)
        assert told(row) == [1.0]
        frozen_clock.advance(seconds=1)
        log_postponed()
        say(row, 3)
        say(row, 4)
        assert told(row) == [1.0, 2.0]
        frozen_clock.advance(seconds=1)
        log_postponed()
        assert told(row) == [1.0, 2.0, 4.0]

    def test_the_instant_of_the_latest_event_as_an_older_release_wrote_it_counts(self, frozen_clock: Any) -> None:
        row = active()
        say(row, 1)
        JobProgress.objects.update(told_at=clock.now())
        say(row, 2)
        assert told(row) == [1.0]
        frozen_clock.advance(seconds=3)
        for percent in range(3, 8):
            say(row, percent)
        assert told(row) == [1.0, 3.0, 4.0, 5.0]

    def test_reports_that_come_together_are_told_as_if_they_came_one_after_the_other(self, frozen_clock: Any) -> None:
        row, other = active(), active()
        report([ProgressReport(each["id"], percent) for percent in range(BURST + 5) for each in (row, other)])
        assert told(row) == told(other) == [float(percent) for percent in range(BURST)]

    def test_the_last_report_of_a_run_does_not_wait(self, frozen_clock: Any) -> None:
        row = active()
        for percent in range(BURST + 1):
            say(row, percent)
        say(row, 100, message="done", last=True)
        assert told(row) == [*range(BURST), 100.0]

    def test_a_report_that_was_held_back_is_not_told_after_the_end(self, frozen_clock: Any) -> None:
        row = active()
        for percent in range(BURST + 1):
            say(row, percent)
        assert JobProgress.objects.filter(held=True).exists()
        ack_one(Ack(row["id"]))
        frozen_clock.advance(seconds=2)
        assert log_postponed() == 0
        types = [event["type"] for event in log.read(job_id=row["id"]).events]
        assert types[-1] == "job.completed"
        assert not JobProgress.objects.filter(held=True).exists()

    def test_data_without_a_number_is_kept_and_no_event(self, frozen_clock: Any) -> None:
        row = active()
        say(row, data={"rows": 7})
        frozen_clock.advance(seconds=2)
        log_postponed()
        assert told(row) == []
        assert JobProgress.objects.get().data == {"rows": 7}
        say(row, 50)
        assert told(row) == [50.0]

    def test_the_event_has_every_field(self, frozen_clock: Any) -> None:
        row = active(meta={"trace_id": "abc"})
        say(row, 65.5, message="6,550 of 10,000")
        (event,) = log.read(types=["job.progress"]).events
        until = event["data"].pop("visible_until")
        assert event["data"] == {
            "job_id": str(row["id"]), "job_type": "data.import", "type": "data.import", "queue": "default",
            "state": "active", "attempt": 1, "worker_id": "w1", "timestamp": event["time"], "trace_id": "abc",
            "progress_percent": 65.5, "progress_message": "6,550 of 10,000", "progress": 66,
            "message": "6,550 of 10,000",
        }  # fmt: skip
        assert until > event["time"]
        assert event["source"].endswith("/workers/w1")

    def test_a_report_renews_the_reservation_as_a_heartbeat_does(self, frozen_clock: Any) -> None:
        row = active(visibility_timeout="PT30S")
        frozen_clock.advance(seconds=20)
        say(row, 10)
        assert Job.objects.get().visible_until == clock.now() + dt.timedelta(seconds=30)
        frozen_clock.advance(milliseconds=100)
        say(row, 20)
        assert Job.objects.get().visible_until == clock.now() + dt.timedelta(seconds=30), "told or not"


class TestWhoMayReport:
    def test_others_and_the_late_change_nothing(self, frozen_clock: Any) -> None:
        row = active()
        say(row, 10)
        frozen_clock.advance(seconds=5)
        before = Job.objects.get().visible_until
        for more in ({"worker_id": "w2"}, {"attempt": 2}):
            known = say(row, 90, **more)
            assert not known.accepted
            assert describe(known.row, known.progress)["progress"] == 0.1
        cancel_one(row["id"])
        known = say(row, 90, worker_id="w1", attempt=1)
        assert (known.accepted, known.row["state"]) == (False, "cancelled")
        assert told(row) == [10.0]
        assert Job.objects.get().visible_until is None
        assert before is not None

    def test_many_reports_take_as_many_statements_as_one(
        self, frozen_clock: Any, django_assert_max_num_queries: Any, long_memory: None
    ) -> None:
        rows = [active() for _ in range(20)]
        unknown = uuid.UUID("01976f5e-0000-7000-8000-000000000000")
        with django_assert_max_num_queries(10):
            found = report(
                [ProgressReport(row["id"], 10, worker_id="w1") for row in rows] + [ProgressReport(unknown, 5)]
            )
        assert isinstance(found.pop(), NotFound)
        assert all(isinstance(known, ReportedJob) and known.accepted for known in found)
        for pause in (2000, 500):
            frozen_clock.advance(milliseconds=pause)
            with django_assert_max_num_queries(10):
                report([ProgressReport(row["id"], 20 + i, worker_id="w1") for i, row in enumerate(rows)])
        assert sorted(JobProgress.objects.values_list("percent", flat=True)) == [20 + i for i in range(20)]

    def test_an_early_report_takes_as_many_statements_as_a_late_one(self, frozen_clock: Any, long_memory: None) -> None:
        """Told or held back, which takes fewer: none reads what was told before."""
        row = active()
        say(row, 1)
        frozen_clock.advance(seconds=2)
        with CaptureQueriesContext(connection) as late:
            say(row, 2)
        frozen_clock.advance(milliseconds=500)
        with CaptureQueriesContext(connection) as early:
            say(row, 3)
        assert told(row) == [1.0, 2.0, 3.0]
        assert len(early) == len(late)
        for percent in range(4, 4 + BURST):
            with CaptureQueriesContext(connection) as held:
                say(row, percent)
        assert JobProgress.objects.get().held
        assert len(held) < len(late)


class TestHTTP:
    def put(self, api: Api, job_id: Any, body: Any) -> Any:
        return api.client.put(f"/ojs/v1/jobs/{job_id}/progress", body, "application/json")

    def test_put_and_get_speak_of_0_to_1(self, api: Api, frozen_clock: Any) -> None:
        row = active()
        nothing = api.get(f"/jobs/{row['id']}/progress")
        assert (nothing.status_code, nothing.json()["progress"], nothing.json()["data"]) == (200, None, None)
        assert "X-OJS-Progress" not in nothing
        body = {"progress": 0.42, "message": "rows", "data": {"rows": 42}, "worker_id": "w1", "attempt": 1}
        answer = self.put(api, row["id"], body)
        assert answer.status_code == 200, answer.content
        expected = {
            "job_id": str(row["id"]), "state": "active", "progress": 0.42, "data": {"rows": 42}, "message": "rows",
            "updated_at": "2026-01-15T12:00:00.000Z",
        }  # fmt: skip
        assert answer.json() == expected
        found = api.get(f"/jobs/{row['id']}/progress")
        assert found.json() == expected
        assert found["X-OJS-Progress"] == "0.42"
        assert found["Last-Modified"] == "Thu, 15 Jan 2026 12:00:00 GMT"
        assert found["Cache-Control"] == "no-cache"
        job = api.get(f"/jobs/{row['id']}").json()["job"]
        assert {name: value for name, value in job.items() if name.startswith("progress")} == {
            "progress": 0.42, "progress_message": "rows", "progress_data": {"rows": 42},
            "progress_updated_at": "2026-01-15T12:00:00.000Z",
        }  # fmt: skip

    def test_two_reports_within_a_second_are_two_answers(self, api: Api, frozen_clock: Any, settings: Any) -> None:
        """`Last-Modified` has whole seconds, and a middleware of Django's goes by it."""
        settings.MIDDLEWARE = ["django.middleware.http.ConditionalGetMiddleware", *settings.MIDDLEWARE]
        row = active()
        path, seen = f"/jobs/{row['id']}/progress", {}
        for value in (0.1, 0.2):
            self.put(api, row["id"], {"progress": value})
            found = api.get(path, **seen)
            assert (found.status_code, found.json()["progress"], found["OJS-Version"]) == (200, value, "1.0")
            seen = {"If-Modified-Since": found["Last-Modified"], "If-None-Match": "*"}
        gone = api.get(path, **{"If-Unmodified-Since": "Thu, 01 Jan 2015 00:00:00 GMT", "If-Match": '"x"'})
        assert gone.status_code == 200

    def test_the_clients_way_speaks_of_0_to_100(self, api: Api, frozen_clock: Any) -> None:
        row = active()
        answer = api.post("/workers/progress", {"job_id": str(row["id"]), "percentage": 42, "message": "rows"})
        assert (answer.status_code, answer.json()["progress"]) == (200, 0.42)

    @pytest.mark.parametrize("given, kept", [(1.5, 1.0), (-1, 0.0), (1e300, 1.0), (0.5, 0.5), (1, 1.0)])
    def test_what_is_out_of_range_is_cut(self, api: Api, given: float, kept: float) -> None:
        row = active()
        assert self.put(api, row["id"], {"progress": given}).json()["progress"] == kept

    @pytest.mark.parametrize(
        "body, field",
        [
            ({}, "progress"),
            ({"message": "only words"}, "progress"),
            ({"progress": "0.5"}, "progress"),
            ({"progress": True}, "progress"),
            ({"percentage": [1]}, "percentage"),
            ({"data": [1]}, "data"),
            ({"data": {"x": "y" * 5000}}, "data"),
            ({"data": {"x": json.loads("[" * 40 + "]" * 40)}}, "data"),
            ({"progress": 0.5, "message": "x" * 1001}, "message"),
            ({"progress": 0.5, "attempt": 0}, "attempt"),
            ({"progress": 0.5, "worker_id": 7}, "worker_id"),
        ],
    )
    def test_nonsense_is_refused_and_named(self, api: Api, body: Any, field: str) -> None:
        row = active()
        error = error_of(self.put(api, row["id"], body), 400, "invalid_request")
        assert error["details"]["field"] == field
        assert not JobProgress.objects.exists()

    def test_a_number_beyond_floats_is_a_number(self, api: Api) -> None:
        row = active()
        path = f"/ojs/v1/jobs/{row['id']}/progress"
        answer = api.client.generic("PUT", path, b'{"progress":1e400}', content_type="application/json")
        assert answer.json()["progress"] == 1.0

    def test_unknown_jobs_are_not_found(self, api: Api) -> None:
        for job_id in ("01976f5e-0000-7000-8000-000000000000", "nonsense"):
            error_of(self.put(api, job_id, {"progress": 0.5}), 404, "not_found")
            error_of(api.get(f"/jobs/{job_id}/progress"), 404, "not_found")

    def test_somebody_elses_job_is_answered_with_what_is_known(self, api: Api) -> None:
        row = active()
        answer = self.put(api, row["id"], {"progress": 0.9, "worker_id": "w2"})
        assert (answer.status_code, answer.json()["progress"]) == (200, None)

    def test_scopes_and_limits_of_keys(self, with_key: Any) -> None:  # noqa: F811
        row = active()
        error_of(self.put(with_key("read"), row["id"], {"progress": 0.1}), 403, "permission_denied")
        error_of(self.put(with_key("work", queues=["other"]), row["id"], {"progress": 0.1}), 403, "permission_denied")
        error_of(with_key("read", queues=["other"]).get(f"/jobs/{row['id']}/progress"), 403, "permission_denied")
        assert self.put(with_key("work"), row["id"], {"progress": 0.1}).status_code == 200
        assert self.put(Api(), row["id"], {"progress": 0.1}).status_code == 401


def test_the_admin_page_of_a_job_shows_it(admin_client: Any) -> None:
    row = active()
    path = f"/admin/django_ojs/job/{row['id']}/change/"
    assert "<b>rows" not in admin_client.get(path).content.decode()
    say(row, 42, message="<b>rows")
    page = admin_client.get(path).content.decode()
    assert "42 %, &lt;b&gt;rows" in page
