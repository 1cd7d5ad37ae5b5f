"""The pages of docs/how-to and docs/coming-from, and a reader who does what they say, in this process.

What follows the language of a fenced block: `title="PATH"` makes it a file; a `text output` is what the last
command printed, where `...` stands for anything. `settings` are made and checked. Code that is marked `before` needs
other packages, and `move` something to move (`test_moving`): they are Python, at least.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.conf import settings
from django.core.management import call_command, load_command_class
from django.test import Client

from django_ojs.testing import WorkerJobs
from tests.docs.reading import apply

DOCS = settings.BASE_DIR / "docs"
_FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: Their arguments are read, and they are not run: a process that stays, and the schema that the tests have already.
ONLY_READ = ("ojs_worker", "migrate")


def titled(page: str, title: str) -> str:
    [text] = [text for _, marks, text in _fences(page) if f'title="{title}"' in marks]
    return text


def _fences(page: str) -> list[tuple[str, str, str]]:
    return _FENCE.findall((DOCS / f"{page}.md").read_text(encoding="utf-8"))


def commands(text: str) -> Iterator[list[str]]:
    """The words of each command of a block; a quoted word may go on for lines."""
    call = ""
    for line in text.replace("\\\n", " ").splitlines():
        call += line
        with contextlib.suppress(ValueError):  # a quote is open
            yield shlex.split(call)
            call = ""
    assert not call


#: Marks of code that needs another project's packages.
NOT_OURS = ("before", "move")


class Reader:
    """Who reads a page from top to bottom; `names` are those that its Python has, `answers` what curl was told."""

    def __init__(self, jobs: WorkerJobs, client: Client, monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
        self.jobs, self._client, self._monkeypatch, self._settings = jobs, client, monkeypatch, settings
        self.names: dict[str, Any] = {}
        self.answers: list[Any] = []
        self._printed = ""
        self._readers: dict[str, Callable[[str, str], None]] = {
            "python": self._python, "sh": self._shell, "text": self._output
        }  # fmt: skip

    def read(self, page: str, skip: str = "") -> Reader:
        """All blocks but those with `skip` in them."""
        found = [fence for fence in _fences(page) if not skip or skip not in fence[2]]
        assert found
        for language, marks, text in found:
            if language in self._readers:
                self._readers[language](text, marks)
        return self

    def install(self, modules: dict[str, dict[str, Any]]) -> None:
        """What is used of packages that are not here."""
        for dotted, names in modules.items():
            found = types.ModuleType(dotted)
            found.__dict__.update(names)
            self._monkeypatch.setitem(sys.modules, dotted, found)

    def move(self, page: str) -> None:
        """Run the blocks that move what waits in another queue."""
        moves = [text for _, marks, text in _fences(page) if marks.strip() == "move"]
        assert moves
        names = dict(self.names)
        for text in moves:
            exec(compile(text, page, "exec"), names)

    def module(self, name: str, text: str) -> types.ModuleType:
        """`shop/jobs.py` can be imported from now on as `shop.jobs`."""
        dotted = name.removesuffix(".py").replace("/", ".")
        found = types.ModuleType(dotted)
        self._monkeypatch.setitem(sys.modules, dotted, found)
        if (parent := dotted.rpartition(".")[0]) and parent not in sys.modules:
            self._monkeypatch.setitem(sys.modules, parent, types.ModuleType(parent))
        exec(compile(text, name, "exec"), found.__dict__)
        return found

    def _python(self, text: str, marks: str) -> None:
        if marks.strip() in NOT_OURS:
            compile(text, "page", "exec")
        elif marks.strip() == "settings":
            apply(self._settings, text, "page")
        elif title := re.search(r'title="(.+?)"', marks):
            self.module(title[1], text)
        else:
            exec(compile(text, "page", "exec"), self.names)

    def _shell(self, text: str, marks: str) -> None:
        for words in commands(text):
            if words[:2] == ["python", "manage.py"]:
                self._manage(words[2], words[3:])
            else:
                assert words[0] == "curl", words
                self._curl(words[1:])

    def _manage(self, name: str, arguments: list[str]) -> None:
        app = "django.core" if name == "migrate" else "django_ojs"
        given = load_command_class(app, name).create_parser("manage.py", name).parse_args(arguments)
        if name == "ojs_worker" and given.until_empty:
            self.jobs.drain()
        elif name not in ONLY_READ:
            out = io.StringIO()
            call_command(name, *arguments, stdout=out)
            self._printed = out.getvalue()

    def _curl(self, words: list[str]) -> None:
        method, body = "", None
        while words:
            match words.pop(0):
                case "-X":
                    method = words.pop(0)
                case "-d":
                    body = words.pop(0)
                case "-H":
                    assert words.pop(0) == "Content-Type: application/json"
                case "-sS":
                    pass
                case url:
                    path = url.removeprefix("http://127.0.0.1:8000")
        method = method or ("GET" if body is None else "POST")
        answer = self._client.generic(method, path, body or "", content_type="application/json")
        assert answer.status_code < 400, (method, path, answer.content)
        self.answers.append(answer.json())

    def _output(self, text: str, marks: str) -> None:
        if marks.strip() == "run":  # tests/docs/test_running.py does
            return
        assert marks.strip() == "output"
        place = 0
        for line in text.splitlines():
            pattern = ".*?".join(re.escape(part.strip()).replace(r"\ \ ", r"\s+") for part in line.split("..."))
            found = re.compile(pattern).search(self._printed, place)
            assert found, f"not printed: {line}\n{self._printed}"
            place = found.end()
