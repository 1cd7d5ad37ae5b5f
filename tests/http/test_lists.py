"""Queues, dead letters, events, and the pages of every list."""

import base64
import datetime as dt
import json
from typing import Any

import pytest

from django_ojs.models import Job
from tests.http.conftest import Api, error_of
from tests.http.test_jobs import UNKNOWN


def names(response: Any) -> list[str]:
    return [queue["name"] for queue in response.json()["queues"]]


def test_default_is_listed_before_anybody_used_it(api: Api) -> None:
    body = api.get("/queues").json()
    (queue,) = body["queues"]
    assert (queue["name"], queue["status"], queue["paused"]) == ("default", "active", False)
    assert queue["created_at"].endswith("Z")
    assert body["pagination"]["total"] == 1


def test_queues_appear_with_their_first_job(api: Api) -> None:
    for name in ("b.2", "a-1"):
        api.push(queue=name)
    assert names(api.get("/queues")) == ["a-1", "b.2", "default"]


def test_a_queue_can_be_read_and_an_unknown_one_is_not_found(api: Api) -> None:
    api.push(queue="mail")
    body = api.get("/queues/mail").json()
    assert body["queue"]["name"] == body["name"] == "mail"
    assert body["config"] == {}
    assert api.get("/queues/default").status_code == 200
    for name in ("unknown", "BAD", "%00", "%FF", "a%0A", "x" * 3000):
        assert error_of(api.get(f"/queues/{name}"), 404, "not_found")["details"]["resource_type"] == "queue"


def test_pausing_stops_delivery_but_not_enqueueing(api: Api) -> None:
    paused = api.post("/queues/mail/pause").json()
    assert paused["queue"] == {"name": "mail", "paused": True, "status": "paused"}
    assert (paused["name"], paused["paused"], paused["status"]) == ("mail", True, "paused")
    assert paused["paused_at"]
    assert api.push(queue="mail")["state"] == "available"
    assert api.post("/workers/fetch", {"queues": ["mail"]}).json() == {"jobs": []}
    assert api.post("/queues/mail/pause", {}).json() == paused
    resumed = api.post("/queues/mail/resume", {}).json()
    assert (resumed["status"], resumed["paused"]) == ("active", False)
    assert resumed["resumed_at"]
    assert api.fetch("mail")["state"] == "active"


def test_resuming_what_was_never_paused_is_no_error(api: Api) -> None:
    assert api.post("/queues/new/resume").json()["resumed_at"]


@pytest.mark.parametrize("name", ["BAD", "-a", "%00", "a%0A", "x" * 129])
def test_a_queue_with_a_bad_name_cannot_be_paused(api: Api, name: str) -> None:
    error_of(api.post(f"/queues/{name}/pause"), 400, "invalid_request")
    error_of(api.post(f"/queues/{name}/resume"), 400, "invalid_request")


def test_dead_letters_are_listed_newest_first_with_their_errors(api: Api) -> None:
    first, second = api.dead_letter(), api.dead_letter(queue="mail", job_type="mail.send")
    body = api.get("/dead-letter").json()
    assert [job["id"] for job in body["jobs"]] == [second["id"], first["id"]]
    job = body["jobs"][0]
    assert (job["state"], len(job["errors"]), job["total_attempts"]) == ("discarded", 1, 1)
    assert job["error"]["message"] == "broken"
    assert job["metadata"] == {"created_at": job["created_at"], "discarded_at": job["discarded_at"]}
    for query in ({"queue": "mail"}, {"type": "mail.send"}, {"type": "mail.*"}, {"type": "m*"}):
        assert [job["id"] for job in api.get("/dead-letter", query).json()["jobs"]] == [second["id"]]
    assert api.get("/dead-letter", {"queue": "none"}).json()["jobs"] == []


