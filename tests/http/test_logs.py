"""Lines that workers in other languages send, and the lines of a job over HTTP."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.core.management import call_command

from django_ojs import get_job
from django_ojs.jobs import joblog
from django_ojs.models import JobLog
from django_ojs.retention import prune
from tests.http.conftest import Api

pytestmark = pytest.mark.django_db


def active(api: Api, **job: Any) -> str:
    identifier = str(api.push("a.b", **job)["id"])
    assert api.fetch("default", worker_id="w")
    return identifier


def send(api: Api, job_id: str, *messages: str, **more: Any) -> int:
    answer = api.post(f"/jobs/{job_id}/logs", {"lines": [{"message": text} for text in messages], **more})
    assert answer.status_code == 200, answer.content
    accepted: int = answer.json()["accepted"]
    return accepted


def shown(api: Api, job_id: str, query: str = "") -> list[str]:
    found = api.get(f"/jobs/{job_id}/logs{query}").json()["items"]
    return [line.get("message", f"{line.get('dropped')} dropped") for line in found]


def test_a_line_comes_back_as_it_was_sent(api: Api) -> None:
    job_id = active(api)
    line = {
        "message": "charged", "level": "warning", "time": "2026-01-15T12:00:00.250Z", "logger": "shop",
        "fields": {"order": 17}, "exception": "Error: no\n  at charge (shop.js:1)",
    }  # fmt: skip
    answer = api.post(f"/jobs/{job_id}/logs", {"lines": [line, {"message": "plain"}], "worker_id": "w", "attempt": 1})
    assert answer.json() == {"job_id": job_id, "accepted": 2}
    body = api.get(f"/jobs/{job_id}/logs").json()
    first, second = body["items"]
    assert {name: first[name] for name in line} == line
    assert (first["attempt"], second["level"], second["message"]) == (1, "info", "plain")
    assert (body["state"], body["has_more"], body["cursor"]) == ("active", False, second["id"])


def test_lines_are_taken_of_the_holder_and_its_attempt_only(api: Api) -> None:
    job_id = active(api)
    assert send(api, job_id, "of another", worker_id="v") == 0
    assert send(api, job_id, "of another attempt", attempt=2) == 0
    assert send(api, job_id, "mine", worker_id="w", attempt=1) == 1
    api.post("/workers/ack", {"job_id": job_id, "worker_id": "w"})
    assert send(api, job_id, "too late") == 0
    assert shown(api, job_id) == ["mine"]
    assert api.post(f"/jobs/{uuid.uuid4()}/logs", {"lines": [{"message": "x"}]}).status_code == 404


@pytest.mark.parametrize("body,field", [
    ({}, "lines"), ({"lines": []}, "lines"), ({"lines": [{"message": "x"}] * 1001}, "lines"),
    ({"lines": ["x"]}, "lines[0]"), ({"lines": [{}]}, "lines[0].message"),
    ({"lines": [{"message": 1}]}, "lines[0].message"),
    ({"lines": [{"message": "x", "level": "loud"}]}, "lines[0].level"),
    ({"lines": [{"message": "x", "level": 20}]}, "lines[0].level"),
    ({"lines": [{"message": "x", "time": "noon"}]}, "lines[0].time"),
    ({"lines": [{"message": "x", "fields": []}]}, "lines[0].fields"),
    ({"lines": [{"message": "x"}], "attempt": 0}, "attempt"),
])  # fmt: skip
def test_what_is_no_line_is_refused(api: Api, body: dict[str, Any], field: str) -> None:
    answer = api.post(f"/jobs/{active(api)}/logs", body)
    assert (answer.status_code, answer.json()["error"]["details"]["field"]) == (400, field)


def test_pages_filters_and_the_file(api: Api) -> None:
    job_id = active(api)
    lines = [{"message": f"line {n}", "level": "error" if n % 10 == 0 else "debug"} for n in range(1, 31)]
    assert api.post(f"/jobs/{job_id}/logs", {"lines": lines}).json()["accepted"] == 3, "INFO is the lowest level"
    send(api, job_id, *(f"text {n}" for n in range(1, 21)))
    seen, query = [], "?limit=7"
    while True:
        page = api.get(f"/jobs/{job_id}/logs{query}").json()
        seen += [line["message"] for line in page["items"]]
        if not page["has_more"]:
            break
        query = f"?limit=7&after={page['cursor']}"
    assert seen == ["line 10", "line 20", "line 30", *(f"text {n}" for n in range(1, 21))]
    assert shown(api, job_id, "?level=error") == ["line 10", "line 20", "line 30"]
    assert shown(api, job_id, "?text=TEXT 1&limit=3") == ["text 1", "text 10", "text 11"]
    assert shown(api, job_id, "?attempt=2") == []
    for wrong in ("level=loud", "after=nonsense", "format=xml", "attempt=0", "after=ffffffffffffffff-1"):
        assert api.get(f"/jobs/{job_id}/logs?{wrong}").status_code == 400, wrong
    file = api.get(f"/jobs/{job_id}/logs?format=text&level=error")
    assert file["Content-Type"] == "text/plain; charset=utf-8"
    assert f'filename="job-{job_id}.log"' in file["Content-Disposition"]
    head, *rest = file.content.decode().splitlines()
    assert head.startswith("--- attempt 1, started at ")
    assert [line.split(": ")[-1] for line in rest] == ["line 10", "line 20", "line 30"]
    assert api.get("/jobs/nonsense/logs?format=text").json()["error"]["code"] == "not_found"


def test_many_lines_are_kept_within_bounds(api: Api, settings: Any) -> None:
    settings.OJS = {**settings.OJS, "JOB_LOG_LINES": 6}
    job_id = active(api)
    for number in range(1, 21, 2):
        assert send(api, job_id, f"line {number}", f"line {number + 1}") == 2
    assert shown(api, job_id) == ["line 1", "line 2", "line 3", "14 dropped", "line 18", "line 19", "line 20"]
    settings.OJS = {**settings.OJS, "JOB_LOG_LINES": 1000, "JOB_LOG_BYTES": 2000}
    other = active(api)
    send(api, other, *("x" * 300 + str(number) for number in range(10)))
    assert [text[-1] if "x" in text else text for text in shown(api, other)] == ["0", "1", "6 dropped", "8", "9"]


def test_a_round_after_a_retry_by_hand_has_lines_of_its_own(api: Api) -> None:
    job_id = active(api, retry={"max_attempts": 1})
    send(api, job_id, "first round")
    api.post("/workers/nack", {"job_id": job_id, "error": {"message": "no", "code": "x"}})
    assert api.post(f"/dead-letter/{job_id}/retry").status_code == 200
    api.fetch("default")
    send(api, job_id, "second round")
    lines = api.get(f"/jobs/{job_id}/logs").json()["items"]
    assert [(line["attempt"], line["message"]) for line in lines] == [(1, "first round"), (1, "second round")]
    assert lines[0]["attempt_started_at"] < lines[1]["attempt_started_at"]


def test_hidden_members_are_masked_in_fields_and_messages(api: Api, settings: Any) -> None:
    settings.OJS = {**settings.OJS, "REDACT": {"keys": ["*card*", "token"]}}
    job_id = active(api, args=[{"card": "4111-1111"}], meta={"token": 'a"b-secret'})
    line = {
        "message": 'pay 4111-1111 by a"b-secret, token=xyz99 and {"token": "tok-2"}',
        "fields": {"card_no": "77", "n": "4111-1111"},
        "exception": "ValueError: 4111-1111",
    }  # fmt: skip
    assert api.post(f"/jobs/{job_id}/logs", {"lines": [line]}).json()["accepted"] == 1
    (seen,) = api.get(f"/jobs/{job_id}/logs").json()["items"]
    assert seen["message"] == 'pay [REDACTED] by [REDACTED], token=[REDACTED] and {"token": [REDACTED]}'
    assert seen["fields"] == {"card_no": "[REDACTED]", "n": "[REDACTED]"}
    assert seen["exception"] == "ValueError: [REDACTED]"
    assert shown(api, job_id, "?text=4111") == [], "what is hidden cannot be found"


def test_lines_go_with_their_job_and_by_their_age(api: Api, settings: Any) -> None:
    job_id, kept = active(api), active(api)
    send(api, job_id, "one", "two")
    send(api, kept, "three")
    api.post("/workers/ack", {"job_id": job_id})
    settings.OJS = {**settings.OJS, "RETENTION": {"completed": 0.0}}
    assert prune()["jobs"] == 1
    assert [line.message for line in JobLog.objects.all()] == ["three"]
    settings.OJS = {**settings.OJS, "JOB_LOG_RETENTION": 0.0}
    assert prune()["logs"] == 1
    assert not JobLog.objects.exists()


def test_jobs_with_many_lines_are_deleted_in_parts(api: Api) -> None:
    ids = [uuid.UUID(active(api)) for _ in range(4)]
    for number, job_id in enumerate(ids):
        send(api, str(job_id), *(["x"] * (number + 1)))
    using = "default"
    assert joblog.in_parts(ids, 10, using) == [ids]
    assert joblog.in_parts(ids, 4, using) == [ids[:2], [ids[2]], [ids[3]]]


def test_python_and_the_command_show_the_same(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    job_id = active(api)
    send(api, job_id, "first \x1b[31m")
    api.post(f"/jobs/{job_id}/logs", {"lines": [{"message": "second", "level": "error", "fields": {"n": 1}}]})
    handle = get_job(job_id)
    assert [line.message for line in handle.logs()] == ["first \x1b[31m", "second"]
    assert [line.fields for line in handle.logs(level="error", attempt=1)] == [{"n": 1}]
    call_command("ojs_jobs", "logs", job_id)
    out = capsys.readouterr().out
    assert "INFO: first" in out
    assert "\x1b" not in out
    assert "ERROR: second  n=1" in out
    call_command("ojs_jobs", "logs", job_id, "--level", "error", "--attempt", "1")
    assert "first" not in capsys.readouterr().out
    api.post("/workers/ack", {"job_id": job_id})
    call_command("ojs_jobs", "logs", job_id, "--follow")  # ends, because the job has ended


def test_a_follower_reads_each_line_once_whoever_wrote_it(api: Api) -> None:
    """Lines of a worker's own numbers come behind those that were sent; and a worker that lost the job goes on."""
    job_id = uuid.UUID(active(api))
    follower = joblog.Follower(job_id)
    send(api, str(job_id), "sent 1")
    assert [line.message for line in follower.new()] == ["sent 1"]
    row = JobLog.objects.get()
    mine = joblog.LogAttempt(job_id, 1, row.started_at)
    own = [joblog.LogLine(mine, number, row.time, 20, "", f"own {number}") for number in (1, 2)]
    joblog.store(own, "default")
    joblog.store(own, "default")  # a batch that comes again changes nothing
    assert [line.message for line in follower.new()] == ["own 1", "own 2"]
    send(api, str(job_id), "sent 2")
    assert [line.message for line in follower.new()] == ["sent 2"]
    assert follower.new() == []
    joblog.drop(mine, joblog.TAIL + 4, 3, "default")
    assert [line.dropped for line in follower.new()] == [3]
    assert follower.new() == []
