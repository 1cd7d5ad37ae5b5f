"""Somebody who does what a page says on the site of the tests: its Python, settings, commands, requests and SQL."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import re
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
from django.apps import AppConfig, apps
from django.conf import settings as site
from django.core.checks import run_checks
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.urls import include, path, resolve

from django_ojs import testing
from tests.docs.pages import Block
from tests.docs.test_blocks import METHODS, Request, of_curl, words

#: A comment that says where the lines below it belong, as readers take it.
_SECTION = re.compile(r"^# ((?:[\w/]+\.py|anywhere|later)\b[^\n]*)\n", re.MULTILINE)


class Reader:
    """`names` are those that the page's Python has so far, with what the page takes for granted."""

    def __init__(self, settings: Any, names: dict[str, Any]) -> None:
        self._settings = settings
        self.names = names
        self._answer: Any = None
        self._printed = ""

    def run(self, block: Block) -> None:
        if block.language == "python":
            for place, text in sections(block.text):
                self._section(place, text, str(block))
        elif block.language == "sql":
            self._sql(block.text)
        else:
            assert steps(block), f"{block}: nothing in it can be run"
            for step in steps(block):
                self._step(step, block)

    def _section(self, place: str, text: str, where: str) -> None:
        if place.startswith("settings.py") or (not place and _is_settings(text)):
            apply(self._settings, text, where)
        elif place.startswith("urls.py"):
            self._route(text, where)
        else:
            if place.startswith("later"):
                with testing.worker() as jobs:
                    assert len(jobs.drain().raise_first()) > 0, f"{where}: there is nothing to wait for"
            self._python(text, where, re.sub(r"\.py.*", "", place).replace("/", ".") if ".py" in place else "")

    def _python(self, text: str, where: str, module: str = "") -> None:
        usual = self.names["__name__"]
        self.names["__name__"] = module or usual
        code = compile(text, where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        if code.co_flags & inspect.CO_COROUTINE:
            asyncio.run(eval(code, self.names))
        else:
            exec(code, self.names)
        self.names["__name__"] = usual

    def _route(self, text: str, where: str) -> None:
        """The patterns lead to the server, whether they are those of the whole module or a line for it."""
        names: dict[str, Any] = {"path": path, "include": include}
        tree = ast.parse(text)
        lines = [eval(ast.unparse(node), names) for node in tree.body if isinstance(node, ast.Expr)]
        exec(compile(text, where, "exec"), names)
        module = types.ModuleType("urls_of_the_page")
        module.urlpatterns = names.get("urlpatterns", lines)  # type: ignore[attr-defined]
        assert resolve("/ojs/manifest", urlconf=module).url_name  # type: ignore[arg-type]

    def _sql(self, text: str) -> None:
        """All of it is for PostgreSQL. No transaction lets an index be made beside the site's work."""
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute(text.replace("CONCURRENTLY ", ""))

    def _step(self, step: str, block: Block) -> None:
        step = self._filled(step)
        if "manage.py" in step.split("\n", maxsplit=1)[0]:
            out = io.StringIO()
            call_command(*words(step.partition("manage.py ")[2]), stdout=out)
            self._printed = out.getvalue()
            return
        if "curl " in step:
            asked = of_curl(str(block), step)
        else:
            head, brace, rest = step.partition("{")
            method, called = head.split()[:2]
            asked = Request(str(block), method, called, brace + rest)
        where = asked.path if asked.path.startswith("/ojs/") else f"/ojs/v1{asked.path}"
        key = re.search(r"Authorization: (Bearer \w+)", step)
        headers = {"Authorization": key[1]} if key else {}
        answer = Client().generic(
            asked.method, where, asked.body, content_type="application/json", headers=headers
        )  # fmt: skip
        assert answer.status_code < 400, f"{asked}: {answer.status_code} {answer.content!r}"
        self._answer = answer.json()

    def _filled(self, step: str) -> str:
        """What a reader copies from above: the id of the job that the last answer had, the key that was shown."""
        if "<id>" in step:
            step = step.replace("<id>", self._answer["job"]["id"])
        if "ojs_…" in step:
            shown = re.search(r"\bojs_[0-9a-f]{32,}", self._printed)
            assert shown, self._printed
            step = step.replace("ojs_…", shown[0])
        return step


def apply(settings: Any, text: str, where: str) -> None:
    """Make these settings; nothing may be wrong with them. Apps are looked for: the site of the tests has them."""
    made: dict[str, Any] = {"INSTALLED_APPS": list(site.INSTALLED_APPS)}
    exec(compile(text.replace("[...,", "[*INSTALLED_APPS,"), where, "exec"), made)
    del made["__builtins__"]
    for entry in made.pop("INSTALLED_APPS"):
        assert AppConfig.create(entry).name in {app.name for app in apps.get_app_configs()}, f"{where}: {entry}"
    for name, value in made.items():
        setattr(settings, name, value)
    assert [message for message in run_checks() if message.is_serious()] == [], where


def sections(text: str) -> list[tuple[str, str]]:
    """The parts of a block, each with the comment above it."""
    first, *rest = _SECTION.split(text)
    found = list(zip(rest[::2], rest[1::2], strict=True))
    return found if found and not first.strip() else [("", text)]


def steps(block: Block) -> list[str]:
    """The commands and requests of a block, each with its body."""
    text = block.text.replace("\\\n", " ")
    start = rf"(?:\$ )?(?:curl |(?:\S*python )?manage\.py |(?:{METHODS}) /)"
    return re.findall(rf"^{start}.*?(?=^{start}|^→|\Z)", text, re.MULTILINE | re.DOTALL)


def _is_settings(text: str) -> bool:
    """Whether a block does nothing but assign to names in capitals."""
    return all(
        isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.isupper()
        for node in ast.parse(text).body
    )


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """What a page may register with other packages is taken away again."""
    from prometheus_client import REGISTRY

    before = set(REGISTRY._collector_to_names)
    try:
        yield
    finally:
        for collector in set(REGISTRY._collector_to_names) - before:
            REGISTRY.unregister(collector)


def django_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """`from django.tasks import task` on Django 5.2, where the pages say that the name is `django_tasks`."""
    import django

    if django.VERSION < (6, 0):
        import django_tasks as backport

        monkeypatch.setitem(sys.modules, "django.tasks", backport)
