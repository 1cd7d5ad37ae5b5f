"""`Idempotency-Key` in the views that push: the answer to the first request with a key is that to all others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import router
from rest_framework.response import Response

from django_ojs.errors import QueueFull
from django_ojs.http.permissions import identity
from django_ojs.jobs import idempotency
from django_ojs.jobs.idempotency import Answer, KeyedRequest
from django_ojs.models import Job
from django_ojs.models.fields import RawJSON
from django_ojs.queues import bounds


class Idempotent:
    """What views share that honour `Idempotency-Key`."""

    request: Any
    raw: bytes | None
    #: What the key is for: the same key may be used for another operation.
    operation_name: str

    def answer(self, act: Callable[[str], Answer], key: str | None = None) -> Response:
        """The answer of `act`, which is given the database alias; with an Idempotency-Key, of its first call.

        `key` is one from the body, which counts where there is no header.
        """
        using = router.db_for_write(Job)
        keyed = self.keyed_request(key)
        if keyed is None:
            return self.answered(act(using))
        return self.answer_once(lambda: idempotency.once(keyed, lambda: act(using), using))

    def keyed_request(self, key: str | None = None) -> KeyedRequest | None:
        """This request as its Idempotency-Key names it; None without one. `key` counts where there is no header."""
        key = self.request.META.get("HTTP_IDEMPOTENCY_KEY", key)
        if key is None:
            return None
        name = " ".join(filter(None, (getattr(self.request._request, "binding", ""), self.operation_name)))
        return KeyedRequest(key.strip(), identity(self.request), name, self.raw or b"")

    def answer_once(self, act: Callable[[], tuple[Answer, bool]]) -> Response:
        """The answer of `act`, which says whether it is that of an earlier request. A full queue's refusal is noted."""
        try:
            return self.answered(*act())
        except QueueFull as error:
            bounds.record(error, router.db_for_write(Job))
            raise

    @staticmethod
    def answered(answer: Answer, replayed: bool = False) -> Response:
        headers = {**answer.headers, "Idempotency-Replayed": "true"} if replayed else answer.headers
        return Response(RawJSON(answer.text), status=answer.status, headers=headers)
