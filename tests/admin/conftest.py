"""Jobs in every state, and operators with every set of rights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import Client
from django.urls import reverse

from django_ojs.jobs.cancel import cancel
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack, fail
from django_ojs.jobs.push import push
from django_ojs.models import Job
from django_ojs.queues import configuration

FATAL = {"type": "ValueError", "message": "no such template", "retryable": False, "backtrace": ["at send (jobs.py:12)"]}


def pushed(count: int = 1, **attributes: Any) -> list[Job]:
    """New jobs."""
    done = push([{"type": "mail.send", "args": ["a@example.com"], **attributes} for _ in range(count)])
    return [Job.objects.get(pk=one.row["id"]) for one in done if one.row is not None]


def claimed(count: int = 1, **attributes: Any) -> list[Job]:
    pushed(count, queue="claims", **attributes)
    return [Job.objects.get(pk=row["id"]) for row in fetch(Fetch(["claims"], count=count, worker_id="w-1"))]


def dead(count: int = 1, error: dict[str, Any] | None = None, **attributes: Any) -> list[Job]:
    """Dead letters."""
    jobs = claimed(count, **attributes)
    fail([Failure(job.pk, error=error or FATAL) for job in jobs])
    return [Job.objects.get(pk=job.pk) for job in jobs]


def one_in_each_state() -> dict[str, Job]:
    jobs = {
        "available": pushed()[0],
        "scheduled": pushed(scheduled_at="2099-01-01T00:00:00Z")[0],
        "pending": pushed(pending=True)[0],
        "discarded": dead()[0],
    }
    patient = {"initial_interval": "1h", "max_interval": "1h"}  # no later FETCH finds that its time has come
    jobs["completed"], jobs["retryable"], jobs["cancelled"], jobs["active"] = claimed(4, retry=patient)
    ack([Ack(jobs["completed"].pk, result='{"ok":true}')])
    fail([Failure(jobs["retryable"].pk, error={"type": "OSError", "message": "gone"})])
    cancel([jobs["cancelled"].pk])
    return {state: Job.objects.get(pk=job.pk) for state, job in jobs.items()}


def url(model: str, page: str = "changelist", *args: Any) -> str:
    return reverse(f"admin:django_ojs_{model}_{page}", args=args)


def said(response: Any) -> list[str]:
    """The messages on the page that a followed redirect led to."""
    return [str(message) for message in response.context["messages"]]


@pytest.fixture(autouse=True)
def _no_queues_remembered() -> None:
    """The engine remembers queues for some seconds; the database of a test begins without any."""
    configuration.forget()


@pytest.fixture
def operator(db: None) -> Callable[..., Client]:
    """`operator("view_job", "change_job")`: a member of staff with these rights, logged in."""

    def log_in(*codenames: str) -> Client:
        user = get_user_model().objects.create_user("ann", password="x", is_staff=True)
        found = Permission.objects.filter(codename__in=codenames, content_type__app_label="django_ojs")
        assert len(found) == len(codenames)
        user.user_permissions.set(found)
        client = Client()
        client.force_login(user)
        return client

    return log_in
