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
from django.urls import path
from django.utils.encoding import iri_to_uri
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs.errors import PermissionDenied
from django_ojs.http import access, query, webhookshapes
from django_ojs.http.auditing import audited
from django_ojs.http.base import OJSView
from django_ojs.http.pagination import Key, paginate, parse_time, parse_uuid
from django_ojs.http.permissions import (
    ADMIN,
    check_queue,
    check_type,
    principal,
    queue_limit,
    require_scope,
    type_limit,
)
from django_ojs.models import Job, WebhookDelivery, WebhookSubscription
from django_ojs.models.webhook import parse_public_id
from django_ojs.operations import webhookdeliveries, webhooks
from django_ojs.policies import names
from django_ojs.policies.faults import shorten
from django_ojs.webhooks import definition
from django_ojs.webhooks.definition import Definition

_NEWEST = [Key("created_at", descending=True, parse=parse_time), Key("id", descending=True, parse=parse_uuid)]
_LATEST = [Key("id", descending=True, parse=int)]
#: What it takes a user to have a delivery sent again, and to read what the receiver answered.
_RETRY = "change_webhookdelivery"


class WebhookView(OJSView):
    """What the views share: finding what the caller may see, and keeping definitions within the caller's limits."""

    def found(self, text: str) -> WebhookSubscription:
        """The subscription in the path. Raises NotFound or PermissionDenied."""
        pk = parse_public_id(text.lower(), "sub_")
        if pk is None:
            raise webhooks.not_found(shorten(text))
        row = webhooks.get(pk)
        if not _is_within(self.request, row):
            raise PermissionDenied(
                "This subscription reaches beyond the queues and job types of this API key.",
                details={"principal": principal(self.request), "subscription_id": row.public_id},
            )
        return row

    def confined(self, wanted: Definition, *, partial: bool = False) -> Definition:
        """`wanted` within the caller's limits: checked where it names queues or types, narrowed where it does not."""
        changes: dict[str, Any] = {}
        queues, types = queue_limit(self.request), type_limit(self.request)
        if queues is not None and not (partial and "queues" not in wanted.given):
            check_queue(self.request, wanted.queues or ())
            changes["queues"] = wanted.queues or list(queues)
        if types is not None and not (partial and "job_types" not in wanted.given):
            for name in wanted.job_types or ():
                check_type(self.request, name)
            changes["job_types"] = wanted.job_types or list(types)
        return dataclasses.replace(wanted, **changes)


class Subscriptions(WebhookView):
    """`GET` and `POST /webhooks/subscriptions`"""

    scopes = {"GET": "read", "POST": "admin"}
    rights = {"GET": "view_webhooksubscription", "POST": "add_webhooksubscription"}

    def get(self, request: Request) -> Response:
        rows = WebhookSubscription.objects.using(router.db_for_write(Job)).all()
        page = paginate(_visible(request, rows), request, _NEWEST)
        entries = [webhookshapes.subscription(row) for row in page.rows]
        total = page.pagination["total"]
        return Response({"subscriptions": entries, "items": entries, "total": total, "pagination": page.pagination})

    @audited("webhook.create")
    def post(self, request: Request) -> Response:
        wanted = self.confined(definition.parse(self.payload()))
        row, secret = webhooks.create(wanted, by=principal(request), limited=access.is_limited(request))
        self.act.target = row.public_id
        location = f"{iri_to_uri(request.path).rstrip('/')}/{row.public_id}"
        return Response(webhookshapes.wrapped(row, secret), status=201, headers={"Location": location})


class SubscriptionDetail(WebhookView):
    """`GET`, `PATCH`, `PUT` and `DELETE /webhooks/subscriptions/{id}`; PUT changes only what it names, as PATCH."""

    scopes = {"GET": "read", "PATCH": "admin", "PUT": "admin", "DELETE": "admin"}
    rights = {
        "GET": "view_webhooksubscription", "PATCH": "change_webhooksubscription", "PUT": "change_webhooksubscription",
        "DELETE": "delete_webhooksubscription",
    }  # fmt: skip

    def get(self, request: Request, subscription_id: str) -> Response:
        return Response(webhookshapes.wrapped(self.found(subscription_id)))

    @audited("webhook.update")
    def patch(self, request: Request, subscription_id: str) -> Response:
        row = self.found(subscription_id)
        changes = self.confined(definition.parse(self.payload(), partial=True), partial=True)
        limited = True if access.is_limited(request) else None
        return Response(webhookshapes.wrapped(webhooks.update(row.pk, changes, by=principal(request), limited=limited)))

    put = patch

    @audited("webhook.delete")
    def delete(self, request: Request, subscription_id: str) -> Response:
        webhooks.delete(self.found(subscription_id).pk, by=principal(request))
        return Response(status=204)


