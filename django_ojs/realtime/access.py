"""Decides who may open a WebSocket, and what its caller may subscribe to.

The rules are those of the HTTP binding. The rights of a WebSocket are looked at before the upgrade and while it lasts.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import time
import uuid
from functools import partial
from importlib import import_module
from typing import Any

from django.apps import apps
from django.conf import settings
from django.contrib.auth import SESSION_KEY, get_user, get_user_model
from django.core.handlers.asgi import ASGIRequest
from django.db import router
from django.db.models import Model
from django.http import HttpRequest
from rest_framework.request import Request

from django_ojs import jsontext, keys, tenants
from django_ojs.access import Limits
from django_ojs.backoff import Backoff
from django_ojs.conf import ojs_settings
from django_ojs.errors import NotFound, OJSError, PermissionDenied, Unauthenticated
from django_ojs.guard import get_logger
from django_ojs.http import base, exceptions, media, permissions
from django_ojs.http.authentication import OURS, KeyUser, is_allowed_origin
from django_ojs.models import APIKey, Job, Queue, Ticket
from django_ojs.models.fields import same_name
from django_ojs.realtime.handler import with_plain_query
from django_ojs.realtime.messages import Subscribe
from django_ojs.realtime.slots import client_of
from django_ojs.realtime.sse import in_thread
from django_ojs.rules.ids import new_request_id
from django_ojs.workflows.workflow import keys_of

logger = get_logger(__name__)

Scope = dict[str, Any]
SCOPE_NEEDED = "read"


class Caller:
    """The client that opened a connection, as the request that the rules of the HTTP binding ask about.

    Raises, when made and when renewed, what the HTTP binding answers: `Unauthenticated` or `PermissionDenied`; when
    made first of all `Unsupported`, for a version or an extension that the handshake demands and this server lacks.

    Attributes:
        needs: the scope that the connection takes; '' for one that any caller may open whose credentials are valid.
        operation: the name of the call in a refusal.
    """

    needs = SCOPE_NEEDED
    operation = "events"

    def __init__(self, scope: Scope) -> None:
        tenants.refuse_streams(router.db_for_write(Job))
        request = _request(scope)
        media.check_demands(request._request)
        self._scope = scope
        self._ticket: Ticket | None = None
        self._password = ""  #: of the user behind the ticket: a mark that changes with it
        self.request = self._authenticated(request, first=True)
        _check_origin(scope, self.request)

    @classmethod
    async def of(cls, scope: Scope) -> Caller:
        return await in_thread(lambda: cls(scope))

    @property
    def name(self) -> str:
        """What its connections are counted by."""
        return client_of(self.request, (self._scope.get("client") or ("",))[0])

    @property
    def limits(self) -> Limits:
        """What the caller reaches."""
        return permissions.limits(self.request)

    @property
    def only_jobs(self) -> bool:
        """Whether the caller may read the events of jobs only (`permissions.only_job_events`)."""
        return permissions.only_job_events(self.request)

    async def renew(self) -> bool:
        """Look at the rights again; whether the limits have changed. Callers with the same credentials share a look."""
        before = self.limits, self.only_jobs
        await _renewals.renew(self)
        return (self.limits, self.only_jobs) != before

    async def permit(self, asked: Subscribe) -> None:
        """Narrow what is asked for to what the caller may see. Raises `NotFound` or `PermissionDenied`."""
        for queue in asked.wanted.queues:
            permissions.check_queue(self.request, queue)
        for job_type in asked.wanted.job_types:
            permissions.check_type(self.request, job_type)
        if asked.job is not None:
            await in_thread(partial(self._check_job, asked.job))
        if asked.queue is not None:
            await in_thread(partial(require_queue, asked.queue))
        if asked.workflows:
            known = await in_thread(partial(keys_of, asked.workflows))
            asked.wanted = dataclasses.replace(asked.wanted, workflow_ids=known)
        self.narrow(asked)

    def narrow(self, asked: Subscribe) -> None:
        """Put the limits of the caller into the filter."""
        limits, only_jobs = self.limits, self.only_jobs
        asked.wanted = dataclasses.replace(
            asked.wanted, only_queues=limits.queues, only_types=limits.types, only_jobs=only_jobs
        )

    def _check_job(self, job: uuid.UUID) -> None:
        """The job of a channel must exist and lie within the caller's limits."""
        row = Job.objects.using(router.db_for_write(Job)).filter(pk=job).values("queue", "type").first()
        if row is None:
            raise NotFound.resource("job", str(job))
        permissions.check_row(self.request, row)

    @property
    def credentials(self) -> str | None:
        """The same for connections that stand and fall together; '' for a caller who has none to lose.

        None for a caller whom an authentication class or a middleware of the site has let in. The server cannot tell
        which headers the site goes by, so it looks up the rights of each such connection by itself.
        """
        if self._ticket is not None:
            if self._ticket.key_id is not None:
                return f"key {self._ticket.key_id}"
            marks = self._ticket.user, self._password, self._ticket.session
            return f"user {' '.join(marks)}" if self._ticket.user else ""
        by = self.request.successful_authenticator
        if by is None:
            return ""
        if type(by) not in OURS or "user" in self._scope:
            return None
        headers = [
            f"{name!r}{value!r}" for name, value in self._scope["headers"] if name in (b"authorization", b"cookie")
        ]
        return hashlib.sha256("".join(headers).encode()).hexdigest() if headers else ""

    def reauthenticate(self) -> Request:
        """Authenticate anew. For a thread."""
        return self._authenticated(_request(self._scope))

    def _authenticated(self, request: Request, *, first: bool = False) -> Request:
        given = request.query_params.get("ticket")
        if first and given:
            self._ticket = keys.redeem_ticket(given)
            if self._ticket is None:
                raise Unauthenticated("The ticket is unknown, used up or expired.", hint="Ask for a new one.")
        if self._ticket is not None:
            password = _take_rights(request, self._ticket)
            if first:
                self._password = password
            elif password != self._password:
                raise Unauthenticated("The user behind the ticket has another password by now.")
        if self.needs:
            permissions.require_scope(request, self.needs, operation=self.operation, model="event")
        permissions.only_job_events(request)
        return request


