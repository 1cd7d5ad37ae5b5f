"""`Idempotency-Key`: work is done once, whatever the client repeats."""

import datetime as dt
import hashlib
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import OperationalError, connection, connections, transaction

from django_ojs import clock, keys
from django_ojs.jobs import idempotency, push_group
from django_ojs.jobs.idempotency import Answer, KeyedRequest
from django_ojs.limits import ratelimits
from django_ojs.models import IdempotencyKey, Job, RateLimit
from tests.http.conftest import Api, error_of
from tests.settings import BASE_DIR

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


@pytest.mark.parametrize("atomicity", ["partial", "atomic"])
def test_a_bulk_push_by_which_nothing_was_done_leaves_the_key_free(api: Api, atomicity: str) -> None:
    """So its body can be mended, and what was refused because of a full queue be repeated."""
    faulty, mended = ({"jobs": [{**JOB, "type": name}], "atomicity": atomicity} for name in ("A B", "a.b"))
    assert api.post("/jobs/bulk", faulty, **KEY).status_code == 422
    first, again = (api.post("/jobs/bulk", mended, **KEY) for _ in range(2))
    assert (first.status_code, again.content, again["Idempotency-Replayed"]) == (201, first.content, "true")
    error_of(api.post("/jobs/bulk", faulty, **KEY), 409, "conflict")
    assert Job.objects.count() == 1


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


OPERATION = KeyedRequest("k", "p", "push", b"{}")


def answer() -> Answer:
    return Answer(201, "{}", {})


def in_a_thread(act: Callable[[], Any]) -> Any:
    """What it returns there, on a connection of its own."""

    def run() -> Any:
        try:
            return act()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result(60)


@pytest.mark.django_db(transaction=True)
def test_the_second_of_two_at_once_is_told_to_come_again_and_then_gets_the_answer() -> None:
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has one writer: there the second waits, as the test below shows")

    def act() -> Answer:
        with pytest.raises(idempotency.Conflict, match="still running") as caught:
            in_a_thread(lambda: idempotency.once(OPERATION, answer, "default"))
        assert caught.value.retryable is True
        assert caught.value.retry_after == 1
        return answer()

    assert idempotency.once(OPERATION, act, "default") == (answer(), False)
    assert idempotency.once(OPERATION, answer, "default") == (answer(), True)


@pytest.mark.sqlite
@pytest.mark.django_db(transaction=True)
def test_the_second_of_two_at_once_waits_where_there_is_one_writer() -> None:
    with ThreadPoolExecutor(1) as pool:

        def second() -> Any:
            try:
                return idempotency.once(OPERATION, answer, "default")
            finally:
                connections.close_all()

        def act() -> Answer:
            waiting.append(pool.submit(second))
            return answer()

        waiting: list[Any] = []
        assert idempotency.once(OPERATION, act, "default") == (answer(), False)
        assert waiting[0].result(60) == (answer(), True)


