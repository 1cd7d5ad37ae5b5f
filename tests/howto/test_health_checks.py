"""The checks for django-health-check that docs/observability.md writes. The package is not here, and is played."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.utils import timezone

from django_ojs import enqueue, job
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.timers import apply_due
from django_ojs.models import Job, Worker
from django_ojs.workerregistry.registration import register
from tests.docs.pages import all_blocks, name
from tests.howto.pages import Reader

pytestmark = pytest.mark.django_db


class ServiceUnavailable(Exception):
    pass


@pytest.fixture
def health(reader: Reader) -> Any:
    """`shop.health` of the page, and the view's list of checks."""
    views: list[Any] = []

    class HealthCheckView:
        @staticmethod
        def as_view(checks: Any) -> Any:
            views.append(checks)
            return lambda request: None

    reader.install({
        "health_check": {}, "health_check.base": {"HealthCheck": object},
        "health_check.exceptions": {"ServiceUnavailable": ServiceUnavailable},
        "health_check.views": {"HealthCheckView": HealthCheckView},
    })  # fmt: skip
    checks, urls = (
        b.text for b in all_blocks() if name(b.page) == "docs/observability.md" and "health_check" in b.text
    )
    module: Any = reader.module("shop/health.py", checks)
    exec(compile(urls, "urls", "exec"), {})
    for entry in views[0][1:]:
        path, options = entry if isinstance(entry, tuple) else (entry, {})
        assert path.startswith("shop.health.")
        getattr(module, path.removeprefix("shop.health."))(**options)
    return module


def test_a_worker_lives(health: Any) -> None:
    with pytest.raises(ServiceUnavailable, match="no worker lives"):
        health.OJSWorkers().run()
    register("w-1", {})
    health.OJSWorkers().run()
    Worker.objects.update(last_heartbeat_at=timezone.now() - dt.timedelta(minutes=2))
    with pytest.raises(ServiceUnavailable, match="no worker lives"):
        health.OJSWorkers().run()


def test_no_job_waits_for_too_long(health: Any) -> None:
    long_ago = timezone.now() - dt.timedelta(minutes=11)
    check = health.OJSQueues()
    check.run()
    waits = enqueue("a.b")
    check.run()
    Job.objects.filter(pk=waits.id).update(enqueued_at=long_ago)
    with pytest.raises(ServiceUnavailable, match="a job has waited for 10 minutes"):
        check.run()
    health.OJSQueues(minutes=15).run()
    health.OJSQueues(queues=("mail",)).run()
    fetch(Fetch(queues=["default"], worker_id="w-1"))
    check.run()


def test_a_job_waits_from_when_it_is_due(health: Any) -> None:
    """A job that was scheduled days ago is no late one when its time comes."""
    later = job("a.b")(print).options(delay="1h").enqueue()
    long_ago = timezone.now() - dt.timedelta(days=2)
    due = timezone.now() - dt.timedelta(seconds=1)
    Job.objects.filter(pk=later.id).update(created_at=long_ago, enqueued_at=long_ago, due_at=due, wake_at=due)
    assert apply_due() == 1
    assert later.refresh().state == "available"
    health.OJSQueues().run()
