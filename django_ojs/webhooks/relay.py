"""The relay: turns events into deliveries, once each and in the order of the log (events 6.4, 7.3).

One pass is one transaction: it reads on from its place, stores the deliveries, and only then its new place. Two
schedulers at once take turns at the relay's row. A pass locks the subscriptions it writes for, as the code that
ends a delivery does; so "is an earlier one of this subject open?" has one answer for both.

After a failover or a restore the place has gone back with the log, and what was sent of events that are lost cannot be
taken back. The process that made deliveries of them notices it, and one that did not learns of it from the log, which
counts such changes: receivers are sent a `system.gap`, and then what the log has now. So they are where retention has
pruned events that the relay had not come to.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

from django.db import IntegrityError
from django.db.models import F, QuerySet, Subquery
from django.db.models.functions import Coalesce, Length

from django_ojs import clock, jsontext, tenants
from django_ojs.conf import ojs_settings
from django_ojs.database import atomic, database, retried
from django_ojs.events import filters, ids, log, order, restored
from django_ojs.events.order import LogPosition
from django_ojs.faults import only_if_taken
from django_ojs.guard import get_logger
from django_ojs.models import Event, EventLog, WebhookDelivery, WebhookRelay, WebhookSubscription
from django_ojs.models.fields import split
from django_ojs.rules.durations import format_instant
from django_ojs.store import store_of
from django_ojs.webhooks import deliveries

logger = get_logger(__name__)

BATCH = 500
#: Bytes of bodies that one pass stores at most, beyond the first event; one without data has about so many.
MAX_LOAD = 8_000_000
_OVERHEAD = 500
#: Clocks of hosts may differ by so much when the place for a first subscription is sought.
_MARGIN = dt.timedelta(minutes=1)
#: What every receiver gets, whatever it has subscribed to, where events may be lost.
GAP = "system.gap"
#: A webhook about a webhook's fate would cause the next.
_LOOPS = frozenset({"webhook.delivered", "webhook.failed", "webhook.dead"})


class _Subscriber(NamedTuple):
    """What one subscription wants, ready to be compared."""

    id: uuid.UUID
    kinds: filters.Kinds
    types: frozenset[str]  #: of the stored events that the kinds are made of
    queues: frozenset[str] | None
    exact: frozenset[str] | None  #: job types
    prefixes: tuple[str, ...]
    limited: bool
    since: dt.datetime


@retried
def relay(*, using: str | None = None) -> int | None:
    """One pass. Returns how many events were read, and None without subscriptions: then nothing was."""
    using = database(using)
    subscribers = _subscribers(using)
    edge = clock.now(using) + clock.AHEAD
    if any(subscriber.since > edge for subscriber in subscribers):  # all that happens would be older
        deliveries.set_right(using=using)
        subscribers = _subscribers(using)
    place = _place(using)
    if not subscribers:
        if place.event is not None:  # what happens before the first subscription is sent to none
            WebhookRelay.objects.using(using).filter(pk=1, event=place.event).update(event=None, missed=0)
        return None
    reached = None if place.event is None else _seen(place, using)
    if place.event is not None and not _has_more(place, using):
        return 0
    with atomic(using=using):
        row = _rows(using).select_for_update().get(pk=1)
        if row.event is None:
            start = order.before(using, min(subscriber.since for subscriber in subscribers) - _MARGIN)
            row.changes = row.log_changes  # nobody was told of what came before
        else:
            start = LogPosition(row.commit, row.event)
            if row.missed:
                _tell_what_is_pruned(start, reached, row.missed, using)
        found = list(order.behind(using, start).defer("data").annotate(size=Length("data"))[:BATCH])
        done = _store(found, _locked(found, using), using)
        last = order.place_of(found[done - 1]) if done else start
        WebhookRelay.objects.using(using).filter(pk=1).update(
            commit=last.order, event=last.id, changes=row.changes, missed=0
        )
    if done:
        _reached[tenants.scope(using)] = _Reached(last, row.changes)
    return done


class _Reached(NamedTuple):
    place: LogPosition
    changes: int  #: of the log's history, of which receivers had been told


#: Up to where this process has relayed each log, with the time of the event there: another one there, or none, shows
#: that the log's history has changed.
_reached: dict[Hashable, _Reached] = {}


def forget() -> None:
    """Drop the places that this process knows: the log is a new one."""
    _reached.clear()


def _has_more(row: Any, using: str) -> bool:
    """Whether events come behind the stored place; where some before it may be lost, receivers are told first."""
    if row.missed:
        return True
    place, reached = LogPosition(row.commit, row.event), _seen(row, using)
    if row.changes == row.log_changes:
        if reached is None:
            return order.next_id(using, place) is not None
        if reached == place:
            # With the event at the place, which shows that the log is the one that was relayed.
            events = order.behind(using, place.having(order.CHANGE)).only("time")[:2]
            found = [order.place_of(event) for event in events]
            if found and found[0] == place and found[0].time == reached.time:
                return len(found) > 1
    _tell_what_is_lost(using)
    return True


def _seen(row: Any, using: str) -> LogPosition | None:
    """Up to where this process has relayed the log, if no other has gone on or told of a change since."""
    reached = _reached.get(tenants.scope(using))
    if reached is None or reached.changes != row.changes or reached.place < LogPosition(row.commit, row.event):
        return None
    return reached.place


def _tell_what_is_lost(using: str) -> None:
    order.catch_up(using, strict=False)  # by which the log itself learns of the change
    with atomic(using=using):
        row = _rows(using).select_for_update().get(pk=1)
        if row.event is None:
            return
        place = LogPosition(row.commit, row.event)
        behind, gap = _loss(row, using)
        if gap is not None:
            _send_gap(behind, gap, using)
            place = min(place, behind)  # it may not have been restored with the log
        changed = WebhookRelay.objects.using(using).filter(pk=1)
        changed.update(commit=place.order, event=place.id, changes=row.log_changes)
    _reached.pop(tenants.scope(using), None)
    if gap is not None:
        logger.warning(
            "The event log may have lost events that had gone to webhooks, at most %s, between %s and %s: after a"
            " failover or a restore. The receivers are told so (system.gap), and get what the log has now.",
            gap.get("estimated_missed_count", "an unknown number"), gap["gap_start"], gap.get("gap_end", "now"),
        )  # fmt: skip


def _loss(row: Any, using: str) -> tuple[LogPosition, dict[str, Any] | None]:
    """The place behind which receivers cannot be sure of what they got, and the gap; None where all of it is there."""
    reached = _seen(row, using)
    found = order.is_there(using, reached) if reached is not None else None
    if reached is not None and reached.time is not None and found is not None and found.state != "pruned":
        return found.place, log.gap_of(found, reached.id, reached.time, using)
    if row.changes == row.log_changes:
        return order.START, None
    kept = order.last(using, pk=row.kept_to) or order.START
    return kept, {"reason": "history_changed", "gap_start": format_instant(kept.time) if kept.time else None}


def note_pruned(doomed: Sequence[int], using: str) -> None:
    """Count which of these events, which are about to be deleted in the open transaction, no pass has come to: the next
    one tells receivers of them. The lock of the relay's row keeps passes out until they are gone."""
    place = _place_of(WebhookRelay.objects.using(using).select_for_update(), using)
    missed = 0 if place is None else order.behind(using, place).order_by().filter(pk__in=doomed).count()
    if missed:
        WebhookRelay.objects.using(using).filter(pk=1).update(missed=F("missed") + missed)


