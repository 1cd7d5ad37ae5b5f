"""Every unary RPC from a client to the database and back, and beside HTTP."""

from __future__ import annotations

import datetime as dt
import json
import logging
import re
import uuid
from typing import Any

import pytest

pytest.importorskip("grpc")

import grpc
from django.db import connection
from django.test import Client
from django.urls import get_script_prefix, set_script_prefix

from django_ojs import clock, groupcommit
from django_ojs.grpc import calls, messages
from django_ojs.grpc.definition import MESSAGES
from django_ojs.grpc.errors import RpcError
from django_ojs.grpc.metadata import Metadata
from django_ojs.http import workers
from django_ojs.jobs import checkpoints
from django_ojs.jobs.checkpoints import NewCheckpoint
from django_ojs.jobs.fetch import Fetch
from django_ojs.jobs.fetch import fetch as fetch_jobs
from django_ojs.jobs.push import push
from django_ojs.models import Event, Job, Queue, Worker
from tests.grpc.serving import Served
from tests.grpc.streaming import Listener

pytestmark = pytest.mark.django_db(transaction=True)


def enqueue(served: Served, job_type: str = "mail.send", **document: Any) -> dict[str, Any]:
    return served.call("Enqueue", {"type": job_type, "args": [], **document})["job"]


def fetch(served: Served, *queues: str, **document: Any) -> list[dict[str, Any]]:
    return served.call("Fetch", {"queues": list(queues or ["default"]), **document})["jobs"]


def test_a_job_goes_its_way(served: Served) -> None:
    job = enqueue(served, args=["a", 1])
    assert job["state"] == "available"
    (fetched,) = fetch(served, worker_id="w1")
    assert (fetched["id"], fetched["args"], fetched["attempt"]) == (job["id"], ["a", 1], 1)
    assert served.call("Ack", {"job_id": job["id"], "result": {"n": 5}})["acknowledged"] is True
    assert served.call("GetJob", {"job_id": job["id"]})["job"]["result"] == {"n": 5}
    assert fetch(served) == []


def test_finding_a_view_leaves_the_prefix_of_the_sites_urls(settings: Any) -> None:
    set_script_prefix("/shop/")
    try:
        calls._resolved.cache_clear()
        assert calls._resolved("jobs", settings.ROOT_URLCONF)[0] == "/ojs/v1/"
        assert get_script_prefix() == "/shop/"
    finally:
        set_script_prefix("/")


@pytest.mark.parametrize("worker_id", ["a\0b", "x" * 256, "\u2028"])
def test_a_heartbeat_of_what_can_be_no_worker(served: Served, worker_id: str) -> None:
    for named in ({"worker_id": worker_id}, {"id": worker_id}):
        refused = served.refused("Heartbeat", {**named, "visibility_timeout_ms": 5000})
        assert (refused.code, refused.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "invalid_request")


def test_metadata_is_no_way_around_what_is_left_out() -> None:
    """Servers of HTTP drop headers with an underscore, which WSGI cannot tell from those with a hyphen."""
    kept = {"x-forwarded-for", "idempotency-key", "host", "x-http-method-override", "x-tenant"}
    given = dict.fromkeys([*kept, *(name.replace("-", "_") for name in kept if "-" in name)], "1")
    plain = Metadata({}).environ()
    assert Metadata(given).environ() == plain | {"HTTP_X_TENANT": "1"}


def test_a_claimed_job_has_its_checkpoint(served: Served) -> None:
    job = enqueue(served)
    assert fetch(served)[0].keys().isdisjoint({"checkpoint", "last_checkpoint"})
    checkpoints.save(NewCheckpoint(uuid.UUID(job["id"]), {"page": 3, "of": [1.5, None]}))
    served.call("Nack", {"job_id": job["id"], "requeue": True, "error": {"code": "x", "message": "x"}})
    (again,) = fetch(served)
    assert again["checkpoint"] == {"state": {"page": 3, "of": [1.5, None]}, "sequence": 1}
    assert again["last_checkpoint"] == {"page": 3, "of": [1.5, None]}


