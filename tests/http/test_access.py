"""What a key may do here: scopes per endpoint, limits to queues and job types."""

import json
import re
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_ojs.models import Job, Queue, RateLimit
from django_ojs.queues import configuration
from tests.http.conftest import Api, error_of
from tests.http.test_jobs import UNKNOWN

CALLS = [
    ("POST", "/jobs", "push"),
    ("POST", "/jobs/batch", "push"),
    ("GET", f"/jobs/{UNKNOWN}", "read"),
    ("DELETE", f"/jobs/{UNKNOWN}", "admin"),
    ("POST", f"/jobs/{UNKNOWN}/cancel", "admin"),
    ("POST", f"/jobs/{UNKNOWN}/activate", "push"),
    ("POST", f"/jobs/{UNKNOWN}/ack", "work"),
    ("POST", f"/jobs/{UNKNOWN}/nack", "work"),
    ("POST", f"/jobs/{UNKNOWN}/fail", "work"),
    ("POST", "/jobs/fetch", "work"),
    ("POST", "/workers/fetch", "work"),
    ("POST", "/workers/ack", "work"),
    ("POST", "/workers/nack", "work"),
    ("POST", "/workers/fail", "work"),
    ("POST", "/workers/heartbeat", "work"),
    ("POST", "/workers/beat", "work"),
    ("POST", "/workers/register", "work"),
    ("POST", "/workers", "work"),
    ("POST", "/workers/deregister", "work"),
    ("DELETE", "/workers/w1", "work"),
    ("GET", "/workers/w1/health", "read"),
    ("GET", "/queues", "read"),
    ("HEAD", "/queues", "read"),
    ("GET", "/queues/default", "read"),
    ("POST", "/queues/default/pause", "admin"),
    ("POST", "/queues/default/resume", "admin"),
    ("GET", "/dead-letter", "read"),
    ("DELETE", "/dead-letter", "admin.purge"),
    ("POST", "/dead-letter/retry", "admin.write"),
    ("GET", f"/dead-letter/{UNKNOWN}", "read"),
    ("DELETE", f"/dead-letter/{UNKNOWN}", "admin"),
    ("POST", f"/dead-letter/{UNKNOWN}/retry", "admin"),
    ("GET", "/events", "read"),
]


@pytest.mark.parametrize("method, path, scope", CALLS)
def test_each_call_needs_its_scope(with_key: Any, method: str, path: str, scope: str) -> None:
    def status(api: Api) -> int:
        code: int = api.client.generic(method, f"/ojs/v1{path}", b"{}", content_type="application/json").status_code
        return code

    assert status(Api()) == 401
    others = [other for other in ("push", "work", "read") if other != scope]
    assert status(with_key(*others)) == 403
    for enough in {scope, "admin"}:
        assert status(with_key(enough)) not in (401, 403)


@pytest.mark.parametrize("method", ["HEAD", "GET", "INITIAL"])
def test_a_method_that_a_path_lacks_is_405_for_everybody(with_key: Any, method: str) -> None:
    for api in (Api(), with_key("read")):
        response = api.client.generic(method, "/ojs/v1/jobs/batch")
        assert (response.status_code, response["Allow"]) == (405, "POST, OPTIONS")


@pytest.mark.parametrize("path", ["/queues/mail/pause", "/admin/queues/mail/pause"])
def test_who_lacks_a_scope_is_told_which_and_for_which_queue(with_key: Any, path: str) -> None:
    details = error_of(with_key("read").post(path), 403, "permission_denied")["details"]
    needed = "admin.write" if "admin" in path else "admin"
    assert (details["required_role"], details["required_scope"], details["queue"]) == (needed, needed, "mail")
    assert "queue" not in error_of(with_key("read").post("/jobs", {}), 403, "permission_denied")["details"]


def test_a_queue_is_emptied_into_a_queue_of_the_key_only(with_key: Any) -> None:
    with_key("push").push(queue="mail")
    api = with_key("admin", queues=["mail", "sms"])
    path = "/queues/mail?strategy=move&target_queue="
    error = error_of(api.delete(f"{path}other"), 403, "permission_denied")
    assert error["details"]["queue"] == "other"
    error_of(api.delete(f"{path}!"), 400, "invalid_request")
    assert Job.objects.get().queue == "mail"
    assert api.delete(f"{path}sms").status_code == 202
    assert Job.objects.get().queue == "sms"