def _tell_what_is_pruned(start: LogPosition, reached: LogPosition | None, missed: int, using: str) -> None:
    gap = log.gap_behind(start.id, reached.time if reached == start else None, using)
    gap["estimated_missed_count"] = missed
    _send_gap(start, gap, using)
    logger.warning(
        "Pruning deleted %s events that had not gone to webhooks: the relay is behind what the log retains. Their"
        " receivers are told (system.gap).", missed,
    )  # fmt: skip


def _send_gap(behind: LogPosition, gap: dict[str, Any], using: str) -> None:
    envelope = log.notice(GAP, behind, using, **gap)
    now, body = clock.now(using), jsontext.dumps(envelope)
    WebhookDelivery.objects.using(using).bulk_create(
        _delivery(subscriber.id, envelope, "", body, now) for subscriber in _subscribers(using, lock=True)
    )


def relayed_up_to(using: str) -> LogPosition | None:
    """The last event of which the relay has made deliveries; None while the site has no webhook subscription."""
    return _place_of(WebhookRelay.objects.using(using), using)


def _place_of(rows: QuerySet[WebhookRelay], using: str) -> LogPosition | None:
    row = rows.filter(pk=1, event__isnull=False).first()
    if row is None or row.event is None:
        return None
    if row.commit == restored.UNKNOWN:
        return restored.position_of(row.event, using)
    return LogPosition(row.commit, row.event)


