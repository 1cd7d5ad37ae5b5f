"""The execution history over HTTP (extensions 7): HIS-1 to HIS-7, XL-1 to XL-4, lineage, attempts."""

from __future__ import annotations

import uuid
from typing import Any
from urllib.parse import urlencode

import pytest
from django.db import connection, transaction
from django.test import Client

from django_ojs import clock, jsontext, retention
from django_ojs.events import history as names
from django_ojs.events import log
from django_ojs.jobs import bulk, lineage
from django_ojs.jobs import history as erasing
from django_ojs.jobs.cancel import cancel_one
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack_one, fail
from django_ojs.jobs.push import push
from django_ojs.jobs.retry import retry_one
from django_ojs.models import AuditEntry, BulkAction, Event, Job
from django_ojs.rules.ids import new_job_id
from django_ojs.statistics import happenings
from tests.http.conftest import Api, error_of

pytestmark = pytest.mark.django_db(transaction=True)


def pushed(**members: Any) -> uuid.UUID:
    (item,) = push([{"type": "report.make", "args": [1, "two"], **members}])
    assert item.row is not None
    pk: uuid.UUID = item.row["id"]
    return pk


def failed(pk: uuid.UUID, worker: str = "w1") -> None:
    (row,) = fetch(Fetch(["default"], worker_id=worker, check_worker=False))
    assert row["id"] == pk
    fail([Failure(pk, {"message": "no", "backtrace": ["a.py:1"]}, worker, row["attempt"], retry_after_ms=0)])


def completed(pk: uuid.UUID, worker: str = "w1") -> None:
    fetch(Fetch(["default"], worker_id=worker, check_worker=False))
    ack_one(Ack(pk, None, worker))


