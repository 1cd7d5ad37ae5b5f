"""A group of exceptions, as a TaskGroup and `except*` raise it: the job's error says what was in it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from django_ojs import Discard, Fail, Retry, Snooze, job
from django_ojs.rules import errorobjects, retrypolicy
from django_ojs.tasks.results import _traceback
from django_ojs.worker import runs
from django_ojs.worker.execution import LoopRunner
from django_ojs.worker.runs import Completed, Failed, Interruption, JobHandedBack, JobRun, Snoozed
from tests.worker.test_runners import ended, loop, make, outcome_of, threads

__all__ = ["ended", "loop", "make", "threads"]


class Refused(ValueError):
    """An error of the site's."""


def caught(function: Callable[[], Any]) -> BaseException:
    try:
        function()
    except BaseException as error:  # noqa: BLE001
        return error
    raise AssertionError


def leaf(error: BaseException) -> BaseException:
    def fail_in_leaf() -> None:
        raise error

    return caught(fail_in_leaf)


def group(*errors: BaseException, message: str = "several failed") -> BaseException:
    def fail_together() -> None:
        raise BaseExceptionGroup(message, [leaf(error) if error.__traceback__ is None else error for error in errors])

    return caught(fail_together)


def error_of(exc: BaseException) -> dict[str, Any]:
    outcome = runs.of_exception(exc)
    assert isinstance(outcome, Failed)
    return outcome.error


def test_the_reasons_of_a_task_group(loop: LoopRunner, ended: Any, make: Any) -> None:
    async def fetch(number: int) -> None:
        if number:
            raise Refused(f"no page {number}")

    async def handler() -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(3):
                tasks.create_task(fetch(number))

    loop.start([make(handler)])
    error = outcome_of(ended).error  # type: ignore[union-attr]
    assert error["type"] == "ExceptionGroup"
    assert error["message"].endswith("(2 sub-exceptions): Refused: no page 1; Refused: no page 2")
    assert [found["message"] for found in error["details"]["exceptions"]] == ["no page 1", "no page 2"]
    assert error["details"]["exceptions"][0]["error_class"] == f"{__name__}.Refused"
    assert (error["details"]["exceptions_total"], error["details"]["error_classes"]) == (2, [f"{__name__}.Refused"])
    assert sum("in fetch" in frame or ".fetch " in frame for frame in error["backtrace"]) == 2


def test_the_frames_of_each_stand_before_those_of_the_group() -> None:
    error = error_of(group(Refused("one"), KeyError("two")))
    text = "\n".join(error["backtrace"])
    places = [text.index(word) for word in ("Refused: one", "KeyError: 'two'", "fail_together")]
    assert places == sorted(places)
    assert text.count("fail_in_leaf") == 2
    shown = "\n".join(_traceback(error["backtrace"]))
    assert shown.count("Traceback (most recent call last):") == 3


def test_groups_in_groups_are_flat() -> None:
    inner = group(Refused("deep"), group(KeyError("deeper")))
    error = error_of(group(OSError("flat"), inner))
    assert [found["type"] for found in error["details"]["exceptions"]] == ["OSError", "Refused", "KeyError"]


def test_a_great_many_are_capped_and_each_class_is_named_first() -> None:
    error = error_of(group(*(Refused("x" * 10_000) for _ in range(500)), KeyError("late")))
    listed = error["details"]["exceptions"]
    assert [found["type"] for found in listed[:3]] == ["Refused", "KeyError", "Refused"]
    assert (len(listed), error["details"]["exceptions_total"]) == (20, 501)
    assert error["details"]["error_classes"] == ["KeyError", f"{__name__}.Refused"]
    assert len(str(error)) < 40_000
    assert len(error["backtrace"]) <= errorobjects.MAX_FRAMES


def test_a_group_that_holds_itself_in_a_thousand_layers() -> None:
    error: BaseException = leaf(Refused("deep"))
    for _ in range(2000):
        error = BaseExceptionGroup("layer", [error])
    assert error_of(error)["details"]["exceptions"][0]["message"] == "deep"


def test_notes() -> None:
    noted = leaf(Refused("one"))
    noted.add_note("while reading page 3")
    alone = error_of(noted)
    assert alone["details"]["notes"] == ["while reading page 3"]
    whole = group(noted, KeyError("two"))
    whole.add_note("of the import")
    error = error_of(whole)
    assert error["details"]["notes"] == ["of the import"]
    assert error["details"]["exceptions"][0]["notes"] == ["while reading page 3"]
    noted.add_note("n" * 100_000)
    assert len(error_of(noted)["details"]["notes"][1]) < 2000


