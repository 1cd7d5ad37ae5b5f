"""What the caller may do: scopes, and a key's limits to queues and job types.

A view says `required_scope = "push"`, or `scopes = {"GET": "read", "POST": "push"}`; `None` opens it to all.
A view that says nothing needs `admin`. Where `rights = {"POST": "change_job"}` names a permission on a model too,
that is what a user needs, staff or not, as in Django's admin: looking, operating and deleting are apart.

Three kinds of callers meet it:

* an API key has its scopes (`admin` has all) and may be limited to queues and to job types;
* a user, from a session or from an authentication class of the site, has every scope if staff, and otherwise
  those for which Django grants `django_ojs.ojs_push`, `ojs_work`, `ojs_read` or `ojs_admin`, which has all rights;
* a caller without credentials has every scope if the site allows it (`ALLOW_ANONYMOUS`, or DEBUG) and none if not.

A job outside the limits of a key answers 403, not 404: its id is known to the caller, and the reason helps. A caller
without limits, which is the rule, costs no statement.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from django.db import router
from django.db.models import Q
from django.http import HttpRequest
from rest_framework.exceptions import APIException
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.views import APIView

from django_ojs.conf import ojs_settings
from django_ojs.database import look_at_health
from django_ojs.errors import InvalidPayload, OJSError, PermissionDenied, Unauthenticated
from django_ojs.jobs.selection import allowed
from django_ojs.models import APIKey, Job
from django_ojs.rules import attributes, names
from django_ojs.rules.attributes import Source
from django_ojs.rules.faults import shorten
from django_ojs.states import State

ADMIN = APIKey.Scope.ADMIN.value
_UNSET = object()
#: In the routes of all paths about one queue.
_QUEUE_PATH = "queues/<str:name>"


class ScopePermission(BasePermission):
    """Lets a request pass whose caller has the scope that the view asks for; raises 401 or 403 otherwise."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        scope = scope_of(request, view)
        if scope is not None:
            method = "GET" if request.method == "HEAD" else request.method or "GET"
            right = getattr(view, "rights", {}).get(method, "")
            require_scope(request, scope, operation=getattr(view, "operation", ""), right=right)
        return True


def scope_of(request: Request, view: APIView) -> str | None:
    """The scope this request needs; None for a public view and for a method the view does not have (405)."""
    method = request.method or "GET"
    if not hasattr(view, method.lower()) and method != "HEAD":
        return None
    by_method: dict[str, str | None] | None = getattr(view, "scopes", None)
    if by_method is not None:
        return by_method.get(method, by_method.get("GET", ADMIN) if method == "HEAD" else ADMIN)
    scope: Any = getattr(view, "required_scope", _UNSET)
    return ADMIN if scope is _UNSET else scope


def require_scope(request: Request, scope: str, *, operation: str = "", right: str = "") -> None:
    """Raise Unauthenticated (the caller is not known) or PermissionDenied (the caller lacks `scope`)."""
    key = api_key(request)
    user: Any = request.user
    if key is not None:
        allowed = not {scope, ADMIN}.isdisjoint(key.scopes or ())
    elif user is not None and user.is_authenticated:
        allowed = ojs_settings.anonymous_allowed or (
            user_has_right(user, right) if right else user_has_scope(user, scope)
        )
    elif ojs_settings.anonymous_allowed:
        allowed = True
    else:
        raise Unauthenticated(
            "This call needs credentials and the request has none.",
            headers={"WWW-Authenticate": _challenge(request)},
        )
    if not allowed:
        facts = {"required_permission": f"django_ojs.{right}"} if right and key is None else {}
        message = f"This call needs the {'permission' if facts else 'scope'} '{right if facts else scope}'."
        raise _denied(
            request, message, operation, required_scope=scope, required_role=scope, **_queue_asked(request), **facts
        )


def user_has_scope(user: Any, scope: str) -> bool:
    """Whether this Django user may do what `scope` names."""
    if getattr(user, "is_active", False) and getattr(user, "is_staff", False):
        return True
    has_perm = getattr(user, "has_perm", None)
    return has_perm is not None and any(has_perm(f"django_ojs.ojs_{name}") for name in {scope, ADMIN})


def user_has_right(user: Any, right: str) -> bool:
    """Whether this Django user has a permission on one of our models, such as `change_job`, or may do everything."""
    has_perm = getattr(user, "has_perm", None)
    return has_perm is not None and any(has_perm(f"django_ojs.{name}") for name in (right, "ojs_admin"))


def check_queue(request: Request, queues: str | Iterable[str]) -> None:
    """Raise PermissionDenied if the caller's key is limited to other queues than these."""
    limit = queue_limit(request)
    if limit is None:
        return
    for queue in [queues] if isinstance(queues, str) else queues:
        if queue not in limit:
            raise _denied(request, f"This API key may not use the queue '{queue}'.", queue=queue)


