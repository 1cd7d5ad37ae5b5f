"""Asks people for a durable job, takes their decision, and lets the job go on.

An approval is a row beside a step of the job. The step waits for an event that no caller can emit (`EVENT`), so the job
gives its slot back and is woken as by `durableevents`.

**Everything that happens to an approval happens under the lock of its job's row**: asking, deciding, delegating, the
timeout, the end of the job. So of two who decide the second finds what the first has decided, a decision comes before a
cancellation or after it, and no user decides what no job waits for. An approval and the step that waits for it are
stored by one transaction: whoever sees the approval can end the step, and no decision is lost between the two.

An approval is closed with its job, and by the scheduler where a statement of the hot path ended it. If the job runs
again and still waits there, it is opened again.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from django import forms
from django.apps import apps
from django.contrib.auth import get_backends, get_user_model
from django.core.exceptions import FieldError
from django.core.serializers.json import DjangoJSONEncoder
from django.db.models import Exists, Model, OuterRef, Q, QuerySet
from django.utils.functional import Promise

from django_ojs import audit, clock, jsontext, states
from django_ojs.access import UNLIMITED, Limits
from django_ojs.audit import Act
from django_ojs.conf import ojs_settings
from django_ojs.database import atomic, database, retried
from django_ojs.errors import Conflict, InvalidRequest, NotFound, PayloadTooLarge, PermissionDenied
from django_ojs.events import catalogue, log
from django_ojs.hooks import replaceable
from django_ojs.jobs import promote, steps
from django_ojs.lifecycle.ended import jobs_ended
from django_ojs.messages import phrase, shown
from django_ojs.models import Approval, ApprovalAssignee, Job, JobStep
from django_ojs.models.fields import RawJSON
from django_ojs.models.job import JobRow
from django_ojs.rules import schemas
from django_ojs.rules.approvals import EVENT, MAX_COMMENT, ApprovalDecision, ApprovalRequest, ApprovalState
from django_ojs.rules.durations import format_instant
from django_ojs.rules.faults import fault, flag
from django_ojs.rules.names import is_storable
from django_ojs.rules.rows import holds
from django_ojs.rules.steps import Step
from django_ojs.states import State
from django_ojs.store import store_of
from django_ojs.store.steps import Holder

#: Approvals that the scheduler deals with in one pass.
BATCH = 100
_OPEN = ApprovalState.OPEN.value
_LIVE = states.ordered(set(State) - states.TERMINAL)
Kind = ApprovalAssignee.Kind
#: Characters that a permission may have, as it is stored.
_MAX_KEY = 255
#: The permission of those whom an approval asks that names no user.
DECIDE = "django_ojs.decide_approval"
#: The permission of those who see all approvals.
VIEW = "django_ojs.view_approval"


class Assignee(NamedTuple):
    """One of those who are asked, as it is stored."""

    kind: str
    key: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


@dataclasses.dataclass(frozen=True, slots=True)
class Decider:
    """Who wants to decide or to delegate.

    Attributes:
        name: `user:NAME` or `key:NAME`.
        user: the user, who must be one of those who are asked.
        limits: what the key reaches.
        may_all: whether it may decide whoever was asked: a superuser, or a key with the scope.
        asking: the only asking (`asking_of`) in which it may, for the link of a mail; '': in each.
    """

    name: str
    user: Any = None
    limits: Limits = UNLIMITED
    may_all: bool = False
    asking: str = ""

    @classmethod
    def of(cls, user: Any) -> Decider:
        """A user of the site. Raises TypeError for what is none."""
        if not hasattr(user, "get_username"):
            raise TypeError(f"by={shown(user)}: give a user, such as request.user.")
        may_all = bool(getattr(user, "is_superuser", False) and getattr(user, "is_active", True))
        return cls(f"user:{user.get_username()}", user, may_all=may_all)

    def check(self, approval: Approval, using: str) -> None:
        """Raise PermissionDenied unless it may decide this approval."""
        if not self.limits.covers(approval.queue, approval.type):
            raise PermissionDenied(
                "This API key may not use the queue or the job type of this approval.",
                details={"principal": self.name, "approval_id": str(approval.pk)},
            )
        if self.asking and self.asking != asking_of(approval):
            raise PermissionDenied(
                phrase("This was asked again, or others are asked, since this link was sent."),
                details={"principal": self.name, "approval_id": str(approval.pk)},
                hint="Use the link of the last mail about it, or the admin.",
            )
        if self.may_all:
            return
        asked = Approval.objects.using(using).filter(pk=approval.pk)
        if self.user is None or not asked.filter(asks(self.user, using)).exists():
            raise PermissionDenied(
                phrase("This approval asks other people."),
                details={"principal": self.name, "approval_id": str(approval.pk), "assignees": names(approval)},
                hint="Let one of those who are asked decide it, or delegate it to you.",
            )


def names(approval: Approval) -> list[str]:
    """Those who are asked, such as `user:anna` and `group:finance`."""
    return sorted(str(one) for one in approval.assignees.all())


def asking_of(approval: Approval) -> str:
    """What is another text once the approval is asked again or given to others, but not when more are asked."""
    asked_at = round(approval.requested_at.timestamp() * 1_000_000)
    return f"{asked_at}-{min((one.pk for one in approval.assignees.all()), default=0)}"


def asks(user: Any, using: str | None = None) -> Q:
    """The approvals that this user may decide as one of those who are asked.

    One that names no user asks every user with the permission `decide_approval`.
    """
    if not getattr(user, "is_active", False):
        return Q(pk__in=[])
    held = sorted(user.get_all_permissions()) if hasattr(user, "get_all_permissions") else []
    named = ApprovalAssignee.objects.using(database(using)).filter(approval=OuterRef("pk"))
    own = (
        Q(kind=Kind.USER, key=str(user.pk))
        | Q(kind=Kind.GROUP, key__in=_groups(user))
        | Q(kind=Kind.PERMISSION, key__in=held)
    )
    condition = Q(Exists(named.filter(own)))
    may_decide = hasattr(user, "has_perm") and user.has_perm(DECIDE)
    return condition | ~Q(Exists(named)) if may_decide else condition


def asks_groups_of(user: Any, using: str | None = None) -> Q:
    """The approvals that ask a group of this user."""
    named = ApprovalAssignee.objects.using(database(using)).filter(approval=OuterRef("pk"))
    return Q(Exists(named.filter(kind=Kind.GROUP, key__in=_groups(user))))


def _groups(user: Any) -> list[str]:
    return [str(pk) for pk in user.groups.values_list("pk", flat=True)] if hasattr(user, "groups") else []


def open_for(user: Any, *, using: str | None = None) -> QuerySet[Approval]:
    """The open approvals that ask this user, oldest first."""
    found = Approval.objects.using(database(using)).filter(asks(user, using), state=_OPEN)
    return found.order_by("requested_at", "pk").prefetch_related("assignees")


def any_open(using: str) -> bool:
    """Whether anything is asked."""
    return Approval.objects.using(using).filter(state=_OPEN).exists()


#: More than so many are not counted.
MANY = 99


def waiting_for(user: Any, *, using: str | None = None) -> int:
    """How many open approvals ask this user; `MANY` + 1 for more than that. One statement where none is open."""
    using = database(using)
    if not any_open(using):
        return 0
    return Approval.objects.using(using).filter(asks(user, using), state=_OPEN)[: MANY + 1].count()


def reached(limits: Limits, *, using: str | None = None) -> QuerySet[Approval]:
    """The approvals of jobs within these limits."""
    return Approval.objects.using(database(using)).filter(limits.condition()).prefetch_related("assignees")


def read(approval_id: uuid.UUID, *, using: str | None = None) -> Approval:
    """One approval. Raises NotFound."""
    found = Approval.objects.using(database(using)).filter(pk=approval_id).prefetch_related("assignees").first()
    if found is None:
        raise NotFound.resource("approval", str(approval_id))
    return found


def assignees(given: Iterable[Any], field: str = "assignees") -> list[Assignee]:
    """Users, groups and texts such as `user:anna`, `group:finance` and `perm:shop.refund` as they are stored.

    Raises InvalidRequest for what is none of these, and for who is not known.
    """
    if isinstance(given, str) or not isinstance(given, Iterable):
        given = [given]
    return list(dict.fromkeys(_assignee(one, field) for one in given))


def _assignee(one: Any, field: str) -> Assignee:
    if isinstance(one, Model) and hasattr(one, "get_username"):
        return Assignee(Kind.USER, str(one.pk), one.get_username())
    if isinstance(one, Model) and one._meta.label == "auth.Group":
        return Assignee(Kind.GROUP, str(one.pk), str(one))
    kind, _, name = one.partition(":") if isinstance(one, str) and is_storable(one) else ("", "", "")
    if kind == Kind.USER and name:
        model: Any = get_user_model()
        user = model._default_manager.filter(**{model.USERNAME_FIELD: name}).first()
        if user is None:
            raise fault(field, phrase("must name users that exist"), one)
        return Assignee(Kind.USER, str(user.pk), name)
    if kind == Kind.GROUP and name:
        group: Any = apps.get_model("auth", "Group")._default_manager.filter(name=name).first()
        if group is None:
            raise fault(field, phrase("must name groups that exist"), one)
        return Assignee(Kind.GROUP, str(group.pk), name)
    if (
        kind == Kind.PERMISSION
        and "." in name
        and len(name) <= _MAX_KEY
        and name.isprintable()
        and name == name.strip()
    ):
        return Assignee(Kind.PERMISSION, name, name)
    problem = phrase("must be users, groups, or texts such as user:anna, group:finance and perm:shop.refund")
    raise fault(field, problem, str(one))


def holders(permission: str, *, superusers: bool = True) -> Q:
    """The users who have this permission, by the site's authentication backends that can list them."""
    condition = Q(pk__in=[])
    if permission.count(".") != 1:  # backends know no others
        return condition
    for backend in get_backends():
        if hasattr(backend, "with_perm"):
            try:
                found = backend.with_perm(permission, include_superusers=superusers)
            except FieldError:  # the site's users have no such columns, as those without Django's PermissionsMixin
                continue
            condition |= Q(pk__in=found.values("pk"))
    return condition


