"""What the methods beside the core take and answer, for the OpenAPI document: events, webhooks, metrics, probes.

Streams end with the connection, so their answers have a media type and no schema. Under WSGI they answer 406.
"""

from __future__ import annotations

from django_ojs.http.apioperations import PAGES, Doc, plain
from django_ojs.http.apischemas import TEXT, Schema, obj, page, ref
from django_ojs.telemetry.exposition import CONTENT_TYPE

EVENT_STREAM = "text/event-stream"
_PROMETHEUS = CONTENT_TYPE.partition(";")[0]
_FILTER = " types queues job_types sources job_id workflow_id since"
_ONE = "types event_types since last_event_id"
_SUBSCRIPTION, _DELIVERY = ref("SubscriptionAnswer"), ref("DeliveryDetail")
_STATUS: Schema = obj("status", status=TEXT)


def _stream(query: str, *errors: int) -> Doc:
    return Doc({200: None}, query, text=EVENT_STREAM, resumes=True, errors=(406, *errors))


DOCS: dict[str, Doc] = {
    "Events.get": Doc({200: ref("EventPage")}, "after until limit page per_page channel last_event_id" + _FILTER,
                      text=EVENT_STREAM, resumes=True, errors=(404, 406)),
    "JobHistory.get": Doc({200: ref("JobHistory")}, "after types since until limit"),
    "AllEvents.get": _stream("channel event_types last_event_id" + _FILTER, 404),
    "JobEvents.get": _stream(_ONE),
    "QueueEvents.get": _stream(_ONE),
    "views.JobProgress.get": _stream("since last_event_id"),
    "views.JobResult.get": _stream("since last_event_id"),
    "views.Statistics.get": _stream("since last_event_id"),
    "EventsTicket.post": Doc({201: ref("Ticket")}),
    "progress.JobProgress.get": Doc({200: ref("Progress")}),
    "progress.JobProgress.put": Doc({200: ref("Progress")}, body=ref("ProgressReport")),
    "WorkerProgress.post": Doc({200: ref("Progress")}, body=ref("WorkerProgressReport"), errors=(404,)),
    "Metrics.get": Doc({200: ref("Metrics")}, "format", text=_PROMETHEUS, errors=(404,), optional=True),
    "Prometheus.get": Doc({200: None}, text=_PROMETHEUS, errors=(404,), optional=True),
    "Alive.get": Doc({200: _STATUS}),
    "Ready.get": Doc({200: _STATUS, 503: _STATUS}),
    "Subscriptions.get": Doc({200: page("subscriptions", "items", item=ref("Subscription"))}, PAGES),
    "Subscriptions.post": Doc({201: _SUBSCRIPTION}, body=ref("SubscriptionRequest")),
    "SubscriptionDetail.get": Doc({200: _SUBSCRIPTION}),
    "SubscriptionDetail.put": Doc({200: _SUBSCRIPTION}, body=ref("SubscriptionChange")),
    "SubscriptionDetail.patch": Doc({200: _SUBSCRIPTION}, body=ref("SubscriptionChange")),
    "SubscriptionDetail.delete": Doc({204: None}),
    "SubscriptionTest.post": plain({200: ref("SubscriptionTested")}),
    "SecretRotation.post": plain({200: ref("SecretRotated")}, body=obj(secret=TEXT)),
    "Deliveries.get": Doc({200: page("deliveries", "items", item=ref("Delivery"))},
                          "subscription_id status event_type" + PAGES, errors=(404,)),
    "DeliveryDetail.get": Doc({200: _DELIVERY}),
    "DeliveryRetry.post": plain({202: _DELIVERY}),
}  # fmt: skip