def test_a_worker_of_grpc_saves_checkpoints_over_http(served: Served, client: Client) -> None:
    """The protocol has no call for it. What is refused there leaves what the next claim carries, over both calls."""
    job = enqueue(served, options={"retry": {"max_attempts": 3}})
    (fetched,) = fetch(served, worker_id="w1")
    path = f"/ojs/v1/jobs/{job['id']}/checkpoint"

    def save(state: Any, **more: Any) -> Any:
        body = {"state": state, "worker_id": "w1", "attempt": fetched["attempt"], **more}
        answer = client.put(path, json.dumps(body), content_type="application/json")
        return answer.json().get("sequence") or answer.json()["error"]["code"]

    kept = {"page": 3, "of": [1e22, None, "\ud800"]}
    assert [save(1), save(kept, sequence=7), save(2, sequence=7)] == [1, 7, "conflict"]
    assert save(2, worker_id="w2") == save(2, attempt=2) == "conflict"
    assert save("x" * 1_048_577) == "payload_too_large"
    served.call("Nack", {"job_id": job["id"], "requeue": True, "error": {"code": "x", "message": "x"}})
    assert save("by a run that is over") == "conflict"
    (fetched,) = fetch(served, worker_id="w1")
    assert fetched["checkpoint"] == {"state": kept, "sequence": 7}
    served.call("Nack", {"job_id": job["id"], "requeue": True, "error": {"code": "x", "message": "x"}})
    stream = Listener(served, "StreamJobs", {"queues": ["default"], "worker_id": "w1"})
    fetched = stream.next()
    assert (fetched["checkpoint"], fetched["last_checkpoint"]) == ({"state": kept, "sequence": 7}, kept)
    assert save("more") == 8
    served.call("CancelJob", {"job_id": job["id"]})
    assert save("too late") == "conflict"
    assert client.get(path).json()["state"] == "more"


def test_an_ack_without_a_result_stores_none(served: Served) -> None:
    job = enqueue(served)
    fetch(served)
    served.call("Ack", {"job_id": job["id"]})
    assert "result" not in served.call("GetJob", {"job_id": job["id"]})["job"]


def test_a_failure_is_retried_or_handed_back(served: Served) -> None:
    job = enqueue(served)
    fetch(served)
    answer = served.call("Nack", {"job_id": job["id"], "error": {"message": "no"}})
    assert answer["state"] == "retryable"
    assert answer["next_attempt_at"]
    other = enqueue(served, "other")
    fetch(served)
    refused = served.refused("Nack", {"job_id": other["id"], "error": {"message": "x"}}, x_ojs_requeue="yes")
    assert (refused.code.name, refused.info.metadata["field"]) == ("INVALID_ARGUMENT", "requeue")
    answer = served.call("Nack", {"job_id": other["id"]}, x_ojs_requeue="true")
    assert answer["state"] == "available"
    fetch(served)
    refused = served.refused("Nack", {"job_id": other["id"]})
    assert (refused.code.name, refused.reason) == ("INVALID_ARGUMENT", "invalid_request")
    assert served.call("Nack", {"job_id": other["id"], "error": {"code": "Bare"}})["state"] == "retryable"
    assert served.call("GetJob", {"job_id": other["id"]})["job"]["errors"][0]["message"] == "Bare"


def test_only_the_holder_may_answer(served: Served) -> None:
    job = enqueue(served)
    fetch(served, worker_id="w1")
    refused = served.refused("Ack", {"job_id": job["id"]}, x_ojs_worker_id="w2")
    assert refused.code.name == "FAILED_PRECONDITION"
    assert refused.info.metadata["reason"] == "not_claimant"
    assert served.call("Ack", {"job_id": job["id"]}, x_ojs_worker_id="w1")["acknowledged"] is True


def test_a_job_is_cancelled_once_and_for_all(served: Served) -> None:
    job = enqueue(served)
    for _ in range(2):
        answer = served.call("CancelJob", {"job_id": job["id"], "reason": "no longer needed"})
        assert answer["job"]["state"] == "cancelled"
    done = enqueue(served)
    fetch(served)
    served.call("Ack", {"job_id": done["id"]})
    refused = served.refused("CancelJob", {"job_id": done["id"]})
    assert (refused.code.name, refused.reason) == ("FAILED_PRECONDITION", "conflict")
    assert refused.info.metadata["current_state"] == "completed"


