"""Blocks marked `run` do what they say on a database: Python in process, requests and commands through the site."""

from __future__ import annotations

import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import django
import pytest
from django.db import transaction

from django_ojs.queues.configuration import configure
from django_ojs.registry import registry
from tests.docs.pages import PAGES, Block, blocks, name
from tests.docs.reading import Reader, django_tasks, kept

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.docs.urls")]

_ORDER = types.SimpleNamespace(pk=17, email="ann@example.org")
#: What a page takes for granted: a model of the reader's, and what was imported above.
GIVEN: dict[str, dict[str, Any]] = {
    "README.md": {
        "transaction": transaction,
        "Order": types.SimpleNamespace(objects=types.SimpleNamespace(create=lambda *_: _ORDER)),
    },
    "docs/tasks.md": {"order": _ORDER},
}


@pytest.fixture(autouse=True)
def _site(settings: Any, db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Open to everybody, with a queue `mail` and no handlers but those of the page."""
    settings.OJS = {"ALLOW_ANONYMOUS": True}
    configure("mail", {"concurrency": 10})
    django_tasks(monkeypatch)
    with registry.isolated(), kept():
        yield


@pytest.fixture
def reader(settings: Any) -> Reader:
    return Reader(settings, {"__name__": "docs.page"})


def marked(page: Path) -> list[Block]:
    return [block for block in blocks(page) if "run" in block.words]


@pytest.mark.parametrize("page", [page for page in PAGES if marked(page)], ids=name)
def test_the_marked_blocks_of_the_page_run_in_order(page: Path, reader: Reader) -> None:
    reader.names |= {"__name__": f"docs.{page.stem}", **GIVEN.get(name(page), {})}
    for block in marked(page):
        if django.VERSION[:2] != (6, 0) or "# not on Django 6.0" not in block.text:
            reader.run(block)


@pytest.mark.parametrize(
    "language, text, error",
    [
        ("python", "undefined", NameError),
        ("python", "OJS = {'NOTHING': 1}", AssertionError),
        ("python", "# settings.py\nINSTALLED_APPS = [..., 'nowhere']", ImportError),
        ("python", "# urls.py\npath('', include('django_ojs.http.probes'))", Exception),
        ("python", "# shop/jobs.py\n# later, when all is done\nx = 1", AssertionError),
        ("sh", "curl -s localhost:8000/ojs/v1/jobs/nothing", AssertionError),
        ("text", 'POST /jobs\n{"type": "No"}', AssertionError),
        ("sh", "manage.py ojs_jobs show nothing", Exception),
        ("sh", "echo no step", AssertionError),
    ],
)
def test_a_block_that_goes_wrong_fails(reader: Reader, language: str, text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        reader.run(Block(PAGES[0], 1, language, ("run",), text))