@pytest.mark.parametrize("listed,errors,final", [
    (["Refused"], [Refused("a"), Refused("b")], True),
    ([f"{__name__}.Refused"], [Refused("a")], True),
    ([f"{__name__}.*"], [Refused("a")], True),
    (["Refused"], [Refused("a"), KeyError("b")], False),
    (["Refused", "KeyError"], [Refused("a"), KeyError("b")], True),
    (["ExceptionGroup"], [Refused("a"), KeyError("b")], True),
    (["OSError"], [Refused("a")], False),
    (["ValueError", "LookupError"], [Refused("a"), KeyError("b")], True),
    (["ValueError"], [Refused("a"), KeyError("b")], False),
])  # fmt: skip
def test_a_retry_policy_asks_for_all_of_them(listed: list[str], errors: list[Exception], final: bool) -> None:
    policy = retrypolicy.merge(retrypolicy.parse({"non_retryable_errors": listed}))
    nested = group(*errors[:1], group(*errors))
    assert retrypolicy.may_be_retried(policy, error_of(nested)) is not final


@pytest.mark.parametrize("only,never,errors,retried", [
    (["KeyError"], [], [Refused("a"), KeyError("b")], True),
    (["ValueError"], [], [Refused("a"), KeyError("b")], True),
    (["OSError"], [], [Refused("a"), KeyError("b")], False),
    (["ExceptionGroup"], [], [Refused("a")], True),
    (["ExceptionGroup"], ["Refused"], [Refused("a")], False),
    (["KeyError", "Refused"], ["ValueError"], [Refused("a"), KeyError("b")], True),
    (["Refused"], ["ValueError"], [Refused("a"), KeyError("b")], False),
    (["KeyError"], ["ExceptionGroup"], [KeyError("b")], False),
])  # fmt: skip
def test_a_group_is_repeated_for_one_that_may_be(
    only: list[str], never: list[str], errors: list[Exception], retried: bool
) -> None:
    policy = retrypolicy.merge(retrypolicy.parse({"retryable_errors": only, "non_retryable_errors": never}))
    assert retrypolicy.may_be_retried(policy, error_of(group(*errors[:1], group(*errors)))) is retried


def test_too_many_classes_to_name_are_worth_another_attempt() -> None:
    errors = [type(f"Refused{n}", (ValueError,), {})("x") for n in range(errorobjects.MAX_CLASSES + 1)]
    error = error_of(group(*errors))
    assert "error_classes" not in error["details"]
    assert retrypolicy.may_be_retried(
        retrypolicy.merge(retrypolicy.parse({"non_retryable_errors": [f"{__name__}.*"]})), error
    )


def after_star(directive: Exception) -> BaseException:
    """What comes out of `except*` that raises."""

    def handler() -> None:
        try:
            raise ExceptionGroup("several", [KeyError("a"), Refused("b")])
        except* KeyError:
            raise directive from None
        except* Refused:
            raise Snooze("1s") from None

    return caught(handler)


def test_directives_out_of_except_star() -> None:
    assert isinstance(after_star(Snooze("1h")), ExceptionGroup)
    assert runs.of_exception(after_star(Snooze("1h"))) == Snoozed(3_600_000)
    later = runs.of_exception(after_star(Retry("busy", after="5m")))
    assert isinstance(later, Failed)
    assert (later.retry_after_ms, later.error["message"]) == (300_000, "busy")
    assert error_of(after_star(Discard("never")))["code"] == "DISCARD"


def test_of_several_directives_the_one_that_ends_the_job_counts() -> None:
    assert error_of(group(Snooze("1h"), Discard("never"), Retry("busy")))["code"] == "DISCARD"
    assert error_of(group(Discard("never"), Fail("broken"), Retry("busy")))["message"] == "broken"
    assert runs.of_exception(group(Snooze("1m"), Snooze("1h"))) == Snoozed(3_600_000)
    assert error_of(group(Discard("never"), Refused("b")))["type"] == "ExceptionGroup", "beside an error it is one"


def test_a_task_group_that_is_interrupted(loop: LoopRunner, ended: Any, make: Any) -> None:
    """A coroutine that blocks its loop is interrupted inside, and the interruption comes out in a group."""
    started = threading.Event()

    async def block() -> None:
        started.set()
        while True:
            pass

    async def handler() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(block())

    run: JobRun = make(handler)
    loop.start([run])
    assert started.wait(20)
    run.interruption = Interruption.SHUTDOWN
    from django_ojs.worker import execution

    execution._raise_in(loop._thread.ident or 0)
    assert outcome_of(ended) == JobHandedBack()
    loop.start([make(_fine)])
    assert outcome_of(ended) == Completed('"fine"')


async def _fine() -> str:
    return "fine"


@pytest.mark.django_db(transaction=True)
def test_in_a_worker(drain: Callable[..., Any]) -> None:
    policy = {"max_attempts": 5, "non_retryable_errors": ["Refused", "KeyError"]}

    @job("test.group", retry=policy)
    async def gather() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_refuse(Refused("one")))
            tasks.create_task(_refuse(KeyError("two")))

    @job("test.mixed", retry=policy)
    def mixed() -> None:
        raise ExceptionGroup("mixed", [Refused("one"), OSError("two")])

    final, again = gather.enqueue(), mixed.enqueue()
    drain()
    assert (final.refresh().state, again.refresh().state) == ("discarded", "retryable")
    assert final.error is not None
    assert {found["type"] for found in final.error["details"]["exceptions"]} == {"Refused", "KeyError"}


async def _refuse(error: Exception) -> None:
    raise error
