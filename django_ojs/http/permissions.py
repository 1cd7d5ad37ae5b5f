"""What the caller may do: scopes, and a key's limits to queues and job types.

Our views declare what a caller needs (`operation`). A site's own view says `required_scope = "push"`, or
`scopes = {"GET": "read", "POST": "push"}`; `None` opens it to all, and one that says nothing needs `admin`. Where
`rights = {"POST": "change_job"}` names a permission on a model too, only that, or `ojs_admin`, is enough for a user.

Three kinds of callers meet it:

* an API key has its scopes (`admin` has all) and may be limited to queues and to job types;
* a user, from a session or from an authentication class of the site, has what Django's permissions say, as in Django's
  admin; being staff adds nothing. `read` needs the permission to view the model that the view is about (`model_name`),
  `push` needs `add_job`, and `work` needs `change_job`. The permissions `ojs_read`, `ojs_push` and `ojs_work` grant the
  whole scope, and `ojs_admin` grants everything;
* a caller without credentials has every scope if the site allows it (`ALLOW_ANONYMOUS`, or DEBUG) and none if not; a
  page of another site has none.

A job outside the limits of a key answers 403, not 404: its id is known to the caller, and the reason helps. A caller
without limits, which is the rule, costs no statement.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, cast

from django.db import router
from django.db.models import Q
from django.http import HttpRequest
from rest_framework.exceptions import APIException
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.views import APIView

from django_ojs.access import Limits
from django_ojs.conf import ojs_settings
from django_ojs.database import check_health
from django_ojs.errors import InvalidPayload, OJSError, PermissionDenied, Unauthenticated
from django_ojs.http.authentication import check_page
from django_ojs.models import APIKey, Job
from django_ojs.rules import attributes
from django_ojs.rules.attributes import AttributeSource
from django_ojs.rules.faults import shorten
from django_ojs.states import State
from django_ojs.workerregistry import ownership
from django_ojs.workerregistry.ownership import ANONYMOUS, Principal

ADMIN = APIKey.Scope.ADMIN.value
#: Models of which more than one permission lets a user read something. Who may view jobs sees their events.
_VIEWS = {"event": ("view_event", "view_job")}
_UNSET = object()
#: In the routes of all paths about one queue.
_QUEUE_PATH = "queues/<str:name>"


class ScopePermission(BasePermission):
    """Lets a request pass whose caller has the scope that the view asks for; raises 401 or 403 otherwise."""

    def has_permission(self, request: Request, view: APIView) -> bool:
        scope = scope_of(request, view)
        if scope is not None:
            method = "GET" if request.method == "HEAD" else request.method or "GET"
            right, model = getattr(view, "rights", {}).get(method, ""), getattr(view, "model_name", "")
            require_scope(request, scope, operation=getattr(view, "operation_name", ""), right=right, model=model)
        return True


def scope_of(request: Request, view: APIView) -> str | None:
    """The scope this request needs; None for a public view and for a method the view does not have (405)."""
    method = request.method or "GET"
    if method not in view.allowed_methods:
        return None
    by_method: dict[str, str | None] | None = getattr(view, "scopes", None)
    if by_method is not None:
        return by_method.get(method, by_method.get("GET", ADMIN) if method == "HEAD" else ADMIN)
    scope: Any = getattr(view, "required_scope", _UNSET)
    return ADMIN if scope is _UNSET else scope


def require_scope(request: Request, scope: str, *, operation: str = "", right: str = "", model: str = "") -> None:
    """Raise Unauthenticated (the caller is not known) or PermissionDenied (the caller lacks `scope`).

    Of a user it asks for the permission `right`; without one, for what `scope` means on `model` ('': on jobs).
    """
    key = api_key(request)
    user: Any = request.user
    needed: Sequence[str] = ()
    if key is not None:
        allowed = not {scope, ADMIN}.isdisjoint(key.scopes or ())
    elif user is not None and user.is_authenticated:
        needed = _permissions_for(scope, right, model)
        allowed = ojs_settings.anonymous_allowed or user_has_any(user, (*needed, "ojs_admin"))
    elif ojs_settings.anonymous_allowed:
        check_page(request._request)
        allowed = True
    else:
        raise Unauthenticated(
            "This call needs credentials and the request has none.",
            headers={"WWW-Authenticate": _challenge(request)},
        )
    if not allowed:
        facts = {"required_permission": f"django_ojs.{needed[0]}"} if needed else {}
        message = f"This call needs the {'permission' if needed else 'scope'} '{needed[0] if needed else scope}'."
        raise denied(
            request, message, operation, required_scope=scope, required_role=scope, **_queue_asked(request), **facts
        )


def _permissions_for(scope: str, right: str, model: str) -> Sequence[str]:
    """The permissions of `django_ojs` of which a user needs one, the one that a refusal names first."""
    if right:
        return (right,)
    match scope:
        case "read":
            return *_VIEWS.get(model, (f"view_{model or 'job'}",)), "ojs_read"
        case "push":
            return "add_job", "ojs_push"
        case "work":
            return "change_job", "ojs_work"
        case "emit":
            return ("add_durableevent",)
        case "approve":
            return ("decide_approval",)
    return ("ojs_admin",)


def user_has_any(user: Any, permissions: Iterable[str]) -> bool:
    """Whether this Django user has one of these permissions of `django_ojs`. A superuser has all."""
    has_perm = getattr(user, "has_perm", None)
    return has_perm is not None and any(has_perm(f"django_ojs.{name}") for name in permissions)


def check_queue(request: Request, queues: str | Iterable[str]) -> None:
    """Raise PermissionDenied if the caller's key is limited to other queues than these."""
    beyond = limits(request).first_beyond([queues] if isinstance(queues, str) else queues)
    if beyond is not None:
        raise denied(request, f"This API key may not use the queue '{beyond}'.", queue=beyond)


