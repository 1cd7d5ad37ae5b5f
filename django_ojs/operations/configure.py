"""A queue's configuration: partial changes laid over what is there (jobs 4.1, 4.2).

Three values have columns of their own and are the queue's defaults for its jobs; the rest is one document.
A change takes effect at once for claims, and within seconds (`queues`) for jobs that are pushed. It never
alters jobs already stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.db import transaction

from django_ojs import clock
from django_ojs.errors import Conflict
from django_ojs.events import catalogue, log
from django_ojs.models import Queue, RateLimit
from django_ojs.models.fields import RawJSON
from django_ojs.models.queue import TEMPLATE
from django_ojs.operations import queues
from django_ojs.operations.common import atomic, database
from django_ojs.policies import names, queueconfig, ratelimit
from django_ojs.policies.queueconfig import fault
from django_ojs.told import reason, told

#: Milliseconds in a column, seconds in the document.
_SECONDS = {"visibility_timeout": "visibility_ms", "default_timeout": "timeout_ms"}


def configure(name: str, change: Mapping[str, Any], *, by: str = "", using: str | None = None) -> Queue:
    """Lay a partial configuration over a queue's own; the queue is created if need be.

    `_default` is the template that all queues begin with. Raises `InvalidRequest` that names the field.
    """
    using = database(using)
    check_name(name)
    queueconfig.check(change)
    with atomic(using=using):
        queue, records = _locked(name, using)
        config = queueconfig.merge(document(queue), change)
        _store(queue, config, using)
        data = {"config": config} | ({"updated_by": by} if by else {})
        log.append([*records, catalogue.of_queue("queue.config_updated", name, queue.updated_at, **data)], using)
    return queue


def create(name: str, config: Mapping[str, Any], *, by: str = "", using: str | None = None) -> Queue:
    """Make a new queue. Raises `Conflict` where there is one already, `InvalidRequest` for a bad configuration."""
    using = database(using)
    names_only(name)
    queueconfig.check(config)
    with atomic(using=using):
        queue, records = _locked(name, using)
        if not records:
            raise Conflict(
                told("The queue '%(name)s' exists already.", name=name),
                details={"resource_type": "queue", "resource_id": name},
                hint="Change it with PUT /queues/{name}/config.",
            )
        _store(queue, queueconfig.merge({}, config), using)
        log.append(records, using)
    return queue


def document(queue: Queue) -> dict[str, Any]:
    """The queue's own configuration as the wire shows it."""
    config = dict(queue.config or {})
    for field, column in _SECONDS.items():
        if (ms := getattr(queue, column)) is not None:
            config[field] = ms // 1000 if ms % 1000 == 0 else ms / 1000
    if queue.retry:
        config["default_retry"] = queue.retry
    if queue.draining:
        config["draining"] = True
    return config


def effective(queue: Queue | None, template: Queue | None) -> dict[str, Any]:
    """What holds for a queue: its own document over that of the template."""
    base = document(template) if template else {}
    return queueconfig.merge(base, document(queue)) if queue else base


def check_name(name: str) -> str:
    return name if name == TEMPLATE else names_only(name)


def names_only(name: Any) -> str:
    try:
        return names.check_queue(name)
    except ValueError as error:
        raise fault("name", reason(error), name) from error


def flag_limited(queue_names: Iterable[str], using: str) -> None:
    """Note at these queues whether a claim has to look at limits first; types concern them all."""
    for queue in Queue.objects.using(using).select_for_update().filter(name__in=list(queue_names)).order_by("name"):
        limited = is_limited(queue.name, queue.config or {}, using)
        if limited != queue.limited:
            Queue.objects.using(using).filter(pk=queue.pk).update(limited=limited)


def is_limited(name: str, config: Mapping[str, Any], using: str) -> bool:
    overridden = RateLimit.objects.using(using).exclude(override=RawJSON(""))
    if name == TEMPLATE:
        by_override = overridden.filter(key__startswith="type:").exists()
    else:
        by_override = overridden.filter(key=ratelimit.queue_key(name)).exists()
    return by_override or queueconfig.rate_policy(config).limits


def _locked(name: str, using: str) -> tuple[Queue, list[catalogue.Record]]:
    """The queue's row, locked, and the event of its birth if it was not there."""
    now = clock.now(using)
    defaults = {"created_at": now, "updated_at": now}
    rows = Queue.objects.using(using).select_for_update()
    queue, created = rows.get_or_create(name=name, defaults=defaults)
    return queue, [catalogue.of_queue("queue.created", name, now)] if created else []


def _store(queue: Queue, config: dict[str, Any], using: str) -> None:
    queueconfig.check(config)
    rest = dict(config)
    for field, column in _SECONDS.items():
        seconds = rest.pop(field, None)
        setattr(queue, column, None if seconds is None else int(seconds * 1000))
    queue.retry = rest.pop("default_retry", None)
    queue.draining = bool(rest.pop("draining", False))
    queue.config = rest or None
    queue.limited = is_limited(queue.name, rest, using)
    queue.updated_at = clock.now(using)
    fields = ["visibility_ms", "timeout_ms", "retry", "config", "draining", "limited", "updated_at"]
    queue.save(using=using, update_fields=fields)
    transaction.on_commit(queues.forget, using=using)