@pytest.mark.parametrize("path", ["/dead-letter", "/admin/dead-letter"])
def test_both_doors_take_the_same_filters_and_show_the_same_rows(api: Api, path: str) -> None:
    first, second = api.dead_letter(), api.dead_letter(queue="mail")
    body = api.get(path).json()
    assert body["jobs"] == body["items"]
    assert {name: value for name, value in body["items"][1].items() if name in first} == first
    assert body["items"] == api.get("/dead-letter").json()["items"]
    wanted = {
        "error_type": ("x", "Nope"), "since": (first["created_at"], "2126-01-01T00:00:00Z"),
        "until": ("2126-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
        "queue": ("mail", "none"), "type": ("test.*", "no.*"),
    }  # fmt: skip
    for name, (some, none) in wanted.items():
        assert api.get(path, {name: some}).json()["items"][0]["id"] == second["id"], name
        empty = api.get(path, {name: none}).json()
        assert (empty["items"], empty["pagination"]["total"]) == ([], 0), name
    error_of(api.get(path, {"until": "soon"}), 400, "invalid_request")


@pytest.mark.parametrize("path", ["/dead-letter", "/admin/dead-letter"])
def test_many_dead_letters_are_retried_and_purged_by_both_doors(api: Api, path: str) -> None:
    for queue in ("a", "a", "b"):
        api.dead_letter(queue=queue)
    error_of(api.post(f"{path}/retry", {"filter": {}}), 400, "invalid_request")
    answer = api.post(f"{path}/retry", {"filter": {"queue": "b"}, "confirm": True}).json()
    assert (answer["action"], answer["matched"], answer["succeeded"], answer["retried"]) == ("retry", 1, 1, 1)
    error_of(api.delete(path), 400, "invalid_request")
    assert api.delete(f"{path}?queue=a&confirm=true").json()["purged_count"] == 2
    assert api.get(path).json()["jobs"] == []


def test_what_is_not_there_is_left_out(api: Api) -> None:
    """Never null (binding 1.4); a workflow's name and the jobs of its later steps alone are told as null."""
    job = api.push()
    api.push(queue="work")
    api.fetch("work", worker_id="w1")
    steps = [{"type": "a.b", "args": []}, {"type": "a.c", "args": []}]
    flow = api.post("/workflows", {"type": "chain", "steps": steps}).json()["id"]
    hook = api.post("/webhooks/subscriptions", {"url": "https://example.com/x", "events": ["job.*"]}).json()["id"]
    paths = [
        "/admin/jobs", f"/admin/jobs/{job['id']}", f"/jobs/{job['id']}", "/workflows", f"/workflows/{flow}",
        "/admin/workers", "/admin/workers/w1", "/webhooks/subscriptions", f"/webhooks/subscriptions/{hook}",
    ]  # fmt: skip

    def nulls(value: Any, name: str = "") -> set[str]:
        if isinstance(value, dict):
            return {found for key, one in value.items() for found in nulls(one, key)}
        if isinstance(value, list):
            return {found for one in value for found in nulls(one, name)}
        return {name} if value is None else set()

    for path in paths:
        response = api.get(path)
        assert response.status_code == 200, path
        assert nulls(response.json()) <= {"name", "job_id"}, path


def test_jobs_that_asked_to_stay_out_are_not_dead_letters(api: Api) -> None:
    job = api.dead_letter(retry={"max_attempts": 1, "on_exhaustion": "discard"})
    assert api.get("/dead-letter").json()["jobs"] == []
    error = error_of(api.get(f"/dead-letter/{job['id']}"), 404, "not_found")
    assert error["details"] == {"resource_type": "dead_letter_job", "resource_id": job["id"]}


def test_a_dead_letter_can_be_read_alone(api: Api) -> None:
    job = api.dead_letter()
    body = api.get(f"/dead-letter/{job['id']}").json()
    assert body["job"]["id"] == body["id"] == job["id"]


def test_a_revived_job_starts_afresh(api: Api) -> None:
    job = api.dead_letter()
    revived = api.post(f"/dead-letter/{job['id']}/retry").json()["job"]
    assert (revived["state"], revived["attempt"]) == ("available", 0)
    assert revived["re_enqueued_at"] == revived["enqueued_at"]
    assert not {"error", "errors", "started_at", "completed_at", "discarded_at"} & revived.keys()
    assert api.fetch()["attempt"] == 1
    error_of(api.post(f"/dead-letter/{job['id']}/retry"), 404, "not_found")


def test_a_revived_job_may_be_changed(api: Api) -> None:
    job = api.dead_letter()
    override = {"queue": "slow", "args": [2], "priority": 5, "meta": {"again": True}, "retry": {"max_attempts": 9}}
    revived = api.post(f"/dead-letter/{job['id']}/retry", {"override": override}).json()["job"]
    assert (revived["queue"], revived["args"], revived["priority"]) == ("slow", [2], 5)
    assert (revived["meta"], revived["max_attempts"]) == ({"again": True}, 9)


@pytest.mark.parametrize("override", [[], "x", {"state": "completed"}, {"queue": "BAD"}, {"args": 5}])
def test_a_malformed_override_changes_nothing(api: Api, override: Any) -> None:
    job = api.dead_letter()
    response = api.post(f"/dead-letter/{job['id']}/retry", {"override": override})
    assert response.status_code == 400
    assert api.get(f"/jobs/{job['id']}").json()["job"]["state"] == "discarded"


def test_a_deleted_dead_letter_is_gone_for_good(api: Api) -> None:
    job = api.dead_letter()
    response = api.delete(f"/dead-letter/{job['id']}")
    assert (response.status_code, response.json()) == (200, {"deleted": True, "job_id": job["id"]})
    error_of(api.get(f"/jobs/{job['id']}"), 404, "not_found")
    error_of(api.delete(f"/dead-letter/{job['id']}"), 404, "not_found")


@pytest.mark.parametrize("job_id", [UNKNOWN, "nonsense", "%00"])
def test_what_is_no_dead_letter_is_not_found_by_any_method(api: Api, job_id: str) -> None:
    path = f"/dead-letter/{job_id}"
    for response in (api.get(path), api.delete(path), api.post(f"{path}/retry")):
        assert error_of(response, 404, "not_found")["details"]["resource_type"] == "dead_letter_job"


def test_live_jobs_cannot_be_deleted_or_revived_as_dead_letters(api: Api) -> None:
    job = api.push()
    error_of(api.delete(f"/dead-letter/{job['id']}"), 404, "not_found")
    error_of(api.post(f"/dead-letter/{job['id']}/retry"), 404, "not_found")
    assert Job.objects.filter(pk=job["id"]).exists()


def test_events_carry_what_pollers_read_at_the_top(api: Api) -> None:
    job = api.push(queue="q1")
    body = api.get("/events", {"types": "job.enqueued", "queues": "q1"}).json()
    (event,) = body["events"]
    assert body["items"] == body["events"]
    assert (event["type"], event["event"]) == ("job.enqueued", "job.enqueued")
    assert event["timestamp"] == event["time"]
    assert (event["job_id"], event["queue"], event["state"]) == (job["id"], "q1", "available")
    assert event["data"]["job_type"] == "test.echo"
    assert (body["cursor"], body["has_more"]) == (event["id"], False)


def test_the_log_is_read_page_by_page_to_its_end(api: Api) -> None:
    for _ in range(5):
        api.push()
    seen: list[str] = []
    query: dict[str, Any] = {"types": "job.*", "limit": 2}
    while True:
        body = api.get("/events", query).json()
        seen += [event["subject"] for event in body["events"]]
        assert len(body["events"]) <= 2
        if not body["has_more"]:
            break
        assert body["pagination"]["next_cursor"] == body["cursor"]
        query["after"] = body["cursor"]
    assert len(seen) == len(set(seen)) == 5
    end = api.get("/events", {"after": body["cursor"]}).json()
    assert (end["events"], end["cursor"]) == ([], body["cursor"])


def test_an_empty_log_has_no_cursor(api: Api) -> None:
    assert api.get("/events").json()["cursor"] is None


def test_events_can_be_narrowed(api: Api) -> None:
    one, two = api.push("a.one"), api.push("a.two", queue="q2")

    def subjects(**query: Any) -> list[str]:
        return [event["subject"] for event in api.get("/events", query).json()["events"]]

    assert subjects(job_types="a.two") == [two["id"]]
    assert subjects(job_id=one["id"]) == [one["id"]]
    assert subjects(type="job.completed") == []
    assert subjects(since="2999-01-01T00:00:00Z") == []
    assert len(subjects(until="2999-01-01T00:00:00+01:00")) == 2


@pytest.mark.parametrize(
    "name, value",
    [
        ("limit", "0"),
        ("limit", "-1"),
        ("limit", "ten"),
        ("limit", ""),
        ("limit", "1.5"),
        ("limit", "٣"),
        ("after", "nonsense"),
        ("after", "evt_019539a4-0000-7000-8000-000000000000"),
        ("after", "x" * 9000),
        ("job_id", "nonsense"),
        ("workflow_id", "\x00"),
        ("since", "yesterday"),
        ("until", "2026-01-01T00:00:00"),
        ("types", "\x00"),
        ("queues", "a,b\x00"),
    ],
)
def test_a_malformed_event_query_is_refused_with_the_parameters_name(api: Api, name: str, value: str) -> None:
    error = error_of(api.get("/events", {name: value}), 400, "invalid_request")
    assert error["details"]["field"] == name


def test_the_limit_of_events_is_cut_at_a_thousand(api: Api) -> None:
    assert api.get("/events", {"limit": "99999999999999999999"}).json()["pagination"]["limit"] == 1000


# Pages


@pytest.fixture
def seven_queues(api: Api) -> list[str]:
    for i in range(6):
        api.push(queue=f"q{i}")
    return ["default", *(f"q{i}" for i in range(6))]


def test_a_list_is_read_by_cursor_though_rows_come_and_go(api: Api, seven_queues: list[str]) -> None:
    seen: list[str] = []
    query: dict[str, Any] = {"limit": 3}
    for _ in range(10):
        response = api.get("/queues", query)
        page = response.json()["pagination"]
        seen += names(response)
        api.push(queue=f"a{len(seen)}")  # sorts before the cursor: shifts nothing
        if not page["has_more"]:
            assert "next_cursor" not in page
            break
        query["cursor"] = page["next_cursor"]
    assert seen == seven_queues


def test_a_list_is_read_by_page_and_by_offset(api: Api, seven_queues: list[str]) -> None:
    assert names(api.get("/queues", {"limit": 3, "offset": 2})) == seven_queues[2:5]
    assert names(api.get("/queues", {"page": 3, "per_page": 3})) == seven_queues[6:]
    page = api.get("/queues", {"page": 2, "per_page": 3}).json()["pagination"]
    expected = {"total": 7, "limit": 3, "offset": 3, "page": 2, "per_page": 3, "has_more": True}
    assert page.items() >= expected.items()
    assert page["next_cursor"]


LISTS = (
    "/queues", "/schemas", "/cron", "/workflows", "/dead-letter", "/rate-limits", "/webhooks/subscriptions",
    "/webhooks/deliveries", "/admin/queues", "/admin/workers", "/admin/dead-letter", "/admin/audit",
    "/admin/bulk-actions", "/admin/jobs", "/admin/jobs?sort=priority", "/admin/jobs?sort=scheduled_at",
)  # fmt: skip
UUID = "01976f5e-0000-7000-8000-000000000000"
#: Parameters that take one of some words, and nothing else.
CHOICES = (
    "/jobs?state", "/admin/jobs?state", "/admin/audit?outcome", "/workflows?state", "/admin/bulk-actions?state",
    "/webhooks/deliveries?status", "/approvals?state", "/cron?enabled", "/history?actor_type",
    "/history/stats?group_by",
)  # fmt: skip


@pytest.mark.parametrize("query", CHOICES)
def test_a_misspelt_word_is_refused_where_there_are_only_some(api: Api, query: str) -> None:
    """An empty list would say that there is nothing of the kind."""
    error = error_of(api.get(f"{query}=denid"), 400, "invalid_request")
    assert error["details"]["field"] == query.partition("?")[2]


def test_a_parameter_that_is_repeated_counts_as_a_list_or_is_refused(api: Api) -> None:
    """The last one counted, and the others did not."""
    for queue in ("q1", "q2", "q3"):
        api.push("a.b", queue=queue)
    api.fetch("q1")
    api.post(f"/jobs/{api.push('a.c', queue='q2', pending=True)['id']}/cancel")
    for path in ("/jobs", "/admin/jobs"):
        for states in ("active&state=cancelled", "active,cancelled&state=", "active&state=cancelled,active"):
            found = api.get(f"{path}?state={states}").json()
            assert sorted(job["state"] for job in found["items"]) == ["active", "cancelled"]
            assert found["pagination"]["total"] == 2
        for query in ("queue=q1&queue=q2", "type=a.b&type=a.c", "sort=priority&sort=created_at"):
            if path == "/jobs" and query.startswith("sort"):
                continue
            error = error_of(api.get(f"{path}?{query}"), 400, "invalid_request")
            assert error["details"]["field"] == query.partition("=")[0]
        assert len(api.get(f"{path}?queue=q2&queue=q2&_=1&_=2").json()["items"]) == 2
        query, seen = "limit=9&limit=1", []
        while query:  # as a client does that adds each cursor to what it has asked
            page = api.get(f"{path}?{query}").json()
            seen += [job["id"] for job in page["items"]]
            cursor = page["pagination"].get("next_cursor")
            query = f"{query}&cursor={cursor}" if cursor else ""
        assert len(seen) == len(set(seen)) == 4
    for query in ("queues=q1&queues=q2", "queue=q1&queue=q2"):
        found = {event["data"]["queue"] for event in api.get(f"/events?{query}").json()["events"]}
        assert found == {"q1", "q2"}
    error_of(api.get("/webhooks/deliveries?subscription_id=a&subscription_id=b"), 400, "invalid_request")
    for query in ("strategy=reject", "target_queue=a&target_queue=b"):
        error_of(api.delete(f"/queues/q3?strategy=discard&{query}"), 400, "invalid_request")
    error_of(api.delete("/admin/queues/q1/jobs?states=completed&states=cancelled&confirm=true"), 400, "invalid_request")
    assert api.get("/jobs").json()["pagination"]["total"] == 4


@pytest.mark.parametrize("path", LISTS)
@pytest.mark.parametrize(
    "value", ["\0", "a\0b", "\ud800", "9" * 30, "-" + "9" * 30, "9" * 1000, "0001-01-01T00:00:00Z"]
)
def test_no_made_up_cursor_breaks_a_list(api: Api, path: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_ojs.http.pagination.mark_of", lambda request, order: "known")
    for values in ([value], [value, "1"], [value, UUID], ["1", value], ["2026-01-01T00:00:00Z", value]):
        cursor = base64.urlsafe_b64encode(json.dumps([0, "known", *values]).encode()).decode().rstrip("=")
        response = api.get(f"{path}{'&' if '?' in path else '?'}cursor={cursor}")
        if response.status_code != 200:
            error_of(response, 400, "invalid_request")
        assert response.status_code == 400 or "\0" not in value


@pytest.mark.parametrize(
    "path",
    [
        "/rate-limits/%00", "/rate-limits/queue:a%00", "/admin/rate-limits/a%00b", "/schemas/a%00b", "/schemas/x:%00",
        "/schemas/a%00b/versions", "/schemas/a.b/versions/%00", "/admin/schemas/a%00b", "/admin/schemas/a%00b/versions",
        "/admin/schemas/a%00b/1",
    ],
)  # fmt: skip
def test_what_no_row_can_be_called_is_not_found(api: Api, path: str) -> None:
    error_of(api.get(path), 404, "not_found")
    if "/rate-limits/" in path:
        error_of(api.delete(f"{path}/override"), 404, "not_found")


def test_cursor_beats_page_beats_offset(api: Api, seven_queues: list[str]) -> None:
    cursor = api.get("/queues", {"limit": 2}).json()["pagination"]["next_cursor"]
    assert names(api.get("/queues", {"limit": 2, "cursor": cursor, "page": 4})) == seven_queues[2:4]
    assert names(api.get("/queues", {"limit": 2, "page": 3, "offset": 0})) == seven_queues[4:6]


def test_dead_letters_are_read_by_cursor_even_if_they_died_at_one_instant(api: Api, frozen_clock: Any) -> None:
    ids = [api.dead_letter()["id"] for _ in range(5)]
    seen: list[str] = []
    query: dict[str, Any] = {"limit": 2}
    while True:
        body = api.get("/dead-letter", query).json()
        seen += [job["id"] for job in body["jobs"]]
        if not body["pagination"]["has_more"]:
            break
        query["cursor"] = body["pagination"]["next_cursor"]
        frozen_clock.advance(seconds=1)
        ids.append(api.dead_letter()["id"])  # newer than the cursor: not seen any more
    assert sorted(seen) == sorted(ids[:5])


@pytest.mark.parametrize("path, most", [("/queues", 1000), ("/dead-letter", 1000)])
def test_a_larger_limit_is_cut(api: Api, path: str, most: int) -> None:
    for limit in ("5000", "1" * 400):
        assert api.get(path, {"limit": limit}).json()["pagination"]["limit"] == most


@pytest.mark.parametrize("path", ["/queues", "/dead-letter"])
@pytest.mark.parametrize(
    "query", [{"offset": "9" * 50}, {"page": "9" * 50}, {"page": "9007199254740993", "limit": 200}]
)
def test_a_page_beyond_the_end_is_empty(api: Api, path: str, query: Any) -> None:
    response = api.get(path, query)
    assert response.status_code == 200
    assert not response.json().get("queues", response.json().get("jobs"))


@pytest.mark.parametrize("path", ["/queues", "/dead-letter"])
@pytest.mark.parametrize(
    "name, value",
    [
        ("limit", "0"), ("limit", "x"), ("limit", ""), ("per_page", "-1"), ("page", "0"), ("page", "1e3"),
        ("offset", "-1"), ("offset", "0x10"), ("cursor", "nonsense"), ("cursor", "é"), ("cursor", "W10"),
        ("cursor", "WyJhIl0"), ("cursor", "A" * 100_000), ("cursor", "\x00"), ("offset", "\ud800"),
        ("cursor", "WzAsImEiLCJiIl0"), ("cursor", "WzAsIlx1MDAwMCJd"), ("cursor", "W1swXV0"),
    ],
)  # fmt: skip
def test_a_malformed_page_is_refused(api: Api, path: str, name: str, value: str) -> None:
    if value == "\ud800":
        response = api.client.get(f"/ojs/v1{path}?{name}=%ED%A0%80")
    else:
        response = api.get(path, {name: value})
    assert error_of(response, 400, "invalid_request")["details"]["field"] == name


def test_a_cursor_counts_in_its_own_list_and_order_only(api: Api, seven_queues: list[str]) -> None:
    """In another one it would leave out rows, and nothing would say so."""
    for name in ("a", "b"):
        api.post("/cron", {"name": name, "cron": "@daily", "type": "a.b"})
        api.push(scheduled_at="2098-01-01T00:00:00Z", rate_limit={"key": name, "concurrency": 1})
        api.dead_letter()
        api.dead_letter(queue="dead")
    lists = [
        "/queues?", "/cron?", "/rate-limits?", "/jobs?", "/jobs?order=asc", "/jobs?sort=priority",
        "/jobs?sort=priority&order=asc", "/jobs?sort=scheduled_at", "/jobs?sort=finished_at", "/dead-letter?",
    ]  # fmt: skip
    cursors = {path: api.get(f"{path}&limit=1").json()["pagination"].get("next_cursor") for path in lists}
    assert len(set(cursors.values())) == len(lists)
    for path in lists:
        for other, cursor in cursors.items():
            response = api.get(f"{path}&cursor={cursor}")
            if other == path:
                assert response.status_code == 200, response.content
            else:
                error = error_of(response, 400, "invalid_request")
                assert error["details"] == {"field": "cursor"}
    assert api.get(f"/admin/jobs?cursor={cursors['/jobs?']}").status_code == 200, "the same list"
    assert api.get(f"/crons?cursor={cursors['/cron?']}").status_code == 200


def test_a_cursor_of_the_attempts_of_a_job_is_none_of_another_job(api: Api) -> None:
    one, other = (api.push(queue=queue)["id"] for queue in ("q1", "q2"))
    for queue in ("q1", "q2") * 2:
        api.post("/workers/nack", {"job_id": api.fetch(queue)["id"], "requeue": True})
    cursor = api.get(f"/jobs/{one}/attempts", {"limit": 1}).json()["next_cursor"]
    assert cursor
    assert api.get(f"/jobs/{one.upper()}/attempts", {"cursor": cursor}).status_code == 200
    error_of(api.get(f"/jobs/{other}/attempts", {"cursor": cursor}), 400, "invalid_request")


def test_the_filters_of_dead_letters_refuse_what_no_database_takes(api: Api) -> None:
    error_of(api.get("/dead-letter", {"queue": "a\x00"}), 400, "invalid_request")
    error_of(api.get("/dead-letter", {"type": "x" * 300}), 400, "invalid_request")


def test_times_are_utc_whatever_the_sites_zone(api: Api) -> None:
    created = dt.datetime.fromisoformat(api.get("/queues/default").json()["queue"]["created_at"])
    assert abs(dt.datetime.now(dt.UTC) - created) < dt.timedelta(minutes=1)
