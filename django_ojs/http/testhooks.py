"""What the published conformance suite needs of a server under test, and no server in use may have.

Off unless a test server calls `enable`, as the command `ojs_testserver` does; no setting turns it on.
"""

from __future__ import annotations

import uuid
from collections import ChainMap
from collections.abc import Callable, Sequence
from typing import Any

from django.db import router
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import jsontext, middleware, spellings
from django_ojs.errors import MiddlewareRejected, NotFound
from django_ojs.http.base import PublicView
from django_ojs.http.serializers import AnswerSerializer, shared
from django_ojs.models import Job
from django_ojs.states import State

#: Empties the store; None where the hooks are off.
_reset: Callable[[], None] | None = None


def enable(reset: Callable[[], None]) -> None:
    """Turn the hooks on for this process, the rejecting middleware included; `reset` empties the store."""
    global _reset
    disable()
    middleware.enqueue_chain.add(reject_unarguable)
    _reset = reset


def disable() -> None:
    """Turn the hooks off again."""
    global _reset
    middleware.enqueue_chain.remove(reject_unarguable)
    _reset = None


def directive(job_ids: Sequence[uuid.UUID]) -> str | None:
    """What a heartbeat that names these jobs is to be answered: `meta.test_directive` of an active one."""
    if _reset is None or not job_ids:
        return None
    active = Job.objects.using(router.db_for_write(Job)).filter(pk__in=job_ids, state=State.ACTIVE)
    for row in active.rows():
        wanted = jsontext.loads(row["meta"]).get("test_directive")
        if wanted in ("quiet", "terminate"):
            return str(wanted)
    return None


def reject_unarguable(job: dict[str, Any], next: Any) -> Any:
    """Enqueue middleware: a job with `meta.ojs_validate: true` must have arguments (EXT-MW-002)."""
    meta = ChainMap(*reversed(spellings.metas(job)))
    if meta.get("ojs_validate") is True and not job.get("args"):
        raise MiddlewareRejected("args must not be empty where meta.ojs_validate is true.", details={"field": "args"})
    return next(job)


class ResetSerializer(AnswerSerializer):
    reset = serializers.BooleanField()


class Reset(PublicView):
    """`POST /admin/reset`: an empty store between two cases. Not there unless the hooks are on."""

    schema = None

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        if _reset is None:
            raise NotFound("There is nothing at this path.")

    def post(self, request: Request) -> Response:
        assert _reset is not None
        _reset()
        return Response(shared(ResetSerializer).to_representation({"reset": True}))
