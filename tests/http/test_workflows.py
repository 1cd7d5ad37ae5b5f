"""`/workflows` over HTTP: shapes in, supersets out, errors with their codes."""

from __future__ import annotations

import io
import json
import re
from itertools import pairwise
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_ojs import get_job
from django_ojs.models import Job, Workflow
from tests.http.conftest import Api, error_of

A, B = {"type": "test.a", "args": []}, {"type": "test.b", "args": []}
CALLBACK = {**B, "id": "on-success", "depends_on": ["a"]}
NEAREST = {"queue": "nearest", "timeout_ms": 5000}


def create(api: Api, **body: Any) -> dict[str, Any]:
    response = api.post("/workflows", body)
    assert response.status_code == 201, response.content
    document = response.json()
    assert response["Location"].endswith(f"/ojs/v1/workflows/{document['id']}")
    assert document["workflow"] == {name: value for name, value in document.items() if name != "workflow"}
    return document["workflow"]


def finish(api: Api, how: str = "ack", **body: Any) -> dict[str, Any]:
    job = api.fetch()
    body = {"job_id": job["id"], **body}
    if how == "nack":
        body["error"] = {"message": "no", "code": "boom", "retryable": False}
    assert api.post(f"/workers/{how}", body).status_code == 200
    return job


def test_xi_7_each_member_has_a_version_of_its_own(api: Api) -> None:
    callbacks = {"on_complete": {**A, "version": "3.0"}}
    create(api, type="batch", name="n", jobs=[{**A, "version": "1.0"}, {**B, "version": 2}, B], callbacks=callbacks)
    assert [finish(api).get("version") for _ in range(4)] == ["1.0", 2, None, "3.0"]


@pytest.mark.parametrize(
    "body, type, state",
    [
        ({"type": "chain", "jobs": [A, B]}, "chain", "active"),
        ({"type": "chain", "name": "n", "steps": [A, B]}, "chain", "running"),
        ({"type": "group", "name": "n", "steps": [A, B]}, "group", "running"),
        ({"type": "batch", "name": "n", "jobs": [A, B], "callbacks": {"on_success": A}}, "batch", "running"),
        ({"name": "n", "steps": [{**A, "id": "a"}, {**B, "id": "b", "depends_on": ["a"]}]}, "chain", "running"),
        ({"name": "n", "steps": [{**A, "id": "a"}, {**B, "id": "b"}]}, "group", "running"),
        ({"name": "n", "steps": [{**A, "id": "a"}, CALLBACK]}, "batch", "running"),
    ],
)  # fmt: skip
def test_every_shape_is_understood(api: Api, body: dict[str, Any], type: str, state: str) -> None:
    flow = create(api, **body)
    assert (flow["type"], flow["state"], flow["steps_completed"], flow["jobs_completed"]) == (type, state, 0, 0)
    assert flow["steps_total"] == flow["jobs_total"] == (1 if CALLBACK in body.get("steps", ()) else 2)
    assert flow["name"] == body.get("name", "")
    assert flow["metadata"]["job_count"] == flow["steps_total"]
    assert all(step["id"] and step["type"] for step in flow["steps"])


def test_a_client_that_names_its_version_reads_running_for_a_workflow_without_a_name(api: Api) -> None:
    """`active` is a word of the form without a name; the binding's clients have a closed list of states without it."""
    exact = {"OJS-Version": "1.0"}
    made = api.post("/workflows", {"type": "chain", "jobs": [A, B]}, **exact).json()
    path = f"/workflows/{made['id']}"
    for headers, word in ((exact, "running"), ({}, "active")):
        found = api.get(path, **headers).json()
        assert found["state"] == found["workflow"]["state"] == word
        listed = api.get("/workflows", **headers).json()
        assert [item["state"] for item in (*listed["items"], *listed["workflows"])] == [word] * 2
    assert made["state"] == made["workflow"]["state"] == "running"
    cancelled = api.post(f"{path}/cancel", **exact).json()
    assert cancelled["state"] == cancelled["workflow"]["state"] == "cancelled"


def test_what_has_no_callbacks_has_no_member_of_that_name(api: Api) -> None:
    nested = {"type": "chain", "steps": [A, {"type": "group", "jobs": [A, B]}]}
    for body in ({"type": "chain", "jobs": [A, B]}, {"type": "group", "jobs": [A]}, nested):
        answer = api.post("/workflows", {**body, "name": "n"})
        assert answer.status_code == 201
        assert b"callbacks" not in answer.content
    assert create(api, type="batch", jobs=[A], callbacks={"on_success": B})["callbacks"].keys() == {"on_success"}