def active(users: QuerySet[Any]) -> QuerySet[Any]:
    """Those of these users who are active; all of them where the site's users have no such column."""
    columns = [field.name for field in users.model._meta.concrete_fields]
    return users.filter(is_active=True) if "is_active" in columns else users


# Of the run


@retried
def ask(holder: Holder, step: Step, request: ApprovalRequest, *, again: bool = False, using: str) -> bool:
    """Record this step, which waits for a decision, with the approval; return whether the job is still this run's.

    `again`: the step is recorded already. Its approval is opened again if it was closed with the job, and made anew if
    it is gone. Raises `StepExists`, and InvalidRequest for assignees that are not known.
    """
    pk = uuid.UUID(step.event_key or "")
    if again and Approval.objects.using(using).filter(pk=pk).exclude(state=ApprovalState.CLOSED).exists():
        return True
    asked, later = assignees(request.assignees), assignees(request.escalate_to, "escalate_to")
    # Everyone with the permission `DECIDE` may decide an approval without assignees. An escalation adds assignees, who
    # would then be the only ones: so the permission becomes an assignee, and its holders may still decide.
    if later and not asked:
        asked = [Assignee(Kind.PERMISSION, DECIDE, DECIDE)]
    with atomic(using=using):
        row = _lock(holder.job_id, using)
        if row is None or not holds(row, holder.worker_id, holder.attempt):
            return False
        if not again and not steps.record(holder, step, using=using):
            return False
        now = clock.now(using)
        approval = Approval.objects.using(using).filter(pk=pk).first() or _new(pk, row, step, request)
        created = approval._state.adding
        approval.state, approval.decided_at = _OPEN, None
        approval.changes += not created
        approval.requested_at = now
        approval.mail_due = ojs_settings.APPROVAL_MAIL is not None
        if request.escalate_after is not None and later:
            approval.escalate_at = now + dt.timedelta(milliseconds=request.escalate_after)
            approval.escalate_to = [list(one) for one in later]
        approval.next_at = _next(approval)
        approval.save(using=using)
        if created:
            _add(approval, asked, using)
        else:  # the links of the mails before are of no use any more
            approval.assignees.update(told=False)
        facts = {} if approval.due_at is None else {"due_at": format_instant(approval.due_at)}
        _tell("requested", approval, row, now, "workers", using, assignees=names(approval), **facts)
    return True


