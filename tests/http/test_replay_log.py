"""A durable handler in Python and one of another client continue each other's jobs (CKP-19)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client

from django_ojs import JobContext, clock, job
from django_ojs.models import JobStep
from django_ojs.registry import registry
from django_ojs.testing.storedjobs import worker as stored

pytestmark = pytest.mark.django_db
JSON = "application/openjobspec+json"


@pytest.fixture(autouse=True)
def _handlers() -> Any:
    with registry.isolated():
        yield


def test_each_goes_on_where_the_other_was(client: Client) -> None:
    calls: list[str] = []

    @job("replay.flow", durable=True, retry={"max_attempts": 9, "initial_interval": "1s", "jitter": False})
    def handler(context: JobContext) -> list[Any]:
        first = context.step("first", lambda: calls.append("first") or {"n": 1})
        moment = context.now()
        second = context.step("second", lambda: calls.append("second") or "by Python")
        if context.attempt == 1:
            raise ValueError
        return [
            first,
            moment.isoformat(),
            second,
            context.step("third", lambda: calls.append("third") or "Python, too"),
        ]

    with clock.frozen(clock.now()), stored() as jobs:
        handle = handler.enqueue()
        resume = f"/ojs/v1/checkpoints/{handle.id}/resume"
        assert client.get(resume).json() == {"has_checkpoint": False}
        jobs.drain()
        found = client.get(resume).json()["checkpoint"]
        log = json.loads(found["metadata"]["_replay_log"])
        assert [(entry["seq"], entry["type"], entry["key"]) for entry in log] == [
            (1, "call", "first"), (2, "time", "$time-1"), (3, "call", "second"),
        ]  # fmt: skip
        assert (found["metadata"]["attempt"], found["state"], log[0]["result"]) == ("1", None, {"n": 1})
        log.append({"seq": 4, "type": "call", "key": "third", "result": "by JavaScript"})
        body = {"state": None, "step_index": 4, "metadata": {"_replay_log": json.dumps(log), "attempt": "2"}}
        answer = client.post(f"/ojs/v1/checkpoints/{handle.id}", json.dumps(body), content_type=JSON)
        assert answer.status_code == 200, answer.content
        jobs.drain(with_scheduled=True)
    assert handle.refresh().result == [{"n": 1}, JobStep.objects.get(name="$time-1").result["value"], "by Python",
                                       "by JavaScript"]  # fmt: skip
    assert calls == ["first", "second"]


def test_a_log_alone_is_what_the_handler_goes_on_from(client: Client) -> None:
    @job("replay.alone", durable=True)
    def handler(context: JobContext) -> list[Any]:
        return [context.step("one", int, 5), context.now().isoformat(), str(context.random())]

    with stored() as jobs:
        handle = handler.enqueue()
        log = [{"seq": 1, "type": "call", "key": "one", "result": 7},
               {"seq": 2, "type": "time", "result": "2026-05-04T12:00:00Z"},
               {"seq": 3, "type": "random", "result": "ab"}]  # fmt: skip
        body = {"state": {}, "metadata": {"_replay_log": json.dumps(log)}}
        client.post(f"/ojs/v1/checkpoints/{handle.id}", json.dumps(body), content_type=JSON)
        jobs.drain().raise_first()
    assert handle.refresh().result == [7, "2026-05-04T12:00:00+00:00", "ab"]


def test_a_log_gives_a_job_no_row_and_no_type_of_the_site(client: Client, django_user_model: Any) -> None:
    """It is JSON, but for values such as a tuple, which Python has written there itself."""
    user = django_user_model.objects.create_user("ann")
    claimed = {"$type": "model", "value": ["auth.user", user.pk, None]}

    @job("replay.rows", durable=True)
    def handler(context: JobContext) -> list[Any]:
        return [context.step("one", int), repr(context.step("two", int)), context.step("three", int)]

    with stored() as jobs:
        handle = handler.enqueue()
        inside = [{"a": {"$type": "of.the.site", "value": claimed}}]
        results = {"one": claimed, "two": {"$type": "tuple", "value": [1, [2]]}, "three": inside}
        log = [{"type": "call", "key": key, "result": result} for key, result in results.items()]
        body = {"state": {}, "metadata": {"_replay_log": json.dumps(log)}}
        client.post(f"/ojs/v1/checkpoints/{handle.id}", json.dumps(body), content_type=JSON)
        jobs.drain().raise_first()
    assert handle.refresh().result == [claimed, "(1, [2])", inside]


def test_a_log_gives_a_job_no_other_arguments(client: Client) -> None:
    """As `continue_as_new` does: who may save a checkpoint says what steps returned, and no more."""

    @job("replay.arguments", durable=True)
    def handler(context: JobContext, amount: int) -> int:
        return amount

    with stored() as jobs:
        handle = handler.enqueue(1)
        log = [{"seq": 1, "type": "call", "key": "$arguments", "result": [666]}]
        body = {"state": {}, "metadata": {"_replay_log": json.dumps(log)}}
        client.post(f"/ojs/v1/checkpoints/{handle.id}", json.dumps(body), content_type=JSON)
        jobs.drain().raise_first()
    assert handle.refresh().result == 1


def test_a_checkpoint_that_is_deleted_lets_the_handler_start_over(client: Client) -> None:
    calls: list[int] = []

    @job("replay.over", durable=True, retry={"max_attempts": 2, "initial_interval": "1s", "jitter": False})
    def handler(context: JobContext) -> int:
        context.step("one", calls.append, 1)
        if context.attempt == 1:
            raise ValueError
        return len(calls)

    with clock.frozen(clock.now()), stored() as jobs:
        handle = handler.enqueue()
        jobs.drain()
        path = f"/ojs/v1/jobs/{handle.id}/checkpoint"
        assert client.delete(path).json() == {"deleted": True, "job_id": str(handle.id)}
        assert client.delete(path).json() == {"deleted": False, "job_id": str(handle.id)}
        jobs.drain(with_scheduled=True)
    assert handle.refresh().result == 2