class TestHistory:
    def test_each_event_in_the_words_of_the_extension(self, api: Api) -> None:
        """HIS-1, HIS-2."""
        pk = pushed(retry={"max_attempts": 1})
        failed(pk)
        body = api.get(f"/jobs/{pk}/history").json()
        assert [event["event_type"] for event in body["events"]] == [
            "job.created", "job.attempt_started", "job.attempt_failed", "job.discarded",
        ]  # fmt: skip
        assert [event["type"] for event in body["events"]] == [
            "job.enqueued", "job.started", "job.failed", "job.discarded",
        ]  # fmt: skip
        created, started, failure, discarded = (event["data"] for event in body["events"])
        assert (created["queue"], created["type"], created["args_size_bytes"]) == ("default", "report.make", 9)
        assert (started["worker_id"], started["attempt"]) == ("w1", 1)
        assert (failure["error"]["message"], failure["will_retry"], failure["attempt"]) == ("no", False, 1)
        assert (discarded["total_attempts"], discarded["last_error"]["message"]) == (1, "no")
        assert {event["job_id"] for event in body["events"]} == {str(pk)}
        assert (body["total"], body["next_cursor"]) == (4, None)

    def test_a_failure_that_is_tried_again_and_a_success(self, api: Api) -> None:
        pk = pushed()
        failed(pk)
        completed(pk)
        events = api.get(f"/jobs/{pk}/history").json()["events"]
        assert [event["event_type"] for event in events] == [
            "job.created", "job.attempt_started", "job.attempt_failed", "job.state_changed", "job.attempt_started",
            "job.attempt_completed",
        ]  # fmt: skip
        assert events[2]["data"]["will_retry"] is True
        assert (events[3]["data"]["from"], events[3]["data"]["to"]) == ("active", "retryable")
        assert events[5]["data"]["attempt"] == 2
        assert isinstance(events[5]["data"]["duration_ms"], int)

    @pytest.mark.parametrize(
        "staged", [{"scheduled_at": "2020-01-01T00:00:00Z"}, {"scheduled_at": "2099-01-01T00:00:00Z"}]
    )
    def test_a_job_is_created_once(self, staged: dict[str, Any], api: Api) -> None:
        pk = pushed(**staged)
        assert [event["event_type"] for event in api.get(f"/jobs/{pk}/history").json()["events"]] == ["job.created"]

    def test_acts_of_operators_are_in_it_too(self, api: Api) -> None:
        pk = pushed(retry={"max_attempts": 1})
        failed(pk)
        retry_one(pk)
        cancel_one(pk, cancelled_by="user:ada", reason="twice")
        events = api.get(f"/jobs/{pk}/history").json()["events"][4:]
        assert "dead_letter.retried" in [event["event_type"] for event in events]
        last = events[-1]
        assert (last["event_type"], last["data"]["reason"]) == ("job.cancelled", "twice")
        assert last["actor"] == {"type": "user", "id": "ada"}

    def test_those_of_workflows_have_the_members_of_the_extension(self, api: Api) -> None:
        """HIS-1: `workflow.created` where the site asks for events that come with every workflow."""
        flow = api.post("/workflows", {"type": "chain", "steps": [{"type": "a.b", "args": []}] * 2}).json()
        for _ in range(2):
            (row,) = fetch(Fetch(["default"], worker_id="w1", check_worker=False))
            ack_one(Ack(row["id"], None, "w1"))
        asked = {"workflow_id": flow["id"], "event_types": "workflow.*"}
        found = {event["event_type"]: event["data"] for event in api.get("/history", asked).json()["events"]}
        assert found.keys() == {"workflow.started", "workflow.step_completed", "workflow.completed"}
        assert (found["workflow.started"]["workflow_type"], found["workflow.started"]["total_jobs"]) == ("chain", 2)
        step, done = found["workflow.step_completed"], found["workflow.completed"]
        assert step["step_index"] == step["step"]
        assert isinstance(step["job_id"], str)
        assert (done["status"], isinstance(done["duration_ms"], int)) == ("completed", True)

    def test_actors_are_named_and_tell_no_secret(self, api: Api) -> None:
        """HIS-3."""
        pk = pushed()
        failed(pk)
        actors = [event["actor"] for event in api.get(f"/jobs/{pk}/history").json()["events"]]
        assert actors[:2] == [{"type": "client", "id": "api"}, {"type": "worker", "id": "w1"}]
        event: dict[str, Any] = {"source": "ojs://shop/scheduler", "data": {}}
        assert names.actor(event) == {"type": "system", "id": "scheduler"}
        event = {"source": "ojs://shop/api", "data": {"cancelled_by": "key:billing"}}
        assert names.actor(event) == {"type": "client", "id": "billing"}
        event = {"source": "ojs://shop/api", "data": {"cancelled_by": "system"}}
        assert names.actor(event) == {"type": "system", "id": "api"}

    def test_pages_by_cursor(self, api: Api) -> None:
        pk = pushed()
        completed(pk)
        first = api.get(f"/jobs/{pk}/history", {"limit": 2}).json()
        assert (len(first["events"]), first["total"]) == (2, 3)
        second = api.get(f"/jobs/{pk}/history", {"limit": 2, "cursor": first["next_cursor"]}).json()
        assert [event["event_type"] for event in second["events"]] == ["job.attempt_completed"]
        assert second["next_cursor"] is None
        error_of(api.get(f"/jobs/{pk}/history", {"cursor": "evt_x"}), 400, "invalid_request")

    def test_an_unknown_job(self, api: Api) -> None:
        for path in ("history", "lineage", "attempts"):
            error_of(api.get(f"/jobs/{new_job_id()}/{path}"), 404, "not_found")
            error_of(api.get(f"/jobs/nonsense/{path}"), 404, "not_found")

    def test_arguments_that_are_hidden_have_no_size(self, api: Api, settings: Any) -> None:
        settings.OJS = {**settings.OJS, "REDACT": {"types": {"report.*": ["args"]}}}
        pk = pushed()
        (created,) = api.get(f"/jobs/{pk}/history").json()["events"]
        assert "args_size_bytes" not in created["data"]