def require_queue(name: str) -> None:
    """Raise `NotFound` for a queue that nothing has used yet; `default` is always there."""
    known = Queue.objects.using(router.db_for_write(Queue)).filter(same_name("name", name))
    if name != "default" and not known.exists():
        raise NotFound.resource("queue", name)


async def answer_handshake(scope: Any, send: Any, error: OJSError) -> None:
    """Refuse a WebSocket with the answer of the HTTP binding, to a server that knows such answers."""
    given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin1")
    request_id = base.sent_id(given) or new_request_id()
    headers = {"Content-Type": media.OPENJOBSPEC, "Cache-Control": "no-store", "X-Request-Id": request_id}
    headers |= base.HEADERS | exceptions.headers_of(error)
    sent = [(name.lower().encode("latin1"), value.encode("latin1")) for name, value in headers.items()]
    await send({"type": "websocket.http.response.start", "status": error.status, "headers": sent})
    body = jsontext.dumps_bytes({"error": error.as_dict(request_id)})
    await send({"type": "websocket.http.response.body", "body": body})


class _Renewals:
    """The looks of the last seconds, by credentials, so that a thousand connections of one key cost one query.

    By hand, because cachetools fixes the age of its entries when a cache is made, and here a setting decides it.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[float, Request]] = {}

    async def renew(self, caller: Caller) -> None:
        credentials = caller.credentials
        if credentials is None:
            caller.request = await in_thread(caller.reauthenticate)
            _looks.worked()
            return
        if not credentials:
            permissions.require_scope(
                caller.request, caller.needs, model="event"
            )  # the site may have closed itself to strangers
            return
        now = time.monotonic()
        patience = ojs_settings.REALTIME_RECHECK_INTERVAL / 2
        self._known = {key: known for key, known in self._known.items() if now - known[0] < patience}
        wanted = credentials, caller.needs
        known = self._known.get(wanted)
        if known is None:
            known = now, await in_thread(caller.reauthenticate)
            self._known[wanted] = known
            _looks.worked()
        caller.request = known[1]

    def forget(self) -> None:
        self._known.clear()


_renewals = _Renewals()
_looks = Backoff("Looking at the rights of connected clients", 1.0, 60.0, logger=logger, brief=True)


def lost_rights(cause: Exception) -> OJSError | None:
    """The refusal that `Caller.renew` has raised. None where the rights could not be looked at, whatever a site's own
    authentication raises, or the database: the client stays until they can."""
    error = exceptions.to_error(cause)
    if error.status in (401, 403):
        return error
    _looks.failed()
    return None


def _request(scope: Scope) -> Request:
    """The handshake as a request of the HTTP binding, with the site's session behind it."""
    secure = scope.get("scheme") in ("wss", "https")
    http = ASGIRequest(
        {**with_plain_query(scope), "type": "http", "method": "GET", "scheme": "https" if secure else "http"},
        io.BytesIO(),
    )
    http.user = _user_in(scope, http) if "user" in scope else _session_user(http)
    authenticators = base.authenticators(tuple(ojs_settings.AUTHENTICATION_CLASSES))
    return Request(http, authenticators=authenticators)


