"""What durable jobs ask people, over HTTP: lists, decisions, delegation, who may, how far a key reaches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from django_ojs import JobContext, clock, job, keys
from django_ojs.models import APIKey, Approval, AuditEntry
from django_ojs.registry import registry
from django_ojs.testing.storedjobs import WorkerJobs, worker
from tests.durable.approvalforms import JSONForm, RefundForm

pytestmark = pytest.mark.django_db
PATH = "/ojs/v1/approvals"


@pytest.fixture
def jobs() -> Iterator[WorkerJobs]:
    with registry.isolated(), worker() as found:
        yield found


@pytest.fixture
def anna() -> User:
    return User.objects.create_user("anna")


def post(client: Client, path: str, body: Any, **more: Any) -> Any:
    return client.post(f"{PATH}{path}", json.dumps(body), content_type="application/json", **more)


def with_key(scopes: list[str], **limits: Any) -> Client:
    _, text = keys.create(f"key-{APIKey.objects.count()}", scopes, **limits)
    return Client(headers={"Authorization": f"Bearer {text}"})


def start(jobs: WorkerJobs, queue: str = "default", **options: Any) -> tuple[Any, Approval]:
    known = set(Approval.objects.values_list("pk", flat=True))

    @job(f"order.refund{len(known)}", durable=True, queue=queue)
    def refund(context: JobContext) -> Any:
        decision = context.wait_for_approval("refund", **options)
        return [decision.approved, decision.by, decision.comment, decision.data]

    handle = refund.enqueue()
    jobs.drain()
    return handle, Approval.objects.exclude(pk__in=known).get()


def test_a_key_reads_and_decides(jobs: WorkerJobs, anna: User) -> None:
    handle, approval = start(jobs, title="Refund?", details={"order": 7}, assignees=[anna], form=RefundForm)
    client = with_key(["read", "approve"])
    (shown,) = client.get(PATH).json()["items"]
    assert shown == client.get(f"{PATH}/{approval.pk}").json()
    assert (shown["title"], shown["details"], shown["assignees"], shown["form"], shown["state"]) == (
        "Refund?", {"order": 7}, ["user:anna"], "RefundForm", "open"
    )  # fmt: skip
    wrong = post(client, f"/{approval.pk}/decide", {"approved": True, "data": {"amount": "501"}})
    assert wrong.status_code == 400
    error = wrong.json()["error"]
    assert (error["code"], error["details"]["field"]) == ("invalid_request", "data.amount")
    assert error["details"]["validation_errors"][0]["path"] == "data.amount"
    done = post(
        client, f"/{approval.pk}/decide", {"approved": True, "comment": "Two\nlines", "data": {"amount": "12.5"}}
    )
    assert done.status_code == 200, done.content
    assert (done.json()["state"], done.json()["data"]["amount"]) == ("approved", "12.5")
    jobs.drain().raise_first()
    assert handle.refresh().result == [True, done.json()["decided_by"], "Two\nlines", {"amount": "12.5", "on": None}]
    entry = AuditEntry.objects.get(action="approval.decide")
    assert (entry.target, entry.door, entry.detail["approved"]) == (str(approval.pk), "http", True)


def test_a_second_decision_is_refused_with_who_decided(jobs: WorkerJobs) -> None:
    handle, approval = start(jobs)
    client = with_key(["approve"])
    assert post(client, f"/{approval.pk}/decide", {"approved": False}).status_code == 200
    again = post(client, f"/{approval.pk}/decide", {"approved": True})
    assert again.status_code == 409
    error = again.json()["error"]
    assert error["code"] == "conflict"
    assert error["details"] == {
        "approval_id": str(approval.pk), "job_id": str(handle.id), "current_state": "rejected", "attempted": "decide",
        "decided_by": Approval.objects.get().decided_by, "decided_at": error["details"]["decided_at"],
    }  # fmt: skip
    assert AuditEntry.objects.filter(outcome="success").count() == 1


def test_it_is_delegated(jobs: WorkerJobs, anna: User) -> None:
    _, approval = start(jobs, assignees=["perm:shop.refund"])
    client = with_key(["read", "approve"])
    done = post(client, f"/{approval.pk}/delegate", {"to": ["user:anna"]})
    assert (done.status_code, done.json()["assignees"]) == (200, ["user:anna"])
    assert AuditEntry.objects.get().detail["to"] == ["user:anna"]
    for to in (["user:nobody"], [], "user:anna", [7], None):
        assert post(client, f"/{approval.pk}/delegate", {"to": to}).status_code == 400
    assert [one["id"] for one in client.get(f"{PATH}?assignee=user:anna").json()["items"]] == [str(approval.pk)]
    for name in ("user:ben", "user:ANNA", "USER:anna", "user:anna%20"):
        assert not client.get(f"{PATH}?assignee={name}").json()["items"]


def test_deciding_needs_its_scope_and_reading_needs_read(jobs: WorkerJobs) -> None:
    _, approval = start(jobs)
    for scopes in (["read"], ["work"], ["emit", "push"], ["admin.write"]):
        assert post(with_key(scopes), f"/{approval.pk}/decide", {"approved": True}).status_code == 403
    client = with_key(["approve"])
    assert client.get(PATH).status_code == client.get(f"{PATH}/{approval.pk}").status_code == 403
    assert Approval.objects.get().state == "open"


def test_a_limited_key_reaches_the_approvals_of_its_queues(jobs: WorkerJobs) -> None:
    _, mine = start(jobs, queue="mine")
    _, other = start(jobs, queue="other")
    client = with_key(["read", "approve"], queues=["mine"])
    assert [one["id"] for one in client.get(PATH).json()["items"]] == [str(mine.pk)]
    assert client.get(f"{PATH}/{other.pk}").status_code == 403
    assert post(client, f"/{other.pk}/decide", {"approved": True}).status_code == 403
    assert post(client, f"/{other.pk}/delegate", {"to": ["perm:a.b"]}).status_code == 403
    assert post(client, f"/{mine.pk}/decide", {"approved": True}).status_code == 200
    other.refresh_from_db()
    assert other.state == "open"


def test_a_user_needs_the_permission_and_to_be_asked(jobs: WorkerJobs, anna: User, settings: Any) -> None:
    settings.OJS = {**getattr(settings, "OJS", {}), "ALLOW_ANONYMOUS": False}
    _, approval = start(jobs, assignees=["user:anna"])
    ben = User.objects.create_user("ben")
    client = Client()
    client.force_login(anna)
    assert post(client, f"/{approval.pk}/decide", {"approved": True}).status_code == 403
    for user in (anna, ben):
        user.user_permissions.add(Permission.objects.get(codename="decide_approval"))
    client.force_login(ben)
    assert post(client, f"/{approval.pk}/decide", {"approved": True}).status_code == 403
    client.force_login(anna)
    assert post(client, f"/{approval.pk}/decide", {"approved": True}).json()["decided_by"] == "user:anna"


def test_lists_are_filtered_and_paged_newest_first(client: Client, jobs: WorkerJobs) -> None:
    found = []
    with clock.frozen(clock.now()):
        for number in range(3):
            found.append(start(jobs, queue=f"q{number}")[1])
            clock.advance(seconds=1)
    post(client, f"/{found[0].pk}/decide", {"approved": True})

    def listed(query: str = "") -> list[str]:
        answer = client.get(f"{PATH}{query}")
        assert answer.status_code == 200, answer.content
        return [one["id"] for one in answer.json()["items"]]

    ids = [str(one.pk) for one in reversed(found)]
    assert listed() == ids
    assert listed("?state=open") == ids[:2]
    assert listed("?state=approved,closed") == ids[2:]
    assert listed("?queue=q1") == listed(f"?job_id={found[1].job_id}") == [ids[1]]
    assert listed(f"?type={found[2].type}") == [ids[0]]
    assert listed("?name=refund") == ids
    page = client.get(f"{PATH}?limit=2").json()
    assert listed(f"?limit=2&cursor={page['pagination']['next_cursor']}") == ids[2:]
    assert client.get(f"{PATH}?state=odd").status_code == 400
    assert client.get(f"{PATH}?job_id=odd").status_code == 400
    assert client.get(f"{PATH}/odd").status_code == 404


@pytest.mark.parametrize(
    "body", [{}, {"approved": "yes"}, {"approved": True, "comment": 5}, {"approved": True, "comment": "x" * 2001},
             {"approved": True, "comment": "a\0"}, {"approved": True, "comment": "\ud800"},
             {"approved": True, "data": {"a": 1}}], ids=lambda body: str(body)[:30],
)  # fmt: skip
def test_what_is_refused(client: Client, jobs: WorkerJobs, body: Any) -> None:
    _, approval = start(jobs)
    answer = post(client, f"/{approval.pk}/decide", body)
    assert answer.status_code == 400, answer.content
    assert answer.json()["error"]["details"]["field"] in ("approved", "comment", "data")
    assert Approval.objects.get().state == "open"


@pytest.mark.parametrize(
    "text", ["NaN", '{"a": [-Infinity]}', "[" * 201 + "]" * 201, "[" * 100_000], ids=lambda text: text[:9]
)
def test_what_a_form_takes_and_json_does_not(client: Client, jobs: WorkerJobs, text: str) -> None:
    _, approval = start(jobs, form=JSONForm)
    answer = post(client, f"/{approval.pk}/decide", {"approved": True, "data": {"extra": text}})
    assert answer.status_code == 400, answer.content
    assert answer.json()["error"]["details"]["field"] == "data"
    assert Approval.objects.get().state == "open"


@pytest.mark.parametrize(
    "name",
    ["user:\ud800", "group:\ud800", "perm:\ud800.x", "perm:a.\0", "perm:a.b\n", "perm:a. b ", "perm:a." + "x" * 254],
    ids=lambda name: ascii(name)[:20],
)  # fmt: skip
def test_who_cannot_be_asked(client: Client, jobs: WorkerJobs, name: str) -> None:
    _, approval = start(jobs)
    answer = post(client, f"/{approval.pk}/delegate", {"to": [name]})
    assert answer.status_code == 400, answer.content
    assert answer.json()["error"]["details"]["field"] == "to"
    assert not approval.assignees.exists()


@pytest.mark.parametrize("strict", [False, True])
def test_unknown_fields(client: Client, jobs: WorkerJobs, strict: bool) -> None:
    """A Django form passes over them. A JSON schema says itself whether there may be others."""
    schema = {"type": "object", "properties": {"amount": {"type": "number"}}, "additionalProperties": not strict}
    body = {"approved": True, "data": {"amount": 1, "unknown": [2]}}
    _, approval = start(jobs, form=schema)
    answer = post(client, f"/{approval.pk}/decide", body)
    assert answer.status_code == (400 if strict else 200), answer.content
    _, other = start(jobs, form=RefundForm)
    assert post(client, f"/{other.pk}/decide", body).json()["data"] == {"amount": "1", "on": None}


def test_members_that_the_site_hides_are_masked(client: Client, jobs: WorkerJobs, settings: Any) -> None:
    settings.OJS = {**getattr(settings, "OJS", {}), "REDACT": {"keys": ["card"]}}
    start(jobs, details={"card": "4111", "order": 7})
    (shown,) = client.get(PATH).json()["items"]
    assert shown["details"]["card"] != "4111"
    assert shown["details"]["order"] == 7
