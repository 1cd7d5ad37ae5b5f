"""Processes that push the same keys at the same time, one by one, together and in open transactions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from django_ojs.events import log
from django_ojs.models import Job
from tests.processes.conftest import TIMEOUT, Site

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow, pytest.mark.sqlite_too]
PROCESSES, ROUNDS = 4, 100


def test_of_each_key_one_job_is_live_at_a_time(site: Site) -> None:
    """The log tells: a job with the key begins when the one before it has been cancelled, and not earlier."""
    pushers = [site.start("-m", "tests.processes.pushunique", str(seed), str(ROUNDS)) for seed in range(PROCESSES)]
    for process in pushers:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", site.logs()
    for process in pushers:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    for process in pushers:
        assert process.wait(TIMEOUT) == 0, site.logs()

    keys = {str(job_id): key for job_id, key in Job.objects.values_list("pk", "unique_key")}
    live: dict[str, set[str]] = defaultdict(set)
    began = ended = 0
    for event in events():
        of_key = live[keys[event["subject"]]]
        if event["type"] == "job.enqueued":
            began += 1
            of_key.add(event["subject"])
        else:
            ended += 1
            of_key.remove(event["subject"])
        assert len(of_key) <= 1, event
    assert began >= ended > ROUNDS
    assert set().union(*live.values()) == {str(job_id) for job_id in Job.objects.live().values_list("pk", flat=True)}


def events() -> Iterator[dict[str, Any]]:
    page = log.read(types=["job.enqueued", "job.cancelled"], limit=500)
    while page.events or page.has_more:
        yield from page.events
        page = log.read(types=["job.enqueued", "job.cancelled"], limit=500, after=page.cursor)
