"""Processes that save checkpoints of the same jobs at the same time."""

from __future__ import annotations

import json
from collections import defaultdict

import pytest

from django_ojs.jobs import checkpoints
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.push import push
from tests.processes.conftest import TIMEOUT, Site

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow, pytest.mark.sqlite_too]
PROCESSES, ROUNDS, JOBS = 4, 50, 2


@pytest.mark.parametrize("vendor", ["", pytest.param("mysql", marks=pytest.mark.mariadb, id="mariadb")])
def test_ckp_5_each_save_has_a_sequence_of_its_own_and_none_is_left_out(site: Site, vendor: str) -> None:
    push([{"type": "a.b", "args": []}] * JOBS)
    jobs = [row["id"] for row in fetch(Fetch(["default"], JOBS, "w"))]
    savers = [
        site.start("-m", "tests.processes.saving", str(ROUNDS), str(number), *map(str, jobs))
        for number in range(PROCESSES)
    ]
    for process in savers:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", site.logs()
    for process in savers:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    given: dict[str, list[int]] = defaultdict(list)
    for process in savers:
        assert process.stdout is not None
        for job_id, sequences in json.loads(process.stdout.readline()).items():
            assert sequences == sorted(sequences)
            given[job_id] += sequences
        assert process.wait(TIMEOUT) == 0, site.logs()
    for job_id in jobs:
        assert sorted(given[str(job_id)]) == list(range(1, PROCESSES * ROUNDS + 1))
        found = checkpoints.read(job_id)
        assert found is not None
        assert (found.sequence, found.state["n"]) == (PROCESSES * ROUNDS, ROUNDS - 1)