def test_a_pending_job_is_activated(served: Served) -> None:
    job = enqueue(served, options={"pending": True})
    assert job["state"] == "pending"
    assert served.call("ActivateJob", {"job_id": job["id"]})["job"]["state"] == "available"
    refused = served.refused("ActivateJob", {"job_id": job["id"]})
    assert refused.code.name == "FAILED_PRECONDITION"


@pytest.mark.parametrize("rpc", ["GetJob", "CancelJob", "ActivateJob", "Ack", "RetryDeadLetter", "DeleteDeadLetter"])
@pytest.mark.parametrize("job_id", ["", "nonsense", "a/b", "019539a4-b68c-7def-8000-1a2b3c4d5e6f"])
def test_what_is_no_job_is_not_found(served: Served, rpc: str, job_id: str) -> None:
    refused = served.refused(rpc, {"job_id": job_id})
    assert (refused.code.name, refused.reason) == ("NOT_FOUND", "not_found")


def test_ids_are_lowered(served: Served) -> None:
    job = enqueue(served)
    assert served.call("GetJob", {"job_id": job["id"].upper()})["job"]["id"] == job["id"]


def test_fetch_needs_a_queue(served: Served) -> None:
    refused = served.refused("Fetch", {"queues": []})
    assert (refused.code.name, refused.reason) == ("INVALID_ARGUMENT", "invalid_request")
    assert refused.info.metadata["field"] == "queues"


def test_a_heartbeat_for_a_job_renews_it_for_whoever_holds_it(served: Served) -> None:
    job = enqueue(served)
    fetch(served, worker_id="w1")
    before = Job.objects.get(pk=job["id"]).visible_until
    answer = served.call("Heartbeat", {"id": job["id"], "extend_by": 7_200_000, "visibility_timeout_ms": 7_200_000})
    end = dt.datetime.fromisoformat(answer["new_deadline"])
    assert end - before > dt.timedelta(hours=1)
    assert abs(end - Job.objects.get(pk=job["id"]).visible_until) < dt.timedelta(milliseconds=1)
    served.call("Ack", {"job_id": job["id"]})
    answer = served.call("Heartbeat", {"id": job["id"]})
    assert "new_deadline" not in answer
    assert answer["jobs_lost"] == [job["id"]]


def test_a_heartbeat_may_name_its_worker_in_the_attributes(served: Served) -> None:
    """What the client's own messages have no field for, or what it wrote there: the worker beats all the same."""
    job_id = enqueue(served)["id"]
    fetch(served, worker_id="w1")
    for named in ({}, {"id": job_id}):
        Worker.objects.update(last_heartbeat_at=None)
        message = MESSAGES["HeartbeatRequest"](**named)
        message.attributes["worker_id"].string_value = "w1"
        answer = messages.to_document(served.stub.Heartbeat(message))
        assert (answer["state"], answer["worker_id"]) == ("running", "w1")
        assert Worker.objects.get().last_heartbeat_at is not None


