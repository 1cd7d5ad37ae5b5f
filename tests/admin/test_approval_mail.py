"""The mails to those whom durable jobs ask, and the links in them that decide without a login."""

from __future__ import annotations

import re
import smtplib
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.core import mail, signing
from django.core.mail.backends.locmem import EmailBackend
from django.test import Client
from django.urls import reverse

from django_ojs import clock
from django_ojs.errors import PermissionDenied
from django_ojs.jobs import approvalmail, approvals
from django_ojs.jobs.approvals import Decider
from django_ojs.models import Approval, AuditEntry
from django_ojs.rules.approvals import parse_mail
from django_ojs.scheduler.alerts import MailApprovals
from django_ojs.scheduler.scheduler import Scheduler
from django_ojs.testing.storedjobs import WorkerJobs
from tests.admin.test_approvals import jobs, login, start
from tests.durable.approvalforms import RefundForm

__all__ = ["jobs"]  # a fixture
pytestmark = pytest.mark.django_db
PAGE = "/admin/django_ojs/approval/approve/"
MAIL = {"site": "https://shop.example.com/", "links": "7d"}


@pytest.fixture(autouse=True)
def mailing(settings: Any) -> None:
    settings.OJS = {"APPROVAL_MAIL": MAIL}


def user(name: str, *groups: Group, **fields: Any) -> User:
    found = User.objects.create_user(name, **{"email": f"{name}@example.com", **fields})
    found.groups.set(groups)
    return found


def told() -> list[str]:
    """Send what is due: who got a mail."""
    mail.outbox.clear()
    found = parse_mail(MAIL)
    assert found is not None
    approvalmail.tell(found)
    return sorted(one.to[0].partition("@")[0] for one in mail.outbox)


def token() -> str:
    """What the link in the last mail has behind its #."""
    found = re.findall(rf"https://shop\.example\.com{PAGE}#(\S+)", str(mail.outbox[-1].body))
    return str(found[0])


def send(given: str, **fields: str) -> Any:
    return Client().post(PAGE, {"ojs_token": given, **fields})


def test_who_is_asked_gets_one_mail(jobs: WorkerJobs) -> None:
    finance = Group.objects.create(name="finance")
    finance.permissions.set(Permission.objects.filter(codename="add_group"))
    anna = user("anna", finance)
    user("ben", finance), user("gone", finance, is_active=False), user("mute", finance, email=""), user("other")
    _, approval = start(
        jobs, title="Refund\n 4711?", details={"iban": "DE89"},
        assignees=[anna, "group:finance", "perm:auth.add_group"], timeout="2d",
        escalate_after="1h", escalate_to=["user:other"],
    )  # fmt: skip
    assert told() == ["anna", "ben"]
    sent = mail.outbox[0]
    assert sent.subject.endswith("] Refund 4711?")
    assert f"https://shop.example.com{reverse('admin:django_ojs_approval_decide', args=[approval.pk])}" in sent.body
    assert "DE89" not in sent.body
    assert told() == []
    clock.freeze(clock.now())
    clock.advance(hours=1)
    assert approvals.tend() == 1
    assert told() == ["other"], "the others have their mails"
    approvals.delegate(approval.pk, ["user:ben"], Decider.of(anna))
    assert told() == ["ben"]
    approvals.decide(approval.pk, True, Decider.of(User.objects.get(username="ben")))
    _, approval = start(jobs, 2, title="And this?", assignees=[anna])
    approvals.decide(approval.pk, True, Decider.of(anna))
    assert told() == [], "it is decided"


def test_one_that_names_nobody_is_told_to_all_who_may_decide(jobs: WorkerJobs) -> None:
    user("anna").user_permissions.set(Permission.objects.filter(codename="decide_approval"))
    user("ben")
    start(jobs)
    assert told() == ["anna"]


