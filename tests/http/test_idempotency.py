"""`Idempotency-Key`: work is done once, whatever the client repeats."""

import datetime as dt
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import OperationalError, connections, transaction

from django_ojs import clock
from django_ojs.http import idempotency
from django_ojs.http.idempotency import Answer, Operation
from django_ojs.models import IdempotencyKey, Job, RateLimit
from django_ojs.operations import limits
from tests.http.conftest import Api, error_of

KEY = {"Idempotency-Key": "order-1"}
JOB = {"type": "a.b", "args": [1]}


def test_a_repeated_push_gets_the_first_answer_and_makes_no_second_job(api: Api) -> None:
    first = api.post("/jobs", JOB, **KEY)
    api.fetch()  # the answer is that of the first time, though the job has moved on
    again = api.post("/jobs", JOB, **KEY)
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.content == first.content
    assert again["Location"] == first["Location"]
    assert again["Idempotency-Replayed"] == "true"
    assert not first.has_header("Idempotency-Replayed")
    assert again["X-Request-Id"] != first["X-Request-Id"]
    assert Job.objects.count() == 1


def test_a_repeated_batch_is_done_once(api: Api) -> None:
    batch = {"jobs": [JOB, JOB]}
    assert api.post("/jobs/batch", batch, **KEY).content == api.post("/jobs/batch", batch, **KEY).content
    assert Job.objects.count() == 2


def test_the_key_with_another_body_is_a_conflict(api: Api) -> None:
    api.post("/jobs", JOB, **KEY)
    error = error_of(api.post("/jobs", {"type": "a.b", "args": [2]}, **KEY), 409, "conflict")
    assert error["retryable"] is False
    assert Job.objects.count() == 1


def test_single_and_batch_do_not_share_keys(api: Api) -> None:
    assert api.post("/jobs", JOB, **KEY).status_code == 201
    assert api.post("/jobs/batch", {"jobs": [JOB]}, **KEY).status_code == 201


def test_callers_do_not_share_keys(with_key: Any) -> None:
    ids = {with_key("push").post("/jobs", JOB, **KEY).json()["job"]["id"] for _ in range(2)}
    assert len(ids) == 2


def test_a_refused_request_leaves_the_key_free(api: Api) -> None:
    error_of(api.post("/jobs", {"type": "a.b"}, **KEY), 400, "invalid_payload")
    assert not IdempotencyKey.objects.exists()
    assert api.post("/jobs", JOB, **KEY).status_code == 201


@pytest.mark.parametrize("key", ["", "   ", "x" * 257])
def test_a_key_has_one_to_256_characters(api: Api, key: str) -> None:
    error_of(api.post("/jobs", JOB, **{"Idempotency-Key": key}), 400, "invalid_request")
    assert not Job.objects.exists()


@pytest.mark.parametrize("key", ["x" * 256, "é", "a b", "\x7f"])
def test_any_other_text_is_a_key(api: Api, key: str) -> None:
    for _ in range(2):
        assert api.post("/jobs", JOB, **{"Idempotency-Key": key}).status_code == 201
    assert Job.objects.count() == 1


def test_an_old_key_is_forgotten(api: Api, frozen_clock: Any) -> None:
    api.post("/jobs", JOB, **KEY)
    frozen_clock.advance(hours=23)
    assert api.post("/jobs", JOB, **KEY)["Idempotency-Replayed"] == "true"
    frozen_clock.advance(hours=2)
    assert api.post("/jobs", {"type": "c.d", "args": []}, **KEY).status_code == 201
    assert Job.objects.count() == 2


def test_the_replay_comes_under_the_type_that_the_new_request_wants(api: Api) -> None:
    api.post("/jobs", JOB, **KEY)
    assert api.post("/jobs", JOB, **KEY, Accept="application/json")["Content-Type"] == "application/json"


# While the first request is still running


OPERATION = Operation("k", "p", "push", b"{}")


def answer() -> Answer:
    return Answer(201, "{}", {})


@pytest.mark.django_db
def test_the_second_of_two_at_once_is_told_to_come_again() -> None:
    def act() -> Answer:
        with pytest.raises(idempotency.Conflict, match="still running") as caught:
            idempotency.once(OPERATION, answer, "default")
        assert caught.value.retryable is True
        assert caught.value.retry_after == 1
        return answer()

    assert idempotency.once(OPERATION, act, "default") == (answer(), False)
    assert idempotency.once(OPERATION, answer, "default") == (answer(), True)


