"""`@job(args=Typed)`: what JSON does not have, by the annotations of the handler."""

from __future__ import annotations

import datetime as dt
import enum
import typing
import uuid
from decimal import Decimal
from typing import Any, Literal

import pytest
from django.contrib.auth.models import AbstractUser, Group, User
from django.db import models

from django_ojs import JobContext, Typed, chain, enqueue, enqueue_many, get_job, job
from django_ojs.models import WorkflowStart
from django_ojs.registry import InvalidHandler, Registry
from django_ojs.testing import WorkerJobs, fake, job_context

pytestmark = pytest.mark.django_db


class Size(models.TextChoices):
    SMALL = "s"
    LARGE = "l"


class Rank(enum.IntEnum):
    LOW = 1


ORDER = uuid.UUID(int=17)
AT = dt.datetime(2026, 1, 15, 9, 30, 0, 123456, tzinfo=dt.timezone(dt.timedelta(hours=2)))
VALUES: list[tuple[Any, Any, Any]] = [
    (uuid.UUID, ORDER, str(ORDER)),
    (dt.date, dt.date(2026, 1, 15), "2026-01-15"),
    (dt.datetime, AT, "2026-01-15T09:30:00.123456+02:00"),
    (dt.datetime, AT.replace(tzinfo=None), "2026-01-15T09:30:00.123456"),
    (dt.time, dt.time(9, 30), "09:30:00"),
    (dt.timedelta, dt.timedelta(days=-3, microseconds=1), "-P2DT23H59M59.999999S"),
    (Decimal, Decimal("1E+3"), "1E+3"),
    (Decimal, Decimal("0.10"), "0.10"),
    (Size, Size.LARGE, "l"),
    (Rank, Rank.LOW, 1),
    (uuid.UUID | None, None, None),
    (uuid.UUID | None, ORDER, str(ORDER)),
    (list[dt.date], [dt.date(2026, 1, 15)], ["2026-01-15"]),
    (tuple[dt.date, ...], (dt.date(2026, 1, 15),), ["2026-01-15"]),
    (tuple[int, Decimal], (1, Decimal("2.0")), [1, "2.0"]),
    (dict[str, list[Decimal]], {"a": [Decimal(1)]}, {"a": ["1"]}),
    (typing.List, [1, "a"], [1, "a"]),  # noqa: UP006 - as sites write it
    (typing.Dict, {"a": 1}, {"a": 1}),  # noqa: UP006
    (dict[Literal["a"], Decimal], {"a": Decimal(1)}, {"a": "1"}),
    (Literal["a"], "a", "a"),
    (Any, {"a": [1.5, None]}, {"a": [1.5, None]}),
]


def typed(kind: Any, seen: list[Any], **options: Any) -> Any:
    def handler(value: Any, **more: Any) -> None:
        seen.append(value)

    handler.__annotations__ = {"value": kind}
    return job("test.typed", args=Typed, **options)(handler)


@pytest.mark.parametrize("kind, value, wire", VALUES, ids=lambda one: str(one)[:40])
def test_what_the_handler_gets_is_what_was_passed(
    handlers: Registry, ojs_worker: WorkerJobs, kind: Any, value: Any, wire: Any
) -> None:
    seen: list[Any] = []
    handler = typed(kind, seen)
    assert handler.enqueue(value).args == [wire]
    assert handler.enqueue(value=value).args == [{"$kwargs": {"value": wire}}]
    assert enqueue("test.typed", value).args == [wire]
    assert handler.enqueue(wire).args == [wire], "what a client sends is taken from Python, too"
    ojs_worker.drain().raise_first()
    assert seen == [value] * 4
    assert {type(one) for one in seen} == {type(value)}


def test_an_instance_is_read_again_when_the_handler_begins(handlers: Registry, ojs_worker: WorkerJobs) -> None:
    seen: list[Any] = []

    @job("test.group", args=Typed, retry={"max_attempts": 1})
    def greet(context: JobContext, group: Group, *others: Group) -> str:
        seen.append([group.name, *(other.name for other in others)])
        return group.name

    group, other = Group.objects.create(name="old"), Group.objects.create(name="other")
    handle = greet.enqueue(group, other)
    assert handle.args == [group.pk, other.pk]
    Group.objects.filter(pk=group.pk).update(name="new")
    ojs_worker.assert_enqueued(greet, args=[group, other])
    ojs_worker.drain().raise_first()
    assert seen == [["new", "other"]]
    gone = greet.enqueue(group)
    group.delete()
    ojs_worker.drain()
    assert get_job(gone.id).errors[0]["type"] == "DoesNotExist"
    with pytest.raises(TypeError, match=r"argument group cannot be .*not saved"):
        greet.enqueue(Group(name="new"))
    with pytest.raises(TypeError, match="it must be a Group"):
        greet.enqueue(User(pk=1))


