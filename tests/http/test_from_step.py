"""An operator's retry names the step at which a durable job begins again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from django_ojs import JobContext, JobHandle, get_job, job
from django_ojs.models import AuditEntry, JobStep
from django_ojs.registry import registry
from django_ojs.testing import WorkerJobs
from tests.http.conftest import Api, error_of

pytestmark = pytest.mark.django_db

CALLED: list[str] = []


def fails() -> None:
    raise ValueError("the mail is refused")


@pytest.fixture
def failed(ojs_worker: WorkerJobs) -> Iterator[JobHandle]:
    """A dead letter whose first three steps are recorded."""
    with registry.isolated():

        @job("order.carry", durable=True, retry={"max_attempts": 1})
        def carry(context: JobContext) -> None:
            for name in ("reserve", "charge", "pack"):
                context.step(name, CALLED.append, name)
            context.step("tell", fails)

        handle = carry.enqueue()
        ojs_worker.drain()
        CALLED.clear()
        yield handle


def test_a_retry_names_the_step(api: Api, failed: JobHandle, ojs_worker: WorkerJobs) -> None:
    answer = api.post(f"/admin/jobs/{failed.id}/retry", {"from_step": "charge", "reason": "wrong"})
    assert (answer.status_code, answer.json()["state"]) == (200, "available")
    detail = AuditEntry.objects.get(action="job.retry").detail
    assert detail == {"reason": "wrong", "from_step": "charge"}
    ojs_worker.drain()
    assert CALLED == ["charge", "pack"]


@pytest.mark.parametrize(
    "body, status, code",
    [
        ({"from_step": "nothing"}, 404, "not_found"),
        ({"from_step": 1}, 400, "invalid_request"),
        ({"from_step": "x" * 201}, 400, "invalid_request"),
        ({"from_step": "charge", "clear_checkpoint": True}, 400, "invalid_request"),
    ],
    ids=str,
)
def test_what_is_no_step_changes_nothing(
    api: Api, failed: JobHandle, body: dict[str, Any], status: int, code: str
) -> None:
    error_of(api.post(f"/admin/jobs/{failed.id}/retry", body), status, code)
    assert get_job(failed.id).state == "discarded"
    assert JobStep.objects.count() == 3