KEYS = ("api", "queue:mail", "queue:other", "type:mail.send", "type:mailer.send", "type:report.daily")


@pytest.mark.parametrize(
    "limits, own",
    [
        ({}, KEYS),
        ({"queues": ["mail"]}, ("queue:mail",)),
        ({"job_types": ["mail.*"]}, ("type:mail.send",)),
        ({"job_types": ["report.daily"]}, ("type:report.daily",)),
        ({"queues": ["mail"], "job_types": ["mail.*"]}, ()),  # neither is all its own
    ],
)
def test_a_key_sees_and_sets_the_rate_limits_of_its_queues_and_types(
    with_key: Any, limits: dict[str, Any], own: tuple[str, ...]
) -> None:
    def put(api: Api, path: str, concurrency: int) -> int:
        body = f'{{"concurrency": {concurrency}}}'
        code: int = api.client.put(f"/ojs/v1{path}", body, content_type="application/json").status_code
        return code

    boss, api = with_key("admin"), with_key("admin", **limits)
    for key in KEYS:
        assert put(boss, f"/rate-limits/{key}", 7) == 200
    for base in ("/rate-limits", "/admin/rate-limits"):
        page = api.get(base).json()
        assert tuple(item["key"] for item in page["items"]) == own
        assert page["pagination"]["total"] == len(own)
        for key in KEYS:
            expected = 200 if key in own else 403
            assert api.get(f"{base}/{key}").status_code == expected, key
            assert put(api, f"{base}/{key}", 1) == expected
            assert put(api, f"{base}/{key}/override", 1) == expected
            if key not in own:
                error_of(api.delete(f"{base}/{key}/override"), 403, "permission_denied")
                assert boss.get(f"{base}/{key}").json()["concurrency"]["limit"] == 7, "nothing was changed"


def test_xi_8_a_push_that_is_wrong_in_every_way_is_refused_for_the_first_of_them(with_key: Any) -> None:
    """The order is authentication, rights, validation, unique jobs."""
    taken = {"type": "mail.send", "args": [], "unique": {"keys": ["type"]}}
    assert with_key("push").post("/jobs", taken).status_code == 201
    wrong = {**taken, "queue": "other", "args": 5}
    error_of(Api().post("/jobs", wrong), 401, "unauthenticated")
    error_of(with_key("read").post("/jobs", wrong), 403, "permission_denied")
    api = with_key("push", queues=["default"])
    assert error_of(api.post("/jobs", wrong), 403, "permission_denied")["details"]["queue"] == "other"
    error_of(api.post("/jobs", {**wrong, "queue": "default"}), 400, "invalid_payload")
    error_of(api.post("/jobs", taken), 409, "duplicate")


def test_without_credentials_the_answer_says_how(with_key: Any) -> None:
    response = Api().get("/queues")
    error_of(response, 401, "unauthenticated")
    assert response["WWW-Authenticate"] == "Bearer"


def test_a_wrong_key_is_401_too(with_key: Any) -> None:
    response = Api(authorization="Bearer ojs_wrong").get("/queues")
    error_of(response, 401, "unauthenticated")
    assert response["WWW-Authenticate"].startswith("Bearer")


def test_manifest_health_unknown_paths_and_options_are_for_everybody(with_key: Any) -> None:
    stranger = Api(authorization="Bearer ojs_wrong")
    assert stranger.client.get("/ojs/manifest").status_code == 200
    assert stranger.get("/health").status_code == 200
    assert stranger.get("/nowhere").status_code == 404
    assert stranger.client.options("/ojs/v1/jobs").status_code == 204