def test_a_workflow_from_its_creation_to_its_end(api: Api) -> None:
    flow = create(api, type="chain", steps=[A, B])
    assert [step["state"] for step in flow["steps"]] == ["pending", "waiting"]
    assert flow["steps"][1]["job_id"] is None
    assert [step["job_ids"] for step in flow["steps"]] == [[flow["steps"][0]["job_id"]], []]
    finish(api, result={"n": 1})
    job = finish(api)
    assert job["parent_results"] == [{"n": 1}]
    assert (job["workflow_id"], job["workflow_step"]) == (flow["id"], 1)
    done = api.get(f"/workflows/{flow['id']}").json()
    assert (done["state"], done["workflow"]["steps_completed"]) == ("completed", 2)
    assert done["steps"][0]["result"] == {"n": 1}
    assert done["started_at"] <= done["completed_at"]
    assert api.get(f"/jobs/{job['id']}").json()["job"]["parent_results"] == [{"n": 1}]
    progress = api.get(f"/workflows/{flow['id']}/progress").json()
    assert (progress["progress"], [step["progress"] for step in progress["steps"]]) == (1, [1, 1])


def test_progress_counts_what_handlers_report(api: Api) -> None:
    """Orchestration 5.3: of a chain the step that runs counts, of a group all, of a batch only what has completed."""

    def progress_of(flow: dict[str, Any]) -> tuple[float, list[float | None]]:
        found = api.get(f"/workflows/{flow['id']}/progress").json()
        return found["progress"], [step["progress"] for step in found["steps"]]

    def report(fraction: float) -> None:
        job = api.fetch()
        assert api.post("/workers/progress", {"job_id": job["id"], "progress": fraction}).status_code == 200

    flow = create(api, type="chain", steps=[A, B])
    finish(api)
    report(0.5)
    assert progress_of(flow) == (0.75, [1, 0.5])
    flow = create(api, type="group", jobs=[A, {"type": "chain", "steps": [A, B]}])
    assert progress_of(flow) == (0, [None, None, 0, None])
    report(0.2)
    report(0.4)
    assert progress_of(flow) == (0.2, [0.2, 0.4, 0.2, None])
    flow = create(api, type="batch", jobs=[A, B], callbacks={"on_complete": A})
    finish(api)
    report(1)
    assert progress_of(flow) == (0.5, [1, 1])


def test_failure_retry_and_cancellation(api: Api) -> None:
    flow = create(api, type="chain", name="n", steps=[A, B, A])
    path = f"/workflows/{flow['id']}"
    error_of(api.post(f"{path}/retry"), 409, "conflict")
    finish(api)
    finish(api, "nack")
    failed = api.get(path).json()["workflow"]
    assert (failed["state"], failed["steps_completed"], failed["steps_total"]) == ("failed", 1, 3)
    assert failed["error"]["failed_step_id"] == "step-1"
    assert failed["error"]["errors"][0]["code"] == "boom"
    assert [step["state"] for step in failed["steps"]] == ["completed", "failed", "cancelled"]
    assert api.post(f"{path}/retry").json()["workflow"]["state"] == "running"
    cancelled = api.post(f"{path}/cancel", {"reason": "enough"}).json()
    assert (cancelled["state"], cancelled["steps_cancelled"], cancelled["cancelled_steps"]) == ("cancelled", 2, 2)
    assert cancelled["steps_already_completed"] == 1
    assert cancelled["cancelled_at"]
    error_of(api.client.delete(f"/ojs/v1{path}"), 409, "conflict")
    assert api.post("/workers/fetch", {"queues": ["default"]}).json()["jobs"] == []


