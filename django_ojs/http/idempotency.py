"""`Idempotency-Key` in the views that push: the answer to the first request with a key is that to all others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import router
from rest_framework.response import Response

from django_ojs.errors import QueueFull
from django_ojs.http.permissions import principal
from django_ojs.jobs import idempotency
from django_ojs.jobs.idempotency import Answer, Operation
from django_ojs.models import Job
from django_ojs.models.fields import RawJSON
from django_ojs.queues import bounds

#: The answer to a request with this key, given the database alias, and whether it is an old one.
Once = Callable[[Operation, str], tuple[Answer, bool]]


class Idempotent:
    """What views share that honour `Idempotency-Key`."""

    request: Any
    raw: bytes | None
    #: What the key is for: the same key may be used for another operation.
    operation = "push"

    def answer(self, act: Callable[[str], Answer], key: str | None = None, once: Once | None = None) -> Response:
        """The answer of `act`, which is given the database alias; with an Idempotency-Key, of its first call.

        `key` is one from the body, which counts where there is no header. `once` does the same as `act` under a key,
        where that is done in another way than in one transaction around it.
        """
        using = router.db_for_write(Job)
        key = self.request.META.get("HTTP_IDEMPOTENCY_KEY", key)
        if key is None:
            done, headers = (found := act(using)), found.headers
        else:
            name = " ".join(filter(None, (getattr(self.request._request, "binding", ""), self.operation)))
            operation = Operation(key.strip(), principal(self.request), name, self.raw or b"")
            try:
                done, replayed = (
                    once(operation, using) if once else idempotency.once(operation, lambda: act(using), using)
                )
            except QueueFull as error:
                bounds.record(error, using)
                raise
            headers = {**done.headers, "Idempotency-Replayed": "true"} if replayed else done.headers
        return Response(RawJSON(done.text), status=done.status, headers=headers)
