"""Durable handlers that ask people: who may decide, what is stored, timeouts, escalation, the ends of jobs."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import Group, Permission, User

from django_ojs import (
    ApprovalDecision,
    ApprovalTimeout,
    JobContext,
    StepError,
    aapprove,
    approvals_for,
    approve,
    clock,
    delegate_approval,
    emit_event,
    job,
)
from django_ojs.errors import Conflict, InvalidRequest, NotFound, PermissionDenied
from django_ojs.events import log
from django_ojs.jobs import approvals, retry
from django_ojs.jobs.cancel import cancel
from django_ojs.models import Approval, ApprovalAssignee, AuditEntry, Job, JobStep
from django_ojs.queues.deletion import remove
from django_ojs.registry import registry
from django_ojs.retention import prune
from django_ojs.scheduler.scheduler import TendApprovals
from django_ojs.testing import approve as decide
from django_ojs.testing import assert_survives_crashes, job_context
from django_ojs.testing.storedjobs import InlineJobs, WorkerJobs, inline
from tests.durable.approvalforms import RefundForm
from tests.durable.conftest import NOW

pytestmark = pytest.mark.django_db

KINDS = ("approval.requested", "approval.decided", "approval.delegated", "approval.escalated")


@pytest.fixture
def anna() -> User:
    return User.objects.create_user("anna")


@pytest.fixture
def ben() -> User:
    return User.objects.create_user("ben")


def asking(**options: Any) -> Any:
    @job("order.refund", durable=True)
    def refund(context: JobContext, order: int) -> Any:
        context.step("look", int)
        found = context.wait_for_approval("refund", **options)
        return [found.approved, found.by, found.comment, found.data, found.is_default]

    return refund


def asked() -> Approval:
    return Approval.objects.get()


def test_a_job_waits_without_a_slot_until_somebody_decides(jobs: WorkerJobs, anna: User) -> None:
    handle = asking(title="Refund?", details={"order": 7}, assignees=[anna]).enqueue(7)
    jobs.drain(with_scheduled=True)
    waiting = Job.objects.get()
    assert (waiting.state, waiting.visible_until, waiting.uncounted) == ("retryable", None, 1)
    approval = asked()
    assert (approval.title, approval.details, approval.state, approval.job_id) == (
        "Refund?", {"order": 7}, "open", handle.id
    )  # fmt: skip
    assert approvals.names(approval) == ["user:anna"]
    assert list(approvals_for(anna)) == [approval]
    done = approve(approval, by=anna, comment="Fine.")
    assert (done.state, done.decided_by, done.decided_at) == ("approved", "user:anna", NOW)
    assert not approvals_for(anna)
    jobs.drain().raise_first()
    assert handle.refresh().result == [True, "user:anna", "Fine.", None, False]
    assert [event["type"] for event in log.read(types=list(KINDS)).events] == list(KINDS[:2])
    (entry,) = AuditEntry.objects.all()
    assert (entry.actor, entry.action, entry.target, entry.door) == (
        "user:anna", "approval.decide", str(approval.pk), "python"
    )  # fmt: skip
    assert entry.detail == {"name": "refund", "job_id": str(handle.id), "approved": True}


def test_a_second_decision_is_told_of_the_first(jobs: WorkerJobs, anna: User, ben: User) -> None:
    handle = asking(assignees=[anna, "user:ben"]).enqueue(7)
    jobs.drain()
    approve(asked(), by=ben, approved=False, comment="No.")
    with pytest.raises(Conflict, match="ben has rejected this already") as refused:
        approve(asked(), by=anna)
    assert refused.value.details["current_state"] == "rejected"
    assert refused.value.details["decided_by"] == "user:ben"
    assert refused.value.details["job_id"] == str(handle.id)
    jobs.drain().raise_first()
    assert handle.refresh().result == [False, "user:ben", "No.", None, False]
    assert AuditEntry.objects.count() == 1


def test_who_may_decide(jobs: WorkerJobs, anna: User, ben: User) -> None:
    finance = Group.objects.create(name="finance")
    carl = User.objects.create_user("carl")
    carl.user_permissions.add(Permission.objects.get(codename="view_job"))
    root = User.objects.create_superuser("root")
    ben.groups.add(finance)
    asking(assignees=["group:finance", "perm:django_ojs.view_job"]).enqueue(7)
    jobs.drain()
    approval = asked()
    with pytest.raises(PermissionDenied):
        approve(approval, by=anna)
    for one in (ben, carl, root):
        assert list(approvals_for(one)) == [approval]
        approvals.Decider.of(one).check(approval, "default")
    ben.is_active = root.is_active = False
    for one in (ben, root):
        with pytest.raises(PermissionDenied):
            approve(approval, by=one)
    for unknown in (uuid.uuid4(), "nonsense", ""):
        with pytest.raises(NotFound):
            approve(unknown, by=carl)
        with pytest.raises(NotFound):
            delegate_approval(unknown, [ben], by=carl)
    assert asked().state == "open"


def test_one_that_names_nobody_asks_all_with_the_permission(jobs: WorkerJobs, anna: User, ben: User) -> None:
    anna.user_permissions.add(Permission.objects.get(codename="decide_approval"))
    asking().enqueue(7)
    jobs.drain()
    assert asked().title == "refund"
    assert not approvals_for(ben)
    with pytest.raises(PermissionDenied):
        approve(asked(), by=ben)
    assert list(approvals_for(anna)) == [asked()]
    approve(asked(), by=anna)


@pytest.mark.parametrize("assignee", ["user:nobody", "group:none", "anna", 7, "perm:odd"])
def test_assignees_that_do_not_exist_fail_the_job(jobs: WorkerJobs, assignee: Any) -> None:
    asking(assignees=[assignee]).enqueue(7)
    (run,) = jobs.drain().runs
    assert isinstance(run.exception, InvalidRequest)
    assert run.exception.details["field"] == "assignees"
    assert not Approval.objects.exists()
    assert not JobStep.objects.filter(kind="event").exists()


def test_the_data_of_a_form_are_checked_and_kept(jobs: WorkerJobs, anna: User) -> None:
    handle = asking(assignees=[anna], form=RefundForm).enqueue(7)
    jobs.drain()
    for data in ({"amount": "501"}, None, {"amount": "x"}):
        with pytest.raises(InvalidRequest) as refused:
            approve(asked(), by=anna, data=data)
        assert list(refused.value.details["errors"]) == ["amount"]
        assert refused.value.details["field"] == "data.amount"
    assert asked().state == "open"
    approve(asked(), by=anna, data={"amount": "12.50", "on": "2026-05-05", "more": 1})
    jobs.drain().raise_first()
    assert handle.refresh().result[3] == {"amount": "12.50", "on": "2026-05-05"}


@pytest.mark.parametrize("odd", [5, 1.5, ["2026-05-05"], {"a": 1}])
def test_what_no_browser_sends_fits_no_form(jobs: WorkerJobs, anna: User, odd: Any) -> None:
    """Fields of Django raise exceptions of their own for such values."""
    asking(assignees=[anna], form=RefundForm).enqueue(7)
    jobs.drain()
    with pytest.raises(InvalidRequest) as refused:
        approve(asked(), by=anna, data={"amount": 1, "on": odd})
    assert refused.value.details["field"].startswith("data")
    assert asked().state == "open"


@pytest.mark.parametrize("odd", [{"approved": "no"}, {"approved": None}, {"comment": None}, {"comment": b"fine"}])
def test_a_decision_is_yes_or_no_with_a_text(jobs: WorkerJobs, anna: User, odd: Any) -> None:
    asking(assignees=[anna]).enqueue(7)
    jobs.drain()
    with pytest.raises(InvalidRequest):
        approve(asked(), by=anna, **odd)
    assert asked().state == "open"


def test_who_rejects_need_not_fill_in_the_form(jobs: WorkerJobs, anna: User) -> None:
    handle = asking(assignees=[anna], form=RefundForm).enqueue(7)
    jobs.drain()
    approve(asked(), by=anna, approved=False)
    jobs.drain().raise_first()
    assert handle.refresh().result[3] is None


@pytest.mark.parametrize("form", [RefundForm, {"type": "object", "required": ["amount"]}], ids=["form", "schema"])
def test_of_who_rejects_only_data_that_fit_are_kept(jobs: WorkerJobs, anna: User, form: Any) -> None:
    """A view gives what was posted, whatever the button was."""
    for data, kept in (({}, None), ({"amount": "12.50"}, "12.50")):
        handle = asking(assignees=[anna], form=form).enqueue(7)
        jobs.drain()
        approve(approvals_for(anna).get(), by=anna, approved=False, data=data)
        jobs.drain().raise_first()
        approved, _, _, found, _ = handle.refresh().result
        assert (approved, found and found["amount"]) == (False, kept)


def test_who_rejects_needs_no_form_that_is_gone(jobs: WorkerJobs, anna: User) -> None:
    asking(assignees=[anna], form=RefundForm).enqueue(7)
    jobs.drain()
    Approval.objects.update(form="tests.durable.approvalforms:Gone")
    with pytest.raises(InvalidRequest, match="is gone"):
        approve(asked(), by=anna, data={"amount": "1"})
    assert approve(asked(), by=anna, approved=False, data={"amount": "1"}).state == "rejected"


def test_the_data_of_a_json_schema_are_checked(jobs: WorkerJobs, anna: User) -> None:
    schema = {"type": "object", "properties": {"amount": {"type": "number"}}, "required": ["amount"]}
    handle = asking(assignees=[anna], form=schema).enqueue(7)
    jobs.drain()
    with pytest.raises(InvalidRequest) as refused:
        approve(asked(), by=anna, data={"amount": "x"})
    assert refused.value.details["validation_errors"][0]["path"] == "data.amount"
    approve(asked(), by=anna, data={"amount": 1.5})
    jobs.drain().raise_first()
    assert handle.refresh().result[3] == {"amount": 1.5}


@pytest.mark.parametrize(
    "data", [float("nan"), {"a": [float("-inf")]}, json.loads("[" * 201 + "]" * 201)], ids=lambda data: repr(data)[:9]
)
def test_data_that_are_no_json_are_refused(jobs: WorkerJobs, anna: User, data: Any) -> None:
    asking(assignees=[anna], form={}).enqueue(7)
    jobs.drain()
    with pytest.raises(InvalidRequest) as refused:
        approve(asked(), by=anna, data=data)
    assert refused.value.details["field"] == "data"
    assert asked().state == "open"


def test_data_without_a_form_are_refused(jobs: WorkerJobs, anna: User) -> None:
    asking(assignees=[anna]).enqueue(7)
    jobs.drain()
    for approved in (True, False):
        with pytest.raises(InvalidRequest, match="no form"):
            approve(asked(), by=anna, approved=approved, data={"a": 1})


def test_a_job_whose_approval_has_ended_without_its_step_looks_again_later(jobs: WorkerJobs) -> None:
    """As by hand, or from a backup: it is not handed back at once, again and again."""
    asking(timeout="1d").enqueue(7)
    jobs.drain()
    Approval.objects.update(state="approved")
    with clock.frozen(NOW + dt.timedelta(days=2)):
        Job.objects.update(wake_at=clock.now(), due_at=clock.now())
        assert len(jobs.drain().runs) == 1
        assert Job.objects.get().due_at == clock.now() + dt.timedelta(seconds=1)


def test_a_timeout_without_a_default_ends_the_job(jobs: WorkerJobs, anna: User) -> None:
    handle = asking(assignees=[anna], timeout="1d").enqueue(7)
    done = jobs.drain(with_scheduled=True)
    assert [type(run.exception) for run in done.runs] == [type(None), ApprovalTimeout]
    assert asked().state == "timed_out"
    assert handle.refresh().state == "discarded"
    with pytest.raises(Conflict, match="in time"):
        approve(asked(), by=anna)
    assert Job.objects.get().errors[-1]["code"] == "approval_timeout"


@pytest.mark.parametrize("default", [True, False])
@pytest.mark.parametrize("by_scheduler", [True, False])
def test_a_default_counts_after_the_timeout(jobs: WorkerJobs, anna: User, default: bool, by_scheduler: bool) -> None:
    handle = asking(assignees=[anna], timeout="1d", default=default).enqueue(7)
    jobs.drain()
    clock.advance(days=1)
    if by_scheduler:
        assert TendApprovals().run_once("default") == TendApprovals.EVERY
        assert asked().state == "timed_out"
    jobs.drain().raise_first()
    assert asked().state == "timed_out"
    assert handle.refresh().result == [default, "", "", None, True]
    (event,) = log.read(types=["approval.decided"]).events
    assert event["data"]["outcome"] == "timed_out"
    assert list(AuditEntry.objects.values_list("actor", "action")) == [("scheduler", "approval.time_out")]


def test_more_people_are_asked_after_a_while(jobs: WorkerJobs, anna: User, ben: User) -> None:
    asking(assignees=[anna], escalate_after="2h", escalate_to=[ben, anna], timeout="1d").enqueue(7)
    jobs.drain()
    clock.advance(hours=1)
    TendApprovals().run_once("default")
    assert approvals.names(asked()) == ["user:anna"]
    clock.advance(hours=1)
    TendApprovals().run_once("default")
    assert approvals.names(asked()) == ["user:anna", "user:ben"]
    assert asked().next_at == NOW + dt.timedelta(days=1)
    TendApprovals().run_once("default")
    assert len(log.read(types=["approval.escalated"]).events) == 1
    assert list(AuditEntry.objects.values_list("actor", "action")) == [("scheduler", "approval.escalate")]
    approve(asked(), by=ben)


def test_who_could_decide_from_the_start_still_may_when_more_are_asked(jobs: WorkerJobs, anna: User, ben: User) -> None:
    """Also where the approval names nobody, and so asks all with the permission."""
    anna.user_permissions.add(Permission.objects.get(codename="decide_approval"))
    asking(escalate_after="2h", escalate_to=[ben]).enqueue(7)
    jobs.drain()
    before = approvals.asking_of(asked())
    clock.advance(hours=2)
    TendApprovals().run_once("default")
    assert approvals.names(asked()) == ["perm:django_ojs.decide_approval", "user:ben"]
    assert approvals.asking_of(asked()) == before  # the links in mails go on deciding
    assert [list(approvals_for(User.objects.get(pk=user.pk))) for user in (anna, ben)] == [[asked()]] * 2
    approve(asked(), by=User.objects.get(pk=anna.pk))


def test_who_delegates_is_not_asked_any_more(jobs: WorkerJobs, anna: User, ben: User) -> None:
    asking(assignees=[anna]).enqueue(7)
    jobs.drain()
    with pytest.raises(PermissionDenied):
        delegate_approval(asked(), ["user:ben"], by=ben)
    with pytest.raises(InvalidRequest):
        delegate_approval(asked(), [], by=anna)
    delegate_approval(asked(), ["user:ben"], by=anna)
    assert approvals.names(asked()) == ["user:ben"]
    with pytest.raises(PermissionDenied):
        approve(asked(), by=anna)
    (event,) = log.read(types=["approval.delegated"]).events
    assert (event["data"]["assignees"], event["data"]["delegated_by"]) == (["user:ben"], "user:anna")
    approve(asked(), by=ben)
    assert list(AuditEntry.objects.order_by("pk").values_list("action", flat=True)) == [
        "approval.delegate", "approval.decide"
    ]  # fmt: skip


def test_a_job_that_is_cancelled_closes_its_approval(jobs: WorkerJobs, anna: User) -> None:
    handle = asking(assignees=[anna], timeout="1d").enqueue(7)
    jobs.drain()
    cancel([handle.id])
    assert (asked().state, asked().next_at) == ("closed", None)
    with pytest.raises(Conflict, match="has ended"):
        approve(asked(), by=anna)


def test_the_scheduler_closes_what_is_left_of_ended_jobs(jobs: WorkerJobs, anna: User) -> None:
    asking(assignees=[anna]).enqueue(7)
    jobs.drain()
    Job.objects.all()._raw_delete("default")
    with pytest.raises(Conflict):
        approve(asked(), by=anna)
    assert asked().state == "open"
    TendApprovals().run_once("default")
    assert asked().state == "closed"


def test_a_dead_letter_that_is_retried_asks_again(jobs: WorkerJobs, anna: User) -> None:
    handle = asking(assignees=[anna]).enqueue(7)
    jobs.drain()
    Job.objects.update(deadline_at=NOW, wake_at=NOW)
    jobs.drain()
    assert handle.refresh().state == "discarded"
    assert asked().state == "closed"
    retry.retry([handle.id])
    jobs.drain()
    assert asked().state == "open"
    approve(asked(), by=anna)
    jobs.drain().raise_first()
    assert handle.refresh().result[0] is True


def test_an_approval_goes_with_its_job_to_another_queue(jobs: WorkerJobs, anna: User) -> None:
    """Keys reach approvals by the queues of their jobs."""
    handle = asking(assignees=[anna]).options(queue="orders").enqueue(7)
    jobs.drain()
    remove("orders", "move", "other")
    assert (asked().queue, asked().state, handle.refresh().queue) == ("other", "open", "other")
    Job.objects.update(deadline_at=NOW, wake_at=NOW)
    jobs.drain()
    retry.retry([handle.id], override={"queue": "third"})
    assert (asked().queue, handle.refresh().queue) == ("third", "third")


def test_it_is_asked_once_however_often_the_handler_runs(jobs: WorkerJobs, anna: User) -> None:
    asking(assignees=[anna]).enqueue(7)
    for _ in range(3):
        jobs.drain()
        Job.objects.update(wake_at=NOW, due_at=NOW)
    assert Approval.objects.count() == 1
    assert len(log.read(types=["approval.requested"]).events) == 1


def test_code_that_starts_over_closes_what_it_asked(jobs: WorkerJobs, anna: User) -> None:
    asking(assignees=[anna]).enqueue(7)
    jobs.drain()
    first = asked()
    with registry.isolated():

        @job("order.refund", durable="2")
        def refund(context: JobContext, order: int) -> bool:
            return bool(context.wait_for_approval("again", assignees=["user:anna"]))

        Job.objects.update(wake_at=NOW, due_at=NOW)
        jobs.drain()
        first.refresh_from_db()
        assert first.state == "closed"
        approve(Approval.objects.get(state="open"), by=anna)
        jobs.drain().raise_first()
        assert Job.objects.get().result is True


def test_the_same_without_a_worker() -> None:
    handler = asking(form=RefundForm)
    context = job_context(handler)
    with pytest.raises(StepError, match="approve"):
        handler(context, 7)
    context = job_context(handler)
    context.approve("refund", comment="Fine.", data={"amount": 1}, by="user:anna")
    assert handler(context, 7) == [True, "user:anna", "Fine.", {"amount": 1}, False]


def test_the_helper_of_tests_decides_for_whoever_is_asked(jobs: WorkerJobs, anna: User) -> None:
    handle = asking(assignees=[anna]).enqueue(7)
    with pytest.raises(AssertionError, match="none"):
        decide(handle)
    jobs.drain()
    decide(handle, approved=False)
    jobs.drain().raise_first()
    assert handle.refresh().result[0] is False


def test_a_job_that_runs_inline_goes_on_at_once(anna: User) -> None:
    with inline() as jobs:
        assert isinstance(jobs, InlineJobs)
        handle = asking(assignees=[anna]).enqueue(7)
        assert handle.refresh().state == "retryable"
        decide(handle, by=anna)
        assert handle.refresh().result[:2] == [True, "user:anna"]


def test_asynchronous_handlers(jobs: WorkerJobs, anna: User) -> None:
    @job("order.async", durable=True)
    async def refund(context: JobContext) -> bool:
        return (await context.await_for_approval("refund", assignees=[anna])).approved

    handle = refund.enqueue()
    jobs.drain()
    async_to_sync(aapprove)(asked(), by=anna)
    jobs.drain().raise_first()
    assert handle.refresh().result is True


def test_it_survives_crashes() -> None:
    assert_survives_crashes(asking(timeout="1d", default=True).s(7))


def test_nobody_decides_by_an_event(jobs: WorkerJobs) -> None:
    asking().enqueue(7)
    jobs.drain()
    with pytest.raises(InvalidRequest, match="those of the server"):
        emit_event("$approval", str(asked().pk), {})


@pytest.mark.parametrize(
    "options", [{"title": "x" * 201}, {"default": True}, {"escalate_after": "1h"}, {"escalate_to": ["user:a"]}],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_asked(jobs: WorkerJobs, options: Any) -> None:
    asking(**options).enqueue(7)
    (run,) = jobs.drain().runs
    assert isinstance(run.exception, ValueError)
    assert not Approval.objects.exists()


def test_a_form_has_to_be_found_again(jobs: WorkerJobs) -> None:
    class Local(RefundForm):
        pass

    asking(form=Local).enqueue(7)
    (run,) = jobs.drain().runs
    assert isinstance(run.exception, TypeError)


def test_old_approvals_are_pruned(jobs: WorkerJobs, anna: User, settings: Any) -> None:
    handler = asking(assignees=[anna])
    for number in range(3):
        handler.enqueue(number)
    jobs.drain()
    first, second, third = Approval.objects.order_by("pk")
    approve(first, by=anna)
    approve(second, by=anna)
    clock.advance(days=91)
    assert prune(batch=1)["approvals"] == 1
    assert prune()["approvals"] == 1
    assert [one.pk for one in Approval.objects.all()] == [third.pk]
    assert ApprovalAssignee.objects.count() == 1


def test_a_decision_is_kept_as_it_is() -> None:
    for decision in (ApprovalDecision(True, "user:a", NOW, "x", {"a": 1}), ApprovalDecision(False, is_default=True)):
        assert ApprovalDecision.of_json(decision.to_json()) == decision
        assert bool(decision) is decision.approved