def test_the_jobs_of_a_workflow_are_a_list(api: Api) -> None:
    api.push()
    flow = create(api, id="order-17", type="group", jobs=[A, B])
    for workflow_id in (flow["id"], "order-17"):
        found = api.get("/jobs", {"workflow_id": workflow_id}).json()
        assert sorted(job["type"] for job in found["jobs"]) == sorted([A["type"], B["type"]])
        assert found["total"] == 2
        assert {job["workflow_id"] for job in found["jobs"]} == {"order-17"}
    one = f"/jobs/{found['jobs'][0]['id']}"
    for path in (one, f"/admin{one}", f"{one}/lineage", "/admin/jobs?workflow_id=order-17"):
        assert b'"workflow_id":"order-17"' in api.get(path).content
    assert api.post(f"{one}/cancel").json()["workflow_id"] == "order-17"
    member = api.post("/workers/fetch", {"queues": ["default"], "count": 2}).json()["jobs"][-1]
    assert api.post(f"/jobs/{member['id']}/ack").json()["job"]["workflow_id"] == "order-17"
    call_command("ojs_jobs", "show", member["id"], stdout=(out := io.StringIO()))
    assert json.loads(out.getvalue())["workflow_id"] == "order-17"
    assert Job.objects.get(pk=member["id"]).envelope()["workflow_id"] == "order-17"
    assert get_job(member["id"]).envelope["workflow_id"] == "order-17"
    assert api.get("/jobs", {"workflow_id": "order-18"}).json()["jobs"] == []
    refused = error_of(api.get("/jobs", {"workflow_id": "no id"}), 400, "invalid_request")
    assert refused["details"]["field"] == "workflow_id"


def test_active_members_are_cancelled_on_demand(api: Api) -> None:
    flow = create(api, type="group", jobs=[A, B])
    job = api.fetch()
    response = api.client.delete(f"/ojs/v1/workflows/{flow['id']}?cancel_active=true")
    assert response.json()["steps_cancelled"] == 2
    assert api.get(f"/jobs/{job['id']}").json()["job"]["state"] == "cancelled"


def test_a_body_says_as_a_query_does_that_active_members_are_cancelled(api: Api) -> None:
    for path, body, stopped in (("", {"cancel_active": True}, 2), ("?cancel_active=true", {"reason": "x"}, 2),
                                ("", {"cancel_active": None}, 1)):  # fmt: skip
        flow = create(api, type="group", jobs=[A, B])
        api.fetch()
        error_of(api.post(f"/workflows/{flow['id']}/cancel", {"cancel_active": "true"}), 400, "invalid_request")
        for misspelt in ("treu", "maybe", "yes"):
            refused = api.post(f"/workflows/{flow['id']}/cancel?cancel_active={misspelt}", body)
            assert error_of(refused, 400, "invalid_request")["details"]["field"] == "cancel_active"
        assert api.post(f"/workflows/{flow['id']}/cancel{path}", body).json()["steps_cancelled"] == stopped


@pytest.mark.usefixtures("long_memory")
def test_no_answer_asks_once_for_each_step(api: Api) -> None:
    costs: dict[str, list[int]] = {}
    for size in (2, 3, 60):  # the first warms up what a process asks for once

        def measured(method: str, path: str, body: Any = None) -> dict[str, Any]:
            with CaptureQueriesContext(connection) as captured:
                response = api.post(path, body) if method == "POST" else getattr(api, method.lower())(path)
            assert response.status_code in (200, 201), response.content
            door = re.sub("[0-9a-f-]{36}", "{id}", path)
            costs.setdefault(f"{method} {door}", []).append(len(captured))
            document: dict[str, Any] = response.json()
            return document

        path = f"/workflows/{measured('POST', '/workflows', {'type': 'group', 'jobs': [A] * size})['id']}"
        assert [step["args"] for step in measured("GET", path)["steps"]] == [[]] * size
        assert len(measured("GET", f"{path}/progress")["steps"]) == size
        assert "items" in measured("GET", "/workflows")
        assert measured("DELETE", path)["steps_cancelled"] == size
        other = f"/workflows/{create(api, type='group', jobs=[A] * size)['id']}"
        assert measured("POST", f"{other}/cancel", {})["steps_cancelled"] == size
    assert len(costs) == 6
    for door, (_, few, many) in costs.items():
        assert few == many, (door, costs[door])


def test_the_list_pages_and_filters(api: Api) -> None:
    ids = [create(api, type="group", name=f"n{i}", jobs=[A])["id"] for i in range(3)]
    finish(api)
    first = api.get("/workflows?limit=2").json()
    assert [item["id"] for item in first["items"]] == ids[:0:-1]
    assert first["workflows"] == first["items"]
    assert (first["total"], first["pagination"]["has_more"]) == (3, True)
    rest = api.get(f"/workflows?limit=2&cursor={first['pagination']['next_cursor']}").json()
    assert [item["id"] for item in rest["items"]] == ids[:1]
    assert [item["id"] for item in api.get("/workflows?state=completed").json()["items"]] == ids[:1]
    assert [item["id"] for item in api.get("/workflows?state=active").json()["items"]] == ids[:0:-1]
    for door in ("", "/admin"):
        error = error_of(api.get(f"{door}/workflows?state=nonsense"), 400, "invalid_request")
        assert error["details"]["field"] == "state"


