"""Webhooks over HTTP: subscriptions, their secrets and tests, and the record of deliveries (events 6.2).

A key limited to queues or job types may subscribe to those only, and sees what is subscribed so. Where its body
names no filter, the key's limits become the filter. A user needs the permissions of the admin's pages, to look too:
an address may hold a receiver's only secret.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

from django.db import router
from django.db.models import Q, QuerySet
from django_filters import FilterSet
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs.conf import ojs_settings
from django_ojs.errors import PermissionDenied
from django_ojs.http import links, permissions
from django_ojs.http.base import OJSViewSet
from django_ojs.http.operation import Operation, operation
from django_ojs.http.pagination import SortKey, parse_time, parse_uuid
from django_ojs.http.permissions import (
    ADMIN,
    check_queue,
    check_type,
    principal,
    queue_limit,
    require_scope,
    type_limit,
)
from django_ojs.http.query import OJSFilterBackend, ReaderFilter, WordsFilter, read_text, read_texts
from django_ojs.http.serializers import AnswerSerializer, BodySerializer, FilledField, InstantField, NothingSerializer
from django_ojs.models import Job, WebhookDelivery, WebhookSubscription
from django_ojs.models.fields import any_of
from django_ojs.models.webhook import parse_public_id
from django_ojs.rules.faults import shorten
from django_ojs.webhooks import deliveries, relay, subscriptions
from django_ojs.webhooks.subscriptions import SubscriptionDefinition, UnreadableSecret
from django_ojs.webhooks.transport import DeliveryOutcome

#: What it takes a user to have a delivery sent again, and to read what the receiver answered.
_RETRY = "change_webhookdelivery"


#: Deliveries that tell of no queue and no job.
_OF_NOTHING = (relay.GAP, deliveries.TEST)


class _ListField(serializers.ListField):
    def get_attribute(self, instance: Any) -> Any:
        return super().get_attribute(instance) or []


class _ObjectField(serializers.DictField):
    def get_attribute(self, instance: Any) -> Any:
        return super().get_attribute(instance) or {}


class _AnswerField(serializers.CharField):
    """What a receiver said, for those who administer."""

    def get_attribute(self, instance: Any) -> Any:
        return super().get_attribute(instance) if self.context["administers"] else None


class SubscriptionFilterSerializer(AnswerSerializer):
    """The queues and job types whose events are wanted; none means all."""

    queues = _ListField(child=serializers.CharField(), required=False)
    job_types = _ListField(child=serializers.CharField(), required=False)


class SubscriptionSerializer(AnswerSerializer):
    """A subscription (events 6.1), without its secret. What is not there is left out (binding 1.4)."""

    id = serializers.CharField(source="public_id")
    url = serializers.CharField()
    events = serializers.ListField(child=serializers.CharField())
    active = serializers.BooleanField()
    filter = SubscriptionFilterSerializer(source="*")
    metadata = _ObjectField()
    headers = serializers.SerializerMethodField()
    timeout_seconds = serializers.SerializerMethodField()
    signature_format = serializers.ChoiceField(choices=WebhookSubscription.SignatureFormat.values)
    disabled_reason = FilledField(required=False)
    created_by = FilledField(required=False)
    last_delivery_at = InstantField(required=False)
    last_delivery_status = serializers.IntegerField(required=False)
    success_count = serializers.IntegerField()
    failure_count = serializers.IntegerField()
    created_at = InstantField()
    updated_at = InstantField()

    def get_headers(self, row: WebhookSubscription) -> dict[str, str]:
        try:
            return subscriptions.shown_headers(row)
        except UnreadableSecret:  # under a SECRET_KEY that is gone; sending says so
            return {}

    def get_timeout_seconds(self, row: WebhookSubscription) -> int:
        return row.timeout_seconds or round(ojs_settings.WEBHOOK_TIMEOUT)


class SecretSerializer(AnswerSerializer):
    """What the answer that made a subscription has beside it."""

    secret = serializers.CharField(help_text="Shown once, in the answer that made the subscription.")


class SecretRotatedSerializer(AnswerSerializer):
    id = serializers.CharField(source="subscription.public_id")
    secret = serializers.CharField()
    new_secret = serializers.CharField(source="secret")
    previous_secret_expires_at = InstantField(source="subscription.previous_secret_expires_at")


class SubscriptionTestedSerializer(AnswerSerializer):
    success = serializers.SerializerMethodField()
    status_code = serializers.IntegerField(source="status")
    status = serializers.IntegerField()
    response_time_ms = serializers.IntegerField(source="reply.duration_ms")
    response_body = serializers.CharField(source="reply.body")
    error = FilledField(source="reply.error", allow_null=True)
    delivery_id = serializers.CharField(source="delivery.public_id")

    def get_success(self, tested: dict[str, Any]) -> bool:
        return tested["reply"].verdict is DeliveryOutcome.SUCCESS


class SubscriptionChangeSerializer(BodySerializer):
    """What is to be changed of a subscription: `validated_data` is a `SubscriptionDefinition`."""

    url = serializers.URLField(required=False)
    events = serializers.ListField(child=serializers.CharField(), min_length=1, required=False)
    secret = serializers.CharField(required=False)
    active = serializers.BooleanField(required=False)
    filter = SubscriptionFilterSerializer(required=False)
    metadata = serializers.DictField(required=False)
    headers = serializers.DictField(child=serializers.CharField(), required=False)
    timeout_seconds = serializers.IntegerField(required=False)
    signature_format = serializers.ChoiceField(choices=WebhookSubscription.SignatureFormat.values, required=False)

    def to_internal_value(self, data: Any) -> Any:
        return subscriptions.read_definition(data, partial=True)


class SubscriptionRequestSerializer(SubscriptionChangeSerializer):
    url = serializers.URLField()
    events = serializers.ListField(child=serializers.CharField(), min_length=1)

    def to_internal_value(self, data: Any) -> Any:
        return subscriptions.read_definition(data)


class NewSecretSerializer(BodySerializer):
    needed = False

    secret = serializers.CharField(required=False)

    def to_internal_value(self, data: Any) -> Any:
        given = data.get("secret")
        return {"secret": "" if given is None else subscriptions.check_secret(given)}


class DeliverySerializer(AnswerSerializer):
    """An event for a subscription, and how far it has come (events 6.2). What is not there is left out."""

    id = serializers.CharField(source="public_id")
    subscription_id = serializers.SerializerMethodField()
    event_id = serializers.CharField()
    event_type = serializers.CharField()
    subject = serializers.CharField()
    status = serializers.CharField()
    held = serializers.SerializerMethodField()
    attempt_count = serializers.IntegerField()
    max_attempts = serializers.IntegerField()
    response_status = serializers.IntegerField(required=False)
    response_time_ms = serializers.IntegerField(required=False)
    error = FilledField(required=False)
    next_attempt_at = InstantField(required=False)
    created_at = InstantField()
    delivered_at = InstantField(required=False)

    def get_subscription_id(self, row: WebhookDelivery) -> str:
        return f"sub_{row.subscription_id}"

    def get_held(self, row: WebhookDelivery) -> bool:
        return row.held and row.is_open


class DeliveryAttemptSerializer(AnswerSerializer):
    """One attempt to deliver."""

    at = InstantField()
    status = serializers.IntegerField(allow_null=True)
    response_time_ms = serializers.IntegerField()
    error = serializers.CharField(required=False)


class DeliveryDetailSerializer(DeliverySerializer):
    """With its attempts; what the receiver answered is for those who administer (`context["administers"]`)."""

    attempts = _ListField(child=DeliveryAttemptSerializer())
    response_body = _AnswerField(required=False)


class DeliveryFilter(FilterSet):  # type: ignore[misc]
    subscription_id = ReaderFilter(read_text, method="of_subscription")
    status = WordsFilter(WebhookDelivery.Status.values)
    event_type = ReaderFilter(partial(read_texts, most=100), method="of_types")

    def of_subscription(self, rows: QuerySet[WebhookDelivery], name: str, value: str) -> QuerySet[WebhookDelivery]:
        return rows.filter(subscription_id=find(self.request, value).pk)

    def of_types(self, rows: QuerySet[WebhookDelivery], name: str, value: list[str]) -> QuerySet[WebhookDelivery]:
        return rows.filter(any_of(name, value))


class _UsersNeedRights(OJSViewSet):
    """A user needs a permission for every action, whatever the scope."""

    @classmethod
    def right_for(cls, operation: Operation, method: str, scope: str | None, *, operator: bool) -> str:
        return operation.right or ""


class WebhookViewSet(_UsersNeedRights):
    """Subscriptions. PUT changes only what it names, as PATCH does."""

    lookup_url_kwarg = "subscription_id"
    serializer_class = SubscriptionSerializer
    ordering = [
        SortKey("created_at", descending=True, parse=parse_time),
        SortKey("id", descending=True, parse=parse_uuid),
    ]
    list_names = ("subscriptions", "items")
    entry_names = ("subscription",)

    def get_queryset(self) -> QuerySet[WebhookSubscription]:
        return _visible(self.request)

    @operation(scope="read", right="view_webhooksubscription")
    def list(self, request: Request) -> Response:
        """The subscriptions of webhooks."""
        return self.listed(self.get_queryset())

    @operation(
        right="add_webhooksubscription",
        body=SubscriptionRequestSerializer,
        beside=SecretSerializer,
        audit="webhook.create",
        errors=(409,),
        headers="Location",
    )
    def create(self, request: Request) -> Response:
        """Subscribe."""
        given: Any = self.validated(self.payload())
        wanted = _confined(request, given)
        row, secret = subscriptions.create(wanted, by=principal(request), limited=permissions.is_limited(request))
        self.act.target = row.public_id
        location = links.to_new(request, self, row.public_id)
        return Response(self.entry(row, {"secret": secret}), status=201, headers={"Location": location})

    @operation(scope="read", right="view_webhooksubscription")
    def retrieve(self, request: Request, subscription_id: str) -> Response:
        """A subscription."""
        return Response(self.entry(find(request, subscription_id)))

    @operation(right="change_webhooksubscription", body=SubscriptionChangeSerializer, audit="webhook.update")
    def partial_update(self, request: Request, subscription_id: str) -> Response:
        """Change a subscription."""
        row = find(request, subscription_id)
        given: Any = self.validated(self.payload())
        changes = _confined(request, given, partial=True)
        limited = True if permissions.is_limited(request) else None
        return Response(self.entry(subscriptions.update(row.pk, changes, by=principal(request), limited=limited)))

    update = partial_update

    @operation(right="delete_webhooksubscription", answer=None, audit="webhook.delete")
    def destroy(self, request: Request, subscription_id: str) -> Response:
        """End a subscription."""
        subscriptions.delete(find(request, subscription_id).pk, by=principal(request))
        return Response(status=204)

    @operation(
        detail=True,
        methods=["post"],
        right="change_webhooksubscription",
        body=NothingSerializer,
        answer=SubscriptionTestedSerializer,
        audit="webhook.test",
        audits_itself=True,
        errors=(429,),
    )
    def test(self, request: Request, subscription_id: str) -> Response:
        """Send a test.

        200 however the receiver answered.
        """
        self.payload(required=False)
        row = find(request, subscription_id)
        delivery, reply = deliveries.send_test(row.pk, entry=self.act)
        return Response(self.represent({"delivery": delivery, "reply": reply, "status": reply.status or 0}))

    @operation(
        detail=True,
        methods=["post"],
        url_path="rotate-secret",
        right="change_webhooksubscription",
        body=NewSecretSerializer,
        answer=SecretRotatedSerializer,
        audit="webhook.rotate",
    )
    def rotate_secret(self, request: Request, subscription_id: str) -> Response:
        """Change the secret; for a while both sign."""
        body = self.payload(required=False)
        row = find(request, subscription_id)
        changed, secret = subscriptions.rotate(row.pk, self.validated(body)["secret"], by=principal(request))
        return Response(self.represent({"subscription": changed, "secret": secret}))


class DeliveryViewSet(_UsersNeedRights):
    """What was sent to whom, newest first."""

    lookup_url_kwarg = "delivery_id"
    serializer_class = DeliveryDetailSerializer
    filter_backends = (OJSFilterBackend,)
    filterset_class = DeliveryFilter
    ordering = [SortKey("id", descending=True, parse=int)]
    list_names = ("deliveries", "items")

    def get_serializer_context(self) -> dict[str, Any]:
        context = dict(super().get_serializer_context())
        return context if self.action == "list" else {**context, "administers": _administers(self.request)}

    def get_queryset(self) -> QuerySet[WebhookDelivery]:
        rows = WebhookDelivery.objects.using(router.db_for_write(Job)).defer("body", "response_body", "attempts")
        if permissions.is_limited(self.request):
            return rows.filter(_shown(self.request), subscription_id__in=_visible(self.request).values("pk"))
        return rows

    @operation(scope="read", right="view_webhookdelivery", answer=DeliverySerializer, errors=(404,))
    def list(self, request: Request) -> Response:
        """The deliveries."""
        return self.listed(self.get_queryset())

    @operation(scope="read", right="view_webhookdelivery")
    def retrieve(self, request: Request, delivery_id: str) -> Response:
        """A delivery with its attempts."""
        return Response(self.represent(self._find(delivery_id)))

    @operation(
        detail=True,
        methods=["post"],
        right=_RETRY,
        body=NothingSerializer,
        statuses=(202,),
        audit="webhook.replay",
        errors=(409,),
    )
    def retry(self, request: Request, delivery_id: str) -> Response:
        """Deliver once more.

        202; the scheduler sends it.
        """
        self.payload(required=False)
        return Response(self.represent(deliveries.replay(self._find(delivery_id).pk)), status=202)

    def _find(self, text: str) -> WebhookDelivery:
        """The delivery in the path, of a subscription that the caller may see. Raises NotFound or PermissionDenied."""
        uid = parse_public_id(text.lower(), "del_")
        if uid is None:
            raise deliveries.not_found(shorten(text))
        row = deliveries.get(uid)
        if permissions.is_limited(self.request):
            find(self.request, f"sub_{row.subscription_id}")
            if row.event_type not in _OF_NOTHING:
                permissions.check_row(self.request, {"queue": row.queue, "type": row.type})
        return row


def find(request: Request, text: str) -> WebhookSubscription:
    """The subscription with this id, if the caller may see it. Raises NotFound or PermissionDenied."""
    pk = parse_public_id(text.lower(), "sub_")
    if pk is None:
        raise subscriptions.not_found(shorten(text))
    row = subscriptions.get(pk)
    if not _is_within(request, row):
        raise PermissionDenied(
            "This subscription reaches beyond the queues and job types of this API key.",
            details={"principal": principal(request), "subscription_id": row.public_id},
        )
    return row


def _confined(request: Request, wanted: SubscriptionDefinition, *, partial: bool = False) -> SubscriptionDefinition:
    """`wanted` within the caller's limits: checked where it names queues or types, narrowed where it does not."""
    changes: dict[str, Any] = {}
    queues, types = queue_limit(request), type_limit(request)
    if queues is not None and not (partial and "queues" not in wanted.given):
        check_queue(request, wanted.queues or ())
        changes["queues"] = wanted.queues or list(queues)
    if types is not None and not (partial and "job_types" not in wanted.given):
        for name in wanted.job_types or ():
            check_type(request, name)
        changes["job_types"] = wanted.job_types or list(types)
    return dataclasses.replace(wanted, **changes)


def _is_within(request: Request, row: WebhookSubscription) -> bool:
    """Whether everything this subscription can get lies within the caller's limits."""
    limits = permissions.limits(request)
    if limits.unlimited:
        return True
    if not row.limited:  # it may get events of workers, which tell of other queues
        return False
    if limits.queues is not None and not (row.queues and all(map(limits.covers_jobs_of, row.queues))):
        return False
    return limits.types is None or bool(row.job_types and all(map(limits.covers_type, row.job_types)))


def _visible(request: Request) -> QuerySet[WebhookSubscription]:
    """Those that the caller may see. Filters are JSON, so the few that there are get compared here."""
    rows = WebhookSubscription.objects.using(router.db_for_write(Job)).all()
    if not permissions.is_limited(request):
        return rows
    few = rows.only("queues", "job_types", "limited")
    return rows.filter(pk__in=[row.pk for row in few if _is_within(request, row)])


def _shown(request: Request) -> Q:
    """The deliveries that the caller may see of a subscription within its limits, which may have been wider before."""
    return permissions.visible(request) | Q(event_type__in=_OF_NOTHING)


def _administers(request: Request) -> bool:
    try:
        require_scope(request, ADMIN, right=_RETRY)
    except PermissionDenied:
        return False
    return True
