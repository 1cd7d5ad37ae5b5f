"""The walks of CONTRIBUTING.md: the files of their steps exist, and define the names that stand behind them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.docs.pages import ROOT

_CHAPTER = re.compile(r"^## Three changes that are often asked for$(.*?)^## ", re.MULTILINE | re.DOTALL)
_WALK = re.compile(r"^### (.+)$", re.MULTILINE)
_STEP = re.compile(r"^(\d+)\. (`.+?(?:`, `.+?)*`): (.+(?:\n   .+)*)", re.MULTILINE)
_SPAN = re.compile(r"`([^`]+)`")
_FILE = re.compile(r"[\w./-]+\.(?:py|md|json)")


class Step(NamedTuple):
    walk: str
    number: int
    file: str
    names: tuple[str, ...]
    text: str


def walks() -> dict[str, str]:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    chapter = _CHAPTER.search(page)
    assert chapter is not None
    _, *parts = _WALK.split(chapter[1])
    return dict(zip(parts[::2], parts[1::2], strict=True))


def steps() -> Iterator[Step]:
    for walk, text in walks().items():
        for number, head, rest in _STEP.findall(text):
            file, *names = _SPAN.findall(head)
            yield Step(walk, int(number), file, tuple(names), rest)


def defined(file: str) -> set[str]:
    """The names that a module defines at its top."""
    found: set[str] = set()
    for node in ast.parse((ROOT / file).read_text(encoding="utf-8")).body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Assign(targets=targets):
                found.update(target.id for target in targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
    return found


def test_there_are_the_walks_that_a_newcomer_needs() -> None:
    assert list(walks()) == ["Add a filter of jobs", "Add an event type", "Add a backoff strategy"]


@pytest.mark.parametrize("walk", list(walks()))
def test_every_line_of_a_walk_belongs_to_a_step_that_is_read(walk: str) -> None:
    numbers = [step.number for step in steps() if step.walk == walk]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(re.findall(r"^\d+\. ", walks()[walk], re.MULTILINE)) == len(numbers) > 3


@pytest.mark.parametrize("step", list(steps()), ids=lambda step: f"{step.walk} {step.number}")
def test_the_files_and_names_of_a_step_exist(step: Step) -> None:
    for file in [step.file, *(span for span in _SPAN.findall(step.text) if _FILE.fullmatch(span) and "/" in span)]:
        assert (ROOT / file).is_file(), file
    if step.names:
        assert set(step.names) <= defined(step.file)