@pytest.mark.parametrize(
    "body, path",
    [
        ({}, "$.steps"),
        ({"type": "chain", "steps": []}, "$.steps"),
        ({"type": "ring", "steps": [A]}, "$.type"),
        ({"type": "group", "jobs": [A, 5]}, "$.jobs[1]"),
        ({"type": "chain", "steps": [A], "jobs": [B]}, "$.jobs"),
        ({"type": "batch", "jobs": [A]}, "$.callbacks"),
        ({"type": "batch", "jobs": [A], "callbacks": {"on_end": A}}, "$.callbacks.on_end"),
        ({"type": "chain", "steps": [A], "callbacks": {"on_success": A}}, "$.callbacks"),
        ({"type": "group", "jobs": [{**A, "id": "x"}, {**B, "id": "x"}]}, "$.jobs[1].id"),
        ({"type": "group", "jobs": [{"type": "test.a"}]}, "$.jobs[0].args"),
        ({"type": "group", "jobs": [{**A, "retry": {"max_attempts": -1}}]}, "$.jobs[0].retry.max_attempts"),
        ({"steps": [{**A, "id": "a", "depends_on": ["b"]}]}, "$.steps[0].depends_on[0]"),
        ({"steps": [{**A, "id": "a", "depends_on": ["a"]}]}, "$.steps[0].depends_on[0]"),
        ({"steps": [A, {**A, "id": "b", "depends_on": ["step-0"]}]}, "$.steps[0].id"),
        ({"steps": [{"type": "group", "jobs": [A]}]}, "$.steps[0]"),
        ({"type": "chain", "steps": [A], "name": 5}, "$.name"),
    ],
)  # fmt: skip
def test_a_faulty_structure_is_refused_with_its_place_and_stores_nothing(
    api: Api, body: dict[str, Any], path: str
) -> None:
    error = error_of(api.post("/workflows", body), 400, "invalid_workflow")
    assert error["details"]["validation_errors"][0]["path"] == path, error
    assert not Workflow.objects.exists()
    assert not Job.objects.exists()


def test_circles_are_refused_in_both_forms_by_the_names_of_their_steps(api: Api) -> None:
    steps = [
        {**A, "id": "a", "depends_on": ["c"]},
        {**A, "id": "b", "depends_on": ["a"]},
        {**A, "id": "c", "depends_on": ["b"]},
    ]
    for body in ({"steps": steps}, {"type": "group", "jobs": steps}):
        error = error_of(api.post("/workflows", body), 400, "invalid_workflow")
        cycle = error["details"]["cycle"]
        assert cycle[0] == cycle[-1]
        assert {tuple(pair) for pair in pairwise(cycle)} == {("a", "c"), ("c", "b"), ("b", "a")}, "each needs the next"
        assert " → ".join(cycle) in error["message"]


def test_what_this_server_has_not_and_does_not_know(api: Api) -> None:
    error_of(api.post("/workflows", {"type": "saga", "steps": [A]}), 422, "unsupported")
    for path in ("/workflows/nope", "/workflows/0199a1b2-0000-7000-8000-000000000001", "/workflows/nope/progress"):
        error_of(api.get(path), 404, "not_found")


def test_nesting_has_a_limit(api: Api) -> None:
    body: dict[str, Any] = A
    for _ in range(10):
        body = {"type": "chain", "steps": [body]}
    create(api, **body)
    error_of(api.post("/workflows", {"type": "chain", "steps": [body]}), 400, "invalid_workflow")


def test_options_reach_the_jobs_from_the_nearest_place(api: Api) -> None:
    create(
        api, type="group", options={"queue": "slow", "timeout": 9, "meta": {"a": 1, "b": 1}},
        jobs=[A, {**A, "queue": "own", "meta": {"b": 2}}, {**A, "queue": "own", "options": NEAREST}],
    )  # fmt: skip
    rows = list(Job.objects.order_by("enqueued_at"))
    assert [row.queue for row in rows] == ["slow", "own", "nearest"]
    assert [row.timeout_ms for row in rows] == [9000, 9000, 5000]
    assert [row.meta for row in rows] == [{"a": 1, "b": 1}, {"a": 1, "b": 2}, {"a": 1, "b": 1}]


