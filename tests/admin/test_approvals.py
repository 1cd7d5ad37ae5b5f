"""What durable jobs ask people, in the admin: the inbox, the page of one, decisions and delegation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.test import Client
from django.urls import reverse
from django.utils import translation

from django_ojs import JobContext, clock, job
from django_ojs.errors import Conflict
from django_ojs.jobs import approvals
from django_ojs.models import Approval, AuditEntry, Job, JobLog
from django_ojs.registry import registry
from django_ojs.testing.storedjobs import WorkerJobs, worker
from tests.durable.approvalforms import RefundForm

pytestmark = pytest.mark.django_db


@pytest.fixture
def jobs() -> Iterator[WorkerJobs]:
    with registry.isolated(), worker() as found:
        yield found


def staff(name: str, *codenames: str) -> User:
    user = User.objects.create_user(name, is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    return user


def login(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def start(jobs: WorkerJobs, number: int = 1, **options: Any) -> tuple[Any, Approval]:
    @job(f"order.refund{number}", durable=True)
    def refund(context: JobContext) -> Any:
        context.step("looked up", str, "order 4711")
        decision = context.wait_for_approval("refund", **options)
        return [decision.approved, decision.by, decision.comment, decision.data]

    handle = refund.enqueue()
    jobs.drain()
    return handle, Approval.objects.get(job_id=handle.id)


def url(page: str, approval: Approval | None = None) -> str:
    return reverse(f"admin:django_ojs_approval_{page}", args=[approval.pk] if approval else [])


def test_who_may_only_decide_sees_what_asks_that_user(jobs: WorkerJobs) -> None:
    anna, ben, carl = staff("anna", "decide_approval"), staff("ben", "view_approval"), staff("carl")
    _, mine = start(jobs, 1, title="Refund mine?", assignees=[anna])
    _, other = start(jobs, 2, title="Refund another?", assignees=["perm:shop.refund"])
    page = login(anna).get(url("changelist")).content.decode()
    assert "Refund mine?" in page
    assert "Refund another?" not in page
    assert login(anna).get(url("change", other)).status_code == 302
    assert login(anna).get(url("decide", other)).status_code == 404
    page = login(ben).get(url("changelist")).content.decode()
    assert "Refund mine?" in page
    assert "Refund another?" in page
    assert "Refund" not in login(ben).get(url("changelist") + "?asks=me").content.decode().partition("result_list")[2]
    assert url("decide", mine) not in login(ben).get(url("change", mine)).content.decode()
    assert login(ben).post(url("decide", mine), {"approve": "1"}).status_code == 403
    assert login(carl).get(url("changelist")).status_code == 403
    assert Approval.objects.filter(state="open").count() == 2


def test_the_page_shows_what_the_job_did_and_leads_to_the_decision(jobs: WorkerJobs) -> None:
    anna = staff("anna", "decide_approval", "view_job")
    handle, approval = start(jobs, title="<b>Refund?", details={"order": 4711}, assignees=[anna], form=RefundForm)
    client = login(anna)
    page = client.get(url("change", approval)).content.decode()
    for text in ("&lt;b&gt;Refund?", "4711", "looked up", "order 4711", "user:anna", str(handle.id)):
        assert text in page, text
    assert url("decide", approval) in page
    assert (
        url("change", approval) in client.get(reverse("admin:django_ojs_job_change", args=[handle.id])).content.decode()
    )
    form = client.get(url("decide", approval)).content.decode()
    assert 'name="amount"' in form
    assert Approval.objects.get().state == "open"
    wrong = client.post(url("decide", approval), {"approve": "1", "amount": "501"})
    assert wrong.status_code == 200
    assert "less than or equal to 500" in wrong.content.decode()
    assert Approval.objects.get().state == "open"
    done = client.post(
        url("decide", approval), {"approve": "1", "amount": "12.50", "ojs_comment": "Two\r\nlines"}, follow=True
    )
    assert "Approved." in done.content.decode()
    jobs.drain().raise_first()
    assert handle.refresh().result == [True, "user:anna", "Two\nlines", {"amount": "12.50", "on": None}]
    entry = AuditEntry.objects.get()
    assert (entry.actor, entry.action, entry.door) == ("user:anna", "approval.decide", "admin")
    again = client.post(url("decide", approval), {"reject": "1"}, follow=True)
    assert [str(one) for one in again.context["messages"]] == ["anna has approved this already."]
    assert url("decide", approval) not in client.get(url("change", approval)).content.decode()


def test_the_page_shows_what_the_job_has_logged_to_who_may_view_jobs(jobs: WorkerJobs) -> None:
    anna = staff("anna", "decide_approval")
    handle, approval = start(jobs, assignees=[anna])
    now = clock.now()
    JobLog.objects.create(
        job_id=handle.id, attempt=1, started_at=now, sequence=1, time=now, level=20, message="found the order"
    )
    client = login(anna)
    assert "found the order" not in client.get(url("change", approval)).content.decode()
    anna.user_permissions.add(Permission.objects.get(codename="view_job"))
    page = client.get(url("change", approval)).content.decode()
    assert "found the order" in page
    assert reverse("admin:django_ojs_job_logs", args=[handle.id]) in page
    Job.objects.all().delete()
    assert "data-ojs-logs" not in client.get(url("change", approval)).content.decode()


def test_it_is_rejected_without_the_form(jobs: WorkerJobs) -> None:
    anna = staff("anna", "decide_approval")
    handle, approval = start(jobs, assignees=[anna], form=RefundForm)
    assert login(anna).post(url("decide", approval), {"reject": "1"}).status_code == 302
    jobs.drain().raise_first()
    assert handle.refresh().result[0] is False


def test_a_json_schema_is_a_field(jobs: WorkerJobs) -> None:
    anna = staff("anna", "decide_approval")
    handle, approval = start(jobs, assignees=[anna], form={"type": "object", "required": ["amount"]})
    client = login(anna)
    wrong = client.post(url("decide", approval), {"approve": "1", "ojs_data": "{}"})
    assert wrong.status_code == 200
    assert "amount" in wrong.content.decode()
    client.post(url("decide", approval), {"approve": "1", "ojs_data": '{"amount": 1}'})
    jobs.drain().raise_first()
    assert handle.refresh().result[3] == {"amount": 1}


def test_it_is_delegated(jobs: WorkerJobs) -> None:
    anna = staff("anna", "decide_approval")
    _, approval = start(jobs, assignees=[anna])
    client = login(anna)
    wrong = client.post(url("decide", approval), {"delegate": "1", "ojs_to": "user:nobody"})
    assert wrong.status_code == 200
    assert "users that exist" in wrong.content.decode()
    staff("ben")
    client.post(url("decide", approval), {"delegate": "1", "ojs_to": "user:ben"})
    assert approvals.names(Approval.objects.get()) == ["user:ben"]
    assert client.get(url("decide", approval)).status_code == 404
    assert AuditEntry.objects.get().action == "approval.delegate"


def test_the_job_names_its_approval_without_a_link_for_who_may_not_see_it(jobs: WorkerJobs) -> None:
    handle, _ = start(jobs, title="Refund 4711?", assignees=[staff("anna", "decide_approval")])
    page = login(staff("ben", "view_job")).get(reverse("admin:django_ojs_job_change", args=[handle.id]))
    assert "Refund 4711? (open)" in page.content.decode()


def test_no_button_but_delegate_passes_over_whom_it_is_to_be_delegated_to(jobs: WorkerJobs) -> None:
    anna = staff("anna", "decide_approval")
    _, approval = start(jobs, assignees=[anna])
    for button in ("approve", "reject"):
        refused = login(anna).post(url("decide", approval), {button: "1", "ojs_to": "user:ben"})
        assert "Press Delegate, or empty this field" in refused.content.decode()
    assert Approval.objects.get().state == "open"


def test_it_is_delegated_to_several_whose_names_may_have_spaces(jobs: WorkerJobs) -> None:
    anna = staff("anna", "decide_approval")
    staff("ben")
    Group.objects.create(name="the money, and more")
    _, approval = start(jobs, assignees=[anna])
    client = login(anna)
    wrong = client.post(url("decide", approval), {"delegate": "1", "ojs_to": ["group:the money, and more", "user:a b"]})
    for name in ("group:the money, and more", "user:a b"):
        assert f'name="ojs_to" value="{name}"' in wrong.content.decode(), "what was entered is kept"
    refused = client.post(url("decide", approval), {"delegate": "1", "ojs_to": ["", "user:a\0"]})
    assert refused.status_code == 200
    client.post(url("decide", approval), {"delegate": "1", "ojs_to": ["group:the money, and more", " ", "user:ben"]})
    assert approvals.names(Approval.objects.get()) == ["group:the money, and more", "user:ben"]


def test_who_may_not_list_users_is_told_of_those_who_decide_and_of_its_own_groups(jobs: WorkerJobs) -> None:
    anna = staff("anna", "decide_approval")
    staff("ben", "decide_approval")
    staff("eve", "view_job")
    ours, asked, _ = (Group.objects.create(name=name) for name in ("ours", "asked", "theirs"))
    anna.groups.add(ours)
    _, approval = start(jobs, assignees=[anna, asked])

    def suggested() -> list[str]:
        page = login(anna).get(url("decide", approval)).content.decode()
        return re.findall(r'<option value="([^"]+)">', page)

    assert suggested() == ["group:asked", "group:ours", "user:anna", "user:ben"]
    anna.user_permissions.add(*Permission.objects.filter(codename__in=["view_user", "view_group"]))
    assert suggested() == ["group:asked", "group:ours", "group:theirs", "user:anna", "user:ben", "user:eve"]


def test_what_is_refused_is_told_in_the_language_of_the_user(jobs: WorkerJobs) -> None:
    anna = staff("anna", "decide_approval")
    _, approval = start(jobs, assignees=[anna], form=RefundForm)
    client = login(anna)
    with translation.override("de"):
        refused = client.post(url("decide", approval), {"delegate": "1", "ojs_to": "group:gone"})
    assert "to: muss Gruppen nennen, die es gibt." in refused.content.decode()
    approvals.decide(approval.pk, False, approvals.Decider.of(anna))
    with translation.override("de"):
        again = client.post(url("decide", approval), {"approve": "1", "amount": "5"}, follow=True)
    assert [str(one) for one in again.context["messages"]] == ["anna hat das schon abgelehnt."]
    with pytest.raises(Conflict, match="anna has rejected this already"):
        approvals.decide(approval.pk, True, approvals.Decider.of(anna))


def test_the_header_of_each_page_counts_what_asks_the_user(jobs: WorkerJobs) -> None:
    anna, ben = staff("anna", "decide_approval", "view_job"), staff("ben", "decide_approval", "view_job")
    page = reverse("admin:django_ojs_job_changelist")

    def count(user: User) -> str:
        found = re.search(r'\?asks=me&amp;state=open"[^>]*>Approvals <span class="ojs-count">(\d+)<', text(user))
        return found[1] if found else ""

    def text(user: User) -> str:
        return login(user).get(page).content.decode()

    assert (count(anna), "ojs-count" in text(anna)) == ("", False)
    _, mine = start(jobs, 1, assignees=[anna])
    start(jobs, 2)
    assert (count(anna), count(ben)) == ("2", "1")
    approvals.decide(mine.pk, True, approvals.Decider.of(anna))
    assert count(anna) == "1"
    assert len(login(anna).get(url("changelist") + "?asks=me&state=open").context["cl"].result_list) == 1


def test_the_list_is_filtered_by_the_type_of_the_job(jobs: WorkerJobs) -> None:
    client = login(staff("anna", "view_approval"))
    start(jobs, 1)
    start(jobs, 2)

    def listed(text: str) -> list[str]:
        found = client.get(url("changelist"), {"job_type": text}).context["cl"].result_list
        return sorted(approval.type for approval in found)

    assert listed("order.refund2") == ["order.refund2"]
    assert listed("order.*") == ["order.refund1", "order.refund2"]
    assert listed("mail.*") == []


def test_a_form_that_the_code_has_no_more_is_told_and_decides_nothing(jobs: WorkerJobs) -> None:
    _, approval = start(jobs, form=RefundForm)
    Approval.objects.filter(pk=approval.pk).update(form="tests.durable.approvalforms:Gone")
    client = login(User.objects.create_superuser("root"))
    for answer in (client.get(url("decide", approval), follow=True),
                   client.post(url("decide", approval), {"approve": "1", "amount": "5"}, follow=True)):  # fmt: skip
        assert answer.status_code == 200
        assert "of this approval is gone" in answer.content.decode()
    approval.refresh_from_db()
    assert approval.state == "open"
