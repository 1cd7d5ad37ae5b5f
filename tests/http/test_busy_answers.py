"""The answers of busy calls, which are made without their fields, have all that the fields describe, and nothing else.

For each of them there are stories with real jobs that lead to every member. So a member that is renamed, left out or of
another type in only one of the two places is found, and one that is described and never sent, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_ojs.rules.ids import new_job_id
from tests.http.conftest import Api
from tests.http.described import described

pytest.importorskip("drf_spectacular")
pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("frozen_clock")]

Answers = list[Any]


def call(api: Api, path: str, body: dict[str, Any]) -> Any:
    answer = api.post(path, body)
    assert answer.status_code < 300, answer.content
    return answer.json()


def claimed(api: Api, **more: Any) -> str:
    job = api.push(**more)["id"]
    assert call(api, "/workers/fetch", {"queues": ["default"], "worker_id": "w"})["job"]["id"] == job
    return str(job)


def fetches(api: Api) -> Answers:
    nothing = call(api, "/workers/fetch", {"queues": ["default"]})
    for _ in range(2):
        api.push()
    several = call(api, "/workers/fetch", {"queues": ["default"], "count": 2})
    assert len(several["jobs"]) == 2
    return [nothing, several]


def acks(api: Api) -> Answers:
    return [
        call(api, "/workers/ack", {"job_id": claimed(api), "result": {"a": 1}}),
        call(api, f"/jobs/{claimed(api)}/ack", {}),
    ]


def nacks(api: Api) -> Answers:
    error = {"error": {"message": "m"}}
    return [
        call(api, "/workers/nack", {"job_id": claimed(api), **error}),
        call(api, "/workers/nack", {"job_id": claimed(api, retry={"max_attempts": 1}), **error}),
        call(api, f"/jobs/{claimed(api)}/nack", {"requeue": True}),
    ]


def beats(api: Api) -> Answers:
    held, lost = claimed(api), api.push()["id"]
    cancelled = claimed(api, queue="default") if api.delete(f"/jobs/{lost}").status_code == 200 else ""
    api.delete(f"/jobs/{cancelled}")
    answer = call(api, "/workers/heartbeat", {"worker_id": "w", "active_job_ids": [held, cancelled, "none"]})
    assert (answer["jobs_extended"], answer["jobs_cancelled"], answer["jobs_lost"]) == ([held], [cancelled], ["none"])
    return [answer, call(api, "/workers/heartbeat", {"worker_id": "idle"})]


def batches(api: Api) -> Answers:
    unique = {"type": "a.b", "args": [], "unique": {"keys": ["type"], "on_conflict": "ignore"}}
    plain = {"type": "a.c", "args": [], "retrys": {}}
    first, again = (call(api, "/jobs/batch", {"jobs": [unique]}) for _ in range(2))
    assert again["jobs"] == [{**first["jobs"][0], "deduplicated": True}]
    return [first, again, call(api, "/jobs/batch", {"jobs": [plain]})]


def bulks(api: Api) -> Answers:
    unique = {"type": "a.b", "args": [], "unique": {"keys": ["type"], "on_conflict": "ignore"}}
    fine, again = (call(api, "/jobs/bulk", {"jobs": [unique]}) for _ in range(2))
    assert again["items"][0]["status"] == "duplicate"
    return [fine, again, call(api, "/jobs/bulk", {"jobs": [{"type": "a.c", "args": [], "retrys": {}}, {"type": "A"}]})]


#: Path and statuses of each call, its stories, and the members of its answer that hold jobs.
CALLS: dict[str, tuple[str, int, Callable[[Api], Answers]]] = {
    "fetch": ("/ojs/v1/workers/fetch", 200, fetches),
    "ack": ("/ojs/v1/workers/ack", 200, acks),
    "nack": ("/ojs/v1/workers/nack", 200, nacks),
    "heartbeat": ("/ojs/v1/workers/heartbeat", 200, beats),
    "batch": ("/ojs/v1/jobs/batch", 201, batches),
    "bulk": ("/ojs/v1/jobs/bulk", 201, bulks),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_busy_answer_has_the_members_that_its_serializer_describes(api: Api, name: str) -> None:
    path, status, stories = CALLS[name]
    schema = described().schemas(path, "POST", status)
    assert schema is not None
    answers = stories(api)
    found = {one for answer in answers for one in described().differences(answer, schema, "")}
    own = {".jobs[] has retrys, undeclared", ".items[].job has retrys, undeclared"}
    assert found <= own, "a member of the client's own is kept"
    whole = described().resolve(schema)
    known, required = set(whole["properties"]), set(whole["required"])
    assert set().union(*answers) == known, "what is described is sent in one of the stories"
    assert set.intersection(*map(set, answers)) == required, "what is always there is required, and nothing else"


def jobs(api: Api) -> Iterator[str]:
    """The ids of jobs, each when the server knows something of it that it knows of no other."""
    line = {name: str(new_job_id()) for name in ("parent_id", "root_id")}
    done = claimed(api, options={"result_ttl": 60}, **line)
    call(api, "/workers/progress", {"job_id": done, "progress": 0.5, "message": "half", "data": {"a": 1}})
    yield done
    call(api, "/workers/ack", {"job_id": done, "result": {"a": 1}})
    yield done
    chain = {"type": "chain", "steps": [{"type": "a.b", "args": []}, {"type": "a.b", "args": []}]}
    call(api, "/workflows", chain)
    call(api, "/workers/ack", {"job_id": claimed_of_workflow(api), "result": 1})
    yield claimed_of_workflow(api)
    step = {"type": "a.b", "args": [], "retry": {"max_attempts": 1}}
    needs = ["a", "b"]
    steps = [{"id": name, **step} for name in needs] + [{"id": "on_complete", "depends_on": needs, **step}]
    call(api, "/workflows", {"steps": steps})
    first, second = (claimed_of_workflow(api) for _ in needs)
    call(api, "/workers/ack", {"job_id": first, "result": 1})
    call(api, "/workers/nack", {"job_id": second, "error": {"message": "m"}})
    yield second
    yield claimed_of_workflow(api)
    failed = claimed(api, retry={"max_attempts": 1}, scheduled_at="2020-01-01T00:00:00Z")
    call(api, "/workers/nack", {"job_id": failed, "error": {"message": "m"}})
    yield failed
    call(api, f"/dead-letter/{failed}/retry", {})
    yield failed


def claimed_of_workflow(api: Api) -> str:
    return str(call(api, "/workers/fetch", {"queues": ["default"], "worker_id": "w"})["job"]["id"])


def answers_about_one(api: Api) -> Answers:
    found = [api.get(f"/jobs/{job}").json() for job in jobs(api)]
    dead = api.dead_letter(queue="letters")["id"]
    found.append(call(api, f"/dead-letter/{dead}/retry", {}))
    found.append(api.client.patch(f"/ojs/v1/jobs/{dead}", {"priority": 3}, content_type="application/json").json())
    found.append(api.delete(f"/jobs/{dead}").json())
    unique = {"type": "a.u", "args": [], "unique": {"keys": ["type"], "on_conflict": "ignore"}}
    found += [call(api, "/jobs", unique) for _ in range(2)]
    return [*found, call(api, "/jobs", {"type": "a.b", "args": [], "retry": {"max_attemps": 1}})]


def details(api: Api) -> Answers:
    found = [api.get(f"/admin/jobs/{job}").json() for job in jobs(api)]
    dead = api.dead_letter(queue="letters")["id"]
    found.append(call(api, f"/admin/jobs/{dead}/duplicate", {}))
    found.append(call(api, f"/admin/dead-letter/{dead}/retry", {}))
    changed = api.client.patch(f"/ojs/v1/admin/jobs/{dead}", {"priority": 3}, content_type="application/json")
    return [*found, changed.json(), call(api, f"/admin/jobs/{dead}/cancel", {})]


def lines(api: Api) -> Answers:
    for _ in jobs(api):
        pass
    api.push(scheduled_at="2030-01-01T00:00:00Z")
    api.delete(f"/jobs/{api.push()['id']}")
    return [line for path in ("/jobs", "/admin/jobs") for line in api.get(path).json()["items"]]


def dead(api: Api) -> Iterator[str]:
    """The ids of dead letters: one that another job enqueued, one of a workflow, one that died again."""
    error = {"error": {"message": "m"}}
    line = {name: str(new_job_id()) for name in ("parent_id", "root_id")}
    told = claimed(api, retry={"max_attempts": 1}, **line)
    call(api, "/workers/nack", {"job_id": told, **error})
    yield told
    step = {"type": "a.b", "args": [], "retry": {"max_attempts": 1}}
    call(api, "/workflows", {"type": "chain", "steps": [{"type": "a.b", "args": []}, step]})
    call(api, "/workers/ack", {"job_id": claimed_of_workflow(api), "result": 1})
    last = claimed_of_workflow(api)
    call(api, "/workers/nack", {"job_id": last, **error})
    yield last
    call(api, f"/dead-letter/{told}/retry", {})
    assert claimed_of_workflow(api) == told
    call(api, "/workers/nack", {"job_id": told, **error})
    yield told


def letters(api: Api) -> Answers:
    paths = (("/dead-letter", "jobs"), ("/admin/dead-letter", "items"))
    return [letter for _ in dead(api) for path, name in paths for letter in api.get(path).json()[name]]


def letters_alone(api: Api) -> Answers:
    return [api.get(f"/dead-letter/{job}").json() for job in dead(api)]


def events(api: Api) -> Answers:
    for _ in jobs(api):
        pass
    call(api, "/workers/heartbeat", {"worker_id": "w", "state": "terminate"})
    return list(api.get("/events", {"limit": 200}).json()["events"])


#: The components that are shown in many answers, and their stories.
SHOWN: dict[str, Callable[[Api], Answers]] = {
    "Job": lambda api: [answer["job"] for answer in answers_about_one(api)],
    "JobAnswer": answers_about_one,
    "JobDetail": details,
    "JobLine": lines,
    "DeadLetter": letters,
    "DeadLetterAnswer": letters_alone,
    "Event": events,
}


@pytest.mark.parametrize("name", SHOWN)
def test_what_is_shown_of_jobs_and_events_has_the_members_that_its_serializer_describes(api: Api, name: str) -> None:
    """Beside them a job has what a client may send: the members of an envelope."""
    component = described().document["components"]["schemas"][name]
    envelope, own = component.get("allOf", ({}, component))
    known = described().resolve(envelope).get("properties", {})
    answers = SHOWN[name](api)
    found = {one for answer in answers for one in described().differences(answer, component, "")}
    assert found <= {".retry has max_attemps, undeclared", ".job.retry has max_attemps, undeclared"}, "the client's own"
    sent = set().union(*answers)
    assert sent <= own["properties"].keys() | known.keys()
    assert own["properties"].keys() - sent == set(), "what is described is sent in one of the stories"
    assert set(own["required"]) <= set.intersection(*map(set, answers))