def _new(pk: uuid.UUID, row: JobRow, step: Step, request: ApprovalRequest) -> Approval:
    details: Any = RawJSON(request.details) if request.details else None
    schema: Any = RawJSON(request.schema) if request.schema else None
    return Approval(
        id=pk, job_id=row["id"], type=row["type"], queue=row["queue"], name=step.name, title=request.title,
        details=details, form=request.form, schema=schema, default=request.default, due_at=step.due_at,
    )  # fmt: skip


@retried
def time_out(approval_id: uuid.UUID, *, using: str) -> bool:
    """End the wait for a decision that has not come in time; return whether no user was quicker."""
    with atomic(using=using):
        found = _locked(approval_id, using)
        if found is None:
            return False
        approval, row = found
        if approval.state != _OPEN or row is None:
            return False
        _time_out(approval, row, clock.now(using), using)
    return True


# Of people


@replaceable("decide")
def decide(
    approval_id: uuid.UUID, approved: bool, by: Decider, *, comment: str = "", data: Any = None, act: Act | None = None,
    using: str | None = None,
) -> Approval:  # fmt: skip
    """Decide an approval, in the caller's transaction where one is open, and let its job go on.

    Args:
        data: what was entered into its form, which must fit where it is approved. Of who rejects, only data that fit
            are kept.
        act: its entry in the audit log, unless the caller writes it.

    Raises NotFound, PermissionDenied, InvalidRequest for data that do not fit, and Conflict where it is not open any
    more, which says who decided.
    """
    using = database(using)
    approval = read(approval_id, using=using)
    by.check(approval, using)
    flag(approved, "approved")
    given: Any = comment
    if isinstance(given, Promise):
        given = comment = str(given)
    if not isinstance(given, str) or len(comment) > MAX_COMMENT or not is_storable(comment):
        raise fault("comment", phrase("must be a text of at most %(most)s characters", most=MAX_COMMENT), comment)
    if approval.state != _OPEN:
        raise decided(approval)
    kept = clean(approval, data) if approved else _if_it_fits(approval, data)
    return _decide(approval_id, approved, by, comment, kept, act, using=using)


