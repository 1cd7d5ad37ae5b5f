"""At three in the morning, in a browser: from the overview to the cause and its remedy in a few clicks.

Each walk begins at the overview and counts its clicks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_ojs import clock
from django_ojs.events import order
from django_ojs.jobs import bulk
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack, fail
from django_ojs.jobs.push import push
from django_ojs.models import BulkAction, Job
from django_ojs.scheduler.scheduler import ROLE, Leadership
from django_ojs.statistics import counters, eventcounts, summary
from django_ojs.workerregistry.registration import register
from django_ojs.workflows import workflow
from tests.dashboard import test_browser
from tests.dashboard.test_browser import OVERVIEW, _new_connection, browse, browser, expect, server

__all__ = ["_new_connection", "browse", "browser", "server"]
pytestmark = test_browser.pytestmark
Browse = Callable[..., Any]


class Walk:
    """An operator with a mouse: `clicks` is how often it was used."""

    def __init__(self, browse: Browse) -> None:
        self.page, self.clicks = browse(OVERVIEW, stays=False), 0

    def click(self, selector: str, text: str) -> None:
        self.page.locator(selector, has_text=text).first.click()
        self.page.wait_for_load_state()
        self.clicks += 1

    def reads(self, text: str) -> None:
        expect(self.page.locator("body")).to_contain_text(text)


@pytest.fixture
def night(transactional_db: None) -> Iterator[None]:
    """A scheduler leads and a worker serves the queues `default` and `mail`."""
    lease = Leadership(ROLE, "the-leader", "default")
    assert lease.run_once()
    register("w-1", {"queues": ["default", "mail"], "concurrency": 4})
    yield
    lease.resign()


def counted() -> None:
    order.catch_up("default")
    eventcounts.catch_up("default")
    while counters.fold():
        pass
    summary.forget()


def jobs(number: int, type: str = "mail.send", queue: str = "mail", **members: Any) -> None:
    push([{"type": type, "queue": queue, "args": [], "retry": {"max_attempts": 1}, **members}] * number)


def test_a_deploy_broke_one_type_and_all_of_its_jobs_are_retried_slowly(night: None, browse: Browse) -> None:
    jobs(40)
    jobs(12, type="invoice.render", queue="default")
    ids = [row["id"] for row in fetch(Fetch(["default"], count=12, worker_id="w-1"))]
    fail([Failure(pk, {"type": "TemplateError", "message": f"invoice {n} has no total"}) for n, pk in enumerate(ids)])
    ack([Ack(row["id"]) for row in fetch(Fetch(["mail"], count=40, worker_id="w-1"))])
    counted()
    walk = Walk(browse)
    walk.click("#ojs-attention a", "Jobs of a type fail: invoice.render")
    walk.reads("invoice # has no total")  # the cause
    walk.click("#ojs-groups a", "Retry…")
    walk.page.fill("input[name=per_minute]", "50")
    walk.click("form input[type=submit][value^=Yes]", "")
    walk.reads("12 dead letters are being worked on in the background.")
    assert walk.clicks <= 6
    action = BulkAction.objects.get()
    assert (action.per_minute, action.expected) == (50, 12)
    assert bulk.advance_action()
    assert not bulk.advance_action(), "the next batch has to wait"
    assert Job.objects.filter(type="invoice.render", state="available").count() == 4


def test_a_queue_has_no_worker(night: None, browse: Browse) -> None:
    jobs(3, queue="reports")
    clock.freeze(clock.now("default") + clock.dt.timedelta(seconds=2))
    register("w-1", {"queues": ["default", "mail"], "concurrency": 4})
    counted()
    walk = Walk(browse)
    walk.reads("No worker serves the queue reports, and jobs wait in it: 3.")
    walk.click("#ojs-attention summary", "What to do")
    walk.reads("manage.py ojs_worker --queues reports")
    assert walk.clicks == 1


def test_a_workflow_of_five_hundred_steps_hangs(night: None, browse: Browse) -> None:
    steps = [{"type": "mail.send", "queue": "mail", "args": []}] * 499
    lost = {"type": "mail.send", "queue": "mial", "args": []}
    flow = workflow.create({"type": "group", "name": "nightly", "jobs": [*steps, lost]}).workflow
    ack([Ack(row["id"]) for row in fetch(Fetch(["mail"], count=499, worker_id="w-1"))])
    counted()
    walk = Walk(browse)
    walk.click(".ojs-nav a", "Workflows")
    walk.click("#result_list a", "nightly")
    walk.reads("Waits for")
    (row,) = walk.page.locator("#ojs-awaited tbody tr").all()
    assert "mial" in row.inner_text()
    walk.click("#ojs-awaited tbody a", "")
    assert str(Job.objects.get(queue="mial", workflow_id=flow.pk).pk) in walk.page.url
    assert walk.clicks == 3


def test_the_backlog_grows(night: None, browse: Browse) -> None:
    jobs(400)
    ids = [row["id"] for row in fetch(Fetch(["mail"], count=4, worker_id="w-1"))]
    clock.freeze(clock.now("default") + clock.dt.timedelta(seconds=40))
    ack([Ack(job_id) for job_id in ids])
    register("w-1", {"queues": ["default", "mail"], "concurrency": 4})
    assert Leadership(ROLE, "the-leader", "default").run_once()
    counted()
    walk = Walk(browse)
    walk.reads("Jobs that wait in the queue mail: 396, and by")
    walk.click("#ojs-attention a", "A queue takes long to empty: mail")
    walk.reads("4 slots serve this queue")
    walk.reads("would empty it within an hour")
    assert walk.clicks == 1