def _rows(using: str) -> QuerySet[Any]:
    """The relay's row, with what the log knows of changes of its history."""
    known = EventLog.objects.using(using).filter(pk=1)
    return WebhookRelay.objects.using(using).annotate(
        log_changes=Coalesce(Subquery(known.values("changes")), 0), kept_to=Subquery(known.values("kept_to")),
    )  # fmt: skip


def _place(using: str) -> Any:
    row = _rows(using).filter(pk=1).first()
    if row is None:
        try:
            with atomic(using=using):
                WebhookRelay.objects.using(using).create(pk=1)
        except IntegrityError as error:  # another scheduler was first
            only_if_taken(error)
        return _rows(using).get(pk=1)
    if row.event is not None and row.commit == restored.UNKNOWN:
        found = restored.position_of(row.event, using)
        loaded = WebhookRelay.objects.using(using).filter(pk=1, commit=row.commit, event=row.event)
        loaded.update(commit=found.order, event=found.id)
        row.refresh_from_db(using=using)
    return row


def _subscribers(using: str, only: Iterable[uuid.UUID] | None = None, *, lock: bool = False) -> list[_Subscriber]:
    active = WebhookSubscription.objects.using(using).filter(active=True, active_since__isnull=False)
    if only is not None:
        active = active.filter(pk__in=list(only))
    rows = active.order_by("pk").only("id", "events", "queues", "job_types", "limited", "active_since")
    found = [_subscriber(row, using) for row in (rows.select_for_update() if lock else rows)]
    if lock and found:
        store_of(using).certify(WebhookSubscription.objects.using(using).filter(pk__in=[one.id for one in found]))
    return found


def _subscriber(row: WebhookSubscription, using: str) -> _Subscriber:
    types, queues = row.job_types, row.queues
    kinds = filters.kinds(row.events or [])
    kinds = kinds._replace(shown=kinds.shown - _LOOPS)
    return _Subscriber(
        row.pk, kinds, kinds.stored, frozenset(queues) if queues else None,
        frozenset(types) if types else None, tuple(split(types or ())[1]),
        row.limited, row.active_since or clock.now(using),
    )  # fmt: skip


def _locked(found: Sequence[Event], using: str) -> list[_Subscriber]:
    """The subscribers that may want these events, locked.

    They are read after the events, so a subscriber from before an event is among them.
    """
    types = {event.type for event in found}
    wanted = (
        [subscriber.id for subscriber in _subscribers(using) if not types.isdisjoint(subscriber.types)] if found else []
    )
    return _subscribers(using, wanted, lock=True) if wanted else []