def test_a_job_that_another_transaction_holds_is_not_lost(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    job = enqueue(served)
    fetch(served, worker_id="w1")
    monkeypatch.setattr(calls.beats, "extend", lambda *args, **given: None)  # as it says where the row is locked
    answer = served.call("Heartbeat", {"id": job["id"]})
    assert [answer[name] for name in ("jobs_extended", "jobs_lost", "cancelled_jobs")] == [[], [], []]


def test_a_heartbeat_for_a_job_names_its_worker_where_the_site_wants_that(served: Served, settings: Any) -> None:
    settings.OJS = {**settings.OJS, "STRICT_OWNERSHIP": True}
    job = enqueue(served)
    fetch(served, worker_id="w1")
    for named in ({}, {"worker_id": 7}):
        refused = served.refused("Heartbeat", {"id": job["id"], **named})
        assert (refused.code.name, refused.info.metadata["field"]) == ("INVALID_ARGUMENT", "worker_id")
    for worker_id, told in (("w2", "jobs_lost"), ("w1", "jobs_extended")):
        assert served.call("Heartbeat", {"id": job["id"], "worker_id": worker_id})[told] == [job["id"]]
        request = messages.to_message("HeartbeatRequest", {"id": job["id"]})
        request.attributes["worker_id"].string_value = worker_id
        assert messages.to_document(served.stub.Heartbeat(request))[told] == [job["id"]]


def test_a_heartbeat_of_a_worker_renews_only_with_a_length(served: Served) -> None:
    job = enqueue(served)
    fetch(served, worker_id="w1")
    assert "new_deadline" not in served.call("Heartbeat", {"worker_id": "w1"})
    assert Worker.objects.get(pk="w1").last_heartbeat_at is not None
    answer = served.call("Heartbeat", {"id": "w1", "visibility_timeout_ms": 60_000})
    assert answer["jobs_extended"] == [job["id"]]
    assert answer["new_deadline"]
    for document in ({}, {"id": "nobody", "worker_id": "w1"}):
        refused = served.refused("Heartbeat", document)
        assert (refused.code.name, refused.info.metadata["field"]) == ("INVALID_ARGUMENT", "id")


def test_a_heartbeat_of_a_worker_with_more_jobs_than_one_may_name_renews_those_that_end_first(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "MAX_JOBS", 2)
    jobs = [enqueue(served)["id"] for _ in range(3)]
    fetch(served, worker_id="w1", count=3)
    Job.objects.filter(pk=jobs[0]).update(visible_until=clock.now() + dt.timedelta(days=1))
    answer = served.call("Heartbeat", {"worker_id": "w1", "visibility_timeout_ms": 7_200_000})
    assert sorted(answer["jobs_extended"]) == sorted(jobs[1:])


def test_a_list_whose_rest_is_gone_meanwhile(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind one that fills the answer."""
    for _ in range(4):
        enqueue(served, retry={"max_attempts": 1})
        (job,) = fetch(served)
        served.call("Nack", {"job_id": job["id"], "error": {"code": "x", "message": "x"}})
    asked = calls._Exchange._called

    def called(exchange: Any, query: Any) -> Any:
        if "cursor" in query:
            Job.objects.all().delete()
        return asked(exchange, query)

    monkeypatch.setattr(calls, "MAX_ANSWER", 10)
    monkeypatch.setattr(calls._Exchange, "_called", called)
    assert len(served.call("ListDeadLetter", {"limit": 4})["jobs"]) == 1


def test_a_batch_is_all_or_nothing(served: Served) -> None:
    answer = served.call("EnqueueBatch", {"jobs": [{"type": "a", "args": []}, {"type": "b", "args": []}]})
    assert [job["type"] for job in answer["jobs"]] == ["a", "b"]
    assert answer["count"] == 2
    refused = served.refused("EnqueueBatch", {"jobs": [{"type": "a", "args": []}, {"type": "No Type", "args": []}]})
    assert refused.code.name == "INVALID_ARGUMENT"
    assert refused.info.metadata["index"] == "1"
    assert refused.info.metadata["field"] == "jobs[1].type"
    assert Job.objects.count() == 2


def test_queues_are_listed_paused_and_counted(served: Served) -> None:
    enqueue(served, options={"queue": "mail"})
    listed = served.call("ListQueues", {"limit": 1})
    assert [queue["name"] for queue in listed["queues"]] == ["default"]
    more = served.call("ListQueues", {"cursor": listed["pagination"]["next_cursor"]})
    assert [queue["name"] for queue in more["queues"]] == ["mail"]
    assert "next_cursor" not in more["pagination"]
    served.call("PauseQueue", {"queue": "mail"})
    assert fetch(served, "mail") == []
    stats = served.call("QueueStats", {"queue": "mail"})
    assert stats["stats"]["available"] == 1
    served.call("ResumeQueue", {"queue": "mail"})
    assert len(fetch(served, "mail")) == 1
    assert served.call("QueueStats", {"queue": "never-seen"})["stats"]["available"] == 0


def test_a_list_longer_than_a_page_of_http_comes_at_once(served: Served) -> None:
    jobs = [{"type": "a", "args": [], "options": {"queue": f"q{number}"}} for number in range(205)]
    served.call("EnqueueBatch", {"jobs": jobs})
    assert len(served.call("ListQueues", {})["queues"]) == 100
    assert len(served.call("ListQueues", {"limit": 1000})["queues"]) == 206  # with `default`


def test_a_list_reads_its_attributes_as_http_reads_a_query(served: Served) -> None:
    def listed(rpc: str, **asked: Any) -> list[str]:
        found = served.call(rpc, asked)
        member, shown = ("crons", "name") if rpc == "ListCron" else ("jobs", "type")
        return [entry[shown] for entry in found[member]]

    for name in ("a", "b"):
        served.call("RegisterCron", {"name": name, "cron": "0 0 1 1 *", "type": "some.job", "enabled": name == "b"})
        enqueue(served, f"{name}.job", retry={"max_attempts": 0})
        (job,) = fetch(served)
        served.call("Nack", {"job_id": job["id"], "error": {"code": "x", "message": "x"}})
    assert listed("ListCron", enabled=None, limit=None, cursor=None) == ["a", "b"]
    assert listed("ListCron", enabled=True) == ["b"]
    assert listed("ListCron", limit="1") == ["a"]
    assert listed("ListDeadLetter", type=["a.job"], queue=None) == ["a.job"]
    asked = [{"limit": limit} for limit in (0, -1, 1.5, "x")] + [{"cursor": cursor} for cursor in (5, True, {"a": 1})]
    for document in (*asked, {"enabled": [True, False]}):
        refused = served.refused("ListCron", document)
        assert (refused.code, refused.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "invalid_request")
    for rpc in ("ListQueues", "ListDeadLetter"):
        assert served.refused(rpc, {"limit": -1}).info.metadata["field"] == "limit"


def test_dead_letters_are_listed_retried_and_deleted(served: Served) -> None:
    ids = []
    for _ in range(2):
        job = enqueue(served, options={"retry": {"max_attempts": 1}})
        fetch(served)
        assert served.call("Nack", {"job_id": job["id"], "error": {"message": "no"}})["state"] == "discarded"
        ids.append(job["id"])
    listed = served.call("ListDeadLetter", {"limit": 1})
    assert [job["id"] for job in listed["jobs"]] == [ids[1]]
    assert listed["total"] == 2
    cursor = listed["pagination"]["next_cursor"]
    assert [job["id"] for job in served.call("ListDeadLetter", {"cursor": cursor})["jobs"]] == [ids[0]]
    assert served.call("RetryDeadLetter", {"job_id": ids[0]})["job"]["state"] == "available"
    served.call("DeleteDeadLetter", {"job_id": ids[1]})
    assert served.refused("GetJob", {"job_id": ids[1]}).code.name == "NOT_FOUND"


def test_schedules_are_registered_listed_and_removed(served: Served) -> None:
    document = {"name": "nightly", "cron": "0 3 * * *", "type": "clean", "args": []}
    answer = served.call("RegisterCron", document)
    assert answer["next_run_at"]
    assert answer["created"] is True
    assert served.call("RegisterCron", document)["created"] is False
    listed = served.call("ListCron", {})
    assert [entry["name"] for entry in listed["crons"]] == ["nightly"]
    served.call("UnregisterCron", {"name": "nightly"})
    assert served.refused("UnregisterCron", {"name": "nightly"}).code.name == "NOT_FOUND"


def test_a_workflow_is_created_read_and_cancelled(served: Served) -> None:
    steps = [{"id": "a", "type": "x", "args": []}, {"id": "b", "type": "y", "args": [], "depends_on": ["a"]}]
    made = served.call("CreateWorkflow", {"name": "w", "steps": steps})["workflow"]
    found = served.call("GetWorkflow", {"workflow_id": made["id"]})["workflow"]
    assert [step["id"] for step in found["steps"]] == ["a", "b"]
    done = served.call("CancelWorkflow", {"workflow_id": made["id"], "reason": "no"})["workflow"]
    assert done["state"] == "cancelled"
    assert served.refused("CancelWorkflow", {"workflow_id": made["id"]}).code.name == "FAILED_PRECONDITION"
    assert served.refused("GetWorkflow", {"workflow_id": "nothing"}).code.name == "NOT_FOUND"


def test_a_job_of_one_door_is_the_same_behind_the_other(served: Served, client: Client) -> None:
    job = enqueue(served, args=[1, {"a": None}], options={"meta": {"k": "v"}, "tags": ["t"], "priority": 3})
    over_http = client.get(f"/ojs/v1/jobs/{job['id']}").json()["job"]
    assert over_http["args"] == [1, {"a": None}]
    shown = json.dumps(served.call("GetJob", {"job_id": job["id"]}))
    # A Timestamp of a whole second has no fraction when it is written out.
    assert json.loads(re.sub(r'(:\d\d)Z"', r'\1.000Z"', shown))["job"] == over_http
    body = json.dumps({"queues": ["default"], "worker_id": "w1"})
    client.post("/ojs/v1/workers/fetch", body, content_type="application/json")
    assert served.call("Ack", {"job_id": job["id"], "worker_id": "w1"})["acknowledged"] is True
    assert client.get(f"/ojs/v1/jobs/{job['id']}").json()["job"]["state"] == "completed"


def test_the_manifest_is_that_of_http(served: Served, client: Client) -> None:
    ours, theirs = served.call("Manifest"), client.get("/ojs/manifest").json()
    assert ours["protocols"] == theirs["protocols"] == ["http", "grpc"]
    assert "grpc" in ours["events"]["transports"]
    assert {name: value for name, value in ours.items() if name != "endpoints"} == {
        name: value for name, value in theirs.items() if name != "endpoints"
    }


def test_the_manifest_names_no_host_that_the_client_has_not_named(served: Served, settings: Any) -> None:
    settings.ALLOWED_HOSTS = ["*"]
    assert served.call("Manifest")["endpoints"]["base_url"] == "/ojs/v1"


def test_health_says_what_http_says(served: Served) -> None:
    message, _ = served.whole("Health")
    assert message.status == 1
    assert message.details.fields["status"].string_value == "ok"


def test_an_idempotency_key_answers_again(served: Served) -> None:
    key = {"x_ojs_idempotency_key": "k1"}
    first, call = served.whole("Enqueue", {"type": "a", "args": [{"x": 1, "y": 2}]}, **key)
    again, replay = served.whole("Enqueue", {"type": "a", "args": [{"x": 1, "y": 2}]}, **key)
    assert first.job.id == again.job.id
    assert "x-ojs-idempotency-replayed" not in dict(call.trailing_metadata())
    assert dict(replay.trailing_metadata())["x-ojs-idempotency-replayed"] == "true"
    refused = served.refused("Enqueue", {"type": "b", "args": []}, **key)
    assert (refused.code.name, refused.reason) == ("FAILED_PRECONDITION", "conflict")
    assert Job.objects.count() == 1


def test_the_trace_context_is_stored(served: Served) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    job = served.call("Enqueue", {"type": "a", "args": []}, traceparent=trace)["job"]
    assert job["meta"]["traceparent"] == trace


def test_fetch_hands_out_what_one_answer_can_hold(served: Served) -> None:
    for _ in range(6):
        enqueue(served, args=["x" * 900_000])
    fetched = fetch(served, count=10, worker_id="w1")
    assert len(fetched) == 4
    assert Job.objects.filter(state="active").count() == 4
    assert len(fetch(served, count=10, worker_id="w1")) == 2


def test_a_large_batch_is_answered_without_arguments(served: Served) -> None:
    jobs = [{"type": "a", "args": ["x" * 900_000]} for _ in range(5)]
    message, call = served.whole("EnqueueBatch", {"jobs": jobs})
    assert dict(call.trailing_metadata())["x-ojs-trimmed"] == "args,meta"
    assert len(message.jobs) == message.count == Job.objects.count() == 5
    assert not message.jobs[0].args
    assert message.jobs[0].type == "a"


def test_a_list_stops_before_the_answer_is_too_large(served: Served) -> None:
    for _ in range(6):
        enqueue(served, args=["x" * 900_000], options={"retry": {"max_attempts": 1}})
    for job in [*fetch(served, count=10), *fetch(served, count=10)]:
        served.call("Nack", {"job_id": job["id"], "error": {"message": "no"}})
    message, _ = served.whole("ListDeadLetter")
    assert 1 <= len(message.jobs) < 6
    assert message.ByteSize() < 4_000_000
    seen, cursor = len(message.jobs), message.next_cursor
    while cursor:
        message, _ = served.whole("ListDeadLetter", {"cursor": cursor})
        seen, cursor = seen + len(message.jobs), message.next_cursor
    assert seen == 6


@pytest.mark.parametrize("arguments", [{}, {"a": 1}, "text", 5, None, False])
def test_what_is_no_list_of_arguments_is_refused_as_over_http(served: Served, arguments: Any) -> None:
    assert served.refused("Enqueue", {"type": "x", "args": arguments}).reason == "invalid_payload"


def test_a_schedule_may_name_its_job_by_a_template(served: Served) -> None:
    template = {"type": "clean", "args": [1, 2]}
    served.call("RegisterCron", {"name": "nightly", "cron": "0 3 * * *", "job_template": template})
    (entry,) = served.call("ListCron", {})["crons"]
    assert (entry["type"], entry["args"]) == ("clean", [1, 2])


class Clock:
    """Says that the deadline has passed once so many statements have begun."""

    def __init__(self, statements: int) -> None:
        self.left = statements

    def monotonic(self) -> float:
        return 0.0 if self.left >= 0 else 1000.0

    def __call__(self, execute: Any, *statement: Any) -> Any:
        """Count a statement, before the call looks at the time itself."""
        self.left -= 1
        return execute(*statement)


def called(rpc: str, document: dict[str, Any], clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The answer, or the refusal, of a call whose deadline passes as the clock says."""
    answers: list[Any] = []
    body = messages.to_message(f"{rpc}Request", document).SerializeToString()
    with monkeypatch.context() as patch:
        patch.setattr(calls, "time", clock)
        call = calls.UnaryCall(calls.OPERATIONS[rpc], body, Metadata({}), 10.0)
        with connection.execute_wrapper(clock):
            try:
                call.run(answers.append)
            except RpcError as refused:
                return refused
    return answers[0]


@pytest.mark.parametrize("rpc", ["EnqueueBatch", "Ack", "Nack", "PauseQueue"])
def test_a_deadline_that_passes_between_statements_undoes_the_call(
    transactional_db: None, settings: Any, monkeypatch: pytest.MonkeyPatch, rpc: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Wherever it passes: everything the call does is done, or nothing. The client's own is no fault to be logged."""
    settings.OJS = {"ALLOW_ANONYMOUS": True, "GRPC": True}
    refusals = 0
    for statements in range(40):
        Job.objects.all().delete()
        Event.objects.all().delete()
        Queue.objects.all().delete()
        push([{"type": "a", "args": []}] * 2)
        (active,) = fetch_jobs(Fetch(["default"], worker_id="w"))
        document = {
            "EnqueueBatch": {"jobs": [{"type": "a", "args": []}, {"type": "b", "args": [], "queue": "q"}]},
            "Ack": {"job_id": str(active["id"]), "worker_id": "w"},
            "Nack": {"job_id": str(active["id"]), "worker_id": "w", "error": {"code": "X", "message": "x"}},
            "PauseQueue": {"queue": "default"},
        }[rpc]
        before = state()
        clock = Clock(statements)
        found = called(rpc, document, clock, monkeypatch)
        if not isinstance(found, RpcError):
            assert state() != before
            break
        assert found.code is grpc.StatusCode.DEADLINE_EXCEEDED
        assert state() == before, statements
        refusals += 1
    else:
        raise AssertionError("the call never ended within its deadline")
    assert refusals
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def state() -> Any:
    """What a call that changes nothing leaves as it is. (It may have met a queue that nobody knew.)"""
    jobs = sorted(Job.objects.values_list("pk", "state", "worker_id"))
    return jobs, Event.objects.count(), sorted(Queue.objects.filter(paused=True).values_list("name"))


def test_a_fetch_whose_deadline_passes_runs_to_its_end(
    transactional_db: None, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jobs that it has claimed go back when its caller is found to have gone: nobody else knows of them."""
    settings.OJS = {"ALLOW_ANONYMOUS": True, "GRPC": True}
    push([{"type": "a", "args": []}])
    found = called("Fetch", {"queues": ["default"]}, Clock(0), monkeypatch)
    assert len(found.jobs) == 1


def test_a_deadline_does_not_end_the_batch_that_a_call_leads_for_others(
    transactional_db: None, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.OJS = {"ALLOW_ANONYMOUS": True, "GRPC": True}
    monkeypatch.setattr(groupcommit._thread, "serves_others", True)
    found = called("Enqueue", {"type": "a", "args": []}, Clock(0), monkeypatch)
    assert not isinstance(found, RpcError)
    assert Job.objects.count() == 1