class TestErasing:
    def test_it_erases_the_events_of_one_job_and_nothing_else(self, api: Api) -> None:
        """HIS-6."""
        pk, other = pushed(), pushed()
        completed(pk)
        before = api.get("/events").json()
        envelope = api.get(f"/jobs/{pk}").json()
        assert api.delete(f"/jobs/{pk}/history").json() == {"deleted": True, "events_deleted": 3}
        (purged,) = api.get(f"/jobs/{pk}/history").json()["events"]
        assert (purged["event_type"], purged["data"]["events_deleted"]) == ("job.purged", 3)
        assert api.get(f"/jobs/{pk}").json() == envelope
        assert api.get(f"/jobs/{pk}/attempts").json()["total"] == 1
        assert len(api.get(f"/jobs/{other}/history").json()["events"]) == 1
        after = api.get("/events").json()["events"]
        assert after == [event for event in before["events"] if event["data"]["job_id"] == str(other)]
        entry = AuditEntry.objects.get()
        assert (entry.action, entry.target, entry.detail["events_deleted"]) == ("job.purge_history", str(pk), 3)

    def test_a_reader_whose_cursor_was_erased_goes_on_from_there(self, api: Api) -> None:
        """HIS-6: no hole, no gap, nothing twice."""
        pk, other = pushed(), pushed()
        cursor = api.get("/events", {"limit": 1}).json()["cursor"]
        api.delete(f"/jobs/{pk}/history")
        page = api.get("/events", {"after": cursor}).json()
        assert "gap" not in page
        assert api.get("/events", {"after": cursor, "cursor": page["cursor"]}).json()["events"] == []
        assert [event["data"]["job_id"] for event in page["events"]] == [str(other)]
        erased = Event.objects.get(type=erasing.ERASED)
        assert (erased.job_id, erased.job_type, erased.queue, erased.data) == (None, "", "", None)

    def test_it_takes_the_right_to_purge(self, with_key: Any) -> None:
        pk = pushed()
        error_of(with_key("admin.write").delete(f"/jobs/{pk}/history"), 403, "permission_denied")
        error_of(with_key("admin.purge", queues=["other"]).delete(f"/jobs/{pk}/history"), 403, "permission_denied")
        assert with_key("admin.purge").delete(f"/jobs/{pk}/history").status_code == 200

    def test_a_limited_key_erases_what_it_may_read(self, with_key: Any) -> None:
        """The job was in another queue before, and the key is not told of that time."""
        pk = pushed(queue="before", retry={"max_attempts": 1})
        fetch(Fetch(["before"], worker_id="w1", check_worker=False))
        fail([Failure(pk, {"message": "no"}, "w1")])
        retry_one(pk, override={"queue": "default"})
        kept = set(Event.objects.filter(job_id=pk, queue="before").values_list("pk", flat=True))
        seen = with_key("read", queues=["default"]).get(f"/jobs/{pk}/history").json()["total"]
        erased = with_key("admin.purge", queues=["default"]).delete(f"/jobs/{pk}/history").json()["events_deleted"]
        assert kept
        assert erased == seen > 0
        assert set(Event.objects.filter(job_id=pk, queue="before").values_list("pk", flat=True)) == kept

    def test_of_each_job_so_many_are_kept(self, api: Api, settings: Any) -> None:
        """HIS-4."""
        settings.OJS = {**settings.OJS, "HISTORY_MAX_COUNT": 3}
        pk, other = pushed(retry={"max_attempts": 9}), pushed(queue="elsewhere")
        for _ in range(3):
            failed(pk)
        erasing.forget()
        assert retention.prune()["histories"] == 7
        body = api.get(f"/jobs/{pk}/history").json()
        assert [event["event_type"] for event in body["events"]] == [
            "job.attempt_started", "job.attempt_failed", "job.state_changed",
        ]  # fmt: skip
        assert api.get(f"/jobs/{other}/history").json()["total"] == 1
        assert retention.prune()["histories"] == 0

    def test_by_age_it_goes_with_the_log(self, api: Api, frozen_clock: Any) -> None:
        pk = pushed()
        frozen_clock.advance(days=8)
        retention.prune()
        assert api.get(f"/jobs/{pk}/history").json()["events"] == []


