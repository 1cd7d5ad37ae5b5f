"""Webhook subscriptions: create, change, switch, rotate and delete them (events 6.1, 6.2), and mail their owners.

`read_definition` checks what a client wrote, member by member. Secrets are stored encrypted with keys made of
SECRET_KEY and its fallbacks, because signing needs them back.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import re
import secrets
import uuid
import zlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.mail import EmailMessage
from django.db.models import Count, Min, Q
from django.utils.crypto import salted_hmac

from django_ojs import clock, jsontext, spellings, webhooks
from django_ojs.access import Limits
from django_ojs.conf import ojs_settings
from django_ojs.database import atomic, database
from django_ojs.errors import Conflict, NotFound, OJSError, Unsupported
from django_ojs.events import catalogue, log
from django_ojs.events.filters import NARROWING
from django_ojs.messages import phrase, reason
from django_ojs.models import WebhookDelivery, WebhookSubscription
from django_ojs.models.job import UniqueLock
from django_ojs.rules import names
from django_ojs.rules.faults import fault, known_only
from django_ojs.store import store_of
from django_ojs.webhooks import addresses
from django_ojs.webhooks.addresses import AddressRefused
from django_ojs.webhooks.transport import FORMATS, SignatureFormat

if TYPE_CHECKING:
    from cryptography.fernet import MultiFernet


#: How long the secret before the current one still signs (events 6.3).
OVERLAP = dt.timedelta(hours=24)
#: Two callers who subscribe take turns by this lock.
_TURN = zlib.crc32(b"webhook subscriptions") % UniqueLock.STRIPES
#: What is shown in place of the value of a custom header.
HIDDEN = "***"
#: What is stored in the row as it was read: a new field of a subscription is named here, or handled beside it.
_PLAIN = (
    "url", "events", "queues", "job_types", "metadata", "timeout_seconds", "signature_format",
)  # fmt: skip


def create(
    definition: SubscriptionDefinition, *, by: str = "", limited: bool = False, using: str | None = None
) -> tuple[WebhookSubscription, str]:
    """Store a subscription; returns it and its secret, which nothing will show again.

    `limited`: the caller who defines it may see its queues and job types only, and may have as many subscriptions as
    are left for others. Raises `Conflict` when there are `WEBHOOK_MAX_SUBSCRIPTIONS`, `Unsupported` where a package is
    missing.
    """
    using = database(using)
    now = clock.now(using)
    secret = definition.secret or new_secret()
    subscription = WebhookSubscription(
        created_by=by, limited=limited, active=definition.active, active_since=now if definition.active else None,
        secret=seal(secret), headers=_sealed(definition.headers), created_at=now, updated_at=now,
        **{name: getattr(definition, name) for name in _PLAIN},
    )  # fmt: skip
    store = store_of(using)
    with atomic(using=using):
        store.begin_writing()
        store.lock_stripes([_TURN])
        _check_room(by, limited, using)
        subscription.save(using=using, force_insert=True)
        _record("created", subscription, now, using, by=by, events=subscription.events)
    return subscription, secret


def _check_room(by: str, limited: bool, using: str) -> None:
    """Raise Conflict where there may be no further subscription of this caller."""
    rows, most = WebhookSubscription.objects.using(using), ojs_settings.WEBHOOK_MAX_SUBSCRIPTIONS
    hint = "Delete one that is no longer needed, or raise OJS['WEBHOOK_MAX_SUBSCRIPTIONS']."
    free = most - rows.count()
    if free <= 0:
        said = phrase("There are %(most)s webhook subscriptions, as many as there may be.", most=most)
        raise Conflict(said, hint=hint)
    if limited and (own := rows.filter(created_by=by, limited=True).count()) >= free:
        said = phrase(
            "This caller has %(own)s webhook subscriptions, and as few as %(free)s are left for others.",
            own=own, free=free,
        )  # fmt: skip
        raise Conflict(said, hint=hint)


def get(pk: uuid.UUID, *, using: str | None = None) -> WebhookSubscription:
    """Raises `NotFound`."""
    found = WebhookSubscription.objects.using(database(using)).filter(pk=pk).first()
    if found is None:
        raise not_found(pk)
    return found


def update(
    pk: uuid.UUID,
    definition: SubscriptionDefinition,
    *,
    by: str = "",
    limited: bool | None = None,
    using: str | None = None,
) -> WebhookSubscription:
    """Change what the definition names. A new secret begins an overlap, as in `rotate`. Raises `NotFound`, and
    `InvalidRequest` for a URL of another server without new values for the headers.

    Switched on again, it gets the events from now on; what happened in between is not made up for. A limited one does
    not get those any more, of deliveries still to come, that a new filter does not let through.
    """
    using = database(using)
    with atomic(using=using):
        subscription = lock(pk, using)
        now = clock.now(using)
        check_kept_headers(subscription, definition)
        for name in _PLAIN:
            if name in definition.given:
                setattr(subscription, name, getattr(definition, name))
        if "headers" in definition.given:
            subscription.headers = _sealed(_merged(definition.headers, headers_of(subscription)))
        if "secret" in definition.given:
            _change_secret(subscription, definition.secret, now)
        if "active" in definition.given:
            _switch(subscription, definition.active, now)
        if limited is not None:
            subscription.limited = limited
        _touch(subscription, now)
        subscription.save(using=using, force_update=True)
        if subscription.limited and not definition.given.isdisjoint(_FILTER):
            _cancel_beyond(subscription, now, using)
        if definition.given:
            _record("updated", subscription, now, using, by=by, active=subscription.active)
    return subscription


def set_active(pk: uuid.UUID, active: bool, *, by: str = "", using: str | None = None) -> WebhookSubscription:
    """Pause or resume; twice is no error. Deliveries that wait stay, and are sent when it is resumed."""
    return update(pk, SubscriptionDefinition(frozenset({"active"}), active=active), by=by, using=using)


def rotate(pk: uuid.UUID, secret: str = "", *, by: str = "", using: str | None = None) -> tuple[Any, str]:
    """Give a subscription a new secret; the old one signs beside it for 24 hours. Raises `NotFound`."""
    fresh = secret or new_secret()
    return update(pk, SubscriptionDefinition(frozenset({"secret"}), secret=fresh), by=by, using=using), fresh


def delete(pk: uuid.UUID, *, by: str = "", using: str | None = None) -> WebhookSubscription:
    """Forget a subscription and the deliveries that it still had coming; those that ended stay for the record."""
    using = database(using)
    with atomic(using=using):
        subscription = lock(pk, using)
        waiting = WebhookDelivery.objects.using(using).filter(subscription_id=pk, status__in=WebhookDelivery.OPEN)
        cancelled = waiting.count()
        waiting._raw_delete(using)
        WebhookSubscription.objects.using(using).filter(pk=pk)._raw_delete(using)
        _record("deleted", subscription, clock.now(using), using, by=by, cancelled_deliveries=cancelled)
    return subscription


def _cancel_beyond(subscription: WebhookSubscription, now: dt.datetime, using: str) -> None:
    """Forget the deliveries still to come that the new filter would not have let through: who may change a subscription
    within its limits may also give it another URL. Of rows of before it is not known."""
    reach = Limits(*(tuple(found) if found else None for found in (subscription.queues, subscription.job_types)))
    if reach.unlimited:
        return
    rows = WebhookDelivery.objects.using(using)
    waiting = rows.filter(subscription_id=subscription.pk, status__in=WebhookDelivery.OPEN)
    waiting.exclude(queue="", type="").exclude(reach.condition())._raw_delete(using)
    of_subjects = waiting.values("subject").annotate(first=Min("id"), due=Count("pk", filter=Q(held=False)))
    if firsts := list(of_subjects.filter(due=0).values_list("first", flat=True)):
        rows.filter(pk__in=firsts).update(held=False, next_attempt_at=now)


def lock(pk: uuid.UUID, using: str) -> WebhookSubscription:
    """The subscription, locked until the end of the transaction. Raises `NotFound`."""
    rows = WebhookSubscription.objects.using(using).filter(pk=pk)
    found = rows.select_for_update().first()
    if found is None:
        raise not_found(pk)
    store_of(using).certify(rows)
    return found


def not_found(pk: uuid.UUID | str) -> NotFound:
    text = f"sub_{pk}" if isinstance(pk, uuid.UUID) else pk
    return NotFound.resource("webhook_subscription", text)


def shown_headers(subscription: WebhookSubscription) -> dict[str, str]:
    """The custom headers of a subscription as they are shown: they may hold credentials, so only their names."""
    return dict.fromkeys(headers_of(subscription), HIDDEN)


def headers_of(subscription: WebhookSubscription) -> dict[str, str]:
    """The custom headers with their values. Raises `UnreadableSecret`."""
    return jsontext.loads(unseal(subscription.headers)) if subscription.headers else {}


def signing_keys(subscription: WebhookSubscription, now: dt.datetime) -> list[str]:
    """The secrets that sign now, new first. Raises `UnreadableSecret`."""
    keys = [unseal(subscription.secret)]
    ends = subscription.previous_secret_expires_at
    if ends is not None and now < ends:
        keys.append(unseal(subscription.previous_secret))
    return keys


def disable(subscription: WebhookSubscription, reason: str, now: dt.datetime, using: str) -> None:
    """Switch off, for a reason that every caller sees; the caller holds the row's lock and saves it."""
    subscription.active, subscription.disabled_reason = False, reason
    _touch(subscription, now)
    _record("disabled", subscription, now, using, reason=reason)


