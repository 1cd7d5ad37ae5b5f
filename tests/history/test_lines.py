"""HIS-7: a job that a handler enqueues says which job that was, and which was the first of the line."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from django_ojs import enqueue, job
from django_ojs.jobs.push import push
from django_ojs.models import Job
from django_ojs.registry import Registry, registry
from django_ojs.rules import envelope
from django_ojs.rules.ids import new_job_id
from django_ojs.testing.storedjobs import WorkerJobs
from django_ojs.testing.storedjobs import worker as stored

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def handlers() -> Iterator[Registry]:
    with registry.isolated() as isolated:
        yield isolated


@pytest.fixture
def jobs() -> Iterator[WorkerJobs]:
    with stored() as found:
        yield found


def of(type: str) -> Job:
    return Job.objects.get(type=type)


def line(type: str) -> tuple[Any, Any]:
    shown = of(type).envelope()
    return shown.get("parent_id"), shown.get("root_id")


def test_a_line_of_three(jobs: WorkerJobs) -> None:
    @job("line.first")
    def first() -> None:
        enqueue("line.second")

    @job("line.second")
    async def second() -> None:
        await asyncio.sleep(0)
        await third.aenqueue()

    @job("line.third")
    def third() -> None: ...

    first.enqueue()
    jobs.drain()
    root, middle = str(of("line.first").pk), str(of("line.second").pk)
    assert line("line.first") == (None, None)
    assert line("line.second") == (root, root)
    assert line("line.third") == (middle, root)
    assert of("line.third").parent_id == of("line.second").pk


def test_what_the_caller_says_is_kept_and_outside_of_a_handler_nothing_is_said(jobs: WorkerJobs) -> None:
    given = str(new_job_id())

    @job("line.first")
    def first() -> None:
        push([{"type": "line.other", "args": [], "parent_id": given}])

    first.enqueue()
    jobs.drain()
    assert line("line.other") == (given, None)
    enqueue("line.outside")
    assert line("line.outside") == (None, None)


def test_each_run_names_itself(jobs: WorkerJobs) -> None:
    @job("line.first", inline=True)
    def first(number: int) -> None:
        enqueue(f"line.of{number}")

    handles = [first.enqueue(number) for number in range(3)]
    jobs.drain()
    for number, handle in enumerate(handles):
        assert of(f"line.of{number}").parent_id == handle.id


def test_switched_off_nothing_is_said(jobs: WorkerJobs, settings: Any) -> None:
    settings.OJS = {"EXECUTION_HISTORY": False}

    @job("line.first")
    def first() -> None:
        enqueue("line.second")

    first.enqueue()
    jobs.drain()
    assert line("line.second") == (None, None)


def test_where_jobs_come_from_makes_no_other_form_of_them() -> None:
    envelope.forget()
    root = str(new_job_id())
    for number in range(9):
        given = {"type": "a.b", "queue": "q", "tags": ["x"], "args": [number]}
        (item,) = push([given | {"parent_id": str(new_job_id()), "root_id": root}])
        assert item.row is not None
        shown = envelope.render(item.row)
        assert (shown["root_id"], shown["tags"], shown["args"]) == (root, ["x"], [number])
        assert str(item.row["parent_id"]) == shown["parent_id"]
    assert len(envelope._forms) == 1
    (item,) = push([{"type": "a.b", "queue": "q", "tags": ["x"], "args": []}])
    assert item.row is not None
    assert item.row["parent_id"] is None
    assert "root_id" not in envelope.render(item.row)


def test_jobs_of_one_push_may_come_from_different_jobs() -> None:
    parents = [str(new_job_id()), None, str(new_job_id())]
    for _ in range(3):
        items = push([{"type": "a.b", "args": []} | ({"parent_id": one} if one else {}) for one in parents])
        rows = [item.row for item in items]
        assert [row and row["parent_id"] and str(row["parent_id"]) for row in rows] == parents
        stored_rows = {row.pk: row for row in Job.objects.filter(pk__in=[row["id"] for row in rows if row])}
        assert [stored_rows[row["id"]].envelope().get("parent_id") for row in rows if row] == parents