def test_a_running_key_is_409_over_http(transactional_db: None) -> None:
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has one writer: there the second waits")
    api = Api()
    read = push_group.read

    def slow(*args: Any, **options: Any) -> Any:
        with pytest.MonkeyPatch.context() as fast:
            fast.setattr(push_group, "read", read)
            response = in_a_thread(lambda: api.post("/jobs", JOB, **KEY))
        error = error_of(response, 409, "conflict")
        assert error["retryable"] is True
        assert response["Retry-After"] == "1"
        return read(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(push_group, "read", slow)
        assert api.post("/jobs", JOB, **KEY).status_code == 201
    assert Job.objects.count() == 1


def test_a_process_that_dies_in_between_leaves_nothing_and_the_key_is_free_at_once(
    child_environment: dict[str, str],
) -> None:
    """The job has been stored by then, and is gone with the key."""
    died = subprocess.run([sys.executable, "-c", _DYING], env=child_environment, cwd=BASE_DIR, check=False, timeout=60)
    assert died.returncode == 9
    assert not IdempotencyKey.objects.exists()
    assert not Job.objects.exists()
    answered = Api().post("/jobs", JOB, **KEY)
    assert (answered.status_code, answered.has_header("Idempotency-Replayed")) == (201, False)


_DYING = """
import os, django
django.setup()
from tests.http.conftest import Api
from django_ojs.http import media
media.to_text = lambda *args: os._exit(9)
Api().post("/jobs", {"type": "a.b", "args": [1]}, **{"Idempotency-Key": "order-1"})
"""


@pytest.mark.postgres
def test_a_database_that_restarts_in_between_leaves_nothing(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a restart does it, for one connection: the server ends the session."""
    api = Api()
    keep = idempotency.keep

    def cut(*args: Any, **options: Any) -> None:
        """The job has been stored by then."""
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            (pid,) = cursor.fetchone()
        in_a_thread(lambda: connections["default"].cursor().execute("SELECT pg_terminate_backend(%s)", [pid]))
        keep(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(idempotency, "keep", cut)
        assert api.post("/jobs", JOB, **KEY).status_code == 503
    connection.close()
    assert api.post("/jobs", JOB, **KEY).status_code == 201
    assert Job.objects.count() == 1


@pytest.mark.django_db
def test_a_key_without_an_answer_is_free() -> None:
    """An older version committed the key before the work; its request has died."""
    IdempotencyKey.objects.create(
        digest=OPERATION.digest, request=hashlib.sha256(OPERATION.body).hexdigest(), created_at=clock.now()
    )
    assert idempotency.once(OPERATION, answer, "default") == (answer(), False)
    assert idempotency.once(OPERATION, answer, "default") == (answer(), True)


@pytest.mark.django_db(transaction=True)
def test_a_lost_race_is_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []

    def act() -> Answer:
        tries.append(1)
        if len(tries) == 1:
            raise OperationalError("database is locked")
        return answer()

    assert idempotency.once(OPERATION, act, "default") == (answer(), False)
    assert len(tries) == 2


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
        KeyedRequest(k, p, n, b"").digest
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
        ({"throttle": {"limit": 2, "period": "PT1S"}}, "2"),
    ],
)
def test_a_push_under_a_limit_that_nobody_noted_yet(api: Api, limit: dict[str, Any], left: str) -> None:
    answer = api.post("/jobs", JOB | {"rate_limit": limit}, **KEY)
    assert (answer.status_code, answer["X-RateLimit-Limit"], answer["X-RateLimit-Remaining"]) == (201, left, left)
    assert RateLimit.objects.get().key == limit.get("key", "queue:default")
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

    monkeypatch.setattr(ratelimits, "describe", lost)
    answer = api.post("/jobs", JOB | {"rate_limit": {"key": "new", "concurrency": 3}})
    assert (answer.status_code, "X-RateLimit-Limit" in answer.headers) == (201, False)


@pytest.mark.django_db(transaction=True)
def test_such_a_push_inside_a_transaction_of_the_sites(api: Api) -> None:
    with transaction.atomic():
        answer = api.post("/jobs", JOB | {"rate_limit": {"key": "new", "concurrency": 3}})
    assert (answer.status_code, answer["X-RateLimit-Limit"]) == (201, "3")
    assert RateLimit.objects.get().key == "new"


def test_a_key_that_is_made_anew_under_an_old_name_gets_no_answer_of_the_old_one(db: None, settings: Any) -> None:
    """Someone may have the old answers that must not reach who got the name."""
    settings.OJS = {**settings.OJS, "ALLOW_ANONYMOUS": False}
    ids, texts = [], []
    for _ in range(2):
        made, text = keys.create("shop", ["push", "read"])
        client = Api(authorization=f"Bearer {text}")
        for path, body in (("/jobs", JOB), ("/jobs/batch", {"jobs": [JOB]}), ("/jobs/bulk", {"jobs": [JOB]})):
            answer = client.post(path, body, **KEY)
            assert (answer.status_code, answer.has_header("Idempotency-Replayed")) == (201, False)
            ids.append(answer.content)
        assert client.post("/jobs", JOB, **KEY)["Idempotency-Replayed"] == "true"
        texts.append(text)
        made.delete()
    assert len(set(ids)) == 6
    assert Job.objects.count() == 6


def test_a_user_that_is_made_anew_under_an_old_name_gets_no_answer_of_the_old_one(db: None, settings: Any) -> None:
    settings.OJS = {**settings.OJS, "ALLOW_ANONYMOUS": False}
    ids = set()
    for _ in range(2):
        user = get_user_model().objects.create_superuser("ann", password="pw")
        client = Api()
        client.client.force_login(user)
        ids.add(client.post("/jobs", JOB, **KEY).json()["job"]["id"])
        assert client.post("/jobs", JOB, **KEY)["Idempotency-Replayed"] == "true"
        user.username = "renamed"
        user.save()
        assert client.post("/jobs", JOB, **KEY)["Idempotency-Replayed"] == "true"
        user.delete()
    assert len(ids) == 2


def test_a_limited_key_sees_no_bulk_action_of_an_older_key_of_its_name(db: None, settings: Any) -> None:
    settings.OJS = {**settings.OJS, "ALLOW_ANONYMOUS": False}
    seen = []
    for _ in range(2):
        made, text = keys.create("ops", ["admin"], queues=["mail"])
        client = Api(authorization=f"Bearer {text}")
        seen.append(client.get("/admin/bulk-actions").json()["items"])
        body = {"filter": {"queue": "mail"}, "confirm": True, "background": True}
        assert client.post("/admin/jobs/bulk/retry", body).status_code == 202
        assert len(client.get("/admin/bulk-actions").json()["items"]) == 1
        made.delete()
    assert seen == [[], []]
