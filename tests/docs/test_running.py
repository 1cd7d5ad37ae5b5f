"""Blocks marked `run` do what they say on a database: Python in process, requests and commands through the site."""

from __future__ import annotations

import ast
import asyncio
import inspect
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client

from django_ojs.operations.configure import configure
from django_ojs.registry import registry
from tests.docs.pages import PAGES, Block, blocks, name
from tests.docs.test_blocks import METHODS, Request, of_curl, words

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.docs.urls")]


@pytest.fixture(autouse=True)
def _site(settings: Any, db: None) -> Iterator[None]:
    """Open to everybody, with a queue `mail` and no handlers but those of the page."""
    settings.OJS = {"ALLOW_ANONYMOUS": True}
    configure("mail", {"concurrency": 10})
    with registry.isolated():
        yield


def marked(page: Path) -> list[Block]:
    return [block for block in blocks(page) if "run" in block.words]


def run(block: Block, names: dict[str, Any]) -> None:
    if block.language == "python":
        code = compile(block.text, str(block), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        if code.co_flags & inspect.CO_COROUTINE:
            asyncio.run(eval(code, names))
        else:
            exec(code, names)
    else:
        assert steps(block), f"{block}: nothing in it can be run"
        for step in steps(block):
            step_through(step, block)


def steps(block: Block) -> list[str]:
    """The commands and requests of a block, each with its body."""
    text = block.text.replace("\\\n", " ")
    start = rf"(?:\$ )?(?:curl |(?:python )?manage\.py |(?:{METHODS}) /)"
    return re.findall(rf"^{start}.*?(?=^{start}|^→|\Z)", text, re.MULTILINE | re.DOTALL)


def step_through(step: str, block: Block) -> None:
    if "manage.py" in step.split("\n", maxsplit=1)[0]:
        call_command(*words(step.partition("manage.py ")[2]), stdout=io.StringIO())
        return
    if "curl " in step:
        asked = of_curl(str(block), step)
    else:
        head, brace, rest = step.partition("{")
        asked = Request(str(block), *head.split()[:2], brace + rest)
    path = asked.path if asked.path.startswith("/ojs/") else f"/ojs/v1{asked.path}"
    answer = Client().generic(asked.method, path, asked.body, content_type="application/json")
    assert answer.status_code < 400, f"{asked}: {answer.status_code} {answer.content!r}"


@pytest.mark.parametrize("page", [page for page in PAGES if marked(page)], ids=name)
def test_the_marked_blocks_of_the_page_run_in_order(page: Path) -> None:
    names: dict[str, Any] = {"__name__": f"docs.{page.stem}"}
    for block in marked(page):
        run(block, names)


@pytest.mark.parametrize(
    "language, text, error",
    [
        ("python", "undefined", NameError),
        ("sh", "curl -s localhost:8000/ojs/v1/jobs/nothing", AssertionError),
        ("text", 'POST /jobs\n{"type": "No"}', AssertionError),
        ("sh", "manage.py ojs_jobs show nothing", Exception),
        ("sh", "echo no step", AssertionError),
    ],
)
def test_a_block_that_goes_wrong_fails(language: str, text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        run(Block(PAGES[0], 1, language, ("run",), text), {})
