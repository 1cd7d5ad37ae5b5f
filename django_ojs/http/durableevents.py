"""Events that durable jobs wait for, over HTTP: emit one, list those that are kept.

They are of no queue and no job type, and every job may wait for one. So a key that is limited to queues or job types
can neither emit them nor see them. An event that is emitted again answers 200 instead of 201, with the first payload.
"""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django_filters import FilterSet
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs import jsontext
from django_ojs.conf import ojs_settings
from django_ojs.http import permissions
from django_ojs.http.base import OJSViewSet, using
from django_ojs.http.operation import operation
from django_ojs.http.pagination import SortKey, parse_time
from django_ojs.http.query import OJSFilterBackend, ReaderFilter, read_text
from django_ojs.http.serializers import AnswerSerializer, BodySerializer, InstantField
from django_ojs.jobs import durableevents
from django_ojs.models import DurableEvent
from django_ojs.rules import redaction
from django_ojs.rules.durableevents import MAX_LENGTH, Emitted, check


class DurableEventSerializer(AnswerSerializer):
    """An event that durable jobs wait for. Of its payload, members that the site hides are masked."""

    name = serializers.CharField()
    key = serializers.CharField()
    payload = serializers.SerializerMethodField()
    created_at = InstantField()

    def get_payload(self, event: DurableEvent | Emitted) -> Any:
        return redaction.part("payload", event.payload, "", {})


class EmittedSerializer(DurableEventSerializer):
    """What became of it: `is_new` false means that the first event of this name and key counts, with its payload.
    `jobs_woken` is how many jobs waited for it."""

    is_new = serializers.BooleanField()
    jobs_woken = serializers.SerializerMethodField()

    def get_jobs_woken(self, event: Emitted) -> int:
        return len(event.job_ids)


class EventToEmitSerializer(BodySerializer):
    """An event to emit: what has happened, and what it is about. `payload` is any JSON value."""

    name = serializers.CharField(max_length=MAX_LENGTH)
    key = serializers.CharField(max_length=MAX_LENGTH, required=False)
    payload = serializers.JSONField(required=False)

    def to_internal_value(self, data: Any) -> Any:
        for field in ("name", "key"):
            if field in data or field == "name":
                check(field, data.get(field))
        return {"name": data["name"], "key": data.get("key", ""), "payload": data.get("payload")}


class DurableEventFilter(FilterSet):  # type: ignore[misc]
    name = ReaderFilter(read_text)
    key = ReaderFilter(read_text)


class DurableEventViewSet(OJSViewSet):
    """The events that are kept, newest first."""

    model_name = "durableevent"
    serializer_class = DurableEventSerializer
    filter_backends = (OJSFilterBackend,)
    filterset_class = DurableEventFilter
    ordering = (SortKey("created_at", descending=True, parse=parse_time), SortKey("id", descending=True, parse=int))
    list_names = ("items", "durable_events")

    def get_queryset(self) -> QuerySet[DurableEvent]:
        _check_unlimited(self.request)
        return DurableEvent.objects.using(using())

    @operation(scope="read")
    def list(self, request: Request) -> Response:
        """The events that durable jobs find, by `name` and `key`."""
        return self.listed(self.filter_queryset(self.get_queryset()))

    @operation(
        scope="emit",
        body=EventToEmitSerializer,
        answer=EmittedSerializer,
        statuses=(201, 200),
        name="emit",
    )
    def create(self, request: Request) -> Response:
        """Emit an event for the durable jobs that wait for it, now or later.

        201 for the first of its name and key. Another changes nothing, and is answered with 200 and the first.
        """
        _check_unlimited(request)
        given = self.validated(self.payload(limit=_body_limit()))
        done = durableevents.emit(given["name"], given["key"], jsontext.dumps(given["payload"]), using=using())
        return Response(self.represent(done), status=201 if done.is_new else 200)


def _body_limit() -> int:
    """Bytes: of a payload that may be sent, with what is around it. JSON may escape each of its bytes by six."""
    return 6 * ojs_settings.MAX_DURABLE_EVENT_BYTES + 4096


def _check_unlimited(request: Request) -> None:
    if permissions.is_limited(request):
        message = "A key that is limited to queues or types reaches no events, for which jobs of others may wait."
        raise permissions.denied(request, message)