def test_a_job_type_may_be_called_chain(api: Api) -> None:
    flow = create(api, type="group", jobs=[{"type": "chain", "args": []}])
    assert flow["steps"][0]["type"] == "chain"
    assert api.fetch()["type"] == "chain"


def test_a_key_sees_and_makes_only_what_it_may_use(api: Api, with_key: Any) -> None:
    limited = with_key("admin", queues=["mine"])
    foreign = create(with_key("admin"), type="group", jobs=[{**A, "queue": "mine"}, A])
    own = create(limited, type="group", jobs=[A], options={"queue": "mine"})
    assert [item["id"] for item in limited.get("/workflows").json()["items"]] == [own["id"]]
    error_of(limited.get(f"/workflows/{foreign['id']}"), 403, "permission_denied")
    error_of(limited.post(f"/workflows/{foreign['id']}/cancel"), 403, "permission_denied")
    error_of(limited.post("/workflows", {"type": "group", "jobs": [A]}), 403, "permission_denied")
    error_of(with_key("read").post("/workflows", {"type": "group", "jobs": [A]}), 403, "permission_denied")


def test_an_idempotency_key_makes_one_workflow(api: Api) -> None:
    answers = [api.post("/workflows", {"type": "group", "jobs": [A]}, **{"Idempotency-Key": "k"}) for _ in range(2)]
    assert [answer.json()["id"] for answer in answers] == [answers[0].json()["id"]] * 2
    assert Workflow.objects.count() == 1


def test_a_full_queue_that_drops_a_member_fails_its_workflow(api: Api) -> None:
    config = json.dumps({"backpressure": {"max_depth": 1, "strategy": "drop_oldest"}})
    assert api.client.put("/ojs/v1/queues/full/config", config, content_type="application/json").status_code == 200
    chain = create(api, type="chain", steps=[{**A, "queue": "full"}, B])
    batch = create(api, type="batch", jobs=[{**A, "queue": "full"}], callbacks={"on_failure": B})
    assert api.get(f"/workflows/{chain['id']}").json()["state"] == "failed"
    assert api.post("/jobs/bulk", {"jobs": [{**A, "queue": "full"}]}).status_code == 201
    callback = api.fetch()
    assert (callback["type"], callback["workflow_id"]) == ("test.b", batch["id"])
    assert callback["parent_errors"]["0"]["code"] == "overflow"


def test_a_workflow_whose_first_job_is_ignored_by_its_unique_policy_is_refused(api: Api) -> None:
    unique = {**A, "unique": {"on_conflict": "ignore"}}
    existing = api.post("/jobs", unique).json()["job"]["id"]
    response = api.post("/workflows", {"type": "chain", "steps": [unique, B]})
    assert error_of(response, 409, "duplicate")["details"]["existing_job_id"] == existing
    assert not Workflow.objects.exists()


@pytest.mark.parametrize(
    "flow, ids",
    [
        ({"type": "chain", "steps": [{"type": "group", "id": "é" * 255, "jobs": [A]}]}, ["é" * 255 + ".job-0"]),
        ({"type": "group", "jobs": [A, {**A, "id": "job-0"}, {**A, "id": "job-0.3"}]}, ["job-0.4", "job-0", "job-0.3"]),
    ],
)
def test_the_server_finds_an_id_for_each_step(api: Api, flow: dict[str, Any], ids: list[str]) -> None:
    response = api.post("/workflows", flow)
    assert response.status_code == 201, response.content
    steps = response.json()["steps"]
    assert [step["id"] for step in steps[0].get("steps", steps)] == ids
    assert len({step["job_id"] for step in steps[0].get("steps", steps)}) == len(ids)


def test_ten_workflows_may_stand_inside_each_other(api: Api) -> None:
    flow: dict[str, Any] = A
    for depth in range(1, 12):
        flow = {"type": "chain", "id": "x" * (255 - depth), "steps": [flow]}
        if depth <= 10:
            assert api.post("/workflows", {**flow, "id": None}).status_code == 201
    error = error_of(api.post("/workflows", {**flow, "id": None}), 400, "invalid_workflow")
    assert error["details"]["max_depth"] == 10
