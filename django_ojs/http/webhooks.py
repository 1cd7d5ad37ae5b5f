"""Webhooks over HTTP: subscriptions, their secrets and tests, and the record of deliveries (events 6.2).

A key limited to queues or job types may subscribe to those only, and sees what is subscribed so. Where its body
names no filter, the key's limits become the filter. A user needs the permissions of the admin's pages, to look too:
an address may hold a receiver's only secret.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from django.db import router
from django.db.models import QuerySet
from django.utils.encoding import iri_to_uri
from django_filters import FilterSet
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs.conf import ojs_settings
from django_ojs.errors import PermissionDenied
from django_ojs.http import permissions
from django_ojs.http.auditing import audited
from django_ojs.http.base import OJSViewSet
from django_ojs.http.openapi import documented
from django_ojs.http.pagination import Key, parse_time, parse_uuid
from django_ojs.http.permissions import (
    ADMIN,
    check_queue,
    check_type,
    principal,
    queue_limit,
    require_scope,
    type_limit,
)
from django_ojs.http.query import OJSFilterBackend, ReaderFilter, WordsFilter, read_text
from django_ojs.http.serializers import AnswerSerializer, BodySerializer, FilledField, InstantField, NothingSerializer
from django_ojs.models import Job, WebhookDelivery, WebhookSubscription
from django_ojs.models.webhook import parse_public_id
from django_ojs.rules import names
from django_ojs.rules.durations import format_instant
from django_ojs.rules.faults import shorten
from django_ojs.webhooks import deliveries, subscriptions
from django_ojs.webhooks.subscriptions import Definition, Unreadable
from django_ojs.webhooks.transport import Reply, Verdict

#: What it takes a user to have a delivery sent again, and to read what the receiver answered.
_RETRY = "change_webhookdelivery"


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

    optional = frozenset({"disabled_reason", "created_by", "last_delivery_at", "last_delivery_status"})

    id = serializers.CharField(source="public_id")
    url = serializers.CharField()
    events = serializers.ListField(child=serializers.CharField())
    active = serializers.BooleanField()
    filter = SubscriptionFilterSerializer(source="*")
    metadata = _ObjectField()
    headers = serializers.SerializerMethodField()
    timeout_seconds = serializers.SerializerMethodField()
    signature_format = serializers.ChoiceField(choices=WebhookSubscription.SignatureFormat.values)
    disabled_reason = FilledField()
    created_by = FilledField()
    last_delivery_at = InstantField()
    last_delivery_status = serializers.IntegerField()
    success_count = serializers.IntegerField()
    failure_count = serializers.IntegerField()
    created_at = InstantField()
    updated_at = InstantField()

    def get_headers(self, row: WebhookSubscription) -> dict[str, str]:
        try:
            return subscriptions.shown_headers(row)
        except Unreadable:  # under a SECRET_KEY that is gone; sending says so
            return {}

    def get_timeout_seconds(self, row: WebhookSubscription) -> int:
        return row.timeout_seconds or round(ojs_settings.WEBHOOK_TIMEOUT)


class SubscriptionAnswerSerializer(SubscriptionSerializer):
    """One subscription, flat, and once more under `subscription`."""

    subscription = SubscriptionSerializer(source="*", required=False)


class SubscriptionCreatedSerializer(SubscriptionAnswerSerializer):
    secret = serializers.CharField(help_text="Shown once, in the answer that made the subscription.")


class SecretRotatedSerializer(serializers.Serializer[Any]):
    id = serializers.CharField()
    secret = serializers.CharField()
    new_secret = serializers.CharField()
    previous_secret_expires_at = serializers.DateTimeField(allow_null=True)


class SubscriptionTestedSerializer(serializers.Serializer[Any]):
    success = serializers.BooleanField()
    status_code = serializers.IntegerField()
    status = serializers.IntegerField()
    response_time_ms = serializers.IntegerField(allow_null=True)
    response_body = serializers.CharField()
    error = serializers.CharField(allow_null=True)
    delivery_id = serializers.CharField()


class SubscriptionChangeSerializer(BodySerializer):
    """What is to be changed of a subscription: `validated_data` is a `Definition`."""

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

    optional = frozenset({"response_status", "response_time_ms", "error", "next_attempt_at", "delivered_at"})

    id = serializers.CharField(source="public_id")
    subscription_id = serializers.SerializerMethodField()
    event_id = serializers.CharField()
    event_type = serializers.CharField()
    subject = serializers.CharField()
    status = serializers.CharField()
    held = serializers.SerializerMethodField()
    attempt_count = serializers.IntegerField()
    max_attempts = serializers.IntegerField()
    response_status = serializers.IntegerField()
    response_time_ms = serializers.IntegerField()
    error = FilledField()
    next_attempt_at = InstantField()
    created_at = InstantField()
    delivered_at = InstantField()

    def get_subscription_id(self, row: WebhookDelivery) -> str:
        return f"sub_{row.subscription_id}"

    def get_held(self, row: WebhookDelivery) -> bool:
        return row.held and row.is_open


class DeliveryDetailSerializer(DeliverySerializer):
    """With its attempts; what the receiver answered is for those who administer (`context["administers"]`)."""

    optional = DeliverySerializer.optional | {"response_body"}

    attempts = _ListField(child=serializers.DictField())
    response_body = _AnswerField()


class DeliveryFilter(FilterSet):  # type: ignore[misc]
    subscription_id = ReaderFilter(read_text, method="of_subscription")
    status = WordsFilter(WebhookDelivery.Status.values)
    event_type = WordsFilter()

    def of_subscription(self, rows: QuerySet[WebhookDelivery], name: str, value: str) -> QuerySet[WebhookDelivery]:
        return rows.filter(subscription_id=find(self.request, value).pk)


class _UsersNeedRights(OJSViewSet):
    """A user needs a permission for every action, whatever the scope."""

    @classmethod
    def right_for(cls, action: str, method: str, scope: str | None, operator: bool) -> str:
        return cls.action_rights[action]


class WebhookViewSet(_UsersNeedRights):
    """Subscriptions. PUT changes only what it names, as PATCH does."""

    lookup_url_kwarg = "subscription_id"
    action_scopes = {"list": "read", "retrieve": "read"}
    action_rights = {
        "list": "view_webhooksubscription", "retrieve": "view_webhooksubscription",
        "create": "add_webhooksubscription", "destroy": "delete_webhooksubscription",
        **dict.fromkeys(("update", "partial_update", "test", "rotate_secret"), "change_webhooksubscription"),
    }  # fmt: skip
    serializer_class = SubscriptionAnswerSerializer
    action_serializers = {
        "list": SubscriptionSerializer, "create": SubscriptionCreatedSerializer, "test": SubscriptionTestedSerializer,
        "rotate_secret": SecretRotatedSerializer,
    }  # fmt: skip
    body_serializers = {
        "create": SubscriptionRequestSerializer, "update": SubscriptionChangeSerializer,
        "partial_update": SubscriptionChangeSerializer, "test": NothingSerializer, "rotate_secret": NewSecretSerializer,
    }  # fmt: skip
    ordering = [Key("created_at", descending=True, parse=parse_time), Key("id", descending=True, parse=parse_uuid)]
    list_names = ("subscriptions", "items")

    def get_queryset(self) -> QuerySet[WebhookSubscription]:
        return _visible(self.request)

    def list(self, request: Request) -> Response:
        """The subscriptions of webhooks."""
        return self.listed(self.get_queryset())

    @audited("webhook.create")
    def create(self, request: Request) -> Response:
        """Subscribe."""
        given: Any = self.validated(self.payload())
        wanted = _confined(request, given)
        row, secret = subscriptions.create(wanted, by=principal(request), limited=permissions.is_limited(request))
        self.act.target = row.public_id
        location = f"{iri_to_uri(request.path).rstrip('/')}/{row.public_id}"
        return Response(self._with_secret(row, secret), status=201, headers={"Location": location})

    def retrieve(self, request: Request, subscription_id: str) -> Response:
        """A subscription."""
        return Response(self.represent(find(request, subscription_id)))

    @audited("webhook.update")
    def partial_update(self, request: Request, subscription_id: str) -> Response:
        """Change a subscription."""
        row = find(request, subscription_id)
        given: Any = self.validated(self.payload())
        changes = _confined(request, given, partial=True)
        limited = True if permissions.is_limited(request) else None
        return Response(self.represent(subscriptions.update(row.pk, changes, by=principal(request), limited=limited)))

    update = partial_update

    @audited("webhook.delete")
    def destroy(self, request: Request, subscription_id: str) -> Response:
        """End a subscription."""
        subscriptions.delete(find(request, subscription_id).pk, by=principal(request))
        return Response(status=204)

    @action(detail=True, methods=["post"])
    @audited("webhook.test", together=False)
    def test(self, request: Request, subscription_id: str) -> Response:
        """Send a test.

        200 however the receiver answered.
        """
        self.payload(required=False)
        row = find(request, subscription_id)
        return Response(_tested(*deliveries.send_test(row.pk, entry=self.act)))

    @action(detail=True, methods=["post"], url_path="rotate-secret")
    @audited("webhook.rotate")
    def rotate_secret(self, request: Request, subscription_id: str) -> Response:
        """Change the secret; for a while both sign."""
        body = self.payload(required=False)
        row = find(request, subscription_id)
        changed, secret = subscriptions.rotate(row.pk, self.validated(body)["secret"], by=principal(request))
        ends = changed.previous_secret_expires_at
        return Response({
            "id": changed.public_id, "secret": secret, "new_secret": secret,
            "previous_secret_expires_at": format_instant(ends) if ends else None,
        })  # fmt: skip

    def _with_secret(self, row: WebhookSubscription, secret: str) -> dict[str, Any]:
        shown = {
            **SubscriptionSerializer(context=self.get_serializer_context()).to_representation(row),
            "secret": secret,
        }
        return {**shown, "subscription": shown}


class DeliveryViewSet(_UsersNeedRights):
    """What was sent to whom, newest first."""

    lookup_url_kwarg = "delivery_id"
    action_scopes = {"list": "read", "retrieve": "read"}
    action_rights = {"list": "view_webhookdelivery", "retrieve": "view_webhookdelivery", "retry": _RETRY}
    serializer_class = DeliveryDetailSerializer
    action_serializers = {"list": DeliverySerializer}
    body_serializers = {"retry": NothingSerializer}
    filter_backends = (OJSFilterBackend,)
    filterset_class = DeliveryFilter
    ordering = [Key("id", descending=True, parse=int)]
    list_names = ("deliveries", "items")

    def get_serializer_context(self) -> dict[str, Any]:
        context = dict(super().get_serializer_context())
        return context if self.action == "list" else {**context, "administers": _administers(self.request)}

    def get_queryset(self) -> QuerySet[WebhookDelivery]:
        rows = WebhookDelivery.objects.using(router.db_for_write(Job)).defer("body", "response_body", "attempts")
        if permissions.is_limited(self.request):
            return rows.filter(subscription_id__in=_visible(self.request).values("pk"))
        return rows

    @documented(errors=(404,))
    def list(self, request: Request) -> Response:
        """The deliveries."""
        return self.listed(self.get_queryset())

    def retrieve(self, request: Request, delivery_id: str) -> Response:
        """A delivery with its attempts."""
        return Response(self.represent(self._find(delivery_id)))

    @documented(202)
    @action(detail=True, methods=["post"])
    @audited("webhook.replay")
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


def _confined(request: Request, wanted: Definition, *, partial: bool = False) -> Definition:
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


def _tested(delivery: WebhookDelivery, reply: Reply) -> dict[str, Any]:
    status = reply.status or 0
    return {
        "success": reply.verdict is Verdict.SUCCESS,
        "status_code": status,
        "status": status,
        "response_time_ms": reply.duration_ms,
        "response_body": reply.body,
        "error": reply.error or None,
        "delivery_id": delivery.public_id,
    }


def _is_within(request: Request, row: WebhookSubscription) -> bool:
    """Whether everything this subscription can get lies within the caller's limits."""
    queues, types = queue_limit(request), type_limit(request)
    if queues is None and types is None:
        return True
    if not row.limited:  # it may get events of workers, which tell of other queues
        return False
    if queues is not None and not (row.queues and set(row.queues) <= set(queues)):
        return False
    return types is None or bool(
        row.job_types and all(any(names.covers(entry, name) for entry in types) for name in row.job_types)
    )


def _visible(request: Request) -> QuerySet[WebhookSubscription]:
    """Those that the caller may see. Filters are JSON, so the few that there are get compared here."""
    rows = WebhookSubscription.objects.using(router.db_for_write(Job)).all()
    if not permissions.is_limited(request):
        return rows
    few = rows.only("queues", "job_types", "limited")
    return rows.filter(pk__in=[row.pk for row in few if _is_within(request, row)])


def _administers(request: Request) -> bool:
    try:
        require_scope(request, ADMIN, right=_RETRY)
    except PermissionDenied:
        return False
    return True