def _switch(subscription: WebhookSubscription, active: bool, now: dt.datetime) -> None:
    if active and not subscription.active:
        subscription.active_since, subscription.failing_since, subscription.disabled_reason = now, None, ""
    subscription.active = active


def _change_secret(subscription: WebhookSubscription, secret: str, now: dt.datetime) -> None:
    subscription.previous_secret = subscription.secret
    subscription.previous_secret_expires_at = now + OVERLAP
    subscription.secret = seal(secret)


def _touch(subscription: WebhookSubscription, now: dt.datetime) -> None:
    subscription.updated_at = max(now, subscription.updated_at + dt.timedelta(microseconds=1))


def _sealed(headers: dict[str, str]) -> str:
    return seal(jsontext.dumps(headers)) if headers else ""


def _merged(given: dict[str, str], stored: dict[str, str]) -> dict[str, str]:
    """A value that comes back as it was shown stays what it is."""
    return {name: stored.get(name, value) if value == HIDDEN else value for name, value in given.items()}


def check_kept_headers(subscription: WebhookSubscription, definition: SubscriptionDefinition) -> None:
    """Refuse a URL of another server for stored headers. They may hold credentials for the old server, and the caller
    cannot read them. So the caller has to send new values, or `{}`."""
    if not subscription.headers or "url" not in definition.given:
        return
    if urlsplit(definition.url)[:2] == urlsplit(subscription.url)[:2]:
        return
    if "headers" not in definition.given or HIDDEN in definition.headers.values():
        problem = phrase("must have new values, or be {}, since the URL leads to another server")
        raise fault("headers", problem)


