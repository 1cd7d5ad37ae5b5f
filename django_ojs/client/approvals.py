"""Ask people from a durable handler, and decide what was asked.

@job("order.refund", durable=True)
def refund(context, order_id):
    decision = context.wait_for_approval("refund", title=f"Refund order {order_id}?", assignees=["group:finance"])

for approval in approvals_for(request.user):                       # in a view of the site
    approve(approval, by=request.user, comment="Fine.")
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async

from django_ojs import jsontext
from django_ojs.client.handle import key_of
from django_ojs.client.options import Duration, check_json, milliseconds
from django_ojs.conf import ojs_settings
from django_ojs.faults import or_migrate
from django_ojs.messages import shown
from django_ojs.rules import schemas
from django_ojs.rules.approvals import MAX_TITLE, ApprovalDecision, ApprovalRequest
from django_ojs.rules.names import is_storable

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from django_ojs.models import Approval

__all__ = ["ApprovalDecision", "aapprove", "approvals_for", "approve", "delegate_approval", "request"]


@or_migrate
def approve(
    approval: Approval | uuid.UUID | str, *, by: Any, approved: bool = True, comment: str = "", data: Any = None
) -> Approval:
    """Decide what a durable job asks, as this user; the job goes on. The audit log has an entry.

    Args:
        approval: the approval, or its id.
        by: a user whom it asks, or a superuser.
        approved: False rejects it.
        data: what the user entered into its form: `form.data`, `request.POST`, or a dict. Who rejects need not fill
            it in: only data that fit are kept then.

    Raises NotFound, PermissionDenied, InvalidRequest where data that do not fit the form are approved, and Conflict
    where it is decided already.
    """
    from django_ojs.audit import Act
    from django_ojs.jobs import approvals

    pk, who = _id_of(approval), approvals.Decider.of(by)
    act = Act(who.name, "approval.decide", str(pk), door="python")
    return approvals.decide(pk, approved, who, comment=comment, data=data, act=act)


async def aapprove(
    approval: Approval | uuid.UUID | str, *, by: Any, approved: bool = True, comment: str = "", data: Any = None
) -> Approval:
    """`approve` from asynchronous code."""
    return await sync_to_async(approve)(approval, by=by, approved=approved, comment=comment, data=data)


@or_migrate
def delegate_approval(approval: Approval | uuid.UUID | str, to: Iterable[Any], *, by: Any) -> Approval:
    """Ask these users, groups or permissions instead, as a user who may decide. The audit log has an entry.

    Raises what `approve` raises.
    """
    from django_ojs.audit import Act
    from django_ojs.jobs import approvals

    pk, who = _id_of(approval), approvals.Decider.of(by)
    return approvals.delegate(pk, to, who, act=Act(who.name, "approval.delegate", str(pk), door="python"))


@or_migrate
def approvals_for(user: Any) -> QuerySet[Approval]:
    """The open approvals that ask this user, by itself, by a group or by a permission; oldest first."""
    from django_ojs.jobs import approvals

    return approvals.open_for(user)


def request(
    title: Any, details: Any, assignees: Iterable[Any], form: Any, default: bool | None,
    escalate_after: Duration | None, escalate_to: Iterable[Any], timeout: Duration | None,
) -> ApprovalRequest:  # fmt: skip
    """What a handler asks, as it is stored. Raises ValueError and TypeError for what cannot be asked."""
    if not isinstance(title, str) or not title.strip() or len(title) > MAX_TITLE or not is_storable(title):
        raise ValueError(f"title={shown(title)} must be a text of 1 to {MAX_TITLE} characters.")
    if default is not None and timeout is None:
        raise ValueError("A default counts after the timeout: give a timeout, too.")
    asked, escalate_to = _asked("assignees", assignees), _asked("escalate_to", escalate_to)
    if (escalate_after is None) != (not escalate_to):
        raise ValueError("escalate_after and escalate_to belong together: give both, or neither.")
    check_json(details, "details")
    text = "" if details is None else jsontext.dumps(details)
    if jsontext.byte_length(text) > ojs_settings.MAX_DURABLE_EVENT_BYTES:
        raise ValueError(
            f"The details have more than the {ojs_settings.MAX_DURABLE_EVENT_BYTES} bytes allowed: store large data "
            "elsewhere, and give a reference to it."
        )
    place, schema = _form(form)
    return ApprovalRequest(
        title=title, details=text, assignees=asked,
        form=place, schema=schema, default=default, escalate_to=escalate_to,
        escalate_after=None if escalate_after is None else milliseconds(escalate_after, "escalate_after"),
    )  # fmt: skip


def _asked(name: str, given: Any) -> list[Any]:
    """Whom an approval asks, one or several."""
    if isinstance(given, str):
        return [given]
    if not isinstance(given, Iterable):
        raise TypeError(f"{name}={shown(given)}: give a list of users, groups and texts such as 'group:finance'.")
    return list(given)


def _form(form: Any) -> tuple[str, str]:
    """The place of a Django form, or the text of a JSON schema."""
    if form is None:
        return "", ""
    if isinstance(form, dict):
        schemas.check_document(form)
        return "", jsontext.dumps(form)
    if not isinstance(form, type) or not hasattr(form, "base_fields"):
        raise TypeError(f"form={shown(form)} is neither a class of Django forms nor a JSON schema as a dict.")
    place = f"{form.__module__}:{form.__qualname__}"
    if "<locals>" in place or len(place) > 255:
        raise TypeError(f"The form {place} cannot be found from elsewhere: define it at the level of a module.")
    return place, ""


def _id_of(approval: Any) -> uuid.UUID:
    return key_of("approval", getattr(approval, "pk", approval))
