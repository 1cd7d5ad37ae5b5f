"""The answers of busy calls, which are made without their fields, have all that the fields describe, and nothing else.

For each of them there are stories with real jobs that lead to every member. So a member that is renamed, left out or of
another type in only one of the two places is found, and one that is described and never sent, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

from tests.http.conftest import Api
from tests.http.described import Described

pytest.importorskip("drf_spectacular")
pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("frozen_clock")]

Answers = list[Any]


@cache
def described() -> Described:
    return Described()


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


#: Path and statuses of each call, its stories, and the members of its answer that hold jobs.
CALLS: dict[str, tuple[str, int, Callable[[Api], Answers]]] = {
    "fetch": ("/ojs/v1/workers/fetch", 200, fetches),
    "ack": ("/ojs/v1/workers/ack", 200, acks),
    "nack": ("/ojs/v1/workers/nack", 200, nacks),
    "heartbeat": ("/ojs/v1/workers/heartbeat", 200, beats),
    "batch": ("/ojs/v1/jobs/batch", 201, batches),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_busy_answer_has_the_members_that_its_serializer_describes(api: Api, name: str) -> None:
    path, status, stories = CALLS[name]
    schema = described().schemas(path, "POST", status)
    assert schema is not None
    answers = stories(api)
    found = {one for answer in answers for one in described().differences(answer, schema, "")}
    assert found <= {".jobs[] has retrys, undeclared"}, "a member of the client's own is kept"
    whole = described().resolve(schema)
    known, required = set(whole["properties"]), set(whole["required"])
    assert set().union(*answers) == known, "what is described is sent in one of the stories"
    assert set.intersection(*map(set, answers)) == required, "what is always there is required, and nothing else"


def jobs(api: Api) -> Iterator[dict[str, Any]]:
    """Jobs with all that the server may know of one."""
    options = {"result_ttl": 60}
    done = claimed(api, options=options)
    call(api, "/workers/progress", {"job_id": done, "progress": 0.5, "message": "half", "data": {"a": 1}})
    yield api.get(f"/jobs/{done}").json()["job"]
    call(api, "/workers/ack", {"job_id": done, "result": {"a": 1}})
    yield api.get(f"/jobs/{done}").json()["job"]
    chain = {"type": "chain", "steps": [{"type": "a.b", "args": []}, {"type": "a.b", "args": []}]}
    call(api, "/workflows", chain)
    call(api, "/workers/ack", {"job_id": claimed_of_workflow(api), "result": 1})
    yield api.get(f"/jobs/{claimed_of_workflow(api)}").json()["job"]
    step = {"type": "a.b", "args": [], "retry": {"max_attempts": 1}}
    needs = ["a", "b"]
    steps = [{"id": name, **step} for name in needs] + [{"id": "on_complete", "depends_on": needs, **step}]
    call(api, "/workflows", {"steps": steps})
    first, second = (claimed_of_workflow(api) for _ in needs)
    call(api, "/workers/ack", {"job_id": first, "result": 1})
    call(api, "/workers/nack", {"job_id": second, "error": {"message": "m"}})
    yield api.get(f"/jobs/{claimed_of_workflow(api)}").json()["job"]
    failed = claimed(api, retry={"max_attempts": 1})
    call(api, "/workers/nack", {"job_id": failed, "error": {"message": "m"}})
    yield api.get(f"/jobs/{failed}").json()["job"]
    yield api.post(f"/dead-letter/{failed}/retry", {}).json()["job"]
    yield api.delete(f"/jobs/{api.push()['id']}").json()["job"]


def claimed_of_workflow(api: Api) -> str:
    return str(call(api, "/workers/fetch", {"queues": ["default"], "worker_id": "w"})["job"]["id"])


@pytest.mark.parametrize("name", ["Job"])
def test_a_job_has_the_members_that_its_serializer_describes(api: Api, name: str) -> None:
    """Beside them it has what a client may send: the members of an envelope."""
    component = described().document["components"]["schemas"][name]
    envelope, own = (described().resolve(part) for part in component["allOf"])
    answers = [*jobs(api)]
    found = [one for answer in answers for one in described().differences(answer, component, "")]
    assert not found
    sent = set().union(*answers)
    assert sent <= own["properties"].keys() | envelope["properties"].keys()
    assert own["properties"].keys() - sent == set()
    assert set(own["required"]) <= set.intersection(*map(set, answers))
