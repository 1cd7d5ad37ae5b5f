"""Whatever a caller gives the Python API in the place of something else, the refusal is a sentence of ours."""

from __future__ import annotations

import datetime as dt
import linecache
import uuid
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

import django_ojs
from django_ojs import (
    Retry,
    Snooze,
    Workflow,
    approve,
    chain,
    delete_schedule,
    emit_event,
    enqueue,
    enqueue_many,
    get_job,
    get_workflow,
    job,
    lock,
    register_schedule,
    step,
    step_type,
)
from django_ojs.models import Job
from django_ojs.registry import Registry
from django_ojs.testing import job_context

pytestmark = pytest.mark.django_db

OURS = Path(django_ojs.__file__).parent
HUGE = 10**5000  # Python writes no more than 4,300 digits
ODD = {
    "object": object(), "huge": HUGE, "deep": reduce(lambda inner, _: [inner], range(5000), [0]), "half": "a\ud800",
    "nul": "a\0", "nan": float("nan"), "infinite": float("inf"), "date": dt.date(2026, 1, 1), "bytes": b"a",
}  # fmt: skip
#: Doors, and which of the odd values they take.
DOORS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "enqueue": (lambda odd: enqueue(odd, 1), ""),
    "enqueue_many": (enqueue_many, ""),
    "an entry": (lambda odd: enqueue_many([odd]), ""),
    "an argument": (lambda odd: enqueue("odd.type", odd), "half nul"),
    "an argument inside": (lambda odd: enqueue("odd.type", [{"a": odd}]), "half nul"),
    "id": (lambda odd: enqueue("odd.type", id=odd), ""),
    "delay": (lambda odd: enqueue("odd.type", delay=odd), "huge"),
    "priority": (lambda odd: enqueue("odd.type", priority=odd), ""),
    "tags": (lambda odd: enqueue("odd.type", tags=odd), ""),
    "retry": (lambda odd: enqueue("odd.type", retry={"max_attempts": odd}), ""),
    "after": (lambda odd: Workflow.graph({"a": child()}, after={"a": odd}).enqueue(), ""),
    "steps": (lambda odd: Workflow.graph(odd, after={}), ""),
    "callback_type": (lambda odd: Workflow.graph({"a": child()}, after={}, callback_type={"a": odd}), ""),
    "a part": (chain, ""),
    "id of a workflow": (lambda odd: chain(child()).enqueue(id=odd), ""),
    "get_job": (get_job, ""),
    "get_workflow": (get_workflow, ""),
    "delete_schedule": (delete_schedule, "half nul"),
    "register_schedule": (lambda odd: register_schedule(odd, child(), cron="@daily"), ""),
    "lock": (lambda odd: lock(odd, timeout=1), "half nul"),
    "a timeout": (lambda odd: lock("a", timeout=odd), "huge"),
    "emit_event": (emit_event, ""),
    "a key": (lambda odd: emit_event("odd", odd), ""),
    "a payload": (lambda odd: emit_event("odd", "key", odd), "half nul"),
    "approve": (lambda odd: approve(odd, by=User(username="u")), ""),
    "by": (lambda odd: approve(uuid.uuid4(), by=odd), ""),
    "wait": (lambda odd: stored().wait(odd), "huge infinite"),
    "logs": (lambda odd: stored().logs(attempt=odd), "huge"),
    "level of logs": (lambda odd: stored().logs(level=odd), "huge"),
    "@step": (step, ""),
    "timeout of @step": (lambda odd: step(timeout=odd)(child), "huge"),
    "step_type": (step_type, ""),
    "name of a step type": (lambda odd: step_type(name=odd, encode=str, decode=str)(type("Odd", (), {})), "half nul"),
    "step": (lambda odd: job_context().step("a", odd), ""),
    "name of a step": (lambda odd: job_context().step(odd, int), ""),
    "sleep": (lambda odd: job_context().sleep(odd), "huge"),
    "sleep_until": (lambda odd: job_context().sleep_until(odd), ""),
    "run": (lambda odd: job_context().run(odd), ""),
    "run_all": (lambda odd: job_context().run_all(odd), ""),
    "wait_for_event": (lambda odd: job_context().wait_for_event(odd), ""),
    "wait_for_approval": (lambda odd: job_context().wait_for_approval("a", title=odd), ""),
    "assignees": (lambda odd: job_context().wait_for_approval("a", assignees=odd), ""),
    "Snooze": (Snooze, "huge"),
    "after of Retry": (lambda odd: Retry(after=odd), "huge"),
    "random": (lambda odd: job_context().random(odd), ""),
    "progress": (lambda odd: job_context().progress(odd), "infinite"),
    "level of log": (lambda odd: job_context().log("said", level=odd), "huge"),
    "checkpoint": (lambda odd: job_context().checkpoint(odd), "half nul"),
    "job_context": (job_context, "half nul"),
    "args of job_context": (lambda odd: job_context(args=odd), ""),
}  # fmt: skip


def child() -> Any:
    return job("odd.child")(lambda: None).s()


def stored() -> Any:
    return enqueue("odd.stored")


@pytest.fixture(autouse=True)
def _handlers(handlers: Registry) -> None:
    """Without those of the site."""


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("door", DOORS)
def test_the_refusal_is_a_sentence_of_ours(door: str, odd: str) -> None:
    call, takes = DOORS[door]
    if odd in takes.split():
        return
    with pytest.raises(Exception) as refused:  # noqa: PT011 - of whatever class, it is looked at
        call(ODD[odd])
    *_, place = refused.traceback
    code = place.frame.code.raw
    assert Path(code.co_filename).is_relative_to(OURS), refused.getrepr(style="short")
    line = linecache.getline(code.co_filename, place.lineno + 1)
    assert line.lstrip().startswith("raise "), line
    said = str(refused.value)
    assert "object has no attribute" not in said
    assert len(said) < 500
    assert Job.objects.exclude(type="odd.stored").count() == 0
