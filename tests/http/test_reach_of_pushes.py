"""What a push meets: a key that is limited to queues or types ends no job beyond them, and is told of none."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

from django_ojs import clock
from django_ojs.access import UNLIMITED, Limits
from django_ojs.cron import runs, schedules
from django_ojs.errors import Duplicate, OJSError
from django_ojs.jobs import push_group, replay
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack, ack_one, fail_one
from django_ojs.jobs.push import push
from django_ojs.jobs.push_group import push_one
from django_ojs.models import CronSchedule, Event, Job, Queue, Workflow, WorkflowStep
from django_ojs.queues import configuration
from django_ojs.rules.ids import new_job_id
from django_ojs.testing import fake
from django_ojs.workflows import graphs, workflow
from tests.gathering import gathering
from tests.http.conftest import Api, error_of

pytestmark = pytest.mark.django_db

STRATEGIES = ["reject", "ignore", "replace", "replace_except_schedule"]
SECRET = "for-no-one-else"


def policy(on_conflict: str, **more: Any) -> dict[str, Any]:
    return {"keys": ["type", "args"], "on_conflict": on_conflict, **more}


def document(on_conflict: str = "replace", **more: Any) -> dict[str, Any]:
    return {"type": "pay.run", "args": [42], "queue": "a", "unique": policy(on_conflict), **more}


@pytest.fixture
def foreign() -> Any:
    """A job of another queue, with the unique key that the pushes have."""
    return push([document(queue="b", meta={"secret": SECRET})])[0].row


def assert_untouched(row: Any, said: str = "") -> None:
    """The job is as it was, nothing happened to it since, and nothing was said of it."""
    kept = {"state": row["state"], "meta": json.loads(row["meta"])}
    assert Job.objects.filter(pk=row["id"]).values("state", "meta").get() == kept
    assert set(Event.objects.filter(job_id=row["id"]).values_list("type", flat=True)) <= {"job.enqueued"}
    for part in (str(row["id"]), SECRET, '"existing_', "available"):
        assert part not in said


def single(api: Api, job: dict[str, Any]) -> Any:
    return api.post("/jobs", job)


def keyed(api: Api, job: dict[str, Any]) -> Any:
    return api.post("/jobs", job, **{"idempotency-key": "once"})


def batch(api: Api, job: dict[str, Any]) -> Any:
    return api.post("/jobs/batch", {"jobs": [{"type": "a.b", "args": [], "queue": "a"}, job]})


def bulk(api: Api, job: dict[str, Any]) -> Any:
    other = {"type": "a.b", "args": [], "queue": "a"}
    return api.post("/jobs/bulk", {"jobs": [other, job], "atomicity": "atomic"})


def bulk_partial(api: Api, job: dict[str, Any]) -> Any:
    return api.post("/jobs/bulk", {"jobs": [job, {"type": "No Type"}], "atomicity": "partial"})


def first_step(api: Api, job: dict[str, Any]) -> Any:
    return api.post("/workflows", {"type": "chain", "name": "n", "steps": [job]})


DOORS = [single, keyed, batch, bulk, bulk_partial, first_step]
LIMITS = [{"queues": ["a"]}, {"queues": ["a", "c"], "job_types": ["pay.*", "a.*"]}]


@pytest.mark.parametrize("limits", LIMITS, ids=["queue", "both"])
@pytest.mark.parametrize("on_conflict", STRATEGIES)
@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
def test_a_unique_policy_that_meets_a_job_of_another_queue_refuses(
    with_key: Any, foreign: Any, door: Callable[..., Any], on_conflict: str, limits: Any
) -> None:
    response = door(with_key("push", **limits), document(on_conflict))
    said = response.content.decode()
    if "bulk" in door.__name__:
        assert response.status_code == 422, said
        refused = response.json()["error"]["details"] if "items" not in response.json() else response.json()["items"]
        assert "duplicate" in json.dumps(refused)
    else:
        error_of(response, 409, "duplicate")
    assert_untouched(foreign, said)
    assert Job.objects.count() == 1
    assert not Workflow.objects.exists()


@pytest.mark.parametrize("on_conflict", STRATEGIES)
def test_nor_does_one_that_meets_an_ended_job(with_key: Any, on_conflict: str) -> None:
    row = push([document(queue="b", meta={"secret": SECRET})])[0].row
    ack_one(Ack(fetch(Fetch(["b"], count=1, worker_id="w"))[0]["id"], json.dumps(SECRET), "w"))
    job = document(on_conflict, unique=policy(on_conflict, states=["available", "completed"]))
    response = with_key("push", queues=["a"]).post("/jobs", job)
    error_of(response, 409, "duplicate")
    said = response.content.decode()
    assert str(row["id"]) not in said
    assert "completed" not in said
    assert SECRET not in said


def test_its_own_jobs_are_met_as_ever(with_key: Any) -> None:
    api = with_key("push", queues=["a"], job_types=["pay.*"])
    first = api.post("/jobs", document()).json()["job"]
    again = api.post("/jobs", document("ignore"))
    assert (again.status_code, again.json()["job"]["id"]) == (200, first["id"])
    assert (
        error_of(api.post("/jobs", document("reject")), 409, "duplicate")["details"]["existing_job_id"] == first["id"]
    )
    assert api.post("/jobs", document("replace")).status_code == 201
    assert Job.objects.get(pk=first["id"]).state == "cancelled"


def test_nothing_is_replaced_where_one_of_two_that_are_met_is_beyond(with_key: Any) -> None:
    api = with_key("push", queues=["a"])
    own = api.post("/jobs", document()).json()["job"]
    foreign = Job.objects.get(pk=push([{**document(), "queue": "b", "unique": None, "args": [1]}])[0].row["id"])
    Job.objects.filter(pk=foreign.pk).update(unique_key=Job.objects.get(pk=own["id"]).unique_key)
    error_of(api.post("/jobs", document("replace")), 409, "duplicate")
    assert set(Job.objects.values_list("state", flat=True)) == {"available"}


def test_a_caller_without_limits_meets_them_all(with_key: Any, foreign: Any) -> None:
    api = with_key("push")
    assert api.post("/jobs", document("ignore")).json()["job"]["id"] == str(foreign["id"])
    assert api.post("/jobs", document("replace")).status_code == 201
    assert Job.objects.get(pk=foreign["id"]).state == "cancelled"


@pytest.mark.parametrize("door", DOORS[:-1], ids=lambda door: door.__name__)
def test_a_taken_id_tells_nothing_of_the_job_that_has_it(with_key: Any, door: Callable[..., Any]) -> None:
    taken = str(new_job_id())
    row = push([{"type": "hr.fire", "args": [], "queue": "b", "id": taken, "meta": {"secret": SECRET}}])[0].row
    said = door(with_key("push", queues=["a"]), {"type": "pay.run", "args": [], "queue": "a", "id": taken}).content
    assert b"duplicate" in said
    assert_untouched(row, said.decode().replace(taken, "its own id"))


@pytest.mark.parametrize("unique", [None, policy("ignore")], ids=["plain", "unique"])
def test_a_taken_id_of_its_own_is_told(with_key: Any, unique: Any) -> None:
    api, taken = with_key("push", queues=["a"]), str(new_job_id())
    job = {"type": "pay.run", "args": [], "queue": "a", "id": taken}
    assert api.post("/jobs", job).status_code == 201
    response = api.post("/jobs/bulk", {"jobs": [{**job, "args": [1], "unique": unique}], "atomicity": "partial"})
    details = response.json()["items"][0]["error"]["details"]
    assert (details["existing_job_id"], details["existing_job_state"]) == (taken, "available")


@pytest.mark.django_db(transaction=True)
def test_callers_who_meet_in_one_batch_keep_their_own_limits(foreign: Any) -> None:
    limits = {"limited": Limits(queues=("a",)), "free": UNLIMITED}

    def act(who: str, token: int) -> Callable[[], Any]:
        job = document("ignore", args=[token])
        return lambda: push_one(job, limits=limits[who])

    with gathering(push_group._deciding) as meeting:
        leader, first, second, third = meeting.together(
            act("free", 1), act("limited", 42), act("free", 42), act("limited", 7)
        )
    assert [len(items) for items in meeting.batches] == [1, 3]
    assert leader.result().status == third.result().status == "created"
    assert second.result().row["id"] == foreign["id"]
    with pytest.raises(Duplicate) as caught:
        first.result()
    assert not [name for name in caught.value.details if name.startswith("existing")]
    assert_untouched(foreign)


# Bounded queues


def bounded(name: str, depth: int) -> None:
    now = clock.now()
    config = {"backpressure": {"max_depth": depth, "strategy": "drop_oldest"}}
    Queue.objects.update_or_create(pk=name, defaults={"config": config, "updated_at": now, "created_at": now})
    configuration.forget()


class TestDropOldest:
    JOB = {"type": "pay.run", "args": [], "queue": "shared"}

    def test_no_job_of_another_type_makes_room(self, with_key: Any) -> None:
        row = push([{**self.JOB, "type": "hr.fire", "meta": {"secret": SECRET}}])[0].row
        bounded("shared", 1)
        response = with_key("push", job_types=["pay.*"]).post("/jobs", self.JOB)
        assert error_of(response, 429, "QUEUE_FULL")
        assert Job.objects.get().state == "available"
        assert str(row["id"]) not in response.content.decode()
        assert not Event.objects.filter(type="backpressure.dropped").exists()

    def test_nor_does_a_younger_one_of_its_own_in_its_stead(self, with_key: Any) -> None:
        push([{**self.JOB, "type": "hr.fire"}, self.JOB])
        bounded("shared", 2)
        error_of(with_key("push", job_types=["pay.*"]).post("/jobs", self.JOB), 429, "QUEUE_FULL")
        assert set(Job.objects.values_list("state", flat=True)) == {"available"}

    def test_its_own_make_room(self, with_key: Any) -> None:
        old = push([self.JOB])[0].row
        bounded("shared", 1)
        assert with_key("push", job_types=["pay.*"]).post("/jobs", self.JOB).status_code == 201
        assert Job.objects.get(pk=old["id"]).state == "discarded"

    def test_a_key_that_is_limited_to_the_queue_alone_drops_all_that_is_in_it(self, with_key: Any) -> None:
        old = push([{**self.JOB, "type": "hr.fire"}])[0].row
        bounded("shared", 1)
        assert with_key("push", queues=["shared"]).post("/jobs", self.JOB).status_code == 201
        assert Job.objects.get(pk=old["id"]).state == "discarded"


# What the server pushes later


STEP = {"type": "a.b", "args": [], "queue": "a"}


#: The calls that retry one job: their paths and bodies.
RETRIES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "letter": ("/dead-letter/{}/retry", lambda job_id: {}),
    "job": ("/admin/jobs/{}/retry", lambda job_id: {}),
    "jobs": ("/jobs/bulk/retry", lambda job_id: {"job_ids": [job_id]}),
    "operator": ("/admin/jobs/bulk/retry", lambda job_id: {"job_ids": [job_id], "confirm": True}),
    "letters": ("/admin/dead-letter/retry", lambda job_id: {"job_ids": [job_id], "confirm": True}),
}


def retry_over(door: str, api: Api, job_id: Any) -> Any:
    path, body = RETRIES[door]
    return api.post(path.format(job_id), body(str(job_id)))


def failed_member(beyond: bool, *, other_type: bool = False) -> dict[str, Any]:
    """The ids of a failed job of a chain, and of one that still runs, by their types. The chain would go on with a job
    of a queue, or of a type, beyond the key, or with one that meets such a job."""
    last = {**STEP, "type": "b.run"} if other_type else {**STEP, "queue": "c"}
    failing = {**STEP, "type": "a.fails", "retry": {"max_attempts": 1}}
    chain = {"type": "chain", "steps": [failing, last if beyond else document("replace")]}
    workflow.create({"type": "group", "name": "n", "jobs": [chain, {**STEP, "type": "a.runs"}]})
    rows = {row["type"]: row["id"] for row in fetch(Fetch(["a"], count=2, worker_id="w"))}
    fail_one(Failure(rows["a.fails"], {"message": "x", "code": "x"}, "w"))
    return rows


def assert_goes_on_without(rows: dict[str, Any], foreign: Any, beyond: bool) -> None:
    """The failed job, which was retried, runs alone, or what follows it is refused; then the workflow has failed."""
    ack_one(Ack(fetch(Fetch(["a"], count=1, worker_id="w"))[0]["id"], None, "w"))
    assert_untouched(foreign)
    ack_one(Ack(rows["a.runs"], None, "w"))
    assert Workflow.objects.get().state == "failed"
    assert Job.objects.count() == 3
    step = WorkflowStep.objects.get(job__isnull=False, document__regex='"c"|"b.run"' if beyond else '"unique"')
    assert (step.error is None) is beyond, "it is never pushed, or its push is refused"


def put_rule(api: Api, **more: Any) -> Any:
    """Make a rule that retries failed jobs, within the limits of most keys here."""
    body = {"filter": {"queue": "a", "type": "a.fails"}, "delay": "PT1M", **more}
    path = "/ojs/v1/admin/dead-letter/replay-rules/again"
    return api.client.generic("PUT", path, json.dumps(body), content_type="application/json")


class TestLaterSteps:
    @pytest.mark.parametrize("on_conflict", STRATEGIES)
    def test_a_step_is_pushed_within_the_limits_of_whoever_created_the_workflow(
        self, with_key: Any, foreign: Any, on_conflict: str
    ) -> None:
        steps = [STEP, document(on_conflict)]
        response = with_key("push", queues=["a"]).post("/workflows", {"type": "chain", "name": "n", "steps": steps})
        assert response.status_code == 201, response.content
        graphs.forget()  # as in another process
        ack_one(Ack(fetch(Fetch(["a"], count=1, worker_id="w"))[0]["id"], None, "w"))
        assert_untouched(foreign)
        flow = Workflow.objects.get()
        assert flow.state == "failed"
        step = WorkflowStep.objects.get(workflow=flow, position=2)
        assert step.error["code"] == "duplicate"
        assert str(foreign["id"]) not in json.dumps([flow.error, step.error])

    def test_nor_does_a_callback_reach_further(self, with_key: Any, foreign: Any) -> None:
        body = {"type": "batch", "name": "n", "jobs": [STEP], "callbacks": {"on_complete": document("replace")}}
        response = with_key("push", queues=["a"]).post("/workflows", body)
        assert response.status_code == 201, response.content
        ack_one(Ack(fetch(Fetch(["a"], count=1, worker_id="w"))[0]["id"], None, "w"))
        assert_untouched(foreign)

    def test_a_workflow_of_a_caller_without_limits_reaches_all(self, with_key: Any, foreign: Any) -> None:
        steps = [STEP, document("replace")]
        assert with_key("push").post("/workflows", {"type": "chain", "name": "n", "steps": steps}).status_code == 201
        ack_one(Ack(fetch(Fetch(["a"], count=1, worker_id="w"))[0]["id"], None, "w"))
        assert Job.objects.get(pk=foreign["id"]).state == "cancelled"

    def test_workflows_that_go_on_together_keep_their_own_limits(self, foreign: Any) -> None:
        other = push([document(queue="b", args=[7])])[0].row
        for limits, args in ((Limits(queues=("a",)), [42]), (UNLIMITED, [7])):
            workflow.create({"type": "chain", "name": "n", "steps": [STEP, document(args=args)]}, limits=limits)
        graphs.forget()
        claims = [Ack(row["id"], None, "w") for row in fetch(Fetch(["a"], count=2, worker_id="w"))]
        assert not [done for done in ack(claims) if isinstance(done, OJSError)]
        assert_untouched(foreign)
        assert Job.objects.get(pk=other["id"]).state == "cancelled"

    def test_a_limited_key_that_resumes_a_workflow_of_another_reaches_no_further(
        self, with_key: Any, foreign: Any
    ) -> None:
        push([document(queue="a", args=[1], unique=policy("reject"))])
        view = workflow.create(
            {"type": "chain", "name": "n", "steps": [STEP, {**document("reject"), "args": [1]}]}
        )  # the second step is refused
        ack_one(
            Ack(
                next(row["id"] for row in fetch(Fetch(["a"], count=2, worker_id="w")) if row["type"] == "a.b"),
                None,
                "w",
            )
        )
        assert Workflow.objects.get(pk=view.workflow.pk).state == "failed"
        WorkflowStep.objects.filter(position=2).update(document=json.dumps(document("replace")))
        api = with_key("admin", queues=["a"])
        assert api.post(f"/admin/workflows/{view.workflow.public_id}/retry").status_code == 200
        assert_untouched(foreign)

    def test_nor_does_what_follows_later_until_a_caller_without_limits_resumes_it(
        self, with_key: Any, foreign: Any
    ) -> None:
        failing, last = {**STEP, "type": "a.fails", "retry": {"max_attempts": 1}}, document("replace")
        view = workflow.create({"type": "chain", "name": "n", "steps": [STEP, failing, last]})
        path = f"/admin/workflows/{view.workflow.public_id}/retry"

        def run(**error: str) -> None:
            (row,) = fetch(Fetch(["a"], count=1, worker_id="w"))
            fail_one(Failure(row["id"], error, "w")) if error else ack_one(Ack(row["id"], None, "w"))

        run()
        run(message="x", code="x")
        graphs.forget()
        graphs.shapes({row.pk: row.created_at for row in Workflow.objects.all()}, "default")  # of another process
        assert with_key("admin", queues=["a"]).post(path).status_code == 200
        run()
        assert_untouched(foreign)
        assert Workflow.objects.get().state == "failed"
        assert with_key("admin").post(path).status_code == 200
        assert Job.objects.get(pk=foreign["id"]).state == "cancelled"
        assert Workflow.objects.get().limits is None

    @pytest.mark.parametrize("door", RETRIES)
    @pytest.mark.parametrize("beyond", [True, False])
    def test_a_limited_key_that_retries_a_member_alone_lets_the_workflow_reach_no_further(
        self, with_key: Any, foreign: Any, door: str, beyond: bool
    ) -> None:
        """The failed chain would go on with a job of a queue beyond the key, or with one that meets such a job."""
        rows = failed_member(beyond)
        created = Workflow.objects.get().created_at
        graphs.shapes({Workflow.objects.get().pk: created}, "default")  # of another process
        assert retry_over(door, with_key("admin", queues=["a"]), rows["a.fails"]).status_code == 200
        assert_goes_on_without(rows, foreign, beyond)

    @pytest.mark.parametrize("beyond", [True, False])
    @pytest.mark.parametrize("limits", [{"queues": ["a"]}, {"job_types": ["a.*", "pay.*"]}])
    def test_nor_does_a_rule_of_a_limited_key_that_retries_one(
        self, with_key: Any, foreign: Any, frozen_clock: Any, limits: Any, beyond: bool
    ) -> None:
        if not beyond and "queues" not in limits:
            pytest.skip("this key reaches the foreign job")
        rows = failed_member(beyond, other_type="queues" not in limits)
        assert put_rule(with_key("admin", **limits)).status_code == 201
        frozen_clock.advance(seconds=61)
        assert replay.replay() == 1
        assert_goes_on_without(rows, foreign, beyond)

    def test_but_one_that_a_caller_without_limits_has_set_anew_does(self, with_key: Any, frozen_clock: Any) -> None:
        failed_member(True)
        limited = with_key("admin", queues=["a"])
        assert put_rule(limited, enabled=False).status_code == 201
        rule = replay.find("again")
        replay.put(dataclasses.replace(rule, enabled=True))  # switched on in the admin, it keeps them
        assert Limits.of_json(replay.find("again").limits) == Limits(queues=("a",))
        assert put_rule(with_key("admin")).status_code == 200
        frozen_clock.advance(seconds=61)
        assert replay.replay() == 1
        ack_one(Ack(fetch(Fetch(["a"], count=1, worker_id="w"))[0]["id"], None, "w"))
        assert Job.objects.get(queue="c").state == "available"
        assert put_rule(limited).status_code == 200
        assert Limits.of_json(replay.find("again").limits) == Limits(queues=("a",))

    @pytest.mark.parametrize("limits", [{}, {"queues": ["a", "b", "c"]}])
    def test_a_key_that_reaches_the_whole_workflow_lets_it_go_on_with_the_member(
        self, with_key: Any, limits: Any
    ) -> None:
        failing = {**STEP, "type": "a.fails", "retry": {"max_attempts": 1}}
        chain = {"type": "chain", "steps": [failing, {**STEP, "queue": "c"}]}
        workflow.create({"type": "group", "name": "n", "jobs": [chain, {**STEP, "type": "a.runs"}]})
        rows = {row["type"]: row["id"] for row in fetch(Fetch(["a"], count=2, worker_id="w"))}
        fail_one(Failure(rows["a.fails"], {"message": "x", "code": "x"}, "w"))
        assert retry_over("letter", with_key("admin", **limits), rows["a.fails"]).status_code == 200
        ack_one(Ack(fetch(Fetch(["a"], count=1, worker_id="w"))[0]["id"], None, "w"))
        assert Job.objects.get(queue="c").state == "available"

    @pytest.mark.parametrize("limits", [{"queues": ["a"]}, {"job_types": ["a.b"]}])
    @pytest.mark.parametrize("when", ["before it is made", "after it was deleted"])
    def test_a_workflow_is_beyond_a_key_whose_job_is_not_there(self, with_key: Any, limits: Any, when: str) -> None:
        secret = {"type": "pay.run", "args": [SECRET], "queue": "b"}
        path = (
            "/workflows/" + workflow.create({"type": "chain", "name": "n", "steps": [STEP, secret]}).workflow.public_id
        )
        if when == "after it was deleted":
            for queue in ("a", "b"):
                ack_one(Ack(fetch(Fetch([queue], count=1, worker_id="w"))[0]["id"], None, "w"))
            Job.objects.all().delete()
        api = with_key("admin", **limits)
        for door in ("", "/admin"):
            for response in (
                api.get(door + path), api.get(f"{door}{path}/progress"), api.post(f"{door}{path}/cancel"),
                api.delete(door + path), api.post(f"{door}{path}/retry"),
            ):  # fmt: skip
                error_of(response, 403, "permission_denied")
                assert SECRET not in response.content.decode()
        assert api.get("/workflows").json()["workflows"] == []

    def test_a_workflow_is_beyond_a_key_once_a_job_of_it_is(self, with_key: Any) -> None:
        steps = [STEP, {**STEP, "type": "a.c"}]
        flow = workflow.create({"type": "chain", "name": "n", "steps": steps}).workflow
        workflow.create({"type": "chain", "name": "later", "steps": [STEP, {**STEP, "queue": "b"}]})
        api = with_key("admin", queues=["a"])
        path = f"/workflows/{flow.public_id}"
        assert api.get(path).status_code == 200
        assert len(api.get("/workflows").json()["workflows"]) == 1
        Job.objects.update(queue="b")
        error_of(api.get(path), 403, "permission_denied")
        error_of(api.delete(path), 403, "permission_denied")
        assert api.get("/workflows").json()["workflows"] == []
        assert len(with_key("read", queues=["a", "b"]).get("/workflows").json()["workflows"]) == 2


class TestSchedules:
    def register(self, api: Api, name: str = "s", **members: Any) -> Any:
        job = {name: value for name, value in document().items() if name != "queue"}
        options = {"queue": "a", "unique": job.pop("unique")}
        body = {"name": name, "expression": "* * * * *", "job_template": {**job, "options": options}, **members}
        response = api.post("/admin/cron", body)
        assert response.status_code in (200, 201), response.content
        return response

    def test_a_run_is_pushed_within_the_limits_of_whoever_registered_it(
        self, with_key: Any, foreign: Any, frozen_clock: Any
    ) -> None:
        self.register(with_key("admin", queues=["a"]))
        frozen_clock.advance(seconds=61)
        assert runs.tick() == 1
        assert_untouched(foreign)
        assert Job.objects.count() == 1
        event = Event.objects.get(type="cron.skipped")
        assert str(foreign["id"]) not in str(event.data)

    @pytest.mark.parametrize("on_conflict", ["ignore", "replace"])
    def test_a_limited_key_that_triggers_a_schedule_of_another_reaches_no_further(
        self, with_key: Any, foreign: Any, on_conflict: str
    ) -> None:
        self.register(with_key("admin"))
        CronSchedule.objects.update(template=document(on_conflict))
        response = with_key("admin", queues=["a"]).post("/admin/cron/s/trigger")
        error_of(response, 409, "duplicate")
        assert_untouched(foreign, response.content.decode())

    def test_what_an_operator_registers_anew_has_no_limits_and_what_it_changes_keeps_them(self, with_key: Any) -> None:
        limited, operator = with_key("admin", queues=["a"]), with_key("admin")
        self.register(limited)
        assert CronSchedule.objects.get().limits == {"queues": ["a"], "types": None}
        patched = operator.client.patch("/ojs/v1/admin/cron/s", {"description": "x"}, content_type="application/json")
        assert patched.status_code == 200
        assert operator.post("/admin/cron/s/pause").status_code == 200
        assert CronSchedule.objects.get().limits == {"queues": ["a"], "types": None}
        self.register(operator)
        assert CronSchedule.objects.get().limits is None

    @pytest.mark.parametrize("verb", ["enable", "resume"])
    def test_a_limited_key_that_switches_on_a_schedule_of_another_reaches_no_further(
        self, with_key: Any, foreign: Any, frozen_clock: Any, verb: str
    ) -> None:
        self.register(with_key("admin"), enabled=False)
        limited = with_key("admin", queues=["a"])
        assert limited.post("/cron/s/disable").status_code == 200
        assert CronSchedule.objects.get().limits is None
        assert limited.post(f"/cron/s/{verb}").status_code == 200
        frozen_clock.advance(seconds=61)
        runs.tick()
        assert_untouched(foreign)

    @pytest.mark.parametrize("policy", ["cancel_previous", "skip"])
    def test_runs_of_an_earlier_schedule_of_the_name_are_neither_cancelled_nor_told_of(
        self, with_key: Any, policy: str
    ) -> None:
        schedules.register({"name": "s", "cron": "@daily", "type": "hr.fire", "queue": "b"})
        _, row = runs.trigger("s")
        schedules.delete("s")
        api = with_key("admin", queues=["a"])
        self.register(api, overlap_policy=policy)
        response = api.post("/admin/cron/s/trigger")
        error_of(response, 409, "conflict")
        assert str(row["id"]) not in response.content.decode()
        assert Job.objects.get().state == "available"
        assert api.get("/admin/cron/s/history").json()["executions"] == []


def test_a_copy_is_pushed_within_the_limits_of_the_operator(with_key: Any) -> None:
    own = push([{**document(), "unique": None}])[0].row
    Job.objects.filter(pk=own["id"]).update(extra={"unique": policy("replace")})
    foreign = push([document(queue="b", meta={"secret": SECRET})])[0].row
    response = with_key("admin", queues=["a"]).post(f"/admin/jobs/{own['id']}/duplicate")
    error_of(response, 409, "duplicate")
    assert_untouched(foreign, response.content.decode().replace(str(own["id"]), ""))


def test_a_retry_into_another_queue_meets_no_one(with_key: Any, foreign: Any) -> None:
    """A dead letter that runs again is not pushed: no policy is asked, and no bound."""
    push([document(queue="c", unique=None, retry={"max_attempts": 1})])
    fail_one(Failure(fetch(Fetch(["c"], count=1, worker_id="w"))[0]["id"], {"message": "x", "code": "x"}, "w"))
    letter = Job.objects.get(queue="c")
    bounded("a", 1)
    push([{"type": "a.b", "args": [], "queue": "a"}])
    api = with_key("admin", queues=["a", "c"])
    response = api.post(f"/admin/dead-letter/{letter.pk}/retry", {"override": {"queue": "a"}})
    assert response.status_code == 200, response.content
    assert set(Job.objects.values_list("state", flat=True)) == {"available"}
    assert_untouched(foreign)


def test_what_a_fake_records_obeys_limits_too(with_key: Any) -> None:
    with fake() as jobs:
        push([document(queue="b")])
        response = with_key("push", queues=["a"]).post("/jobs", document("ignore"))
        error_of(response, 409, "duplicate")
        assert len(jobs.enqueued) == 1