@retried
def _decide(
    approval_id: uuid.UUID, approved: bool, by: Decider, comment: str, data: str | None, act: Act | None, *, using: str
) -> Approval:  # fmt: skip
    with atomic(using=using):
        approval, row = _open(approval_id, by, using)
        now = clock.now(using)
        approval.state = (ApprovalState.APPROVED if approved else ApprovalState.REJECTED).value
        approval.decided_at, approval.decided_by, approval.comment = now, by.name[:255], comment
        approval.data = None if data is None else jsontext.loads(data)
        approval.next_at = None
        decision = ApprovalDecision(approved, approval.decided_by, now, comment, approval.data)
        _finish(approval, row, now, using, "api", result=decision)
        _audit(act, using, name=approval.name, job_id=str(approval.job_id), approved=approved)
    return approval


@retried
def delegate(
    approval_id: uuid.UUID, to: Iterable[Any], by: Decider, *, act: Act | None = None, using: str | None = None
) -> Approval:
    """Ask these instead of those who are asked. Raises what `decide` raises."""
    using = database(using)
    approval = read(approval_id, using=using)
    by.check(approval, using)
    asked = assignees(to, "to")
    if not asked:
        raise fault("to", phrase("must name at least one user, group or permission"))
    with atomic(using=using):
        approval, row = _open(approval_id, by, using)
        ApprovalAssignee.objects.using(using).filter(approval=approval)._raw_delete(using)
        _add(approval, asked, using)
        approval.changes += 1
        approval.mail_due = ojs_settings.APPROVAL_MAIL is not None
        approval.save(using=using, update_fields=["changes", "mail_due"])
        facts = {"assignees": names(approval), "delegated_by": by.name}
        _tell("delegated", approval, row, clock.now(using), "api", using, **facts)
        _audit(act, using, name=approval.name, job_id=str(approval.job_id), to=names(approval))
    return approval