class TestLineage:
    def test_parents_and_children(self, api: Api) -> None:
        """HIS-7: what a client says of it is kept."""
        root = pushed()
        child = pushed(parent_id=str(root), root_id=str(root))
        other = pushed(parent_id=str(root), root_id=str(root))
        grandchild = pushed(parent_id=str(child), root_id=str(root))
        body = api.get(f"/jobs/{root}/lineage").json()
        assert body == {
            "job_id": str(root), "parent_id": None, "workflow_id": None, "root_id": str(root), "truncated": False,
            "children": [
                {"job_id": str(child), "children": [{"job_id": str(grandchild), "children": []}]},
                {"job_id": str(other), "children": []},
            ],
        }  # fmt: skip
        below = api.get(f"/jobs/{grandchild}/lineage").json()
        assert (below["parent_id"], below["root_id"], below["children"]) == (str(child), str(root), [])
        assert api.get(f"/jobs/{child}").json()["job"]["parent_id"] == str(root)

    def test_the_root_is_found_where_no_one_names_it(self, api: Api) -> None:
        root = pushed()
        pk = pushed(parent_id=str(pushed(parent_id=str(root))))
        assert api.get(f"/jobs/{pk}/lineage").json()["root_id"] == str(root)

    def test_it_is_bounded(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        top = pk = pushed()
        for _ in range(lineage.DEPTH + 1):
            pk = pushed(parent_id=str(pk))
        body = api.get(f"/jobs/{top}/lineage").json()
        depth, children = 0, body["children"]
        while children:
            depth, children = depth + 1, children[0]["children"]
        assert (depth, body["truncated"]) == (lineage.DEPTH, True)
        monkeypatch.setattr(lineage, "NUMBER", 3)
        wide = pushed()
        for _ in range(4):
            pushed(parent_id=str(wide))
        body = api.get(f"/jobs/{wide}/lineage").json()
        assert (len(body["children"]), body["truncated"]) == (3, True)
        monkeypatch.setattr(lineage, "NUMBER", 4)
        assert api.get(f"/jobs/{wide}/lineage").json()["truncated"] is False

    def test_jobs_that_name_each_other_come_once(self, api: Api) -> None:
        one, two = new_job_id(), new_job_id()
        pushed(id=str(one), parent_id=str(two))
        pushed(id=str(two), parent_id=str(one))
        body = api.get(f"/jobs/{one}/lineage").json()
        assert (body["root_id"], body["children"]) == (str(two), [{"job_id": str(two), "children": []}])

    @pytest.mark.parametrize("parent", ["nobody", 5, None, {"a": 1}])
    def test_a_parent_that_is_no_id_means_nothing(self, parent: Any, api: Api) -> None:
        pk = pushed(parent_id=parent)
        assert api.get(f"/jobs/{pk}/lineage").json()["parent_id"] is None

    def test_a_limited_key_sees_its_own(self, with_key: Any) -> None:
        root = pushed()
        mine, foreign = pushed(parent_id=str(root)), pushed(parent_id=str(root), queue="other")
        pushed(parent_id=str(foreign))
        body = with_key("read", queues=["default"]).get(f"/jobs/{root}/lineage").json()
        assert [child["job_id"] for child in body["children"]] == [str(mine)]


class TestAttempts:
    def test_pages_newest_first(self, api: Api) -> None:
        pk = pushed(retry={"max_attempts": 2})
        failed(pk)
        failed(pk, "w2")
        retry_one(pk)
        completed(pk, "w3")
        body = api.get(f"/jobs/{pk}/attempts", {"limit": 2}).json()
        told = [(one["round"], one["attempt"], one["outcome"], one["worker_id"]) for one in body["attempts"]]
        assert told == [(1, 1, "completed", "w3"), (0, 2, "failed", "w2")]
        assert (body["total"], body["state"], body["items"]) == (3, "completed", body["attempts"])
        assert "error" not in body["attempts"][0]
        assert body["attempts"][1]["error"]["backtrace"] == ["a.py:1"]
        rest = api.get(f"/jobs/{pk}/attempts", {"limit": 2, "cursor": body["next_cursor"]}).json()
        assert [(one["round"], one["attempt"]) for one in rest["attempts"]] == [(0, 1)]
        assert rest["next_cursor"] is None
        assert api.get(f"/jobs/{pk}/attempts", {"limit": 2, "page": 2}).json()["attempts"] == rest["attempts"]

    def test_errors_are_hidden_as_elsewhere(self, api: Api, settings: Any) -> None:
        settings.OJS = {**settings.OJS, "REDACT": {"types": {"report.*": ["errors"]}}}
        pk = pushed()
        failed(pk)
        error = api.get(f"/jobs/{pk}/attempts").json()["attempts"][0]["error"]
        assert (error["message"], "backtrace" in error) == ("[REDACTED]", False)


class TestSwitchedOff:
    @pytest.mark.parametrize("call", ["get history", "delete history", "get lineage", "get attempts"])
    def test_there_is_nothing_at_its_paths(self, call: str, api: Api, settings: Any) -> None:
        """XL-4."""
        pk = pushed(parent_id=str(new_job_id()))
        settings.OJS = {**settings.OJS, "EXECUTION_HISTORY": False}
        method, path = call.split()
        error_of(getattr(api, method)(f"/jobs/{pk}/{path}"), 404, "not_found")
        assert "parent_id" in api.get(f"/jobs/{pk}").json()["job"], "kept as an unknown attribute"
        assert len(api.get(f"/events/{pk}/history").json()["events"]) == 1, "the log is no part of it"

    def test_the_manifest_says_it_only_where_it_is_on(self, client: Client, settings: Any) -> None:
        """XL-1."""

        def named() -> list[str]:
            found = jsontext.loads(client.get("/ojs/manifest").content)["extensions"]["experimental"]
            return [entry["name"] for entry in found]

        def demanded(uri: str) -> int:
            return client.get("/ojs/v1/queues", headers={"OJS-Requires-Extension": uri}).status_code

        uri = "urn:ojs:ext:experimental:execution-history"
        assert "execution-history" in named()
        assert [demanded(uri), demanded(uri.replace("experimental:", ""))] == [200, 200]
        settings.OJS = {**settings.OJS, "EXECUTION_HISTORY": False}
        assert "execution-history" not in named()
        assert [demanded(uri), demanded(uri.replace("experimental:", ""))] == [422, 422]


class TestWholeHistory:
    def test_newest_first_in_the_words_of_the_extension(self, api: Api) -> None:
        pk, other = pushed(), pushed(queue="elsewhere", type="mail.send")
        completed(pk)
        body = api.get("/history").json()
        assert [(event["event_type"], event["job_id"]) for event in body["events"]] == [
            ("job.attempt_completed", str(pk)), ("job.attempt_started", str(pk)), ("job.created", str(other)),
            ("job.created", str(pk)),
        ]  # fmt: skip
        assert (body["total_estimate"], body["next_cursor"], body["has_more"]) == (4, None, False)
        assert isinstance(body["query_time_ms"], int)

    @pytest.mark.parametrize(
        "asked,expected",
        [
            ({"event_types": "job.created"}, ["job.created", "job.created"]),
            ({"event_types": "job.state_changed"}, ["job.state_changed"]),
            ({"event_types": "job.attempt_*"}, ["job.attempt_failed", "job.attempt_started"]),
            ({"event_types": "job.failed"}, ["job.attempt_failed"]),
            ({"event_types": "no.such"}, []),
            ({"queues": "elsewhere"}, ["job.created"]),
            ({"job_types": "mail.send"}, ["job.created"]),
            ({"actor_type": "client", "queues": "default"}, ["job.created"]),
            ({"actor_type": "user"}, []),
            ({"end": "2000-01-01T00:00:00Z"}, []),
            ({"start": "2999-01-01T00:00:00Z"}, []),
        ],
    )
    def test_filters(self, asked: dict[str, str], expected: list[str], api: Api) -> None:
        pk = pushed()
        failed(pk)
        pushed(queue="elsewhere", type="mail.send")
        assert [event["event_type"] for event in api.get("/history", asked).json()["events"]] == expected

    def test_pages_by_cursor_to_the_beginning(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        """Also where a page looks through less than the log has, and what comes meanwhile moves nothing."""
        pks = [str(pushed()) for _ in range(5)]
        for stretch in (log.STRETCH, 2):
            monkeypatch.setattr(log, "STRETCH", stretch)
            asked: dict[str, Any] = {"limit": 2, "event_types": "job.created", "job_types": "report.make"}
            found: list[str] = []
            pages = 0
            while True:
                body = api.get("/history", asked).json()
                found += [event["job_id"] for event in body["events"]]
                pages += 1
                assert pages < 20
                if not body["has_more"]:
                    break
                pushed(type="other.kind")
                asked["cursor"] = body["next_cursor"]
            assert found == pks[::-1]
        error_of(api.get("/history", {"cursor": "evt_x"}), 400, "invalid_request")

    def test_a_limit_is_clamped_and_that_is_said(self, api: Api) -> None:
        pushed()
        answer = api.get("/history", {"limit": 5000})
        assert (answer.json()["pagination"]["limit"], answer["X-OJS-Limit-Clamped"]) == (1000, "true")
        assert "X-OJS-Limit-Clamped" not in api.get("/history", {"limit": 1000})

    def test_there_is_no_search_for_words(self, api: Api) -> None:
        error_of(api.get("/history", {"query": "boom"}), 501, "unsupported")
        error_of(api.get("/history", {"actor_type": "robot"}), 400, "invalid_request")
        error_of(api.get("/history/stats", {"group_by": "week"}), 400, "invalid_request")

    def test_statistics_by_period(self, api: Api, frozen_clock: Any) -> None:
        pk = pushed()
        failed(pk)
        frozen_clock.advance(hours=2)
        pushed(queue="elsewhere")
        body = api.get("/history/stats", {"group_by": "hour"}).json()
        assert [bucket["events"] for bucket in body["buckets"]] == [
            {"job.created": 1, "job.attempt_started": 1, "job.attempt_failed": 1, "job.state_changed": 1},
            {"job.created": 1},
        ]  # fmt: skip
        assert body["buckets"][0]["p95_duration_ms"] == 0
        assert body["buckets"][1]["avg_duration_ms"] is None
        assert body["truncated"] is False
        found = api.get("/history/stats", {"queues": "elsewhere", "group_by": "day"}).json()["buckets"]
        assert [bucket["events"] for bucket in found] == [{"job.created": 1}]

    def test_statistics_of_more_than_is_counted_say_so(
        self, api: Api, frozen_clock: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for _ in range(3):
            pushed()
            frozen_clock.advance(hours=1)
        monkeypatch.setattr(happenings, "MOST", 2)
        body = api.get("/history/stats").json()
        assert ([bucket["events"] for bucket in body["buckets"]], body["truncated"]) == ([{"job.created": 1}], True)

    def test_it_is_erased_up_to_an_instant(self, api: Api, frozen_clock: Any) -> None:
        pk = pushed()
        failed(pk)
        pushed(queue="elsewhere")
        frozen_clock.advance(hours=1)
        instant = clock.now().isoformat()
        last = pushed()
        error_of(api.delete("/history"), 400, "invalid_request")
        first = api.delete(
            "/history?" + urlencode({"before": instant, "event_types": "job.created", "queues": "default"})
        )
        assert first.json() == {"purged": True, "events_purged": 1, "async": False, "estimated_events": 0}
        second = api.delete("/history?" + urlencode({"before": instant}))
        assert second.json()["events_purged"] == 4
        assert [event["job_id"] for event in api.get("/history").json()["events"]] == [str(last)]
        assert Job.objects.count() == 3
        entry = AuditEntry.objects.latest("pk")
        assert (entry.action, entry.detail["events_deleted"]) == ("history.purge", 4)

    def test_erasing_much_of_one_job_leaves_the_others_alone(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        """The bulk action erases what was asked for, by whatever member of the query."""
        one, other = pushed(), pushed()
        monkeypatch.setattr(bulk, "MOST_EVENTS", 0)
        for name, value in (("job_id", str(one)), ("sources", "/none/*"), ("workflow_id", str(one))):
            query = urlencode({"before": "2999-01-01T00:00:00Z", name: value})
            if api.delete(f"/history?{query}").json()["async"]:
                while bulk.advance_action():
                    pass
        assert [event["job_id"] for event in api.get("/history").json()["events"]] == [str(other)]
        assert [entry.detail["job_id"] for entry in AuditEntry.objects.filter(action="history.purge")
                if "job_id" in entry.detail] != []  # fmt: skip

    @pytest.mark.parametrize(
        "query",
        ["job_type=a.b", "since=2000-01-01T00:00:00Z", "start=2000-01-01T00:00:00Z", "job_id=", "queues=,", "queue="],
    )
    def test_what_does_not_narrow_an_erasure_is_refused(self, api: Api, query: str) -> None:
        """Passed over, a misspelt or an empty filter would let everything be erased."""
        pk = pushed()
        before = "before=2999-01-01T00:00:00Z"
        error = error_of(api.delete(f"/history?{before}&{query}"), 400, "invalid_request")
        assert error["details"]["field"] == query.partition("=")[0]
        body = {"queues": ["elsewhere"]}
        answer = api.client.delete(f"/ojs/v1/history?{before}", body, content_type="application/json")
        error_of(answer, 400, "invalid_request")
        answer = api.client.delete(f"/ojs/v1/history?{before}&queue=none", {}, content_type="application/json")
        assert answer.json()["events_purged"] == 0
        assert api.delete(f"/history?{before}&types=job.failed").json()["events_purged"] == 0
        error_of(api.delete(f"/history?{before}&types=job.created&event_types=job.failed"), 400, "invalid_request")
        error_of(api.delete(f"/history?{before}&before=2000-01-01T00:00:00Z"), 400, "invalid_request")
        assert api.delete(f"/history?{before}&queue=elsewhere").json()["events_purged"] == 0
        assert AuditEntry.objects.filter(action="history.purge").latest("pk").detail["queues"] == ["elsewhere"]
        assert len(api.get("/history").json()["events"]) == 1
        error_of(api.delete(f"/jobs/{pk}/history?{before}"), 400, "invalid_request")
        assert len(api.get(f"/jobs/{pk}/history").json()["events"]) == 1

    def test_erasing_much_goes_on_in_the_background(
        self, api: Api, monkeypatch: pytest.MonkeyPatch, frozen_clock: Any
    ) -> None:
        """In batches, each with its audit entry; asked for twice it is one; what is new stays."""
        for _ in range(5):
            completed(pushed())
        pushed(queue="elsewhere")
        monkeypatch.setattr(bulk, "MOST_EVENTS", 4)
        monkeypatch.setattr(erasing, "BATCH", 2)
        monkeypatch.setattr(erasing, "STRETCH", 5)
        asked = "/history?before=2999-01-01T00:00:00Z&queues=default&event_types=job.created,job.attempt_*"
        body = api.delete(asked).json()
        address = body.pop("status_url")
        assert body == {"purged": False, "events_purged": 0, "async": True, "estimated_events": 15}
        assert api.delete(asked).json()["status_url"] == address
        kept = str(pushed())
        action = BulkAction.objects.get()
        assert address.endswith(f"/bulk-actions/{action.pk}")
        assert bulk.advance_action()
        told = api.get(address.partition("/ojs/v1")[2]).json()
        assert (told["action"], told["state"], told["succeeded"], told["filter"]) == (
            "purge_history", "running", 2,
            {"before": "2999-01-01T00:00:00.000Z", "queues": ["default"],
             "event_types": ["job.created", "job.attempt_*"]},
        )  # fmt: skip
        while bulk.advance_action():
            pass
        action.refresh_from_db()
        assert (action.state, action.succeeded) == ("completed", 15)
        left = api.get("/history").json()["events"]
        assert [(event["queue"] if "queue" in event else event["data"]["queue"]) for event in left] == [
            "default", "elsewhere",
        ]  # fmt: skip
        assert left[0]["job_id"] == kept
        entries = AuditEntry.objects.filter(action="history.purge").order_by("pk")
        assert sum(entry.detail.get("events_deleted", 0) for entry in entries) == 15
        assert api.delete(asked).json() == {
            "purged": True, "events_purged": 1, "async": False, "estimated_events": 0,
        }  # fmt: skip

    def test_others_write_between_two_batches_and_a_killed_call_is_done_again(
        self, api: Api, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for _ in range(5):
            pushed()
        monkeypatch.setattr(erasing, "BATCH", 2)
        emptied, came = erasing.emptied, []

        def emptying(ids: Any, using: str) -> int:
            assert connection.in_atomic_block
            assert len(ids) <= 2
            if len(came) == 2:
                raise ZeroDivisionError
            done = emptied(ids, using)
            transaction.on_commit(lambda: came.append(pushed()))
            return done

        monkeypatch.setattr(erasing, "emptied", emptying)
        assert api.delete("/history?before=2999-01-01T00:00:00Z").status_code == 500
        assert len(came) == 2, "between two batches others write"
        monkeypatch.setattr(erasing, "emptied", emptied)
        told = sum(entry.detail["events_deleted"] for entry in AuditEntry.objects.filter(action="history.purge"))
        assert told == Event.objects.filter(type=erasing.ERASED).count() == 4
        assert api.delete("/history?before=2999-01-01T00:00:00Z").json()["events_purged"] == 3

    def test_a_limited_key_reaches_its_own(self, with_key: Any) -> None:
        mine, foreign = pushed(), pushed(queue="other")
        key = with_key("read", "admin.purge", queues=["default"])
        body = key.get("/history").json()
        assert ([event["job_id"] for event in body["events"]], body["total_estimate"]) == ([str(mine)], 1)
        assert [bucket["events"] for bucket in key.get("/history/stats").json()["buckets"]] == [{"job.created": 1}]
        error_of(key.get("/history", {"queues": "other"}), 403, "permission_denied")
        assert key.delete("/history?before=2999-01-01T00:00:00Z").json()["events_purged"] == 1
        assert [event.job_id for event in Event.objects.exclude(type=erasing.ERASED)] == [foreign]
        error_of(with_key("admin.write").delete("/history?before=1h"), 403, "permission_denied")
