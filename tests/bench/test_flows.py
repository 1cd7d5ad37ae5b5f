"""`ojs_bench --flows`: its comparison finds what did not end, is missing, was done twice or called again; a short one
adds up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import Group
from django.db.models import QuerySet

from benchmarks.flows import KILLS, SLOTS, Sum, compare
from benchmarks.handlers import flow
from django_ojs import clock
from django_ojs.jobs.push import push
from django_ojs.models import Job, JobStep

World = tuple[Sum, Counter[str]]


@pytest.fixture
def world(transactional_db: None) -> World:
    """Two flows that have ended as they should, and one worker that was killed meanwhile."""
    now = clock.now()
    for number in range(2):
        (pushed,) = push([flow.document(number)])
        assert pushed.row is not None
        QuerySet(Job).filter(pk=pushed.row["id"]).update(state="completed", finished_at=now)
        JobStep.objects.bulk_create(
            JobStep(job_id=pushed.row["id"], name=f"s{n}", kind="call", attempt=1, began_at=now, ended_at=now)
            for n in range(10)
        )  # fmt: skip
        Group.objects.bulk_create(Group(name=f"{number}:{book}:x") for book in flow.BOOKS)
    called = Counter(f"{number}:{name}" for number in range(2) for name in (*flow.FILES, *flow.CALLS))
    return Sum(2, kills=Counter({"workers": 1, "the scheduler": 5})), called


def test_what_went_well_adds_up(world: World) -> None:
    total, called = world
    called["1:file-0"] += SLOTS  # what the killed worker had called and not recorded
    compare(total, called)
    assert (total.faults, total.again) == ([], SLOTS)


def not_ended(called: Counter[str]) -> None:
    QuerySet(Job).filter(args=[1]).update(state="available", finished_at=None)


def missing(called: Counter[str]) -> None:
    Group.objects.filter(name__startswith="1:book-3").delete()


def twice(called: Counter[str]) -> None:
    Group.objects.create(name="1:book-3:y")


def not_called(called: Counter[str]) -> None:
    del called["0:call-1"]


def called_too_often(called: Counter[str]) -> None:
    called["0:call-1"] += SLOTS + 1


def not_recorded(called: Counter[str]) -> None:
    JobStep.objects.filter(name="s3").order_by("pk")[:1].get().delete()


@pytest.mark.parametrize(
    "happen,said",
    [
        (not_ended, "The flows are {"),
        (missing, "The write 1:book-3 is missing."),
        (twice, "The write 1:book-3 is there 2 times."),
        (not_called, "The call 0:call-1 was never made."),
        (called_too_often, "calls were made again"),
        (not_recorded, "has recorded 9 steps."),
    ],
)
def test_what_went_wrong_is_said(happen: Callable[[Counter[str]], None], said: str, world: World) -> None:
    total, called = world
    happen(called)
    compare(total, called)
    assert len(total.faults) == 1
    assert said in total.faults[0]


@pytest.mark.wide
@pytest.mark.database
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_flows_end_and_what_they_did_is_there_once(child_environment: dict[str, str]) -> None:
    url = os.environ.get("OJS_TEST_DATABASE_URL", "")
    command = [sys.executable, str(Path(settings.BASE_DIR) / "manage.py"), "ojs_bench", "--flows", "20", "--json"]
    done = subprocess.run(
        [*command, "--database", url], env=child_environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["faults"] == []
    assert told["flows"] == 20
    assert sum(told["kills"].values()) >= KILLS
