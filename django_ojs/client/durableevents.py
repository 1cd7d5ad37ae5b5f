"""Emit events, which durable handlers wait for.

emit_event("order.paid", order.pk, {"amount": "12.50"})         # in a view, a signal, a webhook

@job("order.fulfil", durable=True)
def fulfil(context, order_id):
    paid = context.wait_for_event("order.paid", key=order_id, timeout="7d")
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, TypeAlias

from asgiref.sync import sync_to_async

from django_ojs import jsontext
from django_ojs.client.options import check_json
from django_ojs.faults import or_migrate
from django_ojs.messages import shown

if TYPE_CHECKING:
    from django_ojs.rules.durableevents import Emitted

EventKey: TypeAlias = str | int | uuid.UUID


@or_migrate
def emit_event(name: str, key: EventKey = "", payload: Any = None) -> Emitted:
    """Emit an event for the durable jobs that wait for it, now or later (`context.wait_for_event`).

    It is stored in the caller's transaction, if one is open in the database of the jobs. The first event of a name and
    a key counts: another changes nothing, which `is_new` of what is returned says, with the `payload` of the first.

    Args:
        name: what has happened, such as `order.paid`.
        key: what it is about, such as the id of an order.
        payload: any JSON value, which the handlers get.

    Raises InvalidRequest and PayloadTooLarge, and TypeError for a payload that is not JSON.
    """
    from django_ojs.jobs import durableevents  # a models.py may import this module

    return durableevents.emit(name, text_of(key), encode(payload))


async def aemit_event(name: str, key: EventKey = "", payload: Any = None) -> Emitted:
    """`emit_event` from asynchronous code."""
    return await sync_to_async(emit_event)(name, key, payload)


def text_of(key: EventKey) -> str:
    """The key as it is kept. Raises TypeError for what is neither a text, a whole number nor a UUID."""
    if isinstance(key, bool) or not isinstance(key, str | int | uuid.UUID):
        raise TypeError(f"The key of an event is a text, a whole number or a UUID, not {shown(key)}.")
    if isinstance(key, str):
        return str.__str__(key)  # the value of an Enum of texts, not its name
    try:
        return str(key)
    except ValueError:
        raise TypeError("The key of an event is a whole number of fewer digits.") from None


def encode(payload: Any) -> str:
    """A payload as JSON text. Raises TypeError for what is not JSON."""
    check_json(payload, "payload")
    return jsontext.dumps(payload)