def _record(what: str, subscription: WebhookSubscription, now: dt.datetime, using: str, **data: Any) -> None:
    """The event of a change. It names neither the URL, which may hold a token, nor any secret."""
    by = data.pop("by", "")
    facts = {"subscription_id": subscription.public_id, **data} | ({"by": by} if by else {})
    log.append([catalogue.of_webhook(f"webhook.subscription.{what}", subscription.public_id, now, **facts)], using)


def mail_to_owner(subscription: WebhookSubscription) -> EmailMessage | None:
    """A mail to the user who made the subscription; None where an API key did, or the user has no address."""
    kind, _, name = subscription.created_by.partition(":")
    if kind != "user":
        return None
    model: Any = get_user_model()
    user = model._default_manager.filter(**{model.USERNAME_FIELD: name}).first()
    address = getattr(user, model.get_email_field_name(), "") if user is not None and user.is_active else ""
    if not address:
        return None
    text = (
        f"The webhook {subscription.public_id} of {ojs_settings.SERVICE_NAME} was switched off.\n\n"
        f"{subscription.disabled_reason}\n\n"
        "Events that happen until it is switched on again are not sent to it. Deliveries that were waiting are kept.\n"
    )
    return EmailMessage(f"[{ojs_settings.SERVICE_NAME}] A webhook was switched off", text, to=[address])


MAX_EVENTS, MAX_FILTERS, MAX_HEADERS = 100, 1000, 20
MAX_SECRET, MAX_HEADER, MAX_METADATA = 512, 4096, 16_384
MIN_TIMEOUT, MAX_TIMEOUT = 5, 60

_EVENT = re.compile(r"\*|[a-z_]+(?:\.[a-z_]+)*(?:\.\*)?")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")
_HEADER_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
#: Headers that are ours, or that would change what HTTP makes of the request.
_OURS = frozenset({
    "host", "content-type", "content-length", "content-encoding", "transfer-encoding", "connection", "expect", "te",
    "trailer", "upgrade", "keep-alive", "proxy-authorization", "proxy-connection", "user-agent", "accept-encoding",
})  # fmt: skip