def test_a_key_may_push_to_its_queues_and_types_only(with_key: Any) -> None:
    api = with_key("push", queues=["mail"], job_types=["mail.*"])
    assert api.push("mail.send", queue="mail")
    for attributes in (
        {"type": "mail.send"},
        {"type": "mail.send", "queue": "other"},
        {"type": "mail.send", "queue": "mail", "options": {"queue": "other"}},
        {"type": "mail", "queue": "mail"},
        {"type": "other.send", "queue": "mail"},
        {"type": "other.send@2", "queue": "mail"},
    ):
        job = {"args": [], **attributes}
        error_of(api.post("/jobs", job), 403, "permission_denied")
        error_of(
            api.post("/jobs/batch", {"jobs": [{"type": "mail.send", "queue": "mail", "args": []}, job]}),
            403,
            "permission_denied",
        )
    assert Job.objects.count() == 1


def test_a_malformed_job_is_malformed_for_a_limited_key_too(with_key: Any) -> None:
    api = with_key("push", queues=["mail"], job_types=["mail.*"])
    error_of(api.post("/jobs", {"type": "NO", "args": [], "queue": "mail"}), 400, "invalid_payload")
    error_of(api.post("/jobs/batch", {"jobs": [5]}), 400, "invalid_payload")


def test_a_key_may_fetch_from_its_queues_only(with_key: Any) -> None:
    with_key("push").push(queue="other")
    api = with_key("work", queues=["mail"])
    error = error_of(api.post("/workers/fetch", {"queues": ["mail", "other"]}), 403, "permission_denied")
    assert error["details"]["queue"] == "other"
    assert api.post("/workers/fetch", {"queues": ["mail"]}).json() == {"jobs": []}


@pytest.mark.parametrize("limit", [{}, {"rate_limit": {"key": "k", "concurrency": 5}}])
@pytest.mark.parametrize("entry", ["mail.send", "mail.*"])
def test_a_key_fetches_jobs_of_its_types_only(with_key: Any, entry: str, limit: dict[str, Any]) -> None:
    pusher = with_key("push")
    pusher.push("other.send", **limit)
    wanted = pusher.push("mail.send", **limit)
    api = with_key("work", job_types=[entry])
    jobs = api.post("/workers/fetch", {"queues": ["default"], "count": 9}).json()["jobs"]
    assert [job["id"] for job in jobs] == [wanted["id"]]


def test_a_pattern_of_types_costs_a_fetch_what_a_name_costs(with_key: Any) -> None:
    """No look at which types wait: every statement finds its jobs by an index, whatever the backlog is."""
    boss = with_key("push")
    for number in range(40):
        boss.push(f"other{number}.send")
    wanted = [boss.push(name)["id"] for name in ("mail.send", "mail.news.weekly", "report.daily")]
    boss.push("mail")
    boss.push("mailbox.send")
    statements = {}
    for entry in ("mail.send", "mail.*"):
        api = with_key("work", job_types=[entry, "report.daily"])
        configuration.forget()
        with CaptureQueriesContext(connection) as captured:
            jobs = api.post("/workers/fetch", {"queues": ["default"], "count": 1}).json()["jobs"]
        assert [job["id"] for job in jobs] == [wanted.pop(0)]
        statements[entry] = [query["sql"] for query in captured]
    assert len(statements["mail.*"]) == len(statements["mail.send"])
    reads = [sql for sql in statements["mail.*"] if re.search(r"\bdjango_ojs_job\b", sql)]
    assert reads
    for sql in reads:
        assert not scans_jobs(sql), sql