def test_a_running_key_is_409_over_http(api: Api) -> None:
    api.post("/jobs", JOB, **KEY)
    IdempotencyKey.objects.update(status=None)
    response = api.post("/jobs", JOB, **KEY)
    error = error_of(response, 409, "conflict")
    assert error["retryable"] is True
    assert response["Retry-After"] == "1"


@pytest.mark.django_db
def test_a_key_whose_request_died_is_taken_over() -> None:
    long_ago = clock.now() - dt.timedelta(seconds=61)
    IdempotencyKey.objects.create(digest=OPERATION.digest, request="x", created_at=long_ago)
    assert idempotency.once(OPERATION, answer, "default") == (answer(), False)
    assert idempotency.once(OPERATION, answer, "default") == (answer(), True)


@pytest.mark.django_db
def test_a_slow_request_that_lost_its_key_cannot_commit() -> None:
    def act() -> Answer:
        Job.objects.create(type="a.b", created_at=clock.now())
        IdempotencyKey.objects.update(created_at=clock.now() + dt.timedelta(seconds=61))  # taken over meanwhile
        return answer()

    with pytest.raises(idempotency.Conflict):
        idempotency.once(OPERATION, act, "default")
    assert not Job.objects.exists()


def test_many_at_once_make_one_job(transactional_db: None) -> None:
    api = Api()
    barrier = threading.Barrier(4)

    def send(_: int) -> Any:
        barrier.wait()
        try:
            return api.post("/jobs", JOB, **KEY)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(send, range(4)))
    assert {response.status_code for response in answers} <= {201, 409}
    assert len({response.content for response in answers if response.status_code == 201}) == 1
    assert Job.objects.count() == 1


@pytest.mark.django_db
def test_a_crash_frees_the_key_at_once() -> None:
    def crash() -> Answer:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        idempotency.once(OPERATION, crash, "default")
    assert idempotency.once(OPERATION, answer, "default") == (answer(), False)


@pytest.mark.django_db
def test_keys_and_their_owners_cannot_be_mixed_up() -> None:
    digests = {
        Operation(k, p, n, b"").digest
        for k, p, n in [("a", "b", "c"), ("b", "a", "c"), ("c", "ab", ""), ("", "ab", "c")]
    }
    assert len(digests) == 4


def test_the_answer_and_the_job_are_stored_together(api: Api) -> None:
    api.post("/jobs", JOB, **KEY)
    stored = IdempotencyKey.objects.get()
    assert stored.status == 201
    assert abs(clock.now() - stored.created_at) < dt.timedelta(minutes=1)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "limit, left",
    [
        ({"key": "new", "concurrency": 3}, "3"),
        ({"key": "new", "rate": {"limit": 5, "period": "PT1M"}}, "5"),
        ({"key": "queue:orders", "throttle": {"limit": 2, "period": "PT1S"}}, "2"),
    ],
)
def test_a_push_under_a_limit_that_nobody_noted_yet(api: Api, limit: dict[str, Any], left: str) -> None:
    answer = api.post("/jobs", JOB | {"rate_limit": limit}, **KEY)
    assert (answer.status_code, answer["X-RateLimit-Limit"], answer["X-RateLimit-Remaining"]) == (201, left, left)
    assert RateLimit.objects.get().key == limit["key"]
    again = api.post("/jobs", JOB | {"rate_limit": limit}, **KEY)
    assert (again.content, again["X-RateLimit-Limit"]) == (answer.content, left)
    batch = {"jobs": [JOB | {"rate_limit": limit | {"key": "another"}}] * 2}
    assert api.post("/jobs/batch", batch, **KEY).status_code == 201
    assert Job.objects.count() == 3


@pytest.mark.django_db(transaction=True)
def test_a_job_that_is_stored_is_answered_whatever_becomes_of_its_limit(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*args: Any) -> None:
        raise OperationalError("server closed the connection")

    monkeypatch.setattr(limits, "describe", lost)
    answer = api.post("/jobs", JOB | {"rate_limit": {"key": "new", "concurrency": 3}})
    assert (answer.status_code, "X-RateLimit-Limit" in answer.headers) == (201, False)


@pytest.mark.django_db(transaction=True)
def test_such_a_push_inside_a_transaction_of_the_sites(api: Api) -> None:
    with transaction.atomic():
        answer = api.post("/jobs", JOB | {"rate_limit": {"key": "new", "concurrency": 3}})
    assert (answer.status_code, answer["X-RateLimit-Limit"]) == (201, "3")
    assert RateLimit.objects.get().key == "new"