def check_whole_queue(request: Request, queue: str) -> None:
    """Raise PermissionDenied if the caller's key does not reach all jobs of this queue, of whatever type."""
    check_queue(request, queue)
    if not limits(request).covers_queue(queue):
        message = "A key that is limited to job types cannot change a queue, which holds jobs of other types, too."
        raise denied(request, message, queue=queue)


def check_figures(request: Request) -> None:
    """Raise PermissionDenied if the caller's key is limited to job types, where figures are of whole queues."""
    if limits(request).types is not None:
        message = "The figures of queues count jobs of all types, and this API key is limited to some."
        raise denied(request, message)


def check_type(request: Request, job_type: str, *, queue: str = "") -> None:
    """Raise PermissionDenied if the caller's key is limited to other job types than this; `queue` for its details."""
    if not limits(request).covers_type(job_type):
        facts = {"job_type": job_type} | ({"queue": queue} if queue else {})
        raise denied(request, f"This API key may not use the job type '{job_type}'.", **facts)


def limits(request: Request | HttpRequest) -> Limits:
    """What the caller reaches."""
    return Limits.of_key(api_key(request))


def queue_limit(request: Request) -> tuple[str, ...] | None:
    """The queues the caller may use and see; None: all."""
    return limits(request).queues


def type_limit(request: Request) -> tuple[str, ...] | None:
    """The job types the caller may use, with `mail.*` for all below `mail`; None: all."""
    return limits(request).types


def is_limited(request: Request) -> bool:
    """Whether the caller's key is limited to queues or to job types."""
    return not limits(request).unlimited


def check_documents(request: Request, documents: Iterable[Any]) -> None:
    """Raise PermissionDenied if a job to be pushed lies outside the caller's limits.

    Malformed documents pass: PUSH says what is wrong with them.
    """
    if not is_limited(request):
        return
    for document in documents:
        try:
            source = AttributeSource(document if isinstance(document, dict) else {})
            queue, job_type = attributes.queue(source), attributes.job_type(source, {}, hyphens=True)
        except InvalidPayload:
            continue
        check_queue(request, queue)
        check_type(request, job_type, queue=queue)


def check_jobs(request: Request, ids: Collection[uuid.UUID]) -> None:
    """Raise PermissionDenied if one of these jobs lies outside the caller's limits."""
    if not (ids and is_limited(request)):
        return
    using = router.db_for_write(Job)
    check_health(using)
    jobs = Job.objects.using(using).filter(pk__in=ids).order_by()
    for queue, job_type in jobs.values_list("queue", "type").distinct():
        check_queue(request, queue)
        check_type(request, job_type, queue=queue)


def check_held(request: Request, worker_id: str) -> None:
    """Raise PermissionDenied if this worker holds a job outside the caller's limits, without a word about the job: the
    caller has named the worker only, which may be another's."""
    if not is_limited(request):
        return
    held = Job.objects.using(router.db_for_write(Job)).filter(worker_id=worker_id, state=State.ACTIVE)
    if held.exclude(visible(request)).exists():
        raise denied(request, "This worker holds jobs that this API key may not use.", worker_id=worker_id)


