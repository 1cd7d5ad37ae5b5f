"""`ojs_bench --crash`: its comparison finds what is lost, stored twice or answered to another caller; a short one adds
up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from benchmarks.crash import TYPE, Sum, compare
from django_ojs import clock
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import ack_one
from django_ojs.jobs.push import push
from django_ojs.models import IdempotencyKey, Job
from django_ojs.store.values import Ack


@pytest.fixture
def total(transactional_db: None) -> Sum:
    """Two pushes, of which one is acknowledged, as the clients would have counted them."""
    found = Sum()
    for key in ("a:1", "b:1"):
        (pushed,) = push([{"type": TYPE, "args": [key]}])
        assert pushed.row is not None
        found.pushed[key] = str(pushed.row["id"])
        IdempotencyKey.objects.create(digest=key, request="", created_at=clock.now())
    (row,) = fetch(Fetch(["default"], worker_id="a"))
    ack_one(Ack(row["id"], json.dumps("a"), "a"))
    found.acknowledged[str(row["id"])] = "a"
    return found


def test_what_went_well_adds_up(total: Sum) -> None:
    compare(total)
    assert total.faults == []


def lost(total: Sum) -> None:
    Job.objects.filter(pk=total.pushed["b:1"])._raw_delete("default")


def twice(total: Sum) -> None:
    push([{"type": TYPE, "args": ["b:1"]}])


def of_another(total: Sum) -> None:
    total.pushed["a:1"], total.pushed["b:1"] = total.pushed["b:1"], total.pushed["a:1"]


def not_completed(total: Sum) -> None:
    total.acknowledged[total.pushed["b:1"]] = "a"


def result_of_another(total: Sum) -> None:
    Job.objects.filter(pk__in=list(total.acknowledged)).update(result='"b"')


def key_twice(total: Sum) -> None:
    IdempotencyKey.objects.create(digest="again", request="", created_at=clock.now())


@pytest.mark.parametrize(
    "happen,said",
    [
        (lost, "push b:1 was answered with"),
        (twice, "b:1 was stored 2 times"),
        (of_another, "push a:1 was answered with"),
        (not_completed, "was answered with 2xx, and the row is"),
        (result_of_another, "was answered with 2xx, and the row is"),
        (key_twice, "3 keys are stored for 2 jobs"),
    ],
)
def test_what_went_wrong_is_a_fault(total: Sum, happen: Callable[[Sum], None], said: str) -> None:
    happen(total)
    compare(total)
    assert any(said in fault for fault in total.faults), total.faults


@pytest.mark.wide
@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")
def test_what_servers_answered_before_they_were_killed_is_stored(child_environment: dict[str, str]) -> None:
    command = [sys.executable, str(Path(settings.BASE_DIR) / "manage.py"), "ojs_bench", "--crash", "600", "--json"]
    done = subprocess.run(command, env=child_environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert {"uvicorn"} <= told.keys()
    for found in told.values():
        assert found["faults"] == []
        assert found["calls"] >= 600
        assert found["kills"] >= 3
