"""The operator's API: what it shows, what it does, to whom, and what it leaves in the audit log."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db.models import Min
from django.test import Client

from django_ojs import audit, clock
from django_ojs.events import order
from django_ojs.http.deadletter import ReplayRuleViewSet
from django_ojs.jobs import bulk
from django_ojs.models import AuditEntry, Event, Job
from django_ojs.queues.configuration import configure
from django_ojs.rules.durations import format_instant, parse_instant
from django_ojs.statistics import eventcounts
from django_ojs.statistics.counters import fold
from tests.http.conftest import Api, error_of
from tests.http.test_site import every_view

pytestmark = pytest.mark.django_db
ADMIN = "/ojs/v1/admin"
DAY = dt.timedelta(days=1)


def call(api: Api, method: str, path: str, body: Any = None) -> Any:
    data = b"" if body is None else json.dumps(body).encode()
    return api.client.generic(method, ADMIN + path, data, content_type="application/json" if data else "")


def ids_of(response: Any) -> list[str]:
    assert response.status_code == 200, response.content
    return [item["id"] for item in response.json()["items"]]


@pytest.fixture
def letters(api: Api) -> list[str]:
    return [api.dead_letter(type=f"mail.{word}", queue=queue)["id"] for word, queue in
            (("send", "a"), ("send", "b"), ("drop", "b"))]  # fmt: skip


class TestLists:
    def test_jobs_are_filtered_by_everything_the_api_knows(self, api: Api, letters: list[str]) -> None:
        waiting = api.push("report.daily", queue="a")["id"]
        api.push("report.weekly", queue="c", scheduled_at="2098-01-01T00:00:00Z")
        held = api.fetch("a", worker_id="w-7")["id"]
        assert held == waiting
        for query, expected in (
            ({"queue": "b"}, {letters[1], letters[2]}),
            ({"state": "discarded,active"}, {*letters, held}),
            ({"type": "mail.send"}, {letters[0], letters[1]}),
            ({"type": "mail.*"}, set(letters)),
            ({"worker_id": "w-7"}, {held}),
            ({"error_type": "x"}, set(letters)),
            ({"error_type": "y"}, set()),
            ({"queue": "b", "type": "mail.drop", "state": "discarded"}, {letters[2]}),
            ({"until": "2001-01-01T00:00:00Z"}, set()),
        ):
            answer = api.get("/admin/jobs", query)
            assert set(ids_of(answer)) == expected, query
            assert answer.json()["pagination"]["total"] == len(expected), query

    def test_pages_by_number_and_by_cursor_hold_each_job_once(self, api: Api) -> None:
        wanted = [api.push()["id"] for _ in range(7)][::-1]
        by_number = [
            found for page in (1, 2, 3) for found in ids_of(api.get("/admin/jobs", {"page": page, "per_page": 3}))
        ]
        assert by_number == wanted
        seen, query = [], {"per_page": 3}
        for _ in range(3):
            body = api.get("/admin/jobs", query).json()
            seen += [item["id"] for item in body["items"]]
            query = {"per_page": 3, "cursor": body["pagination"].get("next_cursor", "")}
        assert seen == wanted
        assert body["pagination"]["has_more"] is False
        assert api.get("/admin/jobs", {"per_page": 1000}).json()["pagination"]["per_page"] == 100
        assert api.get("/admin/jobs").json()["pagination"]["per_page"] == 20

    def test_sorting(self, api: Api) -> None:
        low, high = api.push(priority=-5)["id"], api.push(priority=9)["id"]
        assert ids_of(api.get("/admin/jobs", {"sort": "priority"})) == [high, low]
        assert ids_of(api.get("/admin/jobs", {"sort": "priority", "order": "asc"})) == [low, high]
        late, soon = (
            api.push(scheduled_at="2099-01-01T00:00:00Z")["id"],
            api.push(scheduled_at="2098-01-01T00:00:00Z")["id"],
        )
        answer = api.get("/admin/jobs", {"sort": "scheduled_at", "order": "asc"})
        assert ids_of(answer) == [soon, late]
        assert answer.json()["pagination"]["total"] == 2

    @pytest.mark.parametrize(
        "query,field",
        [({"state": "gone"}, "state"), ({"since": "yesterday"}, "since"), ({"queue": "Not A Queue"}, "queue"),
         ({"sort": "args"}, "sort"), ({"order": "up"}, "order"), ({"type": "a\0"}, "type"), ({"page": "0"}, "page"),
         ({"page": "99999999"}, "page"), ({"cursor": "x"}, "cursor")],
    )  # fmt: skip
    def test_a_bad_parameter_is_named(self, api: Api, query: dict[str, str], field: str) -> None:
        assert error_of(api.get("/admin/jobs", query), 400, "invalid_request")["details"]["field"] == field

    def test_a_total_that_is_not_known_is_counted_no_further_than_the_cap(self, api: Api, monkeypatch: Any) -> None:
        monkeypatch.setattr("django_ojs.http.pagination.CAP", 2)
        for _ in range(4):
            api.push()
        counted = api.get("/admin/jobs", {"since": "2000-01-01T00:00:00Z", "per_page": 3}).json()["pagination"]
        assert (counted["total"], counted["total_is_minimum"], counted["has_more"]) == (2, True, True)
        known = api.get("/admin/jobs", {"state": "available"}).json()["pagination"]
        assert known["total"] == 4
        assert "total_is_minimum" not in known

    def test_an_empty_list_is_a_list(self, api: Api) -> None:
        for path in ("/jobs", "/dead-letter", "/workers", "/workflows", "/cron", "/audit", "/rate-limits"):
            body = call(api, "GET", path).json()
            assert body["items"] == []
            assert body["pagination"]["total"] == 0

    def test_a_limited_key_sees_and_touches_only_what_it_may(self, with_key: Any) -> None:
        boss = with_key("admin")
        mine, other = boss.dead_letter(queue="mine")["id"], boss.dead_letter(queue="other")["id"]
        limited = with_key("admin", queues=["mine"])
        assert ids_of(limited.get("/admin/jobs")) == ids_of(limited.get("/admin/dead-letter")) == [mine]
        assert limited.get("/admin/dead-letter/stats").json()["by_queue"] == {"mine": 1}
        assert limited.get("/admin/stats").json()["jobs"]["discarded"] == 1
        assert [queue["name"] for queue in limited.get("/admin/queues").json()["items"]] == ["mine"]
        error_of(limited.get(f"/admin/jobs/{other}"), 403, "permission_denied")
        error_of(limited.get("/admin/audit"), 404, "not_found")
        assert limited.post("/admin/dead-letter/retry", {"filter": {}, "confirm": True}).json()["succeeded"] == 1
        assert Job.objects.get(pk=other).state == "discarded"


class TestOneJob:
    def test_the_detail_is_flat_and_complete(self, api: Api) -> None:
        job = api.dead_letter(meta={"a": 1})
        detail = api.get(f"/admin/jobs/{job['id']}").json()
        assert (detail["id"], detail["type"], detail["state"], detail["meta"]) == (
            job["id"], "test.echo", "discarded", {"a": 1},
        )  # fmt: skip
        assert detail["errors"][0]["message"] == "broken"
        assert detail["retry_policy"]["max_attempts"] == 1
        assert detail["metadata"]["discarded_at"] == detail["discarded_at"]
        fresh = api.get(f"/admin/jobs/{api.push()['id']}").json()
        assert (fresh["errors"], fresh["meta"]) == ([], {})
        assert "result" not in fresh
        assert fresh["retry_policy"]["initial_interval"] == "PT1S"
        assert "retryable_errors" not in fresh["retry_policy"]
        picky = api.get(f"/admin/jobs/{api.push(retry={'retryable_errors': ['Busy']})['id']}").json()
        assert picky["retry_policy"]["retryable_errors"] == ["Busy"]
        error_of(api.get("/admin/jobs/nothing"), 404, "not_found")

    def test_retry_revives_a_discarded_job_and_hurries_a_retryable_one(self, api: Api) -> None:
        dead = api.dead_letter()["id"]
        revived = api.post(f"/admin/jobs/{dead}/retry").json()
        assert (revived["state"], revived["attempt"], revived["previous_state"]) == ("available", 0, "discarded")
        waits = api.push(queue="r")["id"]
        api.fetch("r")
        api.post("/workers/nack", {"job_id": waits, "error": {"message": "m", "code": "x"}})
        assert api.post(f"/admin/jobs/{waits}/retry").json()["attempt"] == 1
        error_of(api.post(f"/admin/jobs/{waits}/retry"), 409, "invalid_state_transition")

    def test_a_cancelled_job_cannot_be_retried_and_says_so_in_the_words_of_this_door(self, api: Api) -> None:
        job = api.push()["id"]
        assert api.post(f"/admin/jobs/{job}/cancel", {"reason": "not needed"}).json()["state"] == "cancelled"
        assert api.post(f"/admin/jobs/{job}/cancel").status_code == 200
        error_of(api.post(f"/admin/jobs/{job}/retry"), 409, "invalid_state_transition")

    def test_the_actor_is_in_the_events(self, with_key: Any) -> None:
        boss = with_key("admin")
        job = boss.push()["id"]
        boss.post(f"/admin/jobs/{job}/cancel")
        boss.post("/admin/queues/default/pause")
        boss.post("/admin/queues/default/resume")
        data = {
            event.type: event.data
            for event in Event.objects.filter(type__in=["job.cancelled", "queue.paused", "queue.resumed"])
        }
        assert data["job.cancelled"]["cancelled_by"] == "key:key 0"
        assert data["queue.paused"]["paused_by"] == data["queue.resumed"]["resumed_by"] == "key:key 0"


class TestBulk:
    def test_a_dry_run_counts_and_changes_nothing(self, api: Api, letters: list[str]) -> None:
        answer = api.post("/admin/jobs/bulk/retry", {"filter": {"queue": "b"}, "dry_run": True}).json()
        assert (answer["matched"], answer["succeeded"], answer["dry_run"]) == (2, 0, True)
        assert Job.objects.filter(state="discarded").count() == 3
        assert not AuditEntry.objects.exists()

    @pytest.mark.parametrize("confirm", [None, False, "true", 1])
    @pytest.mark.parametrize(
        "method,path,body",
        [("POST", "/jobs/bulk/retry", {"filter": {}}), ("POST", "/jobs/bulk/cancel", {"filter": {}}),
         ("POST", "/jobs/bulk/delete", {"filter": {"state": "discarded"}}),
         ("POST", "/dead-letter/retry", {"filter": {}}), ("DELETE", "/dead-letter", {}),
         ("DELETE", "/queues/b/jobs", {"states": ["discarded"]}),
         ("POST", "/dead-letter/purge", {})],
    )  # fmt: skip
    def test_without_confirm_nothing_happens(
        self, api: Api, letters: list[str], method: str, path: str, body: dict[str, Any], confirm: Any
    ) -> None:
        given = body if confirm is None else {**body, "confirm": confirm}
        error = error_of(call(api, method, path, given), 400, "invalid_request")
        assert error["details"]["field"] == "confirm"
        assert Job.objects.filter(state="discarded").count() == 3

    def test_everything_that_fits_is_done_in_batches_with_an_entry_each(self, api: Api, monkeypatch: Any) -> None:
        monkeypatch.setattr(bulk, "BATCH", 2)
        monkeypatch.setattr(bulk, "LOOKUP", 4)
        wanted = {api.push("mail.send")["id"] for _ in range(9)}
        other = api.push("mail.drop")["id"]
        body = {"filter": {"type": "mail.send"}, "confirm": True}
        answer = api.post("/admin/jobs/bulk/cancel", body).json()
        assert (answer["matched"], answer["succeeded"], answer["failed"], answer["errors"]) == (9, 9, 0, [])
        assert set(map(str, Job.objects.filter(state="cancelled").values_list("pk", flat=True))) == wanted
        assert Job.objects.get(pk=other).state == "available"
        entries = AuditEntry.objects.filter(action="job.bulk_cancel")
        assert sorted(len(entry.detail["job_ids"]) for entry in entries) == [1, 2, 2, 2, 2]
        assert {job for entry in entries for job in entry.detail["job_ids"]} == wanted
        assert all(entry.detail["filter"] == {"type": "mail.send"} for entry in entries)

    def test_what_one_job_is_refused_stops_no_other(self, api: Api) -> None:
        fine, done = api.push()["id"], api.push()["id"]
        api.delete(f"/jobs/{done}")
        missing = "0190a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b"
        body = {"job_ids": [done, fine, missing], "confirm": True}
        answer = api.post("/admin/jobs/bulk/delete", body).json()
        assert (answer["matched"], answer["succeeded"], answer["failed"]) == (3, 1, 2)
        assert {item["job_id"]: item["error"]["code"] for item in answer["errors"]} == {
            fine: "invalid_state_transition", missing: "not_found",
        }  # fmt: skip

    def test_running_jobs_are_cancelled_by_a_filter_only_if_it_says_so(self, api: Api) -> None:
        job = api.push()["id"]
        api.fetch()
        assert api.post("/admin/jobs/bulk/cancel", {"filter": {}, "confirm": True}).json()["matched"] == 0
        body = {"filter": {"state": ["active"]}, "confirm": True}
        assert api.post("/admin/jobs/bulk/cancel", body).json()["succeeded"] == 1
        assert Job.objects.get(pk=job).state == "cancelled"

    @pytest.mark.parametrize(
        "path,body",
        [("/jobs/bulk/delete", {"filter": {}}), ("/jobs/bulk/delete", {"filter": {"state": "available"}}),
         ("/jobs/bulk/retry", {"filter": {"state": "completed"}}), ("/jobs/bulk/retry", {"filter": {"stat": "x"}}),
         ("/jobs/bulk/retry", {}), ("/jobs/bulk/retry", {"filter": {}, "job_ids": []}),
         ("/jobs/bulk/cancel", {"queue": "a", "filter": {}}), ("/jobs/bulk/cancel", {"filter": {"queue": ""}}),
         ("/jobs/bulk/cancel", {"filter": {"state": []}}), ("/jobs/bulk/cancel", {"filter": {"queue": 5}})],
    )  # fmt: skip
    def test_what_would_widen_the_filter_is_refused(self, api: Api, path: str, body: dict[str, Any]) -> None:
        api.push()
        error_of(api.post(f"/admin{path}", {**body, "confirm": True}), 400, "invalid_request")
        assert Job.objects.get().state == "available"

    def test_a_queue_is_purged_of_ended_jobs_only(self, api: Api, letters: list[str]) -> None:
        api.push(queue="b")
        error_of(
            call(api, "DELETE", "/queues/b/jobs", {"states": ["available"], "confirm": True}), 400, "invalid_request"
        )
        answer = call(api, "DELETE", "/queues/b/jobs?states=discarded,completed&confirm=true").json()
        assert (answer["purged_count"], answer["states"]) == (2, ["discarded", "completed"])
        assert Job.objects.filter(queue="b").count() == 1

    def test_older_than_spares_the_young(self, frozen_clock: Any, api: Api, letters: list[str]) -> None:
        frozen_clock.advance(hours=2)
        young = api.dead_letter(queue="b")["id"]
        answer = call(api, "DELETE", "/dead-letter", {"older_than": "PT1H", "confirm": True}).json()
        assert answer["purged_count"] == 3
        assert [str(job.pk) for job in Job.objects.all()] == [young]
        error_of(call(api, "DELETE", "/dead-letter", {"older_than": 5, "confirm": True}), 400, "invalid_request")


class TestDeadLetters:
    def test_list_stats_retry_and_delete(self, api: Api, letters: list[str]) -> None:
        assert set(ids_of(api.get("/admin/dead-letter"))) == set(letters)
        assert set(ids_of(api.get("/admin/dead-letter", {"queue": "b"}))) == set(letters[1:])
        stats = api.get("/admin/dead-letter/stats").json()
        assert (stats["total"], stats["by_queue"]) == (3, {"a": 1, "b": 2})
        assert stats["by_type"] == {"mail.send": 2, "mail.drop": 1}
        assert stats["by_error_type"] == {"x": 3}
        assert stats["oldest_at"] <= stats["newest_at"]
        assert (stats["retention"]["max_age"], stats["retention"]["max_count"]) == ("P180D", 10_000)
        assert stats["retention"]["next_prune_at"] == format_instant(parse_instant(stats["oldest_at"]) + DAY * 180)
        configure("b", {"dead_letter": {"retention": {"max_age": "P1D"}}})
        by_queue = Job.objects.filter(queue="b").aggregate(first=Min("finished_at"))
        next_at = api.get("/admin/dead-letter/stats").json()["retention"]["next_prune_at"]
        assert next_at == format_instant(by_queue["first"] + DAY)
        configure("_default", {"dead_letter": {"retention": {"max_age": "P1000000D"}}})
        assert api.get("/admin/dead-letter/stats").json()["retention"]["next_prune_at"] == next_at
        assert api.post(f"/admin/dead-letter/{letters[0]}/retry", {"override": {"queue": "c"}}).json()["queue"] == "c"
        response = api.delete(f"/admin/dead-letter/{letters[1]}")
        assert (response.status_code, response.content) == (204, b"")
        error_of(api.delete(f"/admin/dead-letter/{letters[1]}"), 404, "not_found")
        error_of(api.post(f"/admin/dead-letter/{letters[0]}/retry"), 409, "invalid_state_transition")

    def test_an_empty_filter_retries_all_and_a_filter_in_the_query_narrows_a_purge(
        self, api: Api, letters: list[str]
    ) -> None:
        assert call(api, "DELETE", "/dead-letter?queue=a&confirm=true").json()["purged_count"] == 1
        assert api.post("/admin/dead-letter/retry", {"filter": {}, "confirm": True}).json()["succeeded"] == 2

    @pytest.mark.parametrize("method,door", [("DELETE", ""), ("POST", "/purge")])
    @pytest.mark.parametrize("wanted", [{}, {"type": "mail.send"}, {"queue": "b"}, {"queue": "a", "type": "mail.send"}])
    def test_a_body_does_not_take_back_what_the_query_narrows(
        self, api: Api, letters: list[str], method: str, door: str, wanted: dict[str, Any]
    ) -> None:
        path = f"/dead-letter{door}?queue=a"
        error = error_of(call(api, method, path, {"filter": wanted, "confirm": True}), 400, "invalid_request")
        assert error["details"]["field"] == "filter"
        aged = f"{path}&older_than=P7D"
        error_of(call(api, method, aged, {"older_than": "P1D", "confirm": True}), 400, "invalid_request")
        error_of(call(api, method, f"{path}&dry_run=true", {"dry_run": False}), 400, "invalid_request")
        assert Job.objects.count() == 3
        same = {"filter": {"queue": "a"}, "dry_run": True}
        assert call(api, method, f"{path}&dry_run=true", same).json()["matched"] == 1
        nothing = {"filter": None, "older_than": None, "confirm": True}
        assert call(api, method, path, nothing).json()["purged_count"] == 1

    def test_the_states_of_a_purge_are_the_same_in_its_body_and_its_query(self, api: Api, letters: list[str]) -> None:
        path = "/queues/b/jobs?states=discarded,cancelled"
        body = {"states": ["discarded", "cancelled"], "confirm": True}
        error_of(call(api, "DELETE", path, {**body, "states": ["discarded"]}), 400, "invalid_request")
        assert call(api, "DELETE", path, body).json()["purged_count"] == 2

    def test_a_retry_of_many_may_change_them(self, api: Api, letters: list[str]) -> None:
        body = {"filter": {"queue": "b"}, "confirm": True, "override": {"queue": "later"}}
        assert api.post("/admin/dead-letter/retry", body).json()["succeeded"] == 2
        assert set(Job.objects.filter(state="available").values_list("queue", flat=True)) == {"later"}
        assert AuditEntry.objects.get(action="job.bulk_retry").detail["override"] == ["queue"]
        refused = {"filter": {}, "confirm": True, "override": {"args": "no list"}}
        assert api.post("/admin/dead-letter/retry", refused).json()["failed"] == 1
        unknown = {"filter": {}, "confirm": True, "override": {"state": "x"}}
        error_of(api.post("/admin/dead-letter/retry", unknown), 400, "invalid_request")
        error_of(api.post("/admin/jobs/bulk/retry", body), 400, "invalid_request")

    @pytest.mark.parametrize("door", ["", "/purge"])
    def test_named_ones_are_deleted_only_if_they_are_dead_letters(
        self, api: Api, letters: list[str], door: str
    ) -> None:
        api.push(queue="done")
        done = api.fetch("done")["id"]
        api.post("/workers/ack", {"job_id": done})
        kept_out = api.dead_letter(queue="out", retry={"max_attempts": 1, "on_exhaustion": "discard"})["id"]
        body = {"job_ids": [done, kept_out, letters[0]], "confirm": True}
        method = "POST" if door else "DELETE"
        error = error_of(
            call(api, method, f"/dead-letter{door}", {**body, "older_than": "P7D"}), 400, "invalid_request"
        )
        assert error["details"]["field"] == "older_than"
        answer = call(api, method, f"/dead-letter{door}", body).json()
        assert (answer["purged_count"], answer["matched"], answer["failed"]) == (1, 3, 2)
        assert [error["job_id"] for error in answer["errors"]] == [done, kept_out]
        assert {error["error"]["details"]["resource_type"] for error in answer["errors"]} == {"dead_letter_job"}
        assert Job.objects.filter(pk__in=[done, kept_out]).count() == 2

    @pytest.mark.parametrize("also", [{}, {"override": {"priority": 3}}])
    def test_named_ones_are_retried_only_if_they_are_dead_letters(
        self, api: Api, letters: list[str], also: dict[str, Any]
    ) -> None:
        api.push(queue="slow")
        retryable = api.fetch("slow")["id"]
        api.post("/workers/nack", {"job_id": retryable, "error": {"message": "m"}})
        kept_out = api.dead_letter(queue="out", retry={"max_attempts": 1, "on_exhaustion": "discard"})["id"]
        body = {"job_ids": [retryable, kept_out, letters[0]], "confirm": True, **also}
        answer = api.post("/admin/dead-letter/retry", body).json()
        assert (answer["succeeded"], answer["retried"], answer["failed"]) == (1, 1, 2)
        codes = {error["job_id"]: error["error"]["code"] for error in answer["errors"]}
        assert codes == {retryable: "invalid_state_transition", kept_out: "not_found"}
        states = {str(job.pk): job.state for job in Job.objects.filter(pk__in=body["job_ids"])}
        assert states == {retryable: "retryable", kept_out: "discarded", letters[0]: "available"}

    def test_a_misplaced_filter_deletes_nothing(self, api: Api, letters: list[str]) -> None:
        error_of(call(api, "DELETE", "/dead-letter", {"queues": "a", "confirm": True}), 400, "invalid_request")
        error_of(call(api, "DELETE", "/dead-letter?quene=a&confirm=true"), 400, "invalid_request")
        assert Job.objects.count() == 3

    def test_selected_ones(self, api: Api, letters: list[str]) -> None:
        body = {"job_ids": letters[:2], "confirm": True}
        assert call(api, "DELETE", "/dead-letter", body).json()["purged_count"] == 2


class TestFigures:
    def test_stats_are_numbers(self, api: Api) -> None:
        for _ in range(3):
            api.push()
        api.post("/workers/ack", {"job_id": api.fetch(worker_id="w")["id"]})
        stats = api.get("/admin/stats").json()
        assert (stats["queues"], stats["workers"]) == (1, 1)
        assert stats["jobs"] == {"scheduled": 0, "available": 2, "pending": 0, "active": 0, "completed": 1,
                                 "retryable": 0, "cancelled": 0, "discarded": 0}  # fmt: skip
        assert stats["throughput"]["processed_per_minute"] > 0
        assert stats["throughput"]["failed_per_minute"] == 0

    @pytest.mark.parametrize("folded", [False, True])
    def test_history_has_every_period_and_counts_what_is_folded_once(
        self, api: Api, folded: bool, frozen_clock: Any
    ) -> None:
        api.push()
        api.post("/workers/ack", {"job_id": api.fetch()["id"]})
        if folded:
            fold()
        frozen_clock.advance(minutes=1)
        body = api.get("/admin/stats/history", {"period": "1m"}).json()
        assert len(body["data"]) in (60, 61)
        assert sum(point["completed"] for point in body["data"]) == 1
        assert body["data"] == body["data_points"]
        order.catch_up("default")
        eventcounts.catch_up("default")
        body = api.get("/admin/stats/history", {"period": "1m", "queue": "default"}).json()
        (point,) = [point for point in body["data"] if point["started"]]
        assert (point["enqueued"], point["processed"]) == (1, 1)
        assert 0 <= point["latency_p50_ms"] <= point["latency_p99_ms"] < 60_000
        quiet = body["data"][0]
        assert (quiet["enqueued"], quiet["latency_p50_ms"], quiet["latency_p99_ms"]) == (0, None, None)
        assert api.get("/admin/stats").json()["throughput"]["enqueued_per_min"] > 0
        early = {"period": "1m", "since": "2001-01-01T00:00:00Z"}
        first = api.get("/admin/stats/history", early).json()
        assert first["data"][0]["timestamp"] == first["kept_since"]
        ahead = {"period": "1m", "until": format_instant(clock.now() + dt.timedelta(hours=5))}
        points = api.get("/admin/stats/history", ahead).json()["data"]
        assert sum(point["completed"] for point in points) == 1
        error_of(api.get("/admin/stats/history", {"period": "3m"}), 400, "invalid_request")
        error_of(api.get("/admin/stats/history", {"since": "2099-01-01T00:00:00Z"}), 400, "invalid_request")

    def test_without_metrics_what_is_made_of_the_log_is_unknown(self, api: Api, settings: Any) -> None:
        settings.OJS = {**settings.OJS, "METRICS": False}
        api.push()
        api.post("/workers/ack", {"job_id": api.fetch()["id"]})
        point = api.get("/admin/stats/history").json()["data"][-1]
        assert (point["completed"], point["enqueued"], point["latency_p99_ms"]) == (1, None, None)
        assert api.get("/admin/stats").json()["throughput"]["enqueued_per_min"] is None
        (item,) = api.get("/admin/queues").json()["items"]
        assert item["latency_ms"]["p50"] >= 0

    def test_scheduling_tells_what_each_queue_got(self, with_key: Any, frozen_clock: Any) -> None:
        api = with_key("admin")
        for queue in ("a", "b", "c"):
            api.push(queue=queue)
        frozen_clock.advance(minutes=2)
        api.fetch("a")
        frozen_clock.advance(minutes=1)
        body = api.get("/admin/scheduling/stats").json()
        assert (body["strategy"], body["window"]) == ("strict", "PT1M")
        lines = {line["name"]: line for line in body["queues"]}
        assert (lines["a"]["dispatch_count_1m"], lines["a"]["dispatch_ratio_1m"], lines["a"]["active_jobs"]) == (
            1,
            1,
            1,
        )
        assert lines["a"]["avg_wait_ms"] == 120_000
        assert (lines["b"]["dispatched"], lines["b"]["avg_wait_ms"], lines["b"]["starved"]) == (0, None, True)
        assert lines["b"]["waiting_since"] is not None
        assert body["stats"]["starved_queues"] == 2
        assert body["stats"]["queues"] == body["queues"]
        limited = with_key("admin.read", queues=["c"]).get("/admin/scheduling/stats").json()
        assert [line["name"] for line in limited["queues"]] == ["c"]
        error_of(with_key("read").get("/admin/scheduling/stats"), 403, "permission_denied")

    def test_a_queue_tells_how_it_stands(self, api: Api, frozen_clock: Any) -> None:
        api.push(queue="a", priority=5)
        frozen_clock.advance(seconds=5)
        oldest = clock.now() - dt.timedelta(seconds=5)
        api.push(queue="a", priority=9)
        assert (
            call(
                api, "PUT", "/queues/a/config", {"backpressure": {"max_depth": 2, "warning_threshold": 0.5}}
            ).status_code
            == 200
        )
        detail = api.get("/admin/queues/a").json()
        assert detail["counts"]["available"] == 2
        assert detail["configuration"]["backpressure"] == {
            "enabled": True, "strategy": "reject", "threshold": 2, "current_depth": 2, "state": "full",
        }  # fmt: skip
        assert dt.datetime.fromisoformat(detail["oldest_available_at"]) - oldest < dt.timedelta(seconds=1)
        error_of(api.get("/admin/queues/nowhere"), 404, "not_found")
        (item,) = [item for item in api.get("/admin/queues").json()["items"] if item["name"] == "a"]
        assert item["state"] == "active"
        assert set(item["latency_ms"]) == {"p50", "p95", "p99"}

    @pytest.mark.parametrize("config", [{"max_size": 5}, {"max_size_bytes": 55}])
    def test_a_queue_is_nearly_full_from_its_threshold_on(self, api: Api, config: dict[str, int]) -> None:
        call(api, "PUT", "/queues/_default/config", config)
        states = []
        for _ in range(5):
            api.push(queue="a", args=["12345"])
            states.append(api.get("/admin/queues/a").json()["configuration"]["backpressure"]["state"])
        assert states == ["normal"] * 3 + ["warning", "full"]

    def test_pause_and_resume_and_a_queue_nobody_used(self, api: Api) -> None:
        paused = api.post("/admin/queues/new/pause").json()
        assert (paused["name"], paused["paused"]) == ("new", True)
        assert api.post("/admin/queues/new/pause").json()["paused_at"] == paused["paused_at"]
        assert api.post("/admin/queues/new/resume").json()["paused"] is False
        assert call(api, "PUT", "/queues/unused/config", {"concurrency": 3}).json()["configuration"]["concurrency"] == 3

    def test_the_configuration_shows_no_secrets(self, api: Api, settings: Any) -> None:
        settings.OJS = {**settings.OJS, "REDACT": {"keys": ["api_key"]}}
        shown = api.get("/admin/system/config").json()
        assert shown["redaction"] is True
        assert not {"REDACT", "AUTHENTICATION_CLASSES"} & shown["settings"].keys()
        assert shown["settings"]["MAX_BATCH_SIZE"] == 10_000

    def test_the_configuration_tells_a_limited_key_of_no_other_queues(self, with_key: Any, settings: Any) -> None:
        settings.OJS = {
            **settings.OJS, "ALERTS": {"queues": {"secret": {"backlog": 5}}},
            "REPLAY_RULES": [{"name": "n", "filter": {"queue": "secret"}, "delay": "PT1H"}],
        }  # fmt: skip
        assert with_key("admin.read").get("/admin/config").content.count(b"secret") == 2
        for limits in ({"queues": ["a"]}, {"job_types": ["a.*"]}):
            response = with_key("admin.read", **limits).get("/admin/config")
            assert response.status_code == 200
            assert b"secret" not in response.content


class TestRights:
    @pytest.fixture
    def user(self, db: None, settings: Any) -> Any:
        settings.OJS = {"ALLOW_ANONYMOUS": False}

        def make(*codenames: str, staff: bool = True) -> Api:
            user = User.objects.create_user(f"u{User.objects.count()}", is_staff=staff)
            user.user_permissions.set(
                Permission.objects.filter(codename__in=codenames, content_type__app_label="django_ojs")
            )
            api = Api()
            api.client.force_login(user)
            return api

        return make

    @pytest.mark.parametrize("right", ["", "view_job", "change_job", "delete_job", "ojs_admin"])
    def test_looking_operating_and_deleting_are_apart(self, user: Any, right: str) -> None:
        api = user(*filter(None, [right]))
        calls = {"view_job": api.get("/admin/jobs"),
                 "change_job": api.post("/admin/jobs/bulk/cancel", {"filter": {}, "dry_run": True}),
                 "delete_job": call(api, "DELETE", "/dead-letter", {"dry_run": True})}  # fmt: skip
        for needed, response in calls.items():
            assert response.status_code == (200 if right in (needed, "ojs_admin") else 403), (right, needed)
            if response.status_code == 403:
                assert response.json()["error"]["details"]["required_permission"] == f"django_ojs.{needed}"

    def test_staff_without_the_permission_operate_by_no_door(self, user: Any) -> None:
        api = user("view_job", "view_queue")
        for path in ("/queues/a/pause", "/admin/queues/a/pause", "/admin/workers/directive", "/admin/cron/x/pause"):
            error_of(api.post(path, {}), 403, "permission_denied")

    @pytest.mark.parametrize("scope,allowed", [
        ("admin.read", {"GET"}), ("admin.write", {"POST"}), ("admin.purge", {"DELETE"}),
        ("admin", {"GET", "POST", "DELETE"}), ("read", set()), ("work", set()), ("push", set()),
    ])  # fmt: skip
    def test_the_scopes_of_keys(self, with_key: Any, scope: str, allowed: set[str]) -> None:
        api = with_key(scope)
        for method, path, body in (
            ("GET", "/jobs", None),
            ("POST", "/queues/a/pause", {}),
            ("DELETE", "/dead-letter", {"dry_run": True}),
        ):
            headers = dict(api.client.defaults)
            assert headers
            status = call(api, method, path, body).status_code
            assert status == (200 if method in allowed else 403), (scope, method)

    def test_nobody_gets_in_without_credentials(self, settings: Any, db: None) -> None:
        settings.OJS = {"ALLOW_ANONYMOUS": False}
        error_of(Api().get("/admin/stats"), 401, "unauthenticated")

    def test_writes_of_a_session_need_the_csrf_token_and_forms_are_refused(self, settings: Any, db: None) -> None:
        settings.OJS = {"ALLOW_ANONYMOUS": False}
        client = Client(enforce_csrf_checks=True)
        client.force_login(User.objects.create_superuser("root"))
        url = f"{ADMIN}/queues/a/pause"
        error_of(client.post(url, "{}", content_type="application/json"), 403, "permission_denied")
        client.cookies["csrftoken"] = token = "x" * 32
        headers = {"X-CSRFToken": token}
        error_of(client.post(url, {"csrfmiddlewaretoken": token}), 403, "permission_denied")
        assert client.post(url, "{}", content_type="application/json", headers=headers).status_code == 200


class TestAudit:
    def test_an_act_has_its_entry_with_who_what_and_whence(self, with_key: Any) -> None:
        boss = with_key("admin")
        boss.post("/admin/queues/a/pause", **{"X-Request-Id": "req-1"})
        entry = AuditEntry.objects.get()
        assert (entry.actor, entry.action, entry.target_type, entry.target) == (
            "key:key 0",
            "queue.pause",
            "queue",
            "a",
        )
        assert (entry.outcome, entry.door, entry.source_ip, entry.request_id) == (
            "success",
            "http",
            "127.0.0.1",
            "req-1",
        )
        shown = boss.get("/admin/audit", {"action": "queue.*"}).json()["items"]
        assert [item["target"] for item in shown] == ["a"]
        assert boss.get("/admin/audit", {"actor": "key:nobody"}).json()["items"] == []

    def test_an_act_that_fails_leaves_no_entry_and_an_entry_that_fails_leaves_no_act(
        self, api: Api, monkeypatch: Any
    ) -> None:
        job = api.push()["id"]
        error_of(api.post(f"/admin/jobs/{job}/retry"), 409, "invalid_state_transition")
        assert not AuditEntry.objects.exists()

        def broken(*args: Any, **kwargs: Any) -> None:
            raise RuntimeError("disk full")

        monkeypatch.setattr("django_ojs.audit.append", broken)
        assert api.post(f"/admin/jobs/{job}/cancel").status_code == 500
        assert Job.objects.get(pk=job).state == "available"
        assert not Event.objects.filter(type="job.cancelled").exists()

    def test_who_is_known_and_refused_is_noted_but_strangers_are_not(self, with_key: Any) -> None:
        error_of(with_key("push").post("/admin/queues/a/pause"), 403, "permission_denied")
        error_of(Api(authorization="Bearer nonsense").post("/admin/queues/a/pause"), 401, "unauthenticated")
        error_of(Api().post("/admin/queues/a/pause"), 401, "unauthenticated")
        entry = AuditEntry.objects.get()
        assert (entry.outcome, entry.actor, entry.action) == ("denied", "key:key 0", "queue.pause")

    def test_a_caller_who_may_nothing_cannot_fill_it(self, with_key: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(audit, "MOST_NOTES", 3)
        eve, ann = with_key("push"), with_key("push")
        for _ in range(5):
            error_of(eve.post(f"/admin/queues/{'a' * 4000}/pause"), 403, "permission_denied")
        error_of(ann.post("/admin/queues/a/pause"), 403, "permission_denied")
        entries = AuditEntry.objects.order_by("pk")
        assert list(entries.values_list("actor", flat=True)) == ["key:key 0"] * 3 + ["key:key 1"]
        assert all(len(json.dumps(entry.detail)) < 2000 for entry in entries)
        monkeypatch.setattr(audit, "MINUTE", 0.0)
        for _ in range(2):
            error_of(eve.post("/admin/queues/a/pause"), 403, "permission_denied")
        assert [entry.detail.get("left_out") for entry in entries.all()] == [None, None, None, None, 2, None]

    def test_no_argument_ever_gets_in(self, api: Api) -> None:
        api.post("/cron", {"name": "n", "cron": "@daily", "type": "a.b", "args": ["s3cret"], "meta": {"k": "s3cret"}})
        dead = api.dead_letter(args=["s3cret"])["id"]
        api.post(f"/admin/dead-letter/{dead}/retry", {"override": {"args": ["s3cret"]}})
        assert AuditEntry.objects.count() == 2
        assert "s3cret" not in str(list(AuditEntry.objects.values()))

    def test_a_queue_that_cannot_be_deleted_leaves_none(self, api: Api) -> None:
        api.push(queue="busy")
        error_of(api.delete("/queues/busy"), 409, "conflict")
        assert not AuditEntry.objects.exists()
        assert api.delete("/queues/busy?strategy=move&target_queue=other").status_code == 202
        entry = AuditEntry.objects.get()
        assert (entry.action, entry.target, entry.detail["target_queue"]) == ("queue.delete", "busy", "other")

    def test_every_door_of_a_cancel_writes_one(self, api: Api) -> None:
        for path in ("/jobs/{}/cancel", "/admin/jobs/{}/cancel"):
            api.post(path.format(api.push()["id"]))
        api.delete(f"/jobs/{api.push()['id']}")
        api.post("/jobs/bulk/cancel", {"job_ids": [api.push()["id"]]})
        actions = sorted(AuditEntry.objects.values_list("action", flat=True))
        assert actions == ["job.bulk_cancel", "job.cancel", "job.cancel", "job.cancel"]


def test_no_write_of_an_operator_is_without_its_entry() -> None:
    """Whatever needs the scope `admin`, or a part of it, says under what name it is entered."""
    seen = 0
    for view in every_view():
        for method, scope in view.initkwargs["scopes"].items():
            name = getattr(view, "actions", {}).get(method.lower(), method.lower())
            if (view.cls, name) == (ReplayRuleViewSet, "preview"):  # says what a rule would do, and writes nothing
                continue
            if method != "GET" and (scope or "").startswith("admin") and hasattr(view.cls, name):
                assert view.initkwargs["operations"][method].audit, (view.cls, method)
                seen += 1
    assert seen > 50


def test_workflows_schedules_and_limits_are_here_as_well(api: Api) -> None:
    flow = api.post("/workflows", {"type": "chain", "name": "f", "steps": [{"type": "a.b", "args": []}]}).json()["id"]
    assert api.get(f"/admin/workflows/{flow}").json()["state"] == "running"
    assert api.get("/admin/workflows").json()["pagination"]["total"] == 1
    assert call(api, "POST", "/workflows", {}).status_code == 405
    assert api.post(f"/admin/workflows/{flow}/cancel").json()["state"] == "cancelled"
    api.post("/admin/cron", {"name": "n", "cron": "@daily", "type": "a.b"})
    assert api.post("/admin/cron/n/pause").json()["enabled"] is False
    assert api.post("/admin/cron/n/trigger").json()["job_id"]
    assert call(api, "DELETE", "/cron/n").status_code == 200
    actions = list(AuditEntry.objects.order_by("id").values_list("action", flat=True))
    assert actions == ["workflow.cancel", "cron.register", "cron.disable", "cron.trigger", "cron.delete"]


@pytest.mark.parametrize(
    "changes, action",
    [({"enabled": False}, "disable"), ({"enabled": True, "reason": "it is fast again"}, "enable"),
     ({"enabled": None}, "update"), ({"enabled": False, "timezone": "Europe/Rome"}, "update")],
)  # fmt: skip
def test_to_switch_a_schedule_has_one_name_in_the_audit_log(api: Api, changes: dict[str, Any], action: str) -> None:
    api.post("/admin/cron", {"name": "n", "cron": "@daily", "type": "a.b"})
    assert call(api, "PATCH", "/cron/n", changes).status_code == 200
    assert AuditEntry.objects.latest("id").action == f"cron.{action}"


class TestSingleJobs:
    """What an operator does to one job, besides cancelling and retrying it."""

    def test_run_now_activate_and_duplicate(self, api: Api) -> None:
        later = api.push(scheduled_at="2098-01-01T00:00:00Z", args=["x"])["id"]
        staged = api.push(pending=True)["id"]
        ran = api.post(f"/admin/jobs/{later}/run").json()
        assert (ran["state"], ran["previous_state"]) == ("available", "scheduled")
        assert "scheduled_at" not in ran | ran["metadata"]
        assert api.post(f"/admin/jobs/{staged}/activate").json()["previous_state"] == "pending"
        response = api.post(f"/admin/jobs/{later}/duplicate")
        copy = response.json()
        assert (response.status_code, copy["copy_of"], copy["args"], copy["state"]) == (201, later, ["x"], "available")
        assert copy["id"] != later
        assert response["Location"] == f"/ojs/v1/admin/jobs/{copy['id']}"
        done = list(AuditEntry.objects.order_by("pk").values_list("action", "target"))
        assert done == [("job.run", later), ("job.activate", staged), ("job.copy", later)]
        assert AuditEntry.objects.get(action="job.copy").detail["copy"] == copy["id"]

    def test_what_its_state_does_not_allow_is_refused(self, api: Api) -> None:
        waiting = api.push()["id"]
        error_of(api.post(f"/admin/jobs/{waiting}/run"), 409, "invalid_state_transition")
        error_of(api.post(f"/admin/jobs/{waiting}/activate"), 409, "invalid_state_transition")
        for verb in ("run", "activate", "duplicate"):
            error_of(api.post(f"/admin/jobs/01990000-0000-7000-8000-000000000000/{verb}"), 404, "not_found")
        assert not AuditEntry.objects.exists()
