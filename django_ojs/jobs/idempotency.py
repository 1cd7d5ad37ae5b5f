"""`Idempotency-Key` (binding 6): the same request twice does its work once and gets the same answer.

One transaction holds the key, the work and the answer, so a request that dies leaves nothing, whatever it died of, and
the key is free at once. A second request that comes meanwhile is refused as still running; on SQLite, which has one
writer, it waits for the first instead and gets its answer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import functools
import hashlib
import json
import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import NamedTuple

from django_ojs import clock, tenants
from django_ojs.conf import ojs_settings
from django_ojs.database import atomic, retried
from django_ojs.errors import Conflict, InvalidRequest, OJSError
from django_ojs.models import IdempotencyKey
from django_ojs.store import store_of
from django_ojs.store.values import StoredKey

MAX_KEY_LENGTH = 256


class Answer(NamedTuple):
    """What is remembered of an answer; `text` is its JSON body."""

    status: int
    text: str
    headers: dict[str, str]


@dataclasses.dataclass(frozen=True)
class KeyedRequest:
    """Whose key it is and for what. `body` are the bytes that must be the same again."""

    key: str
    principal: str
    name: str
    body: bytes

    @functools.cached_property
    def request(self) -> str:
        """Of the body."""
        return hashlib.sha256(self.body).hexdigest()

    @functools.cached_property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps([self.principal, self.name, self.key]).encode()).hexdigest()


def once(operation: KeyedRequest, act: Callable[[], Answer], using: str) -> tuple[Answer, bool]:
    """The answer of `act`, and whether it is an old one. An exception from `act`, and an answer that refuses all, free
    the key again.

    `act` runs inside the transaction, and again from the start where that loses a race. Raises Conflict when the key
    was used for another body, or when its first request is still running.
    """
    check(operation)
    return _once(operation, act, using=using)


@retried
def _once(operation: KeyedRequest, act: Callable[[], Answer], *, using: str) -> tuple[Answer, bool]:
    try:
        with atomic(using=using):
            (found,) = hold([operation], using)
            if isinstance(found, Conflict):
                raise found
            if found is not None:
                return found, True
            answer = act()
            if answer.status < 400:
                keep([(operation, answer)], using)
            else:  # nothing was done: the body may be mended, or the same be done later
                keep([], using, free=[operation])
    except OJSError:
        if (missed := missed_answer(operation, using)) is not None:
            return missed, True
        raise
    return answer, False


def check(operation: KeyedRequest) -> None:
    """Raise InvalidRequest for a key that is none."""
    if not 1 <= len(operation.key) <= MAX_KEY_LENGTH:
        details = {"field": "Idempotency-Key", "max_length": MAX_KEY_LENGTH, "length": len(operation.key)}
        raise InvalidRequest(f"An Idempotency-Key has 1 to {MAX_KEY_LENGTH} characters.", details=details)


#: The requests that this process is answering, by database and key.
_running: dict[tuple[Hashable, str], object] = {}
if hasattr(os, "register_at_fork"):  # a system that forks
    os.register_at_fork(after_in_child=_running.clear)


@contextlib.contextmanager
def under_way(operation: KeyedRequest, using: str) -> Iterator[None]:
    """A block that answers a request. Raises Conflict where this process is answering another one with its key, which
    does not wait for a turn to find out; where the database lets the second wait, it waits."""
    if not store_of(using).refuses_held_keys:
        yield
        return
    place, mine = (tenants.scope(using), operation.digest), object()
    if _running.setdefault(place, mine) is not mine:
        raise _still_running()
    try:
        yield
    finally:
        del _running[place]


def hold(operations: Sequence[KeyedRequest], using: str) -> list[Answer | Conflict | None]:
    """Hold the keys of these requests, which differ, until the transaction ends. Return the answer to each request
    that was executed before, a refusal of each that another transaction executes, and None for each that the caller has
    to execute now, and whose answer it has to store."""
    held = store_of(using).hold_keys([operation.digest for operation in operations], clock.now(using))
    return [
        _known(operation, held[operation.digest], using) if operation.digest in held else _still_running()
        for operation in operations
    ]


def read_answer(operation: KeyedRequest, using: str) -> Answer | Conflict | None:
    """What `hold` returns of one request, without holding its key: that another transaction holds it is not seen."""
    stored = IdempotencyKey.objects.using(using).filter(pk=operation.digest).values_list(*StoredKey._fields).first()
    return _known(operation, stored and StoredKey(*stored), using)


def missed_answer(operation: KeyedRequest, using: str) -> Answer | None:
    """The answer that `hold` did not see, for a request that failed: an earlier request may have committed it, and what
    is now in the way of this one, between the look of that statement and its lock."""
    found = read_answer(operation, using)
    return found if isinstance(found, Answer) else None


def _known(operation: KeyedRequest, stored: StoredKey | None, using: str) -> Answer | Conflict | None:
    # Without an answer it was left by a request that died under an older version, which committed the key first.
    if stored is None or stored.status is None or stored.created_at < _stale(using):
        return None
    if stored.request != operation.request:
        return Conflict(
            "This Idempotency-Key was used for a request with another body.",
            canonical="IDEMPOTENCY_KEY_REUSED",
            details={"field": "Idempotency-Key"},
            hint="Use a new key for a new request; repeat a request with exactly the same body.",
        )
    return Answer(stored.status, stored.body, json.loads(stored.headers))


def keep(answers: Sequence[tuple[KeyedRequest, Answer]], using: str, *, free: Sequence[KeyedRequest] = ()) -> None:
    """Store the answers of requests whose keys this transaction holds; `free` are those that ended without one."""
    now = clock.now(using)
    rows = [
        StoredKey(operation.digest, operation.request, answer.status, answer.text, json.dumps(answer.headers), now)
        for operation, answer in answers
    ]
    store_of(using).keep_answers(rows, [operation.digest for operation in free], _stale(using))


def _stale(using: str) -> dt.datetime:
    """Answers that were stored before are forgotten."""
    return clock.now(using) - dt.timedelta(seconds=ojs_settings.IDEMPOTENCY_TTL)


def _still_running() -> Conflict:
    error = Conflict(
        "The first request with this Idempotency-Key is still running.",
        canonical="IDEMPOTENCY_KEY_IN_USE",
        details={"field": "Idempotency-Key"},
        hint="Repeat the request in a moment to get the answer of the first one.",
        retry_after=1,
    )
    error.retryable = True
    return error
