"""API keys: made, found, revoked, and marked as used; and tickets, which stand for a key where a WebSocket is opened.

A key is the text `ojs_` and 256 random bits in hexadecimal. It is shown once, when it is made. The database has its
SHA-256, by which it is found with one indexed read. Random bits need no slow hash.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import hmac
import operator
import re
import secrets
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any

from django.core.exceptions import ValidationError
from django.db import Error, IntegrityError, connections, router, transaction
from django.db.models import Q
from django.db.models.signals import post_delete, post_save
from django.utils.translation import gettext_noop

from django_ojs import clock, tenants
from django_ojs.conf import ojs_settings
from django_ojs.database import atomic
from django_ojs.faults import only_if_taken
from django_ojs.guard import get_logger
from django_ojs.messages import phrase, reason
from django_ojs.models import APIKey, Ticket
from django_ojs.rules import names
from django_ojs.rules.durations import LATEST

logger = get_logger(__name__)

PREFIX = "ojs_"
#: Queues, and job types, to which a key may be limited. A pattern is a condition of its own, and SQLite takes less than
#: a thousand in a row.
MAX_LIMITS = 500
#: Seconds for which a process goes by what it has read of a key. What another process changes, takes effect then: a key
#: that it revokes works for so long here. The query costs more processor time than all else that the binding does
#: before the operation of a PUSH.
TRUST = 0.25
#: How precise `last_used_at` is, and so how often using a key writes.
TOUCH_INTERVAL = dt.timedelta(minutes=1)

_KEY = re.compile(re.escape(PREFIX) + r"[0-9a-f]{64}")
_NAME = re.compile(r"\w(?:[\w.@:/ -]{0,98}\w)?")
#: When this process last tried to write `last_used_at`, by tenant and digest: a database that refuses is not asked
#: again at once.
_tried: dict[tuple[Hashable, str], dt.datetime] = {}
#: What this process has read of keys, and when (by `time.monotonic`), by tenant and digest. Of what is no key it keeps
#: nothing.
_read: dict[tuple[Hashable, str], tuple[float, APIKey]] = {}


def create(
    name: str,
    scopes: Iterable[str],
    queues: Iterable[str] | None = None,
    job_types: Iterable[str] | None = None,
    expires_at: dt.datetime | None = None,
) -> tuple[APIKey, str]:
    """Make a key; returns its row and its text, which cannot be read again.

    No queues or no job types means no limit. Raises ValidationError, with a message per field.
    """
    values: dict[str, Any] = {
        "name": name.strip(),
        "scopes": distinct(scopes),
        "queues": _limit(queues),
        "job_types": _limit(job_types),
        "expires_at": expires_at,
    }
    validate(**values)
    key = APIKey(**values)
    return key, issue(key)


def _limit(entries: Iterable[str] | None) -> list[str] | None:
    """What a key is limited to; None: nothing was given. Blanks alone are no limit, and are refused as one."""
    given = list(entries or ())
    return distinct(given) or given or None


def issue(key: APIKey) -> str:
    """Give a new, validated row its secret and store it; returns the text. ValidationError if the name is taken."""
    text = PREFIX + secrets.token_hex(32)
    key.prefix, key.digest, key.created_at = text[:12], digest(text), _now()
    try:
        with atomic(using=router.db_for_write(APIKey)):
            key.save(force_insert=True)
    except IntegrityError as error:
        only_if_taken(error)
        raise ValidationError({"name": f"There is a key named '{key.name}' already: choose another name."}) from None
    return text


def find(text: str) -> APIKey | None:
    """The key with this text, be it valid, expired or revoked; None if there is no such key.

    Callers share the row, which may be `TRUST` seconds old.
    """
    if not _KEY.fullmatch(text):
        return None
    wanted, now = digest(text), time.monotonic()
    place = _place(wanted)
    known = _read.get(place)
    if known is not None and now - known[0] < TRUST:
        return known[1]
    key = APIKey.objects.filter(digest=wanted).first()
    if key is None or not hmac.compare_digest(key.digest, wanted):
        _read.pop(place, None)
        return None
    _read[place] = now, key
    return key


def _place(digest: str) -> tuple[Hashable, str]:
    return tenants.scope(router.db_for_write(APIKey)), digest


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def revoke(key: APIKey) -> bool:
    """Make `key` useless from now on, in other processes within `TRUST` seconds; False if it was revoked before."""
    now = _now()
    changed = APIKey.objects.filter(pk=key.pk, revoked_at=None).update(revoked_at=now)
    key.refresh_from_db(fields=["revoked_at"])
    _drop(key)
    return bool(changed)


def _drop(key: APIKey) -> None:
    """Read `key` anew where it is used next, and once more after the commit: a thread may have read it in between."""

    place = _place(key.digest)

    def drop() -> None:
        _read.pop(place, None)

    drop()
    transaction.on_commit(drop, using=router.db_for_write(APIKey))


def _changed(*, instance: APIKey, **kwargs: Any) -> None:
    _drop(instance)


post_save.connect(_changed, sender=APIKey, dispatch_uid="django_ojs.keys.save")
post_delete.connect(_changed, sender=APIKey, dispatch_uid="django_ojs.keys.delete")


def _now() -> dt.datetime:
    """The time by which all hosts judge a key: that of the database in which it is."""
    return clock.now(router.db_for_write(APIKey))


def status(key: APIKey) -> str:
    """`active`, `expired` or `revoked`."""
    if key.revoked_at is not None:
        return "revoked"
    return "expired" if key.expires_at is not None and key.expires_at <= _now() else "active"


def touch(key: APIKey) -> None:
    """Note that `key` was used, at most once a minute; gives up at once rather than wait or fail.

    Inside a transaction it happens after the commit, so that requests with one key do not queue for its row.
    """
    now = _now()
    place = _place(key.digest)
    last = max(filter(None, (key.last_used_at, _tried.get(place))), default=None)
    if last is not None and abs(now - last) < TOUCH_INTERVAL:
        return
    _tried[place] = now
    using = router.db_for_write(APIKey)
    transaction.on_commit(lambda: _write_use(key.pk, now, using), using=using)


def forget() -> None:
    """Drop what this process knows of keys: what it has read of them, and which it has seen used."""
    _tried.clear()
    _read.clear()


def _write_use(pk: int, now: dt.datetime, using: str) -> None:
    stale = Q(last_used_at=None) | Q(last_used_at__lte=now - TOUCH_INTERVAL)
    keys = APIKey.objects.using(using).filter(stale, pk=pk)
    try:
        with _impatient(using), atomic(using=using):
            if connections[using].features.has_select_for_update_skip_locked:
                keys = keys.filter(pk__in=list(keys.select_for_update(skip_locked=True).values_list("pk", flat=True)))
            keys.update(last_used_at=now)
    except Error as error:
        logger.warning("Could not note the use of API key %s: %s", pk, error)


@contextlib.contextmanager
def _impatient(using: str) -> Iterator[None]:
    """On SQLite, where a writer locks the whole file: do not wait for the lock."""
    connection = connections[using]
    if connection.vendor != "sqlite":
        yield
        return
    with connection.cursor() as cursor:
        patience = cursor.execute("PRAGMA busy_timeout").fetchone()[0]
        cursor.execute("PRAGMA busy_timeout = 0")
        try:
            yield
        finally:
            cursor.execute(f"PRAGMA busy_timeout = {int(patience)}")


def validate(
    name: str,
    scopes: Sequence[str],
    queues: Sequence[str] | None = None,
    job_types: Sequence[str] | None = None,
    expires_at: dt.datetime | None = None,
) -> None:
    """Raise ValidationError with every reason, per field, why there cannot be such a key."""
    faults: dict[str, list[str]] = {
        "name": [] if _NAME.fullmatch(name) else [_BAD_NAME],
        "scopes": list(_scope_faults(scopes)),
        "queues": list(_faults(_BAD_QUEUE, names.check_queue, queues)),
        "job_types": list(_faults(_BAD_TYPE, _check_pattern, job_types)),
        "expires_at": [] if expires_at is None else list(_time_faults(expires_at)),
    }
    if any(faults.values()):
        raise ValidationError({field: messages for field, messages in faults.items() if messages})


def _time_faults(expires_at: dt.datetime) -> Iterator[str]:
    if expires_at <= _now():
        yield _PAST
    elif expires_at > LATEST:
        yield phrase("That is too late: choose a year before 9999, or none.")


def _scope_faults(scopes: Sequence[str]) -> Iterator[str]:
    known = ", ".join(APIKey.Scope.values)
    if not scopes:
        yield f"Give the key at least one scope of: {known}."
    for scope in scopes:
        if scope not in APIKey.Scope.values:
            yield f"'{scope}' is no scope: choose from {known}."


def _faults(template: str, check: Callable[[str], str], entries: Sequence[str] | None) -> Iterator[str]:
    if len(entries or ()) > MAX_LIMITS:
        yield phrase("There are more than %(most)s: make several keys.", most=MAX_LIMITS)
        return
    for entry in entries or ():
        try:
            check(entry)
        except ValueError as error:
            yield phrase(template, entry=entry, problem=reason(error))


def _check_pattern(entry: str) -> str:
    """`entry` if it is a job type, or one with `.*` for everything below it."""
    return names.check_type(entry.removesuffix(".*"), hyphens=ojs_settings.DIALECT == "published")


def distinct(items: Iterable[str]) -> list[str]:
    """`items` without blanks and repetitions, in their order."""
    return list(dict.fromkeys(item.strip() for item in items if item.strip()))


_BAD_NAME = phrase(
    "A name has 1 to 100 letters, digits, spaces and _ . - @ : / and begins and ends with a letter or digit."
)
_BAD_QUEUE = gettext_noop("'%(entry)s' is no queue name: it %(problem)s.")
_BAD_TYPE = gettext_noop("'%(entry)s' is no job type: it %(problem)s.")
_PAST = phrase("This is in the past: choose a later time, or none for a key that does not expire.")


# Tickets for WebSockets: made by an authenticated request, used once within seconds (events 3.5).
#
# A browser cannot send `Authorization` with a WebSocket, and a key does not belong into a URL, where logs keep it.


TICKET_PREFIX = "tkt_"
#: Bytes. Of a longer key of a session nothing is stored: it is the session itself, which stands in the cookie alone.
MAX_SESSION = 100


def issue_ticket(key: APIKey | None, user: Any, session: str = "") -> tuple[str, dt.datetime]:
    """A ticket with the rights of this key, or else of this user (None: an anonymous caller); and when it expires.

    `session` is the key of the session with which the user asks; '': none.
    """
    using = router.db_for_write(Ticket)
    now = clock.now(using)
    expires_at = now + dt.timedelta(seconds=ojs_settings.REALTIME_TICKET_TTL)
    text = TICKET_PREFIX + secrets.token_urlsafe(32)
    tickets = Ticket.objects.using(using)
    tickets.filter(expires_at__lt=now).delete()
    tickets.create(
        digest=digest(text), key=key, user="" if user is None else str(user.pk), expires_at=expires_at,
        session=_veiled(session.encode(), text).hex() if len(session.encode()) <= MAX_SESSION else "",
    )  # fmt: skip
    return text, expires_at


def redeem_ticket(text: str) -> Ticket | None:
    """Use the ticket up; None if there is none, or if it was used before or has expired. Its `session` is the key."""
    tickets = Ticket.objects.using(router.db_for_write(Ticket)).filter(pk=digest(text))
    ticket = tickets.select_related("key").first()
    if ticket is None or not tickets.delete()[0]:  # of several that try one deletes it
        return None
    ticket.session = _veiled(bytes.fromhex(ticket.session), text).decode()
    return ticket if ticket.expires_at > clock.now(router.db_for_write(Ticket)) else None


def _veiled(content: bytes, ticket: str) -> bytes:
    """A text that says nothing without the ticket, of which only a digest is stored; and with it the text again."""
    return bytes(map(operator.xor, content, hashlib.shake_256(ticket.encode()).digest(len(content))))
