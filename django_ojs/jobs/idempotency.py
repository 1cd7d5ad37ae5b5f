"""`Idempotency-Key` (binding 6): the same request twice does its work once and gets the same answer.

One transaction holds the key, the work and the answer, so a request that dies leaves nothing, whatever it died of, and
the key is free at once. A second request that comes meanwhile is refused as still running; on SQLite, which has one
writer, it waits for the first instead and gets its answer.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Callable
from typing import NamedTuple

from django.db import transaction

from django_ojs import clock
from django_ojs.conf import ojs_settings
from django_ojs.database import retried
from django_ojs.errors import Conflict, InvalidRequest
from django_ojs.models import IdempotencyKey
from django_ojs.store import store_of

MAX_KEY_LENGTH = 256


class Answer(NamedTuple):
    """What is remembered of an answer; `text` is its JSON body."""

    status: int
    text: str
    headers: dict[str, str]


class Operation(NamedTuple):
    """Whose key it is and for what. `body` are the bytes that must be the same again."""

    key: str
    principal: str
    name: str
    body: bytes

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps([self.principal, self.name, self.key]).encode()).hexdigest()


def once(operation: Operation, act: Callable[[], Answer], using: str) -> tuple[Answer, bool]:
    """The answer of `act`, and whether it is an old one. An exception from `act` frees the key again.

    `act` runs inside the transaction, and again from the start where that loses a race. Raises Conflict when the key
    was used for another body, or when its first request is still running.
    """
    if not 1 <= len(operation.key) <= MAX_KEY_LENGTH:
        details = {"field": "Idempotency-Key", "max_length": MAX_KEY_LENGTH, "length": len(operation.key)}
        raise InvalidRequest(f"An Idempotency-Key has 1 to {MAX_KEY_LENGTH} characters.", details=details)
    return _once(operation, act, using=using)


@retried
def _once(operation: Operation, act: Callable[[], Answer], *, using: str) -> tuple[Answer, bool]:
    with transaction.atomic(using=using):
        if not store_of(using).hold_key(operation.digest):
            raise _still_running()
        now = clock.now(using)
        if (known := _take(operation, now, using)) is not None:
            return known, True
        answer = act()
        held = IdempotencyKey.objects.using(using).filter(pk=operation.digest)
        held.update(status=answer.status, body=answer.text, headers=json.dumps(answer.headers))
    return answer, False


def _take(operation: Operation, now: dt.datetime, using: str) -> Answer | None:
    """Reserve the key, which this transaction holds, or give back the answer that it stands for."""
    request = hashlib.sha256(operation.body).hexdigest()
    keys = IdempotencyKey.objects.using(using)
    found, created = keys.get_or_create(pk=operation.digest, defaults={"request": request, "created_at": now})
    if created:
        return None
    if now - found.created_at > dt.timedelta(seconds=ojs_settings.IDEMPOTENCY_TTL):
        keys.filter(pk=found.pk).update(request=request, status=None, body="", headers="", created_at=now)
        return None
    if found.request != request:
        raise Conflict(
            "This Idempotency-Key was used for a request with another body.",
            canonical="IDEMPOTENCY_KEY_REUSED",
            details={"field": "Idempotency-Key"},
            hint="Use a new key for a new request; repeat a request with exactly the same body.",
        )
    # Without an answer it was left by a request that died under an older version, which committed the key first.
    return None if found.status is None else Answer(found.status, found.body, json.loads(found.headers))


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