def clean(approval: Approval, data: Any) -> str | None:
    """The data of the form as JSON text; None where it has none. Raises InvalidRequest, with the errors by field."""
    try:  # Django's field for JSON takes NaN, and nests as deep as Python's stack
        text = _checked(approval, data)
    except (jsontext.JSONTextError, RecursionError) as error:
        problem = phrase("must be JSON that nests at most %(most)s deep", most=jsontext.MAX_DEPTH)
        raise fault("data", problem) from error
    if text is None:
        return None
    size, most = jsontext.byte_length(text), ojs_settings.MAX_DURABLE_EVENT_BYTES
    if size > most:
        raise PayloadTooLarge(
            phrase("The data of the form have %(size)s bytes, more than the %(most)s allowed.", size=size, most=most),
            details={"actual_bytes": size, "max_bytes": most, "field": "data"},
        )
    return text


def _if_it_fits(approval: Approval, data: Any) -> str | None:
    """`clean` of who rejects, and need not fill in the form, nor is kept by one that is gone: None where that does not
    fit. Raises InvalidRequest for data that no form asks for."""
    if data is None:
        return None
    try:
        return clean(approval, data)
    except InvalidRequest:
        if not approval.form and approval.schema is None:
            raise
        return None


def _checked(approval: Approval, data: Any) -> str | None:
    """The data of the form as JSON text, if they fit. Raises `JSONTextError` for what is no JSON."""
    if approval.form:
        form = form_class(approval.form)(_submitted(data))
        if not _fits(form, data):
            raise _misfit({name: [str(error) for error in errors] for name, errors in form.errors.items()})
        return jsontext.dumps(jsontext.loads(_Encoder().encode(form.cleaned_data)))
    if approval.schema is not None:
        data = jsontext.loads(text := jsontext.dumps(data))
        problems = schemas.problems_of(jsontext.dumps(approval.schema), data, "data")
        if problems:
            found: dict[str, list[str]] = {}
            for one in problems:
                found.setdefault(one["path"].removeprefix("data").removeprefix("."), []).append(one["message"])
            raise _misfit(found)
        return text
    if data is not None:
        raise fault("data", phrase("must be absent: this approval has no form"), data)
    return None


def _fits(form: Any, data: Any) -> bool:
    """Whether the form is valid. Fields of Django raise exceptions of their own for values that no browser sends, such
    as a number for a date."""
    try:
        return bool(form.is_valid())
    except (AttributeError, TypeError, ValueError) as error:
        if not isinstance(data, dict) or all(isinstance(value, str) for value in data.values()):
            raise
        raise fault("data", phrase("must be an object with the fields of the form"), data) from error