def _user_in(scope: Scope, http: HttpRequest) -> Any:
    """The user whom a middleware of the site has put into the scope, as it is stored now: a connection may last."""
    from django.contrib.auth.models import AnonymousUser

    user = scope["user"]
    if not isinstance(user, Model) or user._state.adding:
        return user
    if SESSION_KEY in (scope.get("session") or ()):
        return _session_user(http)
    return user.__class__._default_manager.filter(pk=user.pk).first() or AnonymousUser()


def _session_user(http: HttpRequest) -> Any:
    from django.contrib.auth.models import AnonymousUser

    cookie = http.COOKIES.get(settings.SESSION_COOKIE_NAME)
    if not cookie or "\0" in cookie or not _has_sessions():
        return AnonymousUser()
    return _user_of_session(http, cookie)


def _user_of_session(http: HttpRequest, key: str) -> Any:
    http.session = import_module(settings.SESSION_ENGINE).SessionStore(key)
    return get_user(http)


def _has_sessions() -> bool:
    """Whether the site has the table that its kind of sessions needs."""
    needs_app = settings.SESSION_ENGINE in [f"django.contrib.sessions.backends.{kind}" for kind in ("db", "cached_db")]
    return not needs_app or apps.is_installed("django.contrib.sessions")


#: A server that asks another store of sessions finds none there, and cannot tell that from one that has ended.
_SESSION_ENDED = (
    "Log in and ask for a new ticket. If the user is still logged in, this server cannot read the session: give it the "
    "SESSION_ENGINE of the server that made the ticket, and the same cache if sessions are in one."
)


def _take_rights(request: Request, ticket: Ticket) -> str:
    """Give the request the rights that the caller who asked for the ticket has now; return what changes with the
    caller's password, as Django's sessions have it."""
    if ticket.key_id is not None:
        key = APIKey.objects.filter(pk=ticket.key_id).first()
        if key is None or keys.status(key) != "active":
            raise Unauthenticated("The API key behind the ticket is no longer valid.")
        request.user, request.auth = KeyUser(key), key
    elif ticket.user:
        user = get_user_model()._default_manager.filter(pk=ticket.user).first()
        if user is None or not user.is_active:
            raise Unauthenticated("The user behind the ticket is no longer valid.")
        if ticket.session and _user_of_session(HttpRequest(), ticket.session) != user:
            raise Unauthenticated("The session behind the ticket has ended.", hint=_SESSION_ENDED)
        request.user = user
        return str(user.get_session_auth_hash()) if hasattr(user, "get_session_auth_hash") else ""
    return ""


def _check_origin(scope: Scope, request: Request) -> None:
    """A page of another site must not use its visitor's cookies, nor reach a server that only the visitor reaches."""
    origin = next((value.decode("latin1") for name, value in scope["headers"] if name == b"origin"), None)
    if origin is None:
        by_cookie = any(name == b"cookie" for name, _ in scope["headers"]) and permissions.api_key(request) is None
        if by_cookie and getattr(request.user, "is_authenticated", False) and "ticket" not in request.query_params:
            raise PermissionDenied("A session needs an Origin header: connect from a page of this site.")
        return
    if not is_allowed_origin(origin, request._request):
        hint = "Add the origin to OJS['REALTIME_ALLOWED_ORIGINS'] if its pages may connect."
        raise PermissionDenied("Pages of this origin may not connect.", details={"reason": "origin"}, hint=hint)
