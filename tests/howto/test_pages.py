"""What the how-tos say is so: their code runs, their commands print what they promise, their calls are answered."""

from __future__ import annotations

import sys

import pytest
from django.contrib.auth.models import Group, User
from django.core.mail import EmailMessage
from django.core.management import CommandError
from django.test import Client, RequestFactory
from django.urls import reverse

from django_ojs import enqueue
from django_ojs.errors import Duplicate
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.models import AuditEntry, CronSchedule, Job, Queue, RateLimit, Worker
from django_ojs.testing import WorkerJobs
from django_ojs.workerregistry.registration import register
from tests.howto.pages import DOCS, Reader

pytestmark = pytest.mark.django_db

#: What the examples of docs/coming-from take for granted.
PAYMENTS = "class Busy(Exception): ...\ndef charge(order, cents, key): return f'{order} {cents}'\n"


def test_cron(reader: Reader) -> None:
    reader.read("cron")
    assert all(CronSchedule.objects.values_list("enabled", flat=True))
    assert Job.objects.get().state == "completed"


def test_workflows(reader: Reader) -> None:
    reader.read("workflows")
    assert not Job.objects.filter(type="etl.alarm", state="completed").exists()


def test_unique_jobs(reader: Reader) -> None:
    reader.read("unique-jobs")
    assert sorted(Job.objects.values_list("type", "state")) == [
        ("customer.sync", "available"),
        ("customer.sync", "cancelled"),
        ("newsletter.send", "available"),
        ("report.make", "available"),
        ("search.reindex", "available"),
        ("search.reindex", "available"),
    ]


def test_a_newsletter_once_a_day(reader: Reader, ojs_worker: WorkerJobs) -> None:
    """... also when the first has been sent."""
    reader.read("unique-jobs")
    ojs_worker.drain()
    with pytest.raises(Duplicate):
        enqueue("newsletter.send", 7)


def test_rate_limits(reader: Reader, ojs_worker: WorkerJobs) -> None:
    enqueue("mail.send", queue="mail")
    reader.read("rate-limits")
    assert Queue.objects.get(name="mail").config["concurrency"] == 5
    assert {"partner", "type:report.make"} <= set(RateLimit.objects.values_list("key", flat=True))
    assert len(fetch(Fetch(["default"], count=10, worker_id="w"))) == 1, "the two share one limit"

    handle = enqueue("partner.push", 1, queue="partner")
    assert ojs_worker.drain(queues="partner").completed == 0
    sys.modules["shop.jobs"].busy["yes"] = False
    assert ojs_worker.drain(queues="partner", until="29s").completed == 0
    assert ojs_worker.drain(queues="partner", until="30s").completed == 1
    assert (handle.refresh().state, handle.errors) == ("completed", [])


def test_transactions(reader: Reader) -> None:
    reader.read("how-to/transactions")
    results = Job.objects.filter(type="team.welcome").values_list("result", flat=True)
    assert sorted(map(str, results)) == ["Welcome, green", "Welcome, red"]
    assert set(Group.objects.values_list("name", flat=True)) == {"green", "red"}


def test_async_handlers(reader: Reader) -> None:
    reader.read("how-to/async-handlers")


def test_queues_and_machines(reader: Reader) -> None:
    with pytest.raises(SystemExit) as ended:  # nobody works
        reader.read("how-to/queues-and-machines")
    assert ended.value.code == 3
    found = Job.objects.order_by("created_at").values_list("queue", "priority")
    assert list(found) == [("mail", 0), ("urgent", 10), ("video", 0)]
    reader.read("how-to/queues-and-machines", skip="--check")


def test_deploys(reader: Reader) -> None:
    with pytest.raises(CommandError, match="site-41"):
        reader.read("how-to/deploys")
    register("site-41", {})
    reader.read("how-to/deploys")
    assert Worker.objects.get().directive == "terminate"


def test_maintenance(reader: Reader) -> None:
    reader.read("how-to/maintenance")
    on, off = reader.answers
    assert (on["enabled"], on["reason"], off["enabled"]) == (True, "new disks", False)
    acts = AuditEntry.objects.order_by("id").values_list("action", "door")
    switch = ["maintenance.start", "maintenance.stop"]
    assert list(acts) == [(act, door) for door in ("command", "http") for act in switch]


class TestOwnViewSet:
    def test_its_serializer_and_filter_count(self, reader: Reader) -> None:
        reader.read("how-to/own-viewset")
        pushed, shown, listed = reader.answers
        assert "customer" not in pushed
        assert (shown["customer"], shown["job"]["customer"]) == (7, 7)
        assert (listed["jobs"], listed["total"]) == ([], 0)

    def test_its_permission_counts(self, reader: Reader, client: Client) -> None:
        reader.read("how-to/own-viewset")
        path = reverse("ojs:job", args=[reader.answers[0]["id"]])
        user = User.objects.create_user("ada", is_staff=True, is_superuser=True)
        client.force_login(user)
        refused = client.delete(path)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "permission_denied")
        assert refused.json()["error"]["message"] == "Only members of the group operators cancel jobs."
        user.groups.add(Group.objects.create(name="operators"))
        assert client.delete(path).json()["state"] == "cancelled"

    def test_other_paths_are_served_as_ever(self, reader: Reader, client: Client) -> None:
        reader.read("how-to/own-viewset")
        fetched = client.post("/ojs/v1/jobs/fetch", {"queues": ["default"]}, content_type="application/json")
        assert [job["id"] for job in fetched.json()["jobs"]] == [reader.answers[0]["id"]]
        listed = client.get("/ojs/v1/admin/jobs?min_attempt=1").json()
        assert [job["id"] for job in listed["items"]] == [reader.answers[0]["id"]]
        assert client.get("/ojs/v1/queues").status_code == 200


def test_every_how_to_is_in_the_tutorial() -> None:
    tutorial = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    pages = {path.stem for path in (DOCS / "how-to").glob("*.md")} - {"index"}
    assert pages
    assert {page for page in pages if f"(how-to/{page}.md)" not in tutorial} == set()


def test_durable_orders(reader: Reader, mailoutbox: list[EmailMessage]) -> None:
    reader.read("how-to/durable-orders")
    handle = reader.names["carry"].enqueue(20, 990, "ada@example.org")
    reader.jobs.drain()
    told = RequestFactory().post("/courier", {"order": 20, "place": "at the door"}, content_type="application/json")
    assert sys.modules["shop.views"].courier(told).status_code == 204
    reader.jobs.drain().raise_first()
    assert handle.refresh().result == "arrived"
    assert mailoutbox[-1].body == "Your parcel has arrived: at the door."


def test_coming_from_durable_execution(reader: Reader, ojs_worker: WorkerJobs) -> None:
    reader.module("shop/payments.py", PAYMENTS)
    reader.read("coming-from/durable-execution")
    ojs_worker.drain(with_scheduled=True)
    assert reader.names["handle"].refresh().result == "17 990"


@pytest.mark.parametrize(
    "page",
    [
        "apscheduler", "celery", "django-background-tasks", "django-q2", "dramatiq", "huey", "procrastinate", "rq",
    ],
)  # fmt: skip
def test_coming_from(reader: Reader, ojs_worker: WorkerJobs, page: str) -> None:
    """Its example after the change runs. What goes before has packages that are not here; it is Python, at least."""
    reader.module("shop/payments.py", PAYMENTS)
    reader.read(f"coming-from/{page}")
    ojs_worker.drain(with_scheduled=True)
    assert reader.names["handle"].refresh().result == "17 990"