def form_class(place: str) -> Any:
    """The Django form at `module:name`. Raises InvalidRequest where there is none (any more)."""
    module, _, name = place.partition(":")
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise InvalidRequest(
            phrase("The form %(place)s of this approval is gone: put it back, or cancel the job.", place=place),
            details={"field": "data", "form": place},
        ) from error
    if not (isinstance(found, type) and issubclass(found, forms.BaseForm)):
        problem = phrase("%(place)s is not a Django form.", place=place)
        raise InvalidRequest(problem, details={"field": "data", "form": place})
    return found


class _Encoder(DjangoJSONEncoder):
    """Rows of models as their primary keys; sets and querysets as lists."""

    def default(self, o: Any) -> Any:
        if isinstance(o, Model):
            return o.pk
        if isinstance(o, QuerySet | set | frozenset):
            return list(o)
        return super().default(o)


def _submitted(data: Any) -> Any:
    if data is None:
        return {}
    if not isinstance(data, dict) and not hasattr(data, "getlist"):
        raise fault("data", phrase("must be an object with the fields of the form"), data)
    return data


def _misfit(errors: dict[str, list[str]]) -> InvalidRequest:
    listed = [
        {"path": ".".join(filter(None, ("data", "" if name == "__all__" else name))), "message": message}
        for name, messages in errors.items()
        for message in messages
    ]
    first = listed[0]
    details = {"field": first["path"], "errors": errors, "validation_errors": listed}
    return InvalidRequest(f"{first['path']}: {first['message']}", details=details)


# Of time, and of the end of jobs


@jobs_ended.subscribe
def on_jobs_ended(rows: Sequence[JobRow], now: dt.datetime, using: str, found: Any = None) -> None:
    """Close the approvals of those jobs that have ended. A job that waited has given its slot back, which `uncounted`
    says; so others pay for no statement."""
    ended = [row["id"] for row in rows if row.get("uncounted") and row.get("state") in states.TERMINAL]
    if ended:
        steps.close_approvals(ended, now, using=using)


def tend(*, using: str | None = None) -> int:
    """Escalate the approvals, and end those, whose time has come; return how many."""
    using = database(using)
    due = Approval.objects.using(using).filter(next_at__lte=clock.now(using), state=_OPEN)
    return sum(_tend(pk, using) for pk in list(due.order_by("next_at").values_list("pk", flat=True)[:BATCH]))


@retried
def _tend(approval_id: uuid.UUID, using: str) -> int:
    with atomic(using=using):
        found = _locked(approval_id, using, skip_locked=True)
        if found is None:
            return 0
        approval, row = found
        now = clock.now(using)
        if approval.state != _OPEN or approval.next_at is None or approval.next_at > now:
            return 0
        if row is None:  # the job is locked, or gone: then `sweep` closes it
            return 0
        if row["state"] in states.TERMINAL:
            return steps.close_approvals([approval.job_id], now, using=using)
        if approval.due_at is not None and approval.due_at <= now:
            _time_out(approval, row, now, using)
        else:
            _escalate(approval, row, now, using)
    return 1


def sweep(*, using: str | None = None) -> int:
    """Close open approvals whose jobs have ended in a statement that does not look for any; return how many. Those that
    were asked for while the clock was ahead begin now."""
    using = database(using)
    now = clock.now(using)
    _set_right(now, using=using)
    live = Job.objects.using(using).filter(pk=OuterRef("job_id"), state__in=_LIVE)
    orphans = Approval.objects.using(using).filter(~Exists(live), state=_OPEN)
    ids = list(orphans.values_list("job_id", flat=True)[:BATCH])
    return _close_ended(ids, now, using=using) if ids else 0


@retried
def _close_ended(ids: Sequence[uuid.UUID], now: dt.datetime, *, using: str) -> int:
    """Close the approvals of those of these jobs that have ended. A job that another transaction has locked is left to
    the next pass of the scheduler: a retry may be about to run it, and its handler to ask again."""
    with atomic(using=using):
        store = store_of(using)
        store.begin_writing()
        locked = {row["id"] for row in store.lock(sorted(set(ids)), skip_locked=True)}
        there = set(Job.objects.using(using).filter(pk__in=ids).values_list("pk", flat=True))
        return steps.close_approvals(locked.union(set(ids) - there), now, ended=True, using=using)