def test_a_link_decides_once_and_only_by_post(jobs: WorkerJobs) -> None:
    handle, _ = start(jobs, title="<b>Refund?", details={"order": 4711}, assignees=[user("anna")], form=RefundForm)
    assert told() == ["anna"]
    given, stranger = token(), Client(enforce_csrf_checks=True)
    assert stranger.head(PAGE).status_code == 200
    page = stranger.get(PAGE, {"ojs_token": given})
    assert (page["Referrer-Policy"], page["X-Frame-Options"]) == ("same-origin", "DENY")
    assert "no-store" in page["Cache-Control"]
    assert "Refund" not in page.content.decode(), "the same for everybody"
    assert stranger.post(PAGE, {"ojs_token": given, "approve": "1", "amount": "5"}).status_code == 403, (
        "the token of the form is missing"
    )
    form = {"csrfmiddlewaretoken": page.context["csrf_token"], "ojs_token": given}
    for opened in (given, f" https://shop.example.com{PAGE}#{given}\n"):  # as who has no script pastes it
        asked = stranger.post(PAGE, {**form, "ojs_token": opened, "amount": "5"}).content.decode()
        for part in ("&lt;b&gt;Refund?", "4711", 'name="amount"', "You decide as anna.", f'value="{given}"'):
            assert part in asked, part
        assert 'ojs_to"' not in asked
    assert "less than or equal" in stranger.post(PAGE, {**form, "approve": "1", "amount": "501"}).content.decode()
    for more in ({"delegate": "1"}, {"delegate": "1", "approve": "1"}):
        assert stranger.post(PAGE, {**form, **more, "ojs_to": "user:anna", "amount": "5"}).status_code == 200
    assert Approval.objects.get().state == "open"
    assert "Approved." in stranger.post(PAGE, {**form, "approve": "1", "amount": "5"}).content.decode()
    again = stranger.post(PAGE, {**form, "reject": "1"})
    assert again.status_code == 409
    assert "anna has approved this already." in again.content.decode()
    jobs.drain().raise_first()
    assert handle.refresh().result == [True, "user:anna", "", {"amount": "5", "on": None}]
    entry = AuditEntry.objects.get(action="approval.decide", outcome="success")
    assert (entry.actor, entry.door, entry.source_ip) == ("user:anna", "mail", "127.0.0.1")
    assert given not in repr(list(AuditEntry.objects.values())) + repr(list(Approval.objects.values()))


def test_a_link_leads_to_no_login_where_all_other_pages_do(jobs: WorkerJobs, settings: Any) -> None:
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.contrib.auth.middleware.LoginRequiredMiddleware"]
    start(jobs, assignees=[user("anna")])
    told()
    assert Client().get(reverse("admin:django_ojs_overview")).status_code == 302
    assert Client().get(PAGE).status_code == 200
    assert "Approved." in send(token(), approve="1").content.decode()