class UrlRefused(OJSError):
    """The URL of a webhook breaks the site's policy (422)."""

    code = "invalid_url"
    status = 422
    canonical = "INVALID_PAYLOAD"
    kind = "validation_error"
    hint = "Use a public https URL, or ask the operator of this server to let the host in."


@dataclasses.dataclass
class SubscriptionDefinition:
    """What the body says; members that it does not name are not in `given`."""

    given: frozenset[str]
    url: str = ""
    events: list[str] = dataclasses.field(default_factory=list)
    active: bool = True
    secret: str = ""
    queues: list[str] | None = None
    job_types: list[str] | None = None
    metadata: dict[str, Any] = dataclasses.field(default_factory=dict)
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    timeout_seconds: int | None = None
    signature_format: SignatureFormat = "body"


def read_definition(body: Mapping[str, Any], *, partial: bool = False) -> SubscriptionDefinition:
    """Raises InvalidRequest that names the member, or `UrlRefused`. `partial`: what is absent stays as it is."""
    flat = _flat(body)
    if not partial:
        for name in ("url", "events"):
            if flat.get(name) is None:
                raise fault(name, phrase("is required"))
    values: dict[str, Any] = {}
    written = spellings.as_named({"filter": spellings.SUBSCRIPTION.name_in(flat, "filter")})
    if partial and flat.keys().isdisjoint(_READERS):  # {"enabled": false} would be taken for a pause
        known_only(flat, _READERS)
    for name, read in _READERS.items():
        if flat.get(name) is not None:
            with spellings.as_written(written):
                values[name] = read(flat[name])
        elif name in flat and name in _CLEARABLE:
            values[name] = _CLEARABLE[name]()
    return SubscriptionDefinition(frozenset(values), **values)


def check_url(value: Any) -> str:
    if not isinstance(value, str):
        raise fault("url", phrase("must be an absolute https URL"), value)
    try:
        addresses.parse_url(value)
    except addresses.Malformed as error:
        raise fault("url", reason(error), value) from error
    except AddressRefused as error:
        raise UrlRefused(
            phrase("%(field)s: %(problem)s.", field="url", problem=reason(error)),
            details={"field": "url", "reason": str(error)},
        ) from error
    return value


#: What the filter of a subscription may have.
_FILTER = ("queues", "job_types")


def _flat(body: Mapping[str, Any]) -> dict[str, Any]:
    """The members with those of `filter` and of a `subscription` wrapper beside them; flat ones beat the wrapper."""
    inner = body.get("subscription")
    flat = {**inner, **body} if isinstance(inner, Mapping) else dict(body)
    written = spellings.SUBSCRIPTION.name_in(flat, "filter")
    given = flat.get(written)
    if given is not None and not isinstance(given, Mapping):
        raise fault(written, phrase("must be an object"), given)
    known_only((name for name, value in (given or {}).items() if value is not None), _FILTER, written)
    others = (name for name in NARROWING if flat.get(name) and flat[name] != given)
    known_only(others, ("events", written, *_FILTER))
    if any(member in flat for member in spellings.SUBSCRIPTION.names("filter")):  # a filter is replaced as a whole
        for name in _FILTER:
            if flat.get(name) is not None:  # passed over, it would let out what it was to keep in
                raise fault(name, phrase("belongs into %(member)s", member=written))
            flat[name] = (given or {}).get(name)
    return flat


def _events(value: Any) -> list[str]:
    found = _texts("events", value, MAX_EVENTS)
    if not found:
        raise fault("events", phrase("must be an array of at least one event type"), value)
    for name in found:
        if len(name) > 64 or not _EVENT.fullmatch(name):
            raise fault("events", phrase("must hold event types such as job.completed, job.* or *"), name)
    return found


def _queues(value: Any) -> list[str] | None:
    return _names("filter.queues", value, names.check_queue)


def _job_types(value: Any) -> list[str] | None:
    """Exact types, and `mail.*` for all below `mail`."""
    return _names(
        "filter.job_types", value, lambda entry: names.check_type(str(entry).removesuffix(".*"), hyphens=True)
    )


def _names(field: str, value: Any, check: Callable[[str], str]) -> list[str] | None:
    found = _texts(field, value, MAX_FILTERS)
    for name in found:
        try:
            check(name)
        except ValueError as error:
            raise fault(field, phrase("each entry %(problem)s", problem=reason(error)), name) from error
    return found or None