@retried
def _set_right(now: dt.datetime, *, using: str) -> None:
    """Let the approvals begin now that were asked for while the clock was ahead."""
    ahead = Approval.objects.using(using).filter(requested_at__gt=now + clock.AHEAD, state=_OPEN)
    for pk in list(ahead.values_list("pk", flat=True)):
        with atomic(using=using):
            found = _locked(pk, using, skip_locked=True)
            if found is None or found[0].state != _OPEN or found[1] is None:
                continue
            approval, by = found[0], found[0].requested_at - now
            approval.requested_at = now
            approval.due_at = approval.due_at and approval.due_at - by
            approval.escalate_at = approval.escalate_at and approval.escalate_at - by
            approval.next_at = _next(approval)
            approval.save(using=using)
            _waits(approval, using).update(began_at=now, due_at=approval.due_at)


def prune(now: dt.datetime, batch: int, using: str) -> int:
    """Delete at most `batch` of the approvals that were decided or closed too long ago; return how many."""
    if ojs_settings.APPROVAL_RETENTION is None:
        return 0
    edge = now - dt.timedelta(seconds=ojs_settings.APPROVAL_RETENTION)
    stored = Approval.objects.using(using)
    old = stored.filter(decided_at__lt=edge).exclude(state=_OPEN).order_by("decided_at")
    ids = list(old.values_list("pk", flat=True)[:batch])
    if not ids:
        return 0
    with atomic(using=using):
        ApprovalAssignee.objects.using(using).filter(approval_id__in=ids)._raw_delete(using)
        gone: int = stored.filter(pk__in=ids).exclude(state=_OPEN)._raw_delete(using)
    return gone


# What they share


def _lock(job_id: uuid.UUID, using: str, *, skip_locked: bool = False) -> JobRow | None:
    store = store_of(using)
    store.begin_writing()
    rows = store.lock([job_id], skip_locked=skip_locked)
    return rows[0] if rows else None


def _locked(approval_id: uuid.UUID, using: str, *, skip_locked: bool = False) -> tuple[Approval, JobRow | None] | None:
    """The approval, read under the lock of its job, and the row of the job."""
    stored = Approval.objects.using(using).filter(pk=approval_id)
    job_id = stored.values_list("job_id", flat=True).first()
    if job_id is None:
        return None
    row = _lock(job_id, using, skip_locked=skip_locked)
    approval = stored.prefetch_related("assignees").first()
    return None if approval is None else (approval, row)


def _open(approval_id: uuid.UUID, by: Decider, using: str) -> tuple[Approval, JobRow]:
    """The approval and its job, locked. Raises NotFound, PermissionDenied and Conflict."""
    found = _locked(approval_id, using)
    if found is None:
        raise NotFound.resource("approval", str(approval_id))
    approval, row = found
    by.check(approval, using)
    if approval.state != _OPEN:
        raise decided(approval)
    if row is None or row["state"] in states.TERMINAL or not _waits(approval, using).exists():
        approval.state = ApprovalState.CLOSED.value
        raise decided(approval)
    return approval, row


def _waits(approval: Approval, using: str) -> QuerySet[JobStep]:
    """The open step that waits for this approval."""
    found = JobStep.objects.using(using).filter(job_id=approval.job_id, ended_at=None, event_name=EVENT)
    return found.filter(event_key=str(approval.pk))