class SubscriptionTest(WebhookView):
    """`POST /webhooks/subscriptions/{id}/test`: 200 however the receiver answered."""

    scopes = {"POST": "admin"}
    rights = {"POST": "change_webhooksubscription"}

    @audited("webhook.test", together=False)
    def post(self, request: Request, subscription_id: str) -> Response:
        self.payload(required=False)
        row = self.found(subscription_id)
        return Response(webhookshapes.tested(*webhookdeliveries.send_test(row.pk, entry=self.act)))


class SecretRotation(WebhookView):
    """`POST /webhooks/subscriptions/{id}/rotate-secret`"""

    scopes = {"POST": "admin"}
    rights = {"POST": "change_webhooksubscription"}

    @audited("webhook.rotate")
    def post(self, request: Request, subscription_id: str) -> Response:
        given = self.payload(required=False).get("secret")
        row = self.found(subscription_id)
        secret = "" if given is None else definition.check_secret(given)
        return Response(webhookshapes.rotated(*webhooks.rotate(row.pk, secret, by=principal(request))))


class Deliveries(WebhookView):
    """`GET /webhooks/deliveries`: newest first."""

    scopes = {"GET": "read"}
    rights = {"GET": "view_webhookdelivery"}

    def get(self, request: Request) -> Response:
        rows = WebhookDelivery.objects.using(router.db_for_write(Job)).defer("body", "response_body", "attempts")
        if text := query.text(request, "subscription_id"):
            rows = rows.filter(subscription_id=self.found(text).pk)
        elif access.is_limited(request):
            every = WebhookSubscription.objects.using(router.db_for_write(Job)).all()
            rows = rows.filter(subscription_id__in=_visible(request, every).values("pk"))
        if wanted := query.texts(request, "status"):
            for word in wanted:
                if word not in WebhookDelivery.Status.values:
                    raise query.fault("status", f"must be one of {', '.join(WebhookDelivery.Status.values)}", word)
            rows = rows.filter(status__in=wanted)
        if types := query.texts(request, "event_type"):
            rows = rows.filter(event_type__in=types)
        page = paginate(rows, request, _LATEST)
        entries = [webhookshapes.delivery(row) for row in page.rows]
        return Response({"deliveries": entries, "items": entries, "pagination": page.pagination})


class DeliveryView(WebhookView):
    def delivery(self, text: str) -> WebhookDelivery:
        """The delivery in the path, of a subscription that the caller may see. Raises NotFound or PermissionDenied."""
        uid = parse_public_id(text.lower(), "del_")
        if uid is None:
            raise webhookdeliveries.not_found(shorten(text))
        row = webhookdeliveries.get(uid)
        if access.is_limited(self.request):
            self.found(f"sub_{row.subscription_id}")
        return row


class DeliveryDetail(DeliveryView):
    """`GET /webhooks/deliveries/{id}`: with its attempts; what the receiver answered only for who may retry it."""

    scopes = {"GET": "read"}
    rights = {"GET": "view_webhookdelivery"}

    def get(self, request: Request, delivery_id: str) -> Response:
        row = self.delivery(delivery_id)
        return Response(webhookshapes.detail(row, with_answer=_administers(request)))


class DeliveryRetry(DeliveryView):
    """`POST /webhooks/deliveries/{id}/retry`: 202; the scheduler sends it."""

    scopes = {"POST": "admin"}
    rights = {"POST": _RETRY}

    @audited("webhook.replay")
    def post(self, request: Request, delivery_id: str) -> Response:
        self.payload(required=False)
        row = webhookdeliveries.replay(self.delivery(delivery_id).pk)
        return Response(webhookshapes.detail(row, with_answer=True), status=202)


urls = [
    path("webhooks/subscriptions", Subscriptions.as_view(), name="webhooks"),
    path("webhooks/subscriptions/<str:subscription_id>", SubscriptionDetail.as_view(), name="webhook"),
    path("webhooks/subscriptions/<str:subscription_id>/test", SubscriptionTest.as_view()),
    path("webhooks/subscriptions/<str:subscription_id>/rotate-secret", SecretRotation.as_view()),
    path("webhooks/deliveries", Deliveries.as_view(), name="webhook-deliveries"),
    path("webhooks/deliveries/<str:delivery_id>", DeliveryDetail.as_view(), name="webhook-delivery"),
    path("webhooks/deliveries/<str:delivery_id>/retry", DeliveryRetry.as_view()),
]


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


def _visible(request: Request, rows: QuerySet[WebhookSubscription]) -> QuerySet[WebhookSubscription]:
    """Those that the caller may see. Filters are JSON, so the few that there are get compared here."""
    if not access.is_limited(request):
        return rows
    few = rows.only("queues", "job_types", "limited")
    return rows.filter(pk__in=[row.pk for row in few if _is_within(request, row)])


def _administers(request: Request) -> bool:
    try:
        require_scope(request, ADMIN, right=_RETRY)
    except PermissionDenied:
        return False
    return True