def check_row(request: Request, row: Mapping[str, Any]) -> None:
    """Raise PermissionDenied if the `queue` or the `type` of this row lies outside the caller's limits."""
    if is_limited(request):
        check_queue(request, row["queue"])
        check_type(request, row["type"], queue=row["queue"])


def visible(request: Request) -> Q:
    """The jobs that a list may show to the caller."""
    return limits(request).condition()


def queues_to_read(request: Request, wanted: Sequence[str]) -> Sequence[str]:
    """The queues a read is narrowed to: those asked for, if allowed, else those of the key; none means all."""
    if wanted:
        check_queue(request, wanted)
        return wanted
    return queue_limit(request) or ()


def only_job_events(request: Request) -> bool:
    """Whether the caller may read the events of jobs and no others: a user who may view jobs, but not the event log.

    It is found out once for a user, so that a connection can ask where no statement may be made.
    """
    user: Any = request.user
    if api_key(request) is not None or user is None or not user.is_authenticated:
        return False
    noted: Any = request
    known: tuple[Any, bool] = getattr(request, "_only_job_events", (None, False))
    if known[0] is not user:
        all_events = ojs_settings.anonymous_allowed or user_has_any(user, ("view_event", "ojs_read", "ojs_admin"))
        noted._only_job_events = known = user, not all_events
    return known[1]


def api_key(request: Request | HttpRequest) -> APIKey | None:
    """The key with which the caller proved who it is, if it used one."""
    auth = getattr(request, "auth", None)
    return auth if isinstance(auth, APIKey) else None


def who(request: Request, *, looking: bool = False) -> Principal:
    """Who makes this request, to decide which workers it may name.

    An operator may name each of them. A caller is one if it has no limits and may direct workers; where it is only
    `looking`, if it may look at them.
    """
    key, user = api_key(request), cast("Any", request.user)
    scopes, right = ({ADMIN, "admin.write"}, "change_worker")
    if looking:
        scopes, right = ({ADMIN, "admin.read", "admin.write"}, "view_worker")
    facts = {"principal": principal(request), "operation": f"{request.method} {request.path}"}
    if key is not None:
        reach = limits(request)
        operator = reach.unlimited and not scopes.isdisjoint(key.scopes or ())
        return Principal(identity(request), operator, reach, facts)
    if user is not None and user.is_authenticated:
        operator = ojs_settings.anonymous_allowed or user_has_any(user, (right, "ojs_admin"))
        return Principal(identity(request), operator, facts=facts)
    return Principal(
        identity(request), operator=True, facts=facts
    )  # who is let in without credentials may do everything


def identity(request: Request) -> str:
    """Who is calling, for what belongs to the caller: `key:` or `user:` with the primary key, or `ANONYMOUS`.

    A key that is made anew under an old name is another one.
    """
    key, user = api_key(request), cast("Any", request.user)
    if key is not None:
        return f"key:{key.pk}"
    if user is None or not user.is_authenticated:
        return ANONYMOUS
    pk = getattr(user, "pk", None)
    return f"user:{user if pk is None else pk}"[:255]


def check_worker(request: Request, worker_id: str) -> None:
    """Raise PermissionDenied if a report names a worker that another principal registered; '' names none."""
    if worker_id:
        ownership.check_name(worker_id, who(request))


def check_served(request: Request, facts: Mapping[str, Any]) -> None:
    """Raise PermissionDenied if a worker says that it serves what lies outside the caller's limits."""
    check_queue(request, facts.get("queues") or ())
    for job_type in facts.get("job_types") or ():
        check_type(request, job_type)


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


def _queue_asked(request: Request) -> dict[str, str]:
    """The queue in the request's path, if it has one, as a member of an error's details."""
    match = getattr(request, "resolver_match", None)
    return {"queue": shorten(match.kwargs["name"])} if match is not None and _QUEUE_PATH in match.route else {}


def _challenge(request: Request) -> str:
    """What WWW-Authenticate says: the schemes of the view's authentication classes."""
    makers = [getattr(authenticator, "authenticate_header", None) for authenticator in request.authenticators or ()]
    offers = [make(request) for make in makers if make is not None]
    return ", ".join(dict.fromkeys(offer for offer in offers if offer)) or "Bearer"


def denied(request: Request, message: str, operation: str = "", *, hint: str = "", **facts: str) -> PermissionDenied:
    """The refusal of a call, whose details say who makes it and what it is."""
    operation = operation or f"{request.method} {request.path}"
    details = {"principal": principal(request), "operation": operation, **facts}
    return PermissionDenied(message, details=details, hint=hint)
