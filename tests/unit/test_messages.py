"""Numbers in sentences for people."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from django_ojs.messages import count, jobs, jobs_run
from tests.sources import nodes, trees

PLURALS = ("jobs", "job types", "unfinished jobs", "more jobs", "dead letters", "schedules", "outcomes")


@pytest.mark.parametrize("number,text", [(0, "0 jobs"), (1, "1 job"), (2, "2 jobs"), (2000, "2,000 jobs")])
def test_numbers_of_jobs(number: int, text: str) -> None:
    assert jobs(number) == text


def test_numbers_of_other_things() -> None:
    assert [count(n, "dead letter") for n in (1, 2)] == ["1 dead letter", "2 dead letters"]
    assert [count(n, "delivery", "deliveries") for n in (1, 2)] == ["1 delivery", "2 deliveries"]
    assert [jobs_run(1), jobs_run(2, "still")] == ["1 job is running", "2 jobs are still running"]


def lines() -> Iterator[tuple[str, str]]:
    """What the package logs or writes to a console: where, and the first argument."""
    writers = {"debug", "info", "warning", "error", "exception", "log", "write", "say", "_announce"}
    for path in trees():
        for call in nodes(path):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in writers:
                for argument in call.args[:2]:
                    yield f"{path}:{call.lineno}", ast.unparse(argument)


def test_no_line_for_a_console_has_a_number_and_a_plural_that_may_not_agree() -> None:
    """`"%d jobs"` says "1 jobs"; `messages.count` agrees."""
    found = list(lines())
    assert len(found) > 200
    ends = [f"{mark} {word}" for mark in ("%d", "}") for word in PLURALS]
    assert [(place, text) for place, text in found if any(end in text for end in ends)] == []