def test_what_makes_a_link_useless(jobs: WorkerJobs, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    anna, ben = user("anna", is_superuser=True), user("ben")
    _, approval = start(jobs, assignees=[anna], escalate_after="1h", escalate_to=[user("carl")])
    told()
    given = token()

    def refused() -> int:
        status = send(given, approve="1").status_code
        assert Approval.objects.get().state == "open"
        return int(status)

    with monkeypatch.context() as patch:
        patch.setattr(signing, "time", type("Later", (), {"time": lambda: __import__("time").time() + 8 * 86400}))
        assert refused() == 404, "it is too old"
    settings.OJS = {"APPROVAL_MAIL": {"site": MAIL["site"]}}
    assert (refused(), Client().get(PAGE).status_code) == (404, 404), "the site allows no links any more"
    settings.OJS = {"APPROVAL_MAIL": MAIL}
    for name, value in {"is_active": False, "password": "!", "email": "other@example.com"}.items():
        before = getattr(anna, name)
        User.objects.filter(pk=anna.pk).update(**{name: value})
        assert refused() == 403, name
        User.objects.filter(pk=anna.pk).update(**{name: before})
    asked_at = approval.requested_at
    Approval.objects.update(requested_at=clock.now())
    assert refused() == 403, "it was asked anew"
    Approval.objects.update(requested_at=asked_at)
    other = signing.dumps(signing.loads(given, salt="django_ojs.approval"), salt="another")
    old = signing.dumps([approval.pk.hex, 1, str(anna.pk)], salt="django_ojs.approval")
    for forged in (
        other,
        old,
        given[:-1] + ("A" if given[-1] != "A" else "B"),
        "",
        "x",
        "x:y:z",
        "a\0:b:c",
        "x" * 5000,
    ):
        assert send(forged, approve="1").status_code == 404
    with clock.frozen(clock.now()):
        clock.advance(hours=1)
        assert approvals.tend() == 1
    assert send(given).status_code == 200, "more are asked, and anna still is"
    approvals.delegate(approval.pk, ["user:ben"], Decider.of(anna))
    assert refused() == 403, "it asks ben, and not even a superuser decides by a link that was for another question"
    approvals.delegate(approval.pk, ["user:anna"], Decider.of(ben))
    assert refused() == 403, "it asks anna again, by another mail"
    assert told() == ["anna"]
    assert send(token(), approve="1").status_code == 200
    assert Approval.objects.get().state == "approved"


def entries() -> list[tuple[str, str, str, str]]:
    """Who did what by which door, and with what result; the newest last."""
    return list(AuditEntry.objects.order_by("id").values_list("actor", "action", "door", "outcome"))


def test_the_audit_log_has_each_mail(jobs: WorkerJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """To whom, at which address, and about what; those that the server refuses, too."""

    def refuses(self: Any, messages: Any) -> int:
        if messages[0].to == ["ben@example.com"]:
            raise smtplib.SMTPRecipientsRefused({"ben@example.com": (550, b"unknown")})
        return original(self, messages)

    original = EmailBackend.send_messages
    handle, approval = start(jobs, assignees=[user("anna"), user("ben")])
    monkeypatch.setattr(EmailBackend, "send_messages", refuses)
    assert told() == ["anna"]
    assert entries() == [
        ("scheduler", "approval.mail", "scheduler", "success"), ("scheduler", "approval.mail", "scheduler", "denied")
    ]  # fmt: skip
    sent, refused = AuditEntry.objects.order_by("id")
    assert sent.target == refused.target == str(approval.pk)
    about = {"name": "refund", "job_id": str(handle.id)}
    assert sent.detail == {"to": "user:anna", "address": "anna@example.com", **about}
    assert refused.detail.pop("error")
    assert refused.detail == {"to": "user:ben", "address": "ben@example.com", **about}
    assert told() == []
    assert len(entries()) == 2


def test_the_audit_log_has_each_use_of_a_link(jobs: WorkerJobs, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who, from which address, and about what; no one can fill it without a link."""
    anna = user("anna")
    _, approval = start(jobs, assignees=[anna], form=RefundForm)
    told()
    given = token()
    AuditEntry.objects.all()._raw_delete("default")
    link = {"actor": "user:anna", "door": "mail", "target": str(approval.pk), "source_ip": "127.0.0.1"}

    def used(**fields: str) -> tuple[int, str, str, str]:
        """The status, and of the one new entry the action, the outcome and the reason."""
        before = AuditEntry.objects.count()
        status = send(given, **fields).status_code
        assert AuditEntry.objects.count() == before + 1
        entry = AuditEntry.objects.latest("pk")
        assert {name: getattr(entry, name) for name in link} == link
        return status, entry.action, entry.outcome, (entry.detail or {}).get("error", "")

    assert used() == (200, "approval.read", "success", "")
    assert used(approve="1", amount="501")[:3] == (200, "approval.decide", "denied")
    assert used(approve="1", amount="5", ojs_comment="x" * 2001)[:3] == (200, "approval.decide", "denied")
    assert used(delegate="1", ojs_to="user:anna")[:3] == (200, "approval.read", "success")
    with monkeypatch.context() as patch:
        patch.setattr(signing, "time", type("Later", (), {"time": lambda: __import__("time").time() + 8 * 86400}))
        assert used() == (404, "approval.read", "denied", "This link is not valid, or too old.")
    settings.OJS = {"APPROVAL_MAIL": {"site": MAIL["site"]}}
    assert used(reject="1") == (404, "approval.decide", "denied", "This link is not valid.")
    settings.OJS = {"APPROVAL_MAIL": MAIL}
    User.objects.filter(pk=anna.pk).update(email="other@example.com")
    assert used()[:3] == (403, "approval.read", "denied")
    User.objects.filter(pk=anna.pk).update(email=anna.email)
    assert used(approve="1", amount="5") == (200, "approval.decide", "success", "")
    assert used(reject="1")[:3] == (409, "approval.decide", "denied")
    before = entries()
    for forged in (given[:-1] + ("A" if given[-1] != "A" else "B"), "", "x:y:z"):
        assert send(forged, approve="1").status_code == 404
    Client().get(PAGE)
    assert entries() == before
    assert given not in repr(list(AuditEntry.objects.values()))


def test_the_audit_log_has_the_use_of_a_link_that_lost_a_race(
    jobs: WorkerJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    anna = user("anna")
    _, approval = start(jobs, assignees=[anna])
    told()
    original = approvals.decide

    def beaten(*given: Any, **options: Any) -> Approval:
        original(approval.pk, False, Decider.of(anna))
        return original(*given, **options)

    monkeypatch.setattr(approvals, "decide", beaten)
    assert "has rejected this already." in send(token(), approve="1").content.decode()
    assert entries()[1:] == [("user:anna", "approval.decide", "mail", "denied")]


def test_links_outlive_a_change_of_the_secret_key_that_is_told(jobs: WorkerJobs, settings: Any) -> None:
    start(jobs, assignees=[user("anna")])
    told()
    given, before = token(), settings.SECRET_KEY
    settings.SECRET_KEY = "another"
    assert send(given).status_code == 404
    settings.SECRET_KEY_FALLBACKS = [before]
    assert send(given).status_code == 200


def test_a_link_that_was_read_before_a_delegation_decides_nothing_after_it(jobs: WorkerJobs) -> None:
    anna = user("anna")
    _, approval = start(jobs, assignees=[anna])
    found = approvalmail.read(approvalmail.token(approval, anna))
    approvals.delegate(approval.pk, [anna], Decider.of(anna))
    with pytest.raises(PermissionDenied, match="asked again"):
        approvals.decide(approval.pk, True, found.decider)


def test_without_links_the_mail_leads_to_the_admin_only(jobs: WorkerJobs) -> None:
    start(jobs, assignees=[user("anna")])
    found = parse_mail({"site": "http://shop.example.com"})
    assert found is not None
    approvalmail.tell(found)
    assert "approve/#" not in mail.outbox[-1].body


def test_a_mail_that_cannot_be_sent_is_sent_later(jobs: WorkerJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    start(jobs, assignees=[user("anna"), user("ben")])
    duty = MailApprovals()

    def down(self: Any, messages: Any) -> int:
        raise ConnectionRefusedError("down")

    def busy(self: Any, messages: Any) -> int:
        raise smtplib.SMTPDataError(451, b"try again later")

    def refuses(self: Any, messages: Any) -> int:
        if messages[0].to == ["anna@example.com"]:
            raise smtplib.SMTPRecipientsRefused({"anna@example.com": (550, b"unknown")})
        return original(self, messages)

    original = EmailBackend.send_messages
    for fault in (down, busy):
        with monkeypatch.context() as patch:
            patch.setattr(EmailBackend, "send_messages", fault)
            assert duty.run_once("default") > duty.EVERY
    mail.outbox.clear()
    with monkeypatch.context() as patch:
        patch.setattr(EmailBackend, "send_messages", refuses)
        assert duty.run_once("default") == duty.EVERY
    assert [one.to for one in mail.outbox] == [["ben@example.com"]]
    assert told() == [], "an address that is refused would be refused again"


def test_who_has_a_mail_gets_it_once_though_the_server_fails_between_two(
    jobs: WorkerJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over one connection for all. What is known of users by name outlives the process."""
    finance = Group.objects.create(name="finance")
    anna = user("anna", finance)
    for name in ("ben", "carl", "dora"):
        user(name, finance)
    start(jobs, 1, assignees=[anna, "group:finance"])
    start(jobs, 2, assignees=["user:dora"])
    original, fails, opened = EmailBackend.send_messages, ["carl@example.com"], []

    def send_or_fail(self: Any, messages: Any) -> int:
        if messages[0].to == fails:
            raise ConnectionResetError
        return original(self, messages)

    monkeypatch.setattr(EmailBackend, "send_messages", send_or_fail)
    monkeypatch.setattr(EmailBackend, "open", lambda self: opened.append(1), raising=False)
    duty = MailApprovals()
    mail.outbox.clear()
    assert duty.run_once("default") > duty.EVERY
    assert [one.to[0] for one in mail.outbox] == ["anna@example.com", "ben@example.com"]
    assert MailApprovals().run_once("default") > duty.EVERY
    assert [one.to[0] for one in mail.outbox[2:]] == ["ben@example.com"], "another process knows of anna only"
    fails.clear()
    opened.clear()
    assert duty.run_once("default") == duty.EVERY
    assert [one.to[0] for one in mail.outbox[3:]] == ["carl@example.com", "dora@example.com", "dora@example.com"]
    assert len(opened) == 1
    assert told() == []


def test_an_address_that_no_mail_can_have_holds_no_other_mail(jobs: WorkerJobs) -> None:
    start(jobs, assignees=[user("anna", email="anna\n@example.com"), user("ben")])
    assert told() == ["ben"]
    assert told() == []


def test_mails_have_a_thread_of_their_own() -> None:
    """A mail server that never answers holds neither the alerts nor anything else."""
    threads = [
        [duty.name for duty in thread._duties] for thread in Scheduler("s")._threads if hasattr(thread, "_duties")
    ]
    assert ["approval mails"] in threads


def test_the_filter_of_my_groups(jobs: WorkerJobs) -> None:
    finance = Group.objects.create(name="finance")
    anna = user("anna", finance, is_staff=True)
    anna.user_permissions.set(Permission.objects.filter(codename="decide_approval"))
    start(jobs, 1, title="Of mine?", assignees=[anna])
    start(jobs, 2, title="Of finance?", assignees=["group:finance"])
    page = login(anna).get(reverse("admin:django_ojs_approval_changelist") + "?asks=groups").content.decode()
    assert "Of finance?" in page
    assert "Of mine?" not in page


@pytest.mark.parametrize(
    "given, field",
    [(5, "APPROVAL_MAIL"), ({"site": "shop.example.com"}, "site"), ({"site": "https://x/admin"}, "site"), ({}, "site"),
     ({"site": "https://x", "links": "soon"}, "links"), ({"site": "https://x", "link": "7d"}, "APPROVAL_MAIL.link")],
)  # fmt: skip
def test_a_setting_that_is_wrong_is_told(settings: Any, given: Any, field: str) -> None:
    from django_ojs.checks import _check_setting

    (found,) = _check_setting("APPROVAL_MAIL", given)
    assert found.id == "django_ojs.E002"
    assert field in found.msg