def test_the_key_of_an_instance_may_be_that_of_another_model(handlers: Registry, ojs_worker: WorkerJobs) -> None:
    seen: list[Any] = []
    handler = typed(WorkflowStart, seen)
    plain = job("test.plain")(lambda: None)
    chain(plain.s()).enqueue()
    ojs_worker.drain()
    start = WorkflowStart.objects.get()
    assert handler.enqueue(start).args == [str(start.pk)]
    ojs_worker.drain().raise_first()
    assert seen == [start]


def test_workflows_lists_and_calls_of_children_have_them(handlers: Registry) -> None:
    seen: list[Any] = []
    handler = typed(uuid.UUID, seen)
    with fake() as jobs:
        chain(handler.s(ORDER)).enqueue()
        enqueue_many([handler.s(ORDER), ("test.typed", [ORDER])])
        jobs.assert_enqueued(handler, args=[ORDER], times=3)
        jobs.assert_enqueued(handler, args=[str(ORDER)], times=3)

    @job("test.parent", durable=True)
    def parent(context: JobContext) -> None:
        context.run(handler.s(ORDER))

    parent(job_context())
    assert seen == [ORDER]


@pytest.mark.parametrize(
    "kind, value",
    [
        (uuid.UUID, "17"), (uuid.UUID, 17), (dt.date, AT), (dt.datetime, "soon"), (dt.timedelta, "soon"),
        (Decimal, 1.5), (Decimal, "much"), (Size, "m"), (list[dt.date], "2026-01-15"), (tuple[int, Decimal], [1]),
    ],
)  # fmt: skip
def test_another_value_is_refused_where_it_is_enqueued_and_fails_the_attempt_that_gets_it(
    handlers: Registry, ojs_worker: WorkerJobs, client: Any, settings: Any, kind: Any, value: Any
) -> None:
    settings.OJS = {"ALLOW_ANONYMOUS": True}
    handler = typed(kind, [], retry={"max_attempts": 1})
    with pytest.raises(TypeError, match="argument value cannot be"):
        handler.enqueue(value)
    if not isinstance(value, dt.datetime):
        body = {"type": "test.typed", "args": [value], "retry": {"max_attempts": 1}}
        pushed = client.post("/ojs/v1/jobs", body, "application/json").json()["job"]["id"]
        ojs_worker.drain()
        failed = get_job(pushed)
        assert (failed.state, failed.errors[0]["type"]) == ("discarded", "TypeError")


@pytest.mark.parametrize(
    "kind, match",
    [
        (uuid.UUID | dt.date, "one of several types"), (set[int], "knows UUID, date"), (bytes, "knows UUID, date"),
        ("Missing", "cannot read the annotations"), (tuple[()], "knows UUID, date"),
        (typing.Set, "knows UUID, date"), (typing.Counter[str], "knows UUID, date"),  # noqa: UP006
        (dict[uuid.UUID, int], "keys that are no texts"), (dict[int, str], "keys that are no texts"),
        (AbstractUser, "the abstract model AbstractUser"),
        (enum.Enum("Odd", {"A": (1, 2)}), "values are not all texts"),
    ],
)  # fmt: skip
def test_a_declaration_that_cannot_be_kept_is_a_fault(handlers: Registry, kind: Any, match: str) -> None:
    handler = typed(kind, [])
    assert match in str(handlers.faults()[0])
    with pytest.raises(InvalidHandler):
        handler.enqueue(1)


def test_without_it_everything_is_as_before(handlers: Registry) -> None:
    @job("test.plain")
    def plain(order: uuid.UUID) -> None: ...

    with pytest.raises(TypeError, match=r"args\[0\] is a uuid\.UUID, which is not JSON: pass str"):
        plain.enqueue(ORDER)
    wrong: Any = job("test.wrong", args=[1])  # type: ignore[call-overload]
    wrong(lambda: None)
    assert "give django_ojs.Typed" in str(handlers.faults()[0])
