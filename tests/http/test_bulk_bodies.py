"""What the bodies of bulk calls and of single retries may say: named or filtered, why, what a dry run tells."""

from __future__ import annotations

from typing import Any

import pytest

from django_ojs.models import AuditEntry, BulkAction, Job
from tests.http.conftest import Api, error_of

pytestmark = pytest.mark.django_db

UNKNOWN = "0190a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b"
ROUTES = [
    ("/admin/jobs/bulk/cancel", {"queue": "q"}), ("/admin/jobs/bulk/retry", {"queue": "q"}),
    ("/admin/jobs/bulk/delete", {"queue": "q", "state": "discarded"}), ("/admin/dead-letter/retry", {}),
    ("/admin/dead-letter/retry", {"queue": "q"}), ("/admin/dead-letter/purge", {"queue": "q"}),
    ("/jobs/bulk/cancel", {"queue": "q"}), ("/jobs/bulk/retry", {"queue": "q"}), ("/jobs/bulk/delete", {"queue": "q"}),
]  # fmt: skip
NOT_BOTH = "Name the jobs either by job_ids or by filter."


@pytest.fixture
def jobs(api: Api) -> list[str]:
    """Of queue q: two dead letters, one that waits, one that was cancelled."""
    dead = [api.dead_letter(queue="q")["id"] for _ in range(2)]
    waits, ended = api.push(queue="q")["id"], api.push(queue="q")["id"]
    api.delete(f"/jobs/{ended}")
    return [*dead, waits, ended]


def states() -> list[str]:
    return [str(state) for state in Job.objects.order_by("pk").values_list("state", flat=True)]


@pytest.mark.parametrize(
    "ids,prefer",
    [("one", ""), ("none", "wait=5, Respond-Async; x=1"), ("text", "handling=lenient,respond-async"),
     ("one", "respond-async")],
)  # fmt: skip
@pytest.mark.parametrize("path,wanted", ROUTES)
def test_jobs_are_named_or_filtered_and_never_both(
    api: Api, jobs: list[str], path: str, wanted: dict[str, Any], prefer: str, ids: str
) -> None:
    before = states()
    named: Any = {"one": jobs[:1], "none": [], "text": jobs[0]}[ids]
    body = {"job_ids": named, "filter": wanted, "confirm": True}
    error = error_of(api.post(path, body, **({"Prefer": prefer} if prefer else {})), 400, "invalid_request")
    assert error["message"] == NOT_BOTH
    assert states() == before
    assert not BulkAction.objects.exists()


@pytest.mark.parametrize("path,wanted", ROUTES[:5])
@pytest.mark.parametrize("more", [{}, {"background": True}, {"background": False}, {"dry_run": True}])
def test_nor_where_the_body_asks_for_the_background(
    api: Api, jobs: list[str], path: str, wanted: dict[str, Any], more: dict[str, bool]
) -> None:
    body = {"job_ids": jobs[:1], "filter": wanted, "confirm": True, **more}
    assert error_of(api.post(path, body), 400, "invalid_request")["message"] == NOT_BOTH
    error_of(api.post(path, {"confirm": True, **more}, Prefer="respond-async"), 400, "invalid_request")
    assert not BulkAction.objects.exists()


def test_named_jobs_are_done_at_once_whatever_the_header_prefers(api: Api, jobs: list[str]) -> None:
    body = {"job_ids": [jobs[2]], "filter": None, "confirm": True}
    answer = api.post("/admin/jobs/bulk/cancel", body, Prefer="respond-async")
    assert (answer.status_code, answer.json()["succeeded"]) == (200, 1)
    later = {"job_ids": None, "filter": {}, "confirm": True}
    answer = api.post("/admin/jobs/bulk/retry", later, Prefer="respond-async")
    assert answer.status_code == 202


@pytest.mark.parametrize("reason", [5, ["x"], "x" * 1001, "a\0b"])
@pytest.mark.parametrize("more", [{}, {"background": True}, {"dry_run": True}, {"job_ids": True}])
def test_a_reason_is_a_text_of_at_most_1000_characters(
    api: Api, jobs: list[str], reason: Any, more: dict[str, Any]
) -> None:
    which: dict[str, Any] = {"job_ids": jobs[2:3]} if "job_ids" in more else {"filter": {}, **more}
    body = {**which, "confirm": True, "reason": reason}
    error = error_of(api.post("/admin/jobs/bulk/cancel", body), 400, "invalid_request")
    assert error["details"]["field"] == "reason"
    assert Job.objects.filter(state="available").count() == 1
    assert not BulkAction.objects.exists()


def test_the_reason_is_in_the_audit_log_whenever_it_is_done(api: Api, jobs: list[str]) -> None:
    reason = "x" * 1000
    api.post("/admin/jobs/bulk/cancel", {"filter": {}, "confirm": True, "reason": reason})
    assert AuditEntry.objects.get(action="job.bulk_cancel").detail["reason"] == reason
    api.post("/admin/jobs/bulk/delete", {"job_ids": jobs[:1], "confirm": True, "reason": "old"})
    assert AuditEntry.objects.get(action="job.bulk_delete").detail["reason"] == "old"


