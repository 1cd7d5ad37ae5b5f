"""What durable jobs ask people, over HTTP: list it, read it, decide it, delegate it.

A key with the scope `approve` decides whatever lies within its limits. A user needs the permission `decide_approval`,
and decides what asks that user.
"""

from __future__ import annotations

from typing import Any

from django.db.models import Exists, OuterRef, QuerySet
from django_filters import FilterSet
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from django_ojs.conf import ojs_settings
from django_ojs.http import fields, permissions
from django_ojs.http.base import OJSViewSet, using
from django_ojs.http.operation import operation
from django_ojs.http.pagination import SortKey, parse_time, parse_uuid
from django_ojs.http.permissions import api_key, limits, principal, user_has_any
from django_ojs.http.query import OJSFilterBackend, ReaderFilter, WordsFilter, read_text
from django_ojs.http.serializers import AnswerSerializer, BodySerializer, InstantField
from django_ojs.jobs import approvals
from django_ojs.jobs.approvals import Decider
from django_ojs.models import Approval, ApprovalAssignee
from django_ojs.models.fields import same_name
from django_ojs.rules import redaction
from django_ojs.rules.approvals import ApprovalState
from django_ojs.rules.faults import fault, flag
from django_ojs.rules.ids import parse_id


class ApprovalSerializer(AnswerSerializer):
    """A question of a durable job. Of details and data, members that the site hides are masked.

    `schema` is the JSON schema of the data, `form` the name of the site's form; both null where it has none.
    """

    id = serializers.CharField()
    job_id = serializers.CharField()
    job_type = serializers.CharField(source="type")
    queue = serializers.CharField()
    name = serializers.CharField()
    title = serializers.CharField()
    details = serializers.SerializerMethodField()
    form = serializers.SerializerMethodField()
    schema = serializers.JSONField()
    state = serializers.ChoiceField(choices=[state.value for state in ApprovalState])
    assignees = serializers.SerializerMethodField()
    default = serializers.BooleanField(allow_null=True)
    requested_at = InstantField()
    due_at = InstantField(allow_null=True)
    escalate_at = InstantField(allow_null=True)
    decided_at = InstantField(allow_null=True)
    decided_by = serializers.CharField()
    comment = serializers.CharField()
    data = serializers.SerializerMethodField()  # type: ignore[assignment]

    def get_details(self, approval: Approval) -> Any:
        return redaction.part("payload", approval.details, approval.type, {})

    def get_data(self, approval: Approval) -> Any:
        return redaction.part("payload", approval.data, approval.type, {})

    def get_form(self, approval: Approval) -> str | None:
        return approval.form.partition(":")[2] or None

    def get_assignees(self, approval: Approval) -> list[str]:
        return approvals.names(approval)


class DecisionSerializer(BodySerializer):
    """The decision. `data` is what was entered into the form, if it has one."""

    approved = serializers.BooleanField()
    comment = serializers.CharField(required=False)
    data = serializers.JSONField(required=False)  # type: ignore[assignment]

    def to_internal_value(self, data: Any) -> Any:
        approved = flag(data.get("approved"), "approved")
        comment = data.get("comment")
        if comment is not None and not isinstance(comment, str):
            raise fault("comment", "must be a text", comment)
        return {"approved": approved, "comment": comment or "", "data": data.get("data")}


class DelegationSerializer(BodySerializer):
    """Who is asked instead: users, groups and permissions, such as `user:anna`, `group:finance` and
    `perm:shop.refund`."""

    to = serializers.ListField(child=serializers.CharField())

    def to_internal_value(self, data: Any) -> Any:
        to = data.get("to")
        if not isinstance(to, list) or not to or len(to) > MAX_ASSIGNEES:
            raise fault("to", f"must be a list of 1 to {MAX_ASSIGNEES} texts such as user:anna and group:finance", to)
        return {"to": to}


#: How many may be named in one delegation.
MAX_ASSIGNEES = 100