def _texts(field: str, value: Any, maximum: int) -> list[str]:
    if not isinstance(value, list) or len(value) > maximum or not all(isinstance(item, str) for item in value):
        raise fault(field, phrase("must be an array of at most %(most)s texts", most=maximum), value)
    return list(dict.fromkeys(value))


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise fault("active", phrase("must be true or false"), value)
    return value


def check_secret(value: Any) -> str:
    """Any text that can be a key; what was sent is not repeated in the error."""
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_SECRET or not value.isprintable():
        raise fault("secret", phrase("must be a printable text of 1 to %(most)s characters", most=MAX_SECRET))
    return value


def _metadata(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or jsontext.byte_length(jsontext.dumps(value)) > MAX_METADATA:
        raise fault("metadata", phrase("must be an object of at most %(most)s bytes", most=MAX_METADATA), value)
    return value


def _headers(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or len(value) > MAX_HEADERS:
        raise fault("headers", phrase("must be an object of at most %(most)s headers", most=MAX_HEADERS), value)
    for name, text in value.items():
        lower = name.lower()
        if not _HEADER.fullmatch(name) or lower in _OURS or lower.startswith("x-ojs-"):
            raise fault("headers", phrase("must name headers of your own, none that HTTP or this server sets"), name)
        if not isinstance(text, str) or len(text) > MAX_HEADER or not _HEADER_VALUE.fullmatch(text):
            raise fault(
                "headers",
                phrase(
                    "the value of %(name)s must be at most %(max_header)s visible ASCII characters",
                    name=name,
                    max_header=MAX_HEADER,
                ),
            )
    if len({name.lower() for name in value}) < len(value):
        raise fault("headers", phrase("must name each header once"))
    return dict(value)


def _timeout(value: Any) -> int:
    if not jsontext.is_integer(value) or not MIN_TIMEOUT <= value <= MAX_TIMEOUT:
        raise fault(
            "timeout_seconds",
            phrase("must be an integer from %(minimum)s to %(maximum)s", minimum=MIN_TIMEOUT, maximum=MAX_TIMEOUT),
            value,
        )
    return int(value)


def _format(value: Any) -> SignatureFormat:
    if value not in FORMATS:
        raise fault("signature_format", phrase("must be one of %(words)s", words=", ".join(FORMATS)), value)
    return "body" if value == "body" else "timestamp.body"


_READERS: dict[str, Callable[[Any], Any]] = {
    "url": check_url, "events": _events, "active": _flag, "secret": check_secret, "queues": _queues,
    "job_types": _job_types, "metadata": _metadata, "headers": _headers, "timeout_seconds": _timeout,
    "signature_format": _format,
}  # fmt: skip
#: What null means for a member that may be cleared.
_CLEARABLE: dict[str, Callable[[], Any]] = {
    "queues": lambda: None, "job_types": lambda: None, "metadata": dict, "headers": dict,
    "timeout_seconds": lambda: None,
}  # fmt: skip


#: Part of the key of every stored secret: it never changes, whatever this module is called.
_PURPOSE = "django_ojs.webhooks.sealing"


class UnreadableSecret(ValueError):
    """The text was sealed under a SECRET_KEY that is no longer among the site's."""


def new_secret() -> str:
    """256 random bits, with the prefix that receivers' libraries know."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()


def seal(text: str) -> str:
    """`text` encrypted and authenticated under the site's current key; '' stays ''."""
    return _box().encrypt(text.encode("utf-8", "surrogatepass")).decode() if text else ""


def unseal(sealed: str) -> str:
    """What `seal` was given. Raises Unreadable."""
    if not sealed:
        return ""
    box = _box()
    from cryptography.fernet import InvalidToken

    try:
        return box.decrypt(sealed.encode()).decode("utf-8", "surrogatepass")
    except InvalidToken as error:
        raise UnreadableSecret(
            "The secret was stored under another SECRET_KEY: put that into SECRET_KEY_FALLBACKS, or rotate the secret."
        ) from error


def _box() -> MultiFernet:
    if webhooks.missing():
        raise Unsupported(
            phrase(
                "Webhooks need %(missing)s, which this server does not have.", missing=" and ".join(webhooks.missing())
            ),
            hint=webhooks.HINT,
        )
    return _box_of((settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS))


@lru_cache(maxsize=4)
def _box_of(keys: tuple[str | bytes, ...]) -> MultiFernet:
    from cryptography.fernet import Fernet, MultiFernet

    derived = (salted_hmac(_PURPOSE, "", secret=key, algorithm="sha256").digest() for key in keys)
    return MultiFernet([Fernet(base64.urlsafe_b64encode(key)) for key in derived])