@pytest.mark.parametrize(
    "path,fine,refused",
    [
        ("/admin/jobs/bulk/delete", (0, 1, 3), {2: "invalid_state_transition"}),
        ("/admin/jobs/bulk/retry", (0, 1), {2: "invalid_state_transition", 3: "invalid_state_transition"}),
        ("/admin/jobs/bulk/cancel", (2, 3), {0: "invalid_state_transition", 1: "invalid_state_transition"}),
        ("/admin/dead-letter/retry", (0, 1), {2: "invalid_state_transition", 3: "invalid_state_transition"}),
        ("/admin/dead-letter/purge", (0, 1), {2: "not_found", 3: "not_found"}),
    ],
)
def test_a_dry_run_of_named_jobs_tells_what_the_act_would(
    api: Api, jobs: list[str], path: str, fine: tuple[int, ...], refused: dict[int, str]
) -> None:
    before = states()
    answer = api.post(path, {"job_ids": [*jobs, UNKNOWN], "dry_run": True}).json()
    assert (answer["matched"], answer["succeeded"], answer["dry_run"]) == (len(fine), 0, True)
    told = {item["job_id"]: item["error"]["code"] for item in answer["errors"]}
    assert told == {jobs[number]: code for number, code in refused.items()} | {UNKNOWN: "not_found"}
    assert answer["failed"] == len(told)
    assert states() == before
    done = api.post(path, {"job_ids": [*jobs, UNKNOWN], "confirm": True}).json()
    if not path.startswith("/admin/dead-letter"):
        assert (done["succeeded"], done["failed"]) == (answer["matched"], answer["failed"])
        messages = [{item["error"]["message"] for item in given["errors"]} for given in (answer, done)]
        assert messages[0] == messages[1]


@pytest.mark.parametrize("act", ["cancel", "retry", "delete"])
@pytest.mark.parametrize("name", ["dry_run", "background"])
def test_the_producers_door_says_where_a_dry_run_works(api: Api, jobs: list[str], act: str, name: str) -> None:
    before = states()
    for which in ({"filter": {"queue": "q"}}, {"job_ids": jobs}):
        error = error_of(api.post(f"/jobs/bulk/{act}", {**which, name: True}), 400, "invalid_request")
        assert error["details"]["field"] == name
        assert "/ojs/v1/admin/jobs/bulk" in error["message"]
    assert states() == before
    assert api.post(f"/jobs/bulk/{act}", {"job_ids": jobs, name: False}).status_code == 207


class TestSingleRetries:
    @pytest.mark.parametrize(
        "body",
        [{"overide": {"queue": "x"}}, {"Override": {"queue": "x"}}, {"overrides": {}}, {"queue": "x"}, {"args": []},
         {"override": {"state": "x"}}, {"override": []}],
    )  # fmt: skip
    @pytest.mark.parametrize("door", ["/dead-letter", "/admin/dead-letter", "/admin/jobs"])
    def test_a_change_that_is_misspelt_or_misplaced_is_not_passed_over(
        self, api: Api, jobs: list[str], door: str, body: dict[str, Any]
    ) -> None:
        error_of(api.post(f"{door}/{jobs[0]}/retry", body), 400, "invalid_request")
        assert Job.objects.get(pk=jobs[0]).state == "discarded"

    @pytest.mark.parametrize("door", ["/dead-letter", "/admin/dead-letter"])
    def test_both_doors_of_the_dead_letters_change_what_they_retry(self, api: Api, jobs: list[str], door: str) -> None:
        body = {"override": {"queue": "later", "args": [7]}}
        assert api.post(f"{door}/{jobs[0]}/retry", body).status_code == 200
        job = Job.objects.get(pk=jobs[0])
        assert (job.queue, job.args) == ("later", [7])

    def test_a_job_is_not_changed_by_its_retry(self, api: Api, jobs: list[str]) -> None:
        body = {"override": {"queue": "later"}}
        error = error_of(api.post(f"/admin/jobs/{jobs[0]}/retry", body), 400, "invalid_request")
        assert error["details"]["field"] == "override"
        assert api.post(f"/admin/jobs/{jobs[0]}/retry", {"reason": "again", "confirm": True}).status_code == 200
        assert AuditEntry.objects.get(action="job.retry").detail["reason"] == "again"

    def test_the_producers_door_ignores_what_nobody_could_mean(self, api: Api, jobs: list[str]) -> None:
        assert api.post(f"/dead-letter/{jobs[0]}/retry", {"note": "x", "worker_id": "w"}).status_code == 200
        error_of(api.post(f"/admin/dead-letter/{jobs[1]}/retry", {"note": "x"}), 400, "invalid_request")


@pytest.mark.parametrize("path", ["/jobs/bulk/cancel", "/jobs/bulk/retry", "/jobs/bulk/delete"])
@pytest.mark.parametrize(
    "more", [{"per_minute": 5}, {"override": {"queue": "later"}}, {"dry_run": True}, {"background": True}]
)
def test_what_only_operators_may_ask_for_is_refused_to_producers(
    api: Api, jobs: list[str], path: str, more: dict[str, Any]
) -> None:
    before = states()
    for which in ({"filter": {"queue": "q"}}, {"job_ids": jobs}):
        error = error_of(api.post(path, {**which, **more}), 400, "invalid_request")
        assert error["details"]["field"] in more
    assert states() == before
    assert api.post(path, {"filter": {"queue": "q"}, **dict.fromkeys(more)}).status_code == 200