def _read_job(given: str) -> Any:
    found = parse_id(given.lower())
    if found is None:
        raise ValueError("must be a UUIDv7")
    return found


class ApprovalFilter(FilterSet):  # type: ignore[misc]
    state = WordsFilter([state.value for state in ApprovalState])
    queue = ReaderFilter(read_text)
    type = ReaderFilter(read_text)
    name = ReaderFilter(read_text)
    job_id = ReaderFilter(_read_job)
    assignee = ReaderFilter(read_text, method="asks")

    def asks(self, found: QuerySet[Approval], name: str, value: str) -> QuerySet[Approval]:
        kind, _, known = value.partition(":")
        asked = ApprovalAssignee.objects.using(found.db).filter(approval=OuterRef("pk"))
        return found.filter(Exists(asked.filter(same_name("kind", kind), same_name("name", known))))


class ApprovalViewSet(OJSViewSet):
    """What durable jobs ask people, newest first."""

    model_name = "approval"
    lookup_url_kwarg = "approval_id"
    serializer_class = ApprovalSerializer
    filter_backends = (OJSFilterBackend,)
    filterset_class = ApprovalFilter
    ordering = (SortKey("requested_at", descending=True, parse=parse_time), SortKey("id", True, parse=parse_uuid))
    list_names = ("items", "approvals")

    def get_queryset(self) -> QuerySet[Approval]:
        return approvals.reached(limits(self.request), using=using())

    def get_object(self) -> Approval:
        found = approvals.read(fields.path_id(self.kwargs["approval_id"], "approval"), using=using())
        permissions.check_row(self.request, {"queue": found.queue, "type": found.type})
        return found

    @operation(scope="read")
    def list(self, request: Request) -> Response:
        """What durable jobs ask people, by `state`, `queue`, `type`, `name`, `job_id` and `assignee`."""
        return self.listed(self.get_queryset())

    @operation(scope="read")
    def retrieve(self, request: Request, approval_id: str) -> Response:
        """One approval: what is asked, whom, and what was decided."""
        return Response(self.represent(self.get_object()))

    @operation(
        detail=True,
        methods=["post"],
        scope="approve",
        body=DecisionSerializer,
        audit="approval.decide",
        errors=(409,),
        name="approve",
    )
    def decide(self, request: Request, approval_id: str) -> Response:
        """Approve or reject what a durable job asks, and let the job go on.

        The first decision counts: another is refused with 409, and told who decided.
        """
        given = self.validated(self.payload(limit=_body_limit()))
        found = self.get_object()
        done = approvals.decide(
            found.pk, given["approved"], _decider(request), comment=given["comment"], data=given["data"], using=using()
        )
        self.act.detail |= {"name": done.name, "job_id": str(done.job_id), "approved": given["approved"]}
        return Response(self.represent(done))

    @operation(
        detail=True,
        methods=["post"],
        scope="approve",
        body=DelegationSerializer,
        audit="approval.delegate",
        errors=(409,),
        name="delegate",
    )
    def delegate(self, request: Request, approval_id: str) -> Response:
        """Ask other people instead of those who are asked."""
        given = self.validated(self.payload())
        done = approvals.delegate(self.get_object().pk, given["to"], _decider(request), using=using())
        self.act.detail |= {"name": done.name, "job_id": str(done.job_id), "to": approvals.names(done)}
        return Response(self.represent(done))


def _decider(request: Request) -> Decider:
    """The caller as one who decides. A key, and a user with all rights, need not be asked; a key keeps its limits."""
    user: Any = request.user
    everything = ojs_settings.anonymous_allowed or user_has_any(user, ("ojs_admin",))
    if api_key(request) is not None or everything or not hasattr(user, "get_username"):
        return Decider(principal(request), limits=permissions.limits(request), may_all=True)
    return Decider.of(user)


def _body_limit() -> int:
    """Bytes: of the data of a form, each of which JSON may escape by six, with what is around them."""
    return 6 * ojs_settings.MAX_DURABLE_EVENT_BYTES + 16 * 1024
