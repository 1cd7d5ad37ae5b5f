"""Whatever record of a step its worker crashes at, a durable job ends well and its database effects happen once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from django.contrib.auth.models import Group

from django_ojs import JobContext, JobHandle, job
from django_ojs.models import Job
from django_ojs.testing import assert_survives_crashes

pytestmark = pytest.mark.django_db


@pytest.mark.slow  # some two hundred runs
def test_a_flow_of_every_kind_of_step_survives_a_crash_at_each() -> None:
    calls: Counter[str] = Counter()

    def fail_once() -> str:
        calls["fail_once"] += 1
        if calls["fail_once"] % 2:
            raise ConnectionError
        return "done"

    @job("crash.flow", durable=True, retry={"max_attempts": 1})
    def handler(context: JobContext, number: int, rounds: int = 1) -> list[Any]:
        first = context.step_transaction("book", lambda: Group.objects.create(name=f"{number}-{rounds}").pk)
        moment, key = context.now(), context.uuid()
        context.sleep("1d")
        again = context.step("again", fail_once, retry={"max_attempts": 4, "initial_interval": "1h"})
        if rounds:
            context.continue_as_new(number, rounds - 1)
        with context.step_transaction("ship") as block:
            Group.objects.create(name=f"{number}-shipped")
            block.result = 5
        return [first, moment.isoformat(), str(key), again, block.result]

    def once(handle: JobHandle) -> None:
        assert handle.state == "completed"
        found = sorted(Group.objects.filter(name__startswith="7-").values_list("name", flat=True))
        assert found == ["7-0", "7-1", "7-shipped"]

    assert_survives_crashes(handler.s(7), check=once)
    assert not Group.objects.exists()


def take(number: int) -> None:
    Group.objects.create(name=f"taken-{number}")


def give_back(number: int) -> None:
    Group.objects.filter(name=f"taken-{number}").delete()
    Group.objects.get_or_create(name=f"back-{number}")


def test_what_a_flow_undoes_survives_a_crash_at_each_step() -> None:
    @job("crash.undone", durable=True, retry={"max_attempts": 1})
    def handler(context: JobContext) -> None:
        for number in range(2):
            context.on_failure(give_back, number)
            context.step_transaction(f"take-{number}", take, number)
        raise ValueError("the shop has closed")

    def undone(handle: JobHandle) -> None:
        (found,) = Job.objects.filter(parent_id=handle.id)
        assert (handle.state, found.state) == ("discarded", "completed")
        assert list(Group.objects.order_by("pk").values_list("name", flat=True)) == ["back-1", "back-0"]

    assert_survives_crashes(handler.s(), check=undone)


@pytest.mark.django_db(transaction=True)
def test_an_asynchronous_flow_survives_a_crash_at_each_step() -> None:
    async def double(number: int) -> int:
        return number * 2

    @job("crash.aflow", durable=True, retry={"max_attempts": 1})
    async def handler(context: JobContext, number: int) -> int:
        found = await context.astep("double", double, number)
        await context.asleep("1h")
        group = await context.astep_transaction("book", Group.objects.create, name="async")
        return found + group.pk * 0

    def once(handle: JobHandle) -> None:
        assert handle.state == "completed"
        assert Group.objects.filter(name="async").count() == 1

    assert_survives_crashes(handler.s(3), check=once)


def test_a_handler_whose_end_depends_on_the_crash_is_told() -> None:
    runs: list[int] = []

    @job("crash.odd", durable=True, retry={"max_attempts": 1})
    def handler(context: JobContext) -> None:
        runs.append(1)
        context.step(f"run-{len(runs)}", int)

    with pytest.raises(AssertionError, match="ends otherwise with a crash before record 1 of 1"):
        assert_survives_crashes(handler.s())


def test_a_handler_without_steps_is_told() -> None:
    @job("crash.none", durable=True)
    def handler(context: JobContext) -> None: ...

    with pytest.raises(AssertionError, match="records no step"):
        assert_survives_crashes(handler.s())
