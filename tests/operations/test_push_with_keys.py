"""Pushes with an Idempotency-Key: few statements, and many requests in one transaction, each with its own answer."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_ojs.conf import ojs_settings
from django_ojs.errors import Conflict, Duplicate, InvalidPayload
from django_ojs.faults import LostRace
from django_ojs.jobs import idempotency, push_group
from django_ojs.jobs.candidates import Pushed
from django_ojs.jobs.idempotency import Answer, KeyedRequest
from django_ojs.jobs.push import push
from django_ojs.jobs.push_group import push_once
from django_ojs.models import IdempotencyKey, Job
from django_ojs.rules.ids import new_job_id
from django_ojs.store import store_of
from django_ojs.store.values import StoredKey
from tests.gathering import SECONDS, Gathering, gathering
from tests.middlewares import added

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("long_memory")]


def operation(key: object, body: bytes = b"{}") -> KeyedRequest:
    return KeyedRequest(str(key), "caller", "push", body)


def render(pushed: Pushed) -> Answer:
    return Answer(201, pushed.row["args"] if pushed.row else "null", {"Location": "here"})


def once(key: object, token: int, *, body: bytes = b"{}", **more: Any) -> tuple[str, bool]:
    """What the caller is answered, and whether it is an old answer."""
    answer, replayed = push_once({"type": "a.b", "args": [token], **more}, operation(key, body), render)
    assert (answer.status, answer.headers) == (201, {"Location": "here"})
    return answer.text, replayed


def tokens() -> list[int]:
    return sorted(job.args[0] for job in Job.objects.all())


@pytest.fixture
def keyed() -> Iterator[Gathering]:
    once("warm", -2)
    with gathering(push_group._plain_keyed) as meeting:
        yield meeting


def pushed_together(meeting: Gathering, *acts: Callable[[], Any]) -> list[Future[Any]]:
    first, *others = meeting.together(lambda: once("leader", -1), *acts)
    assert first.result() == ("[-1]", False)
    return others


@pytest.mark.postgres
def test_a_push_with_a_key_is_four_statements_beside_begin_and_commit() -> None:
    once("warm", -1)
    with CaptureQueriesContext(connection) as captured:
        once("a", 1)
    texts = [query["sql"] for query in captured]
    assert (texts[0], texts[-2]) == ("BEGIN", "COMMIT"), texts
    assert len(texts) - 2 <= 4, texts
    with CaptureQueriesContext(connection) as captured:
        assert once("a", 1) == ("[1]", True)
    assert len(captured) == 3
    with CaptureQueriesContext(connection) as captured:
        once("b", 2, id=str(new_job_id()))
    assert len(captured) - 2 <= 4


@pytest.mark.sqlite
def test_beside_the_push_itself_it_is_two_statements() -> None:
    once("warm", -1)
    with CaptureQueriesContext(connection) as alone:
        push([{"type": "a.b", "args": [1]}])
    with CaptureQueriesContext(connection) as captured:
        once("a", 1)
    assert len(captured) == len(alone) + 2


def test_requests_that_wait_are_one_transaction_and_each_has_its_own_answer(keyed: Gathering) -> None:
    done = pushed_together(keyed, *(lambda n=n: once(n, n) for n in range(64)))  # type: ignore[misc]
    assert [future.result() for future in done] == [(f"[{n}]", False) for n in range(64)]
    assert [len(batch) for batch in keyed.batches] == [1, 64]
    assert IdempotencyKey.objects.count() == 66
    assert [once(n, n) for n in range(64)] == [(f"[{n}]", True) for n in range(64)]
    assert tokens() == list(range(-2, 64))


def test_old_and_new_keys_faulty_documents_and_taken_ids_in_one_batch(keyed: Gathering) -> None:
    assert [once("old", 0), once("used", 0)] == [("[0]", False)] * 2
    taken = str(push([{"type": "a.b", "args": [100]}])[0].row["id"])  # type: ignore[index]
    new, old, reused, faulty, double, other = pushed_together(
        keyed,
        lambda: once("new", 1),
        lambda: once("old", 0),
        lambda: once("used", 3, body=b"[]"),
        lambda: push_once({"type": "a.b"}, operation("faulty"), render),
        lambda: once("double", 5, id=taken),
        lambda: once("other", 6),
    )
    assert (new.result(), old.result(), other.result()) == (("[1]", False), ("[0]", True), ("[6]", False))
    with pytest.raises(Conflict) as caught:
        reused.result()
    assert caught.value.canonical == "IDEMPOTENCY_KEY_REUSED"
    with pytest.raises(InvalidPayload):
        faulty.result()
    with pytest.raises(Duplicate) as duplicate:
        double.result()
    assert duplicate.value.details["existing_job_state"] == "available"
    assert tokens() == [-2, -1, 0, 0, 1, 6, 100]
    assert not IdempotencyKey.objects.filter(pk__in=[operation(k).digest for k in ("faulty", "double")]).exists()
    assert not IdempotencyKey.objects.filter(status=None).exists()


def test_a_taken_id_alone_says_in_which_state_its_job_is() -> None:
    taken = str(push([{"type": "a.b", "args": [100]}])[0].row["id"])  # type: ignore[index]
    with pytest.raises(Duplicate) as caught:
        once("a", 1, id=taken)
    assert caught.value.details["existing_job_state"] == "available"
    assert not IdempotencyKey.objects.exists()
    unique = {"unique": {"keys": ["type"]}}
    with pytest.raises(Duplicate):
        once("a", 1, id=taken, **unique)
    assert not IdempotencyKey.objects.exists()


def test_an_old_answer_is_given_to_a_document_that_would_be_refused_now(frozen_clock: Any) -> None:
    until = {"expires_at": (frozen_clock.now + dt.timedelta(hours=1)).isoformat()}
    assert once("a", 1, **until) == ("[1]", False)
    frozen_clock.advance(hours=2)
    assert once("a", 1, **until) == ("[1]", True)


def test_the_middleware_does_not_meet_a_job_again() -> None:
    met = []

    def note(document: Any, proceed: Any) -> Any:
        met.append(document["args"])
        return proceed(document)

    with added(note):
        assert [once("a", 1), once("a", 1)] == [("[1]", False), ("[1]", True)]
    assert met == [[1]]


def test_that_a_middleware_dropped_a_job_is_an_answer_too(keyed: Gathering) -> None:
    def drop(document: Any, proceed: Any) -> Any:
        return None if document["args"] == [1] else proceed(document)

    with added(drop):
        dropped, stored = pushed_together(keyed, lambda: once("a", 1), lambda: once("b", 2))
    assert (dropped.result(), stored.result()) == (("null", False), ("[2]", False))
    assert once("a", 1) == ("null", True)


def test_a_forgotten_key_is_free(keyed: Gathering, monkeypatch: pytest.MonkeyPatch) -> None:
    once("old", 0)
    age = dt.timedelta(seconds=ojs_settings.IDEMPOTENCY_TTL + 1)
    stored = IdempotencyKey.objects.get(pk=operation("old").digest)
    IdempotencyKey.objects.filter(pk=stored.pk).update(created_at=stored.created_at - age)
    again, new = pushed_together(keyed, lambda: once("old", 7, body=b"[]"), lambda: once("new", 8))
    assert (again.result(), new.result()) == (("[7]", False), ("[8]", False))
    assert once("old", 7, body=b"[]") == ("[7]", True)


def test_of_two_with_the_same_key_one_is_done(keyed: Gathering) -> None:
    if store_of("default").refuses_held_keys:
        leader = keyed.lead(lambda: once("leader", -1))
        first = keyed.follow(lambda: once("same", 1))
        second = keyed.start(lambda: once("same", 1))
        with pytest.raises(Conflict) as caught:
            second.result(SECONDS)
        assert (caught.value.canonical, caught.value.retryable) == ("IDEMPOTENCY_KEY_IN_USE", True)
        keyed.go.set()
        assert (leader.result(SECONDS), first.result(SECONDS)) == (("[-1]", False), ("[1]", False))
    else:
        first, second = pushed_together(keyed, lambda: once("same", 1), lambda: once("same", 1))
        assert (first.result(), second.result()) == (("[1]", False), ("[1]", True))
    assert once("same", 1) == ("[1]", True)
    assert tokens() == [-2, -1, 1]


def test_an_answer_that_cannot_be_made_leaves_nothing_of_its_own(keyed: Gathering) -> None:
    def broken(pushed: Pushed) -> Answer:
        raise ValueError("cannot be written")

    good, bad = pushed_together(
        keyed, lambda: once("good", 1), lambda: push_once({"type": "a.b", "args": [2]}, operation("bad"), broken)
    )
    assert good.result() == ("[1]", False)
    assert isinstance(bad.exception(), ValueError)
    assert tokens() == [-2, -1, 1]
    assert once("bad", 2) == ("[2]", False)


def test_unique_jobs_with_keys() -> None:
    unique = {"unique": {"keys": ["type"], "on_conflict": "ignore"}}
    with gathering(push_group._deciding_keyed) as meeting:
        done = meeting.together(*(lambda n=n: once(n, n, **unique) for n in range(4)))  # type: ignore[misc]
        assert [future.result() for future in done] == [("[0]", False)] * 4
    assert tokens() == [0]
    assert [once(n, n, **unique) for n in range(4)] == [("[0]", True)] * 4


@pytest.mark.postgres
def test_an_answer_that_the_first_look_missed_is_found_by_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first request committed between the look and the lock."""
    once("a", 1)
    store = type(store_of("default"))
    hold = store.hold_keys
    looks: list[int] = []

    def missing(self: Any, digests: Any, now: dt.datetime) -> Any:
        found = hold(self, digests, now)
        looks.append(len(digests))
        return dict.fromkeys(found) if len(looks) == 1 else found

    monkeypatch.setattr(store, "hold_keys", missing)
    assert once("a", 1) == ("[1]", True)
    assert len(looks) == 2
    assert tokens() == [1]