def _store(found: Sequence[Event], subscribers: Sequence[_Subscriber], using: str) -> int:
    """Store the deliveries of as many of the events as fit in one pass; returns how many events that were."""
    wanted: list[Event] = []
    done, load = 0, 0
    for event in found:
        if takers := sum(event.type in subscriber.types for subscriber in subscribers):
            load += takers * (_OVERHEAD + (event.size or 0))  # type: ignore[attr-defined]
            if wanted and load > MAX_LOAD:
                break
            wanted.append(event)
        done += 1
    if not wanted:
        return done
    data = dict(Event.objects.using(using).filter(pk__in=[event.pk for event in wanted]).values_list("pk", "data"))
    pairs = []
    for event in log.named(wanted, using):
        event.data = data.get(event.pk)
        pairs += [(event, subscriber) for subscriber in subscribers if _matches(subscriber, event)]
    _insert(pairs, using)
    return done


def _matches(subscriber: _Subscriber, event: Event) -> bool:
    if event.type not in subscriber.types or event.time < subscriber.since:
        return False
    if subscriber.queues is not None and not subscriber.queues.intersection(_queues(event, subscriber.limited)):
        return False
    if subscriber.exact is None:
        return True
    return event.job_type in subscriber.exact or (
        bool(event.job_type) and event.job_type.startswith(subscriber.prefixes)
    )


def _queues(event: Event, limited: bool) -> list[str]:
    """The queue of an event; of a worker's those it serves, but they are not for a caller limited to some of them."""
    if event.queue or limited or not event.type.startswith("worker."):
        return [event.queue] if event.queue else []
    queues = (event.data or {}).get("queues")
    return [name for name in queues if isinstance(name, str)] if isinstance(queues, list) else []


def _insert(pairs: Sequence[tuple[Event, _Subscriber]], using: str) -> None:
    now = clock.now(using)
    salt = ids.salt_of(using)
    subjects = {event.pk: event.subject or str(event.job_id or "") for event, _ in pairs}
    busy = _busy({subscriber.id for _, subscriber in pairs}, set(subjects.values()), using)
    rendered: dict[int, dict[str, Any]] = {}
    texts: dict[str, str] = {}
    rows = []
    for event, subscriber in pairs:
        if event.pk not in rendered:
            rendered[event.pk] = log.render(event, salt)
        key = subscriber.id, subjects[event.pk]
        for envelope in filters.views(subscriber.kinds, rendered[event.pk], salt, order.place_of(event)):
            if envelope["id"] not in texts:
                texts[envelope["id"]] = jsontext.dumps(envelope)
            postponed = key in busy
            busy.add(key)
            row = _delivery(subscriber.id, envelope, key[1], texts[envelope["id"]], now, postponed=postponed)
            row.queue, row.type = event.queue, event.job_type
            rows.append(row)
    WebhookDelivery.objects.using(using).bulk_create(rows, batch_size=100)


def _delivery(
    subscription: uuid.UUID,
    envelope: dict[str, Any],
    subject: str,
    body: str,
    now: dt.datetime,
    *,
    postponed: bool = False,
) -> WebhookDelivery:
    return WebhookDelivery(
        subscription_id=subscription, event_id=envelope["id"], event_type=envelope["type"], subject=subject, body=body,
        held=postponed, next_attempt_at=None if postponed else now, created_at=now,
        max_attempts=len(ojs_settings.WEBHOOK_RETRY_DELAYS) + 1,
    )  # fmt: skip


def _busy(subscriptions: set[uuid.UUID], subjects: set[str], using: str) -> set[tuple[uuid.UUID, str]]:
    """Which subjects of which subscriptions have a delivery that has not ended."""
    if not subscriptions:
        return set()
    open_ones = WebhookDelivery.objects.using(using).filter(
        subscription_id__in=subscriptions, status__in=WebhookDelivery.OPEN, subject__in=subjects
    )
    return set(open_ones.values_list(F("subscription_id"), "subject").distinct())