def check_type(request: Request, job_type: str, *, queue: str = "") -> None:
    """Raise PermissionDenied if the caller's key is limited to other job types than this; `queue` for its details."""
    limit = type_limit(request)
    if limit is not None and not any(names.covers(entry, job_type) for entry in limit):
        facts = {"job_type": job_type} | ({"queue": queue} if queue else {})
        raise _denied(request, f"This API key may not use the job type '{job_type}'.", **facts)


def queue_limit(request: Request) -> tuple[str, ...] | None:
    """The queues the caller may use and see; None: all."""
    key = api_key(request)
    return tuple(key.queues) if key is not None and key.queues else None


def type_limit(request: Request) -> tuple[str, ...] | None:
    """The job types the caller may use, with `mail.*` for all below `mail`; None: all."""
    key = api_key(request)
    return tuple(key.job_types) if key is not None and key.job_types else None


def is_limited(request: Request) -> bool:
    """Whether the caller's key is limited to queues or to job types."""
    key = api_key(request)
    return key is not None and bool(key.queues or key.job_types)


def check_documents(request: Request, documents: Iterable[Any]) -> None:
    """Raise PermissionDenied if a job to be pushed lies outside the caller's limits.

    Malformed documents pass: PUSH says what is wrong with them.
    """
    if not is_limited(request):
        return
    for document in documents:
        try:
            source = Source(document if isinstance(document, dict) else {})
            queue, job_type = attributes.queue(source), attributes.job_type(source, {}, hyphens=True)
        except InvalidPayload:
            continue
        check_queue(request, queue)
        check_type(request, job_type, queue=queue)


def check_jobs(request: Request, ids: Collection[uuid.UUID]) -> None:
    """Raise PermissionDenied if one of these jobs lies outside the caller's limits."""
    if ids and is_limited(request):
        _check_all(request, Q(pk__in=ids))


def check_held(request: Request, worker_id: str) -> None:
    """Raise PermissionDenied if this worker holds a job outside the caller's limits."""
    if is_limited(request):
        _check_all(request, Q(worker_id=worker_id, state=State.ACTIVE))


def check_row(request: Request, row: Mapping[str, Any]) -> None:
    """Raise PermissionDenied if the `queue` or the `type` of this row lies outside the caller's limits."""
    if is_limited(request):
        check_queue(request, row["queue"])
        check_type(request, row["type"], queue=row["queue"])


def visible(request: Request) -> Q:
    """The jobs that a list may show to the caller."""
    return allowed(queue_limit(request), type_limit(request))


def queues_to_read(request: Request, wanted: Sequence[str]) -> Sequence[str]:
    """The queues a read is narrowed to: those asked for, if allowed, else those of the key; none means all."""
    if wanted:
        check_queue(request, wanted)
        return wanted
    return queue_limit(request) or ()


def api_key(request: Request | HttpRequest) -> APIKey | None:
    """The key with which the caller proved who it is, if it used one."""
    auth = getattr(request, "auth", None)
    return auth if isinstance(auth, APIKey) else None


def principal(request: Request | HttpRequest) -> str:
    """Who is calling, for logs and records: `key:NAME`, `user:NAME` or `anonymous`. Never raises."""
    try:
        key, user = api_key(request), getattr(request, "user", None)
    except (OJSError, APIException):  # the credentials were refused
        return "anonymous"
    if key is not None:
        return f"key:{key.name}"
    if user is not None and user.is_authenticated:
        return f"user:{user.get_username() if hasattr(user, 'get_username') else user}"
    return "anonymous"


def _check_all(request: Request, condition: Q) -> None:
    using = router.db_for_write(Job)
    look_at_health(using)
    jobs = Job.objects.using(using).filter(condition).order_by()
    for queue, job_type in jobs.values_list("queue", "type").distinct():
        check_queue(request, queue)
        check_type(request, job_type, queue=queue)


def _queue_asked(request: Request) -> dict[str, str]:
    """The queue in the request's path, if it has one, as a member of an error's details."""
    match = getattr(request, "resolver_match", None)
    return {"queue": shorten(match.kwargs["name"])} if match is not None and _QUEUE_PATH in match.route else {}


def _challenge(request: Request) -> str:
    """What WWW-Authenticate says: the schemes of the view's authentication classes."""
    makers = [getattr(authenticator, "authenticate_header", None) for authenticator in request.authenticators or ()]
    offers = [make(request) for make in makers if make is not None]
    return ", ".join(dict.fromkeys(offer for offer in offers if offer)) or "Bearer"


def _denied(request: Request, message: str, operation: str = "", **facts: str) -> PermissionDenied:
    operation = operation or f"{request.method} {request.path}"
    return PermissionDenied(message, details={"principal": principal(request), "operation": operation, **facts})