@pytest.mark.postgres
@pytest.mark.parametrize("fields", [{"id": "019539a4-b68c-7def-8000-1a2b3c4d5e6f"}, {"unique": {"keys": ["type"]}}])
@pytest.mark.parametrize("door", ["gathered", "alone"])
def test_an_answer_that_the_look_missed_beats_what_its_job_is_in_the_way_of(
    door: str, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    once("a", 1, **fields)
    store = type(store_of("default"))
    monkeypatch.setattr(store, "hold_keys", lambda self, digests, now: dict.fromkeys(digests))
    if door == "gathered":
        assert once("a", 1, **fields) == ("[1]", True)
    else:
        document = {"type": "a.b", "args": [1], **fields}
        answer, replayed = idempotency.once(operation("a"), lambda: render(push([document])[0]), "default")
        assert (answer.text, replayed) == ("[1]", True)
    assert tokens() == [1]


@pytest.mark.postgres
def test_no_newer_answer_is_overwritten() -> None:
    once("a", 1)
    stored = IdempotencyKey.objects.get()
    row = StoredKey(stored.digest, stored.request, 200, "other", "{}", stored.created_at)
    with pytest.raises(LostRace):
        store_of("default").keep_answers([row], [], stored.created_at - dt.timedelta(days=1))
    stored.refresh_from_db()
    assert stored.body == "[1]"


def test_a_key_that_another_process_holds_is_refused_to_its_own_caller(keyed: Gathering) -> None:
    """As if it were another process: its transaction is open."""
    if not store_of("default").refuses_held_keys:
        pytest.skip("SQLite has one writer: there the second waits")

    with transaction.atomic():
        assert idempotency.hold([operation("held")], "default") == [None]
        held, free = pushed_together(keyed, lambda: once("held", 1), lambda: once("free", 2))
        assert free.result() == ("[2]", False)
        with pytest.raises(Conflict) as caught:
            held.result()
        assert caught.value.canonical == "IDEMPOTENCY_KEY_IN_USE"
        transaction.set_rollback(True)
    assert once("held", 1) == ("[1]", False)
