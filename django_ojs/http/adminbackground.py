"""Acts on many jobs in the background: `/admin/bulk-actions`, and how the calls of `adminbulk` hand theirs over.

Beyond the binding: a call that answers only when a million jobs are done is a call that a proxy ends before.
"""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.utils.encoding import iri_to_uri
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs.errors import NotFound
from django_ojs.http import fields, permissions, query
from django_ojs.http.auditing import audited
from django_ojs.http.base import AdminView, using
from django_ojs.http.pagination import MAX_PAGE, PAGE, Key, capped, paginate
from django_ojs.http.permissions import principal
from django_ojs.jobs import bulkactions
from django_ojs.models import BulkAction


class BulkActions(AdminView):
    """`GET /admin/bulk-actions?state=`, the newest first."""

    scopes = {"GET": "admin.read"}
    rights = {"GET": "view_job"}

    def get(self, request: Request) -> Response:
        found = _visible(request)
        if state := query.text(request, "state"):
            if state not in BulkAction.State.values:
                raise query.fault("state", f"must be one of {', '.join(BulkAction.State.values)}", state)
            found = found.filter(state=state)
        order = [Key("id", descending=True, parse=int)]
        page = paginate(found, request, order, maximum=MAX_PAGE, default=PAGE, count=capped)
        return Response(page.listed([bulkactions.facts(one) for one in page.rows], "items"))


class BulkActionDetail(AdminView):
    """`GET /admin/bulk-actions/{id}`: how far it is, and what it was refused."""

    scopes = {"GET": "admin.read"}
    rights = {"GET": "view_job"}

    def get(self, request: Request, action_id: str) -> Response:
        return Response(bulkactions.facts(_find(request, action_id)))


class BulkActionCancel(AdminView):
    """`POST /admin/bulk-actions/{id}/cancel`: it ends where it is, and what it has done stays done."""

    scopes = {"POST": "admin.write"}
    rights = {"POST": "change_job"}

    @audited("bulkaction.cancel")
    def post(self, request: Request, action_id: str) -> Response:
        self.payload(required=False)
        return Response(bulkactions.facts(bulkactions.cancel(_find(request, action_id).pk)))


def is_wanted(request: Request, body: dict[str, Any], by_filter: bool) -> bool:
    """Whether the caller asks to be answered at once: in the body, or by `Prefer: respond-async` (RFC 7240), which is
    no more than a wish: it counts for a filter only, and where the body says nothing."""
    if fields.flag(body, "background"):
        if not by_filter:
            raise fields.fault("background", "goes with a filter: jobs that are named are done at once", True)
        return True
    wishes = {wish.partition(";")[0].strip().lower() for wish in request.headers.get("Prefer", "").split(",")}
    return "respond-async" in wishes and by_filter and "background" not in body


def accepted(request: Request, action: BulkAction) -> Response:
    """202, and where to look for it."""
    root = iri_to_uri(request.path).rpartition("/admin/")[0]
    headers = {"Location": f"{root}/admin/bulk-actions/{action.pk}"}
    return Response(bulkactions.facts(action), status=202, headers=headers)


def _visible(request: Request) -> QuerySet[BulkAction]:
    """A key that is limited to queues or types sees what it began itself: others tell of what it may not see."""
    found = BulkAction.objects.using(using())
    return found.filter(actor=principal(request)) if permissions.is_limited(request) else found.all()


def _find(request: Request, text: str) -> BulkAction:
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else 0
    found = _visible(request).filter(pk=number).first()
    if found is None:
        raise NotFound.resource("bulk_action", text[:64])
    return found