def scans_jobs(sql: str) -> bool:
    """Whether the database reads all jobs for this statement, though it need not. MariaDB decides by their number."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute(f"EXPLAIN {'QUERY PLAN ' if connection.vendor == 'sqlite' else ''}{sql}")
        plan = [" ".join(map(str, row)) for row in cursor.fetchall()]
    whole = {"postgresql": "Seq Scan on django_ojs_job ", "sqlite": "SCAN django_ojs_job "}.get(connection.vendor)
    return bool(whole and any(whole in f"{line} " and "USING" not in line for line in plan))


def test_a_job_outside_the_limits_is_403_by_every_door(with_key: Any) -> None:
    boss = with_key("admin")
    live, dead, pending = (
        boss.push(queue="other"),
        boss.dead_letter(queue="other2"),
        boss.push(queue="other", pending=True),
    )
    boss.fetch("other", worker_id="w1")
    api = with_key("admin", queues=["mail"])
    for response in (
        api.get(f"/jobs/{live['id']}"),
        api.delete(f"/jobs/{live['id']}"),
        api.post(f"/jobs/{live['id']}/cancel"),
        api.post(f"/jobs/{pending['id']}/activate"),
        api.post(f"/jobs/{live['id']}/ack"),
        api.post("/workers/ack", {"job_id": live["id"]}),
        api.post("/workers/nack", {"job_id": live["id"], "error": {"message": "x"}}),
        api.post("/workers/heartbeat", {"worker_id": "w1", "active_jobs": [live["id"]]}),
        api.post("/workers/deregister", {"worker_id": "w1"}),
        api.delete("/workers/w1"),
        api.post("/workers/register", {"worker_id": "w9", "queues": ["other"]}),
        api.get("/queues/other"),
        api.post("/queues/other/pause"),
        api.get(f"/dead-letter/{dead['id']}"),
        api.delete(f"/dead-letter/{dead['id']}"),
        api.post(f"/dead-letter/{dead['id']}/retry"),
        api.get("/events", {"queues": "mail,other"}),
    ):
        error_of(response, 403, "permission_denied")
    assert Job.objects.get(pk=live["id"]).state == "active"
    assert Job.objects.get(pk=dead["id"]).state == "discarded"


def test_a_dead_letter_cannot_be_moved_out_of_the_limits(with_key: Any) -> None:
    dead = with_key("admin").dead_letter(queue="mail")
    api = with_key("admin", queues=["mail"])
    override = {"override": {"queue": "other"}}
    error_of(api.post(f"/dead-letter/{dead['id']}/retry", override), 403, "permission_denied")


def test_lists_show_a_limited_key_its_share(with_key: Any) -> None:
    boss = with_key("admin")
    boss.dead_letter(queue="other")
    mine = boss.dead_letter(job_type="mail.send", queue="mail")
    boss.dead_letter(job_type="other.send", queue="mail")
    by_queue, by_type = with_key("read", queues=["mail"]), with_key("read", job_types=["mail.*"])
    assert [queue["name"] for queue in by_queue.get("/queues").json()["queues"]] == ["mail"]
    assert len(by_queue.get("/dead-letter").json()["jobs"]) == 2
    assert [job["id"] for job in by_type.get("/dead-letter").json()["jobs"]] == [mine["id"]]
    assert {event["queue"] for event in by_queue.get("/events").json()["events"]} == {"mail"}
    assert {event["job_id"] for event in by_type.get("/events").json()["events"]} == {mine["id"]}
    error_of(by_type.get("/events", {"job_types": "other.send"}), 403, "permission_denied")


#: What touches a queue as a whole, at both doors.
WHOLE = [
    ("POST", "/queues", {"name": "new"}),
    ("DELETE", "/queues/mail?strategy=discard", None),
    ("DELETE", "/queues/mail", {"strategy": "move", "target_queue": "other"}),
    ("PUT", "/queues/mail/config", {"concurrency": 1}),
    ("PATCH", "/queues/mail/config", {"concurrency": 1}),
    ("POST", "/queues/mail/pause", {}),
    ("POST", "/queues/mail/resume", {}),
    ("POST", "/queues/mail/purge", {"states": ["discarded"], "confirm": True}),
    ("PUT", "/rate-limits/queue:mail", {"concurrency": 1}),
    ("PUT", "/rate-limits/queue:mail/override", {"concurrency": 1}),
    ("DELETE", "/rate-limits/queue:mail/override", None),
    ("GET", "/rate-limits/queue:mail", None),
    ("PUT", "/admin/queues/mail/config", {"concurrency": 1}),
    ("PATCH", "/admin/queues/mail/config", {"concurrency": 1}),
    ("PUT", "/admin/queues/_default/config", {"concurrency": 1}),
    ("PUT", "/admin/queues/mail/rate-limit", {"concurrency": 1}),
    ("PATCH", "/admin/queues/mail/rate-limit", {"limit": 1, "period": "PT1S"}),
    ("PUT", "/admin/queues/_default/rate-limit", {"concurrency": 1}),
    ("POST", "/admin/queues/mail/pause", {}),
    ("POST", "/admin/queues/mail/resume", {}),
    ("DELETE", "/admin/queues/mail/jobs?states=discarded&confirm=true", None),
    ("PUT", "/admin/rate-limits/queue:mail", {"concurrency": 1}),
    ("PUT", "/admin/rate-limits/queue:mail/override", {"concurrency": 1}),
    ("DELETE", "/admin/rate-limits/queue:mail/override", None),
    ("POST", "/admin/system/maintenance", {"enabled": True}),
    ("POST", "/admin/maintenance", {"enabled": True}),
]
#: Figures of whole queues.
FIGURES = [
    "/queues", "/queues/mail", "/queues/mail/stats", "/admin/queues", "/admin/queues/mail", "/admin/stats",
    "/admin/queues/mail/config",
    "/admin/stats?queue=mail", "/admin/stats/history", "/admin/stats/history?queue=mail", "/admin/scheduling/stats",
]  # fmt: skip


@pytest.mark.parametrize("limits", [{"job_types": ["mail.*"]}, {"job_types": ["mail.*"], "queues": ["mail", "new"]}])
@pytest.mark.parametrize("method, path, body", WHOLE, ids=[f"{call[0]} {call[1]}" for call in WHOLE])
def test_a_key_of_types_changes_no_queue(
    with_key: Any, limits: dict[str, Any], method: str, path: str, body: Any
) -> None:
    boss, api = with_key("admin"), with_key("admin", **limits)
    boss.dead_letter(job_type="other.send", queue="mail")
    boss.push("other.send", queue="mail")
    before = [*Queue.objects.order_by("pk").values(), *Job.objects.order_by("pk").values(), *RateLimit.objects.values()]
    sent = api.client.generic(method, f"/ojs/v1{path}", json.dumps(body or {}), content_type="application/json")
    error_of(sent, 403, "permission_denied")
    after = [*Queue.objects.order_by("pk").values(), *Job.objects.order_by("pk").values(), *RateLimit.objects.values()]
    assert after == before


@pytest.mark.parametrize("path", FIGURES)
def test_a_key_of_types_sees_no_figures_of_queues(with_key: Any, path: str) -> None:
    with_key("admin").push("other.send", queue="mail")
    error_of(with_key("admin", job_types=["mail.*"]).get(path), 403, "permission_denied")
    assert with_key("admin", queues=["mail"]).get(path).status_code == 200


def test_a_key_of_types_counts_its_own_jobs_by_priority(with_key: Any) -> None:
    boss = with_key("admin")
    for name in ("mail.send", "other.send", "other.send"):
        boss.push(name, queue="mail", priority=5)
    shown = with_key("read", job_types=["mail.*"]).get("/queues/mail/priority-stats").json()
    assert (shown["total"], shown["counts_by_priority"]) == (1, {"5": 1})


def test_a_key_of_types_sees_its_own_schemas(with_key: Any) -> None:
    boss, api = with_key("admin"), with_key("admin", job_types=["mail.*"])
    for name in ("mail.send", "other.send"):
        uri = f"urn:ojs:schema:{name}:v1"
        body = {"job_type": name, "version": "1", "uri": uri, "schema": {"type": "array", "title": name}}
        assert boss.post("/schemas", body).status_code == 201
    for base in ("/schemas", "/admin/schemas"):
        page = api.get(base).json()
        assert [one.get("job_type") or one["type"] for one in page["schemas"]] == ["mail.send"]
        for path in ("", "/versions", "/versions/1" if base == "/schemas" else "/1"):
            assert api.get(f"{base}/mail.send{path}").status_code == 200
            error_of(api.get(f"{base}/other.send{path}"), 403, "permission_denied")
    assert api.get("/schemas/urn:ojs:schema:mail.send:v1").status_code == 200
    error_of(api.get("/schemas/urn:ojs:schema:other.send:v1"), 403, "permission_denied")
