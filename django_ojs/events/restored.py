"""Makes events and places that a fixture brings (`loaddata`) part of this database's log.

Each database has its own order of the log, which means nothing in another: numbers of transactions on PostgreSQL,
stamps on MariaDB. So what is loaded gets its order here, that of the ids, by the next pass; and readers whose place was
stored find it again by the id of the event that they read last.
"""

from __future__ import annotations

from typing import Any

from django.db import connections
from django.db.models.signals import pre_save

from django_ojs.events import order
from django_ojs.events.order import LogPosition
from django_ojs.models import Event, EventCommit, EventLog, MetricPlace, WebhookRelay

#: In the column of a stored place's order: it was loaded, and is to be found by its event.
UNKNOWN = -1
#: Ids of transactions that no PostgreSQL gives out, one for each loaded number.
_COMMITS = -(2**61)


def subscribe() -> None:
    """Look at what fixtures load, from now on."""
    for model, receiver in (
        (Event, _event), (EventCommit, _commit), (EventLog, _log), (MetricPlace, _metrics), (WebhookRelay, _webhooks),
    ):  # fmt: skip
        pre_save.connect(receiver, sender=model, dispatch_uid=f"django_ojs.restored.{model.__name__}")


def position_of(event: int, using: str) -> LogPosition:
    """The place of the loaded event with this id, or of the one before it where it has been pruned."""
    order.catch_up(using)
    found = order.behind(using, order.START).filter(pk__lte=event).order_by("-pk").first()
    return order.START if found is None else order.place_of(found)


def _event(instance: Event, raw: bool, using: str, **_: Any) -> None:
    if not raw:
        return
    instance.seq = None
    instance.commit_id = None
    if connections[using].vendor == "postgresql":
        instance.commit_id = order.WITHOUT_PLACE + instance.pk
        # The next pass looks through the whole log.
        EventLog.objects.using(using).exclude(snapshot="").update(snapshot="")


def _commit(instance: EventCommit, raw: bool, **_: Any) -> None:
    if raw:  # no event is of it any more, and a transaction of this server may have its id
        instance.txid = _COMMITS + instance.seq


def _log(instance: EventLog, raw: bool, **_: Any) -> None:
    if raw:
        instance.snapshot = instance.server = instance.run = ""
        instance.kept_to = None


def _metrics(instance: MetricPlace, raw: bool, **_: Any) -> None:
    if raw and instance.event:
        instance.seq = UNKNOWN


def _webhooks(instance: WebhookRelay, raw: bool, **_: Any) -> None:
    if raw and instance.event is not None:
        instance.commit = UNKNOWN