def decided(approval: Approval) -> Conflict:
    """The refusal of an act on what is not open any more: it says who decided."""
    details = {
        "approval_id": str(approval.pk), "job_id": str(approval.job_id), "current_state": approval.state,
        "attempted": "decide", "decided_by": approval.decided_by,
        "decided_at": None if approval.decided_at is None else format_instant(approval.decided_at),
    }  # fmt: skip
    who = approval.decided_by.partition(":")[2]
    message = {
        ApprovalState.APPROVED: phrase("%(who)s has approved this already.", who=who),
        ApprovalState.REJECTED: phrase("%(who)s has rejected this already.", who=who),
        ApprovalState.TIMED_OUT: phrase("Nobody has decided this in time, and it cannot be decided any more."),
    }.get(ApprovalState(approval.state), phrase("The job has ended, or does not ask this any more."))
    return Conflict(message, details=details, hint="Read the approval: it says what was decided.")


def _time_out(approval: Approval, row: JobRow, now: dt.datetime, using: str) -> None:
    approval.state, approval.decided_at, approval.next_at = ApprovalState.TIMED_OUT.value, now, None
    if approval.default is None:
        message = f"Nobody has decided {approval.name!r} in time."
        _finish(approval, row, now, using, "scheduler", error={"type": "ApprovalTimeout", "message": message})
    else:
        decision = ApprovalDecision(approval.default, at=now, is_default=True)
        _finish(approval, row, now, using, "scheduler", result=decision)
    _audit(_by_scheduler("approval.time_out", approval), using, name=approval.name, job_id=str(approval.job_id))


def _escalate(approval: Approval, row: JobRow, now: dt.datetime, using: str) -> None:
    more = [Assignee(*one) for one in approval.escalate_to or ()]
    known = {(one.kind, one.key) for one in approval.assignees.all()}
    _add(approval, [one for one in more if (one.kind, one.key) not in known], using)
    approval.escalate_at = None
    approval.changes += 1
    approval.mail_due = ojs_settings.APPROVAL_MAIL is not None
    approval.next_at = _next(approval)
    approval.save(using=using)
    _tell("escalated", approval, row, now, "scheduler", using, assignees=names(approval))
    act = _by_scheduler("approval.escalate", approval)
    _audit(act, using, name=approval.name, job_id=str(approval.job_id), to=[str(one) for one in more])


def _finish(
    approval: Approval, row: JobRow, now: dt.datetime, using: str, component: str, *,
    result: ApprovalDecision | None = None, error: dict[str, str] | None = None,
) -> None:  # fmt: skip
    """Store the approval, end the step that waits for it, and let the job go on."""
    approval.save(using=using)
    _waits(approval, using).update(
        result=None if result is None else RawJSON(jsontext.dumps(result.to_json())), error=error, ended_at=now
    )
    if row["state"] == State.RETRYABLE:
        promote.end_waits([row], now, component, using)
    facts = {"decided_by": approval.decided_by} if approval.decided_by else {}
    _tell("decided", approval, row, now, component, using, outcome=approval.state, **facts)


def _tell(
    what: str, approval: Approval, row: JobRow, now: dt.datetime, component: str, using: str, **facts: Any
) -> None:  # fmt: skip
    shared = {"approval_id": str(approval.pk), "name": approval.name, "title": approval.title}
    log.append([catalogue.of_job(f"approval.{what}", row, now, component, **shared, **facts)], using)


def _audit(act: Act | None, using: str, **detail: Any) -> None:
    if act is not None:
        act.detail = {**act.detail, **detail}
        audit.append([act], using)


def _by_scheduler(action: str, approval: Approval) -> Act:
    return Act("scheduler", action, str(approval.pk), door="scheduler")


def _add(approval: Approval, asked: Sequence[Assignee], using: str) -> None:
    rows = [ApprovalAssignee(approval=approval, kind=one.kind, key=one.key, name=one.name) for one in asked]
    ApprovalAssignee.objects.using(using).bulk_create(rows)
    known: Any = approval
    known._prefetched_objects_cache = {}


def _next(approval: Approval) -> dt.datetime | None:
    return min(filter(None, (approval.due_at, approval.escalate_at)), default=None)
