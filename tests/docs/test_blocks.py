"""The code on the pages is right: it compiles, and names commands, options, settings and paths that there are.

Blocks that are marked `run` are run, in the order of the page and with one another's names (docs/contributing.md).
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from django.core.management import get_commands, load_command_class
from django.urls import Resolver404, resolve
from ojsdocs import http

from django_ojs.checks import check_settings
from django_ojs.conf import FIELDS
from django_ojs.registry import registry
from tests.dashboard.texts import texts
from tests.docs.pages import PAGES, Block, all_blocks, blocks, name, spans

pytestmark = pytest.mark.sqlite  # no database is asked: once is enough

SHELL = ("", "sh", "bash", "console", "shell", "text")
SEPARATORS = {"&&", "||", "|", ";", "&", ">", ">>"}
#: Signs of a line that describes rather than is one.
PLACEHOLDERS = ("…", "...", "<", "[", "|", "$")
#: What the site of the tests has not.
ELSEWHERE = {"ojs_demo": "example_project"}
METHODS = "GET|POST|PUT|PATCH|DELETE"

_MANAGE = re.compile(r"(?:^|[\s/=])(?:manage\.py|django-admin|python -m django) +(\S.*)$")
_BARE = re.compile(r"^(ojs_\w+ .*)$")
_OJS_KEY = re.compile(r"""OJS\[["'](\w+)["']\]""")


# Languages


@pytest.mark.parametrize("block", all_blocks("python"), ids=str)
def test_python_compiles(block: Block) -> None:
    compile(block.text, str(block), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


@pytest.mark.parametrize("block", all_blocks("json"), ids=str)
def test_json_parses(block: Block) -> None:
    json.loads(block.text)


# Commands


def commands(page: Path) -> Iterator[tuple[str, str]]:
    """Every call of a command on a page: where it stands, and what follows `manage.py`. Spans are not whole calls."""
    for block in blocks(page):
        if block.language in SHELL:
            for line in block.text.replace("\\\n", " ").splitlines():
                if found := _MANAGE.search(line):
                    yield str(block), found[1]
    for span in spans(page):
        if found := _MANAGE.search(span) or _BARE.match(span):
            yield name(page), f"{found[1]} …"


def words(call: str) -> list[str]:
    """The arguments up to the end of the command; a quote that a later line closes ends them, too."""
    lexer = shlex.shlex(call, posix=True, punctuation_chars="|&;>")
    lexer.whitespace_split, lexer.commenters = True, "#"
    found: list[str] = []
    try:
        for word in lexer:
            if word in SEPARATORS:
                break
            found.append(word)
    except ValueError:
        found.append("…")
    return found


def parser_of(command: str) -> argparse.ArgumentParser | None:
    app = ELSEWHERE.get(command) or get_commands().get(command, "django_ojs")
    try:
        with registry.isolated():  # the example's command brings its handlers along, which are not for other tests
            return load_command_class(app, command).create_parser("manage.py", command)
    except ModuleNotFoundError:
        return None


def problem(call: str) -> str:
    """What is wrong with a call of a command, ours or Django's, "" if nothing is."""
    command, *arguments = words(call)
    if any(sign in command for sign in PLACEHOLDERS):
        return ""
    parser = parser_of(command)
    if not command.startswith("ojs_") and "--database" in arguments:  # the tests have one, a site more
        place = arguments.index("--database")
        del arguments[place : place + 2]
    if parser is None:  # those of other apps, which one comes from, are not ours to know
        return f"there is no command {command}" if command.startswith("ojs_") else ""
    if not any(sign in call for sign in PLACEHOLDERS):
        try:
            parser.error = _refuse  # type: ignore[assignment]
            parser.parse_args(arguments)
        except (ValueError, SystemExit) as error:
            return str(error)
        return ""
    known, verbs = options(parser, arguments)
    if wrong := [word for word in arguments if word.startswith("--") and word.strip("[]").split("=")[0] not in known]:
        return f"{command} has no option {wrong[0]}"
    verb = next((word for word in arguments if not word.startswith("-")), "")
    if verbs and verb and not any(sign in verb for sign in PLACEHOLDERS) and verb not in verbs:
        return f"{command} has no {verb}"
    return ""


def _refuse(message: str) -> None:
    raise ValueError(message)


def options(parser: argparse.ArgumentParser, arguments: list[str]) -> tuple[set[str], set[str]]:
    """The options of a command, with those of the verbs that may be meant; its verbs."""
    known, verbs = set(parser._option_string_actions), set()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            verbs = set(action.choices)
            for verb, sub in action.choices.items():
                if verb in " ".join(arguments):
                    known |= set(sub._option_string_actions)
    return known, verbs


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_and_their_options_exist(page: Path) -> None:
    assert [(where, call, why) for where, call in commands(page) if (why := problem(call))] == []


def test_what_the_admin_and_the_doctor_tell_an_operator_to_run_exists() -> None:
    told = [call for text in texts() for call in re.findall(r"manage\.py (\w[^.;,)]*)", text.text)]
    assert len(told) > 8
    assert [(call, why) for call in told if (why := problem(f"{call} …"))] == []


def test_wrong_commands_are_found() -> None:
    assert problem("ojs_wroker")
    assert problem("ojs_worker --concurency 3")
    assert problem("ojs_worker --concurency N…")
    assert problem("ojs_jobs resurrect --all")
    assert problem("ojs_jobs list --dry-run")
    assert problem("migrate --plna")
    assert problem("ojs_workers quiet|resume NAME… | --al") == ""  # behind a pipe is another command
    assert not problem("ojs_jobs cancel --type 'report.*' --before 2026-01-31T12:00:00Z  # why")


# Settings


def settings_in(tree: ast.AST) -> Iterator[dict[Any, Any] | ast.Dict]:
    """The values that `OJS = {...}` has in a block."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id="OJS")], value=ast.Dict() as value):
                try:
                    yield ast.literal_eval(value)
                except ValueError:
                    yield value


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_settings_exist_and_fit(page: Path, settings: Any) -> None:
    named = set(_OJS_KEY.findall(page.read_text(encoding="utf-8")))
    for block in blocks(page):
        if block.language == "python":
            for value in settings_in(ast.parse(block.text)):
                if isinstance(value, ast.Dict):  # made of other names
                    named |= {str(key.value) for key in value.keys if isinstance(key, ast.Constant)}
                else:
                    settings.OJS = value
                    assert check_settings() == [], block
    assert named - set(FIELDS) == set()


# HTTP


class Request(NamedTuple):
    where: str
    method: str
    path: str
    body: str = ""


def requests(page: Path) -> Iterator[Request]:
    """Every request on a page."""
    for block in blocks(page):
        text = block.text.replace("\\\n", " ")
        if block.language in SHELL:
            for found in re.finditer(rf"^({METHODS}) (/\S+)", text, re.MULTILINE):
                yield Request(str(block), found[1], found[2])
            for call in re.findall(r"^\S*\s*curl .*?(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL):
                yield of_curl(str(block), call)
    for span in spans(page):
        if found := re.match(rf"^({METHODS}) (/\S+)$", span):
            yield Request(name(page), found[1], found[2])


def of_curl(where: str, call: str) -> Request:
    given = words(call)
    url = next((word for word in given if re.match(r"https?://|localhost|\$\w+/", word)), "")
    method = given[given.index("-X") + 1] if "-X" in given else "POST" if "-d" in given else "GET"
    body = given[given.index("-d") + 1] if "-d" in given else ""
    path = re.sub(r"^(?:https?://)?[^/]*", "", url)
    return Request(where, method, f"/ojs/v1{path}" if url.startswith("$API") else path, body)


def missing(method: str, path: str) -> bool:
    """Whether nothing of ours answers. A path that does not begin with `/ojs` may be the end of one."""
    plain = re.sub(r"\?.*$", "", path).rstrip(".,")
    if "…" in plain or "..." in plain:
        return False
    if "|" in plain:  # /quiet|resume
        stem, _, last = plain.rpartition("/")
        return any(missing(method, f"{stem}/{one}") for one in last.split("|"))
    if not plain.startswith("/ojs") and any(
        known == method and path.endswith(_shape(plain)) for known, path in _calls()
    ):
        return False
    for prefix in ("", "/ojs/v1", "/ojs/v1/admin"):
        try:
            view = resolve(prefix + plain).func
        except Resolver404:
            continue
        owner = getattr(view, "view_class", None) or getattr(view, "cls", None)
        offered = view.view_initkwargs.get("http_method_names") if hasattr(view, "view_initkwargs") else None
        if method.lower() in getattr(view, "actions", ()):
            return False
        if owner is None or (hasattr(owner, method.lower()) and method.lower() in (offered or [method.lower()])):
            return False
    return True


@cache
def _calls() -> list[tuple[str, str]]:
    return [(call.method, _shape(call.path)) for call in http.calls()]


def _shape(path: str) -> str:
    return re.sub(r"\{\w+\}", "{}", path)


@pytest.mark.urls("tests.docs.urls")
@pytest.mark.parametrize("page", PAGES, ids=name)
def test_paths_exist_and_bodies_parse(page: Path) -> None:
    found = list(requests(page))
    assert [one for one in found if missing(one.method, one.path)] == []
    for body in (one.body for one in found):
        if body and "…" not in body and "..." not in body and not body.startswith("@"):
            json.loads(body)


@pytest.mark.urls("tests.docs.urls")
def test_wrong_paths_are_found() -> None:
    assert missing("GET", "/ojs/v1/jbos")
    assert missing("DELETE", "/ojs/v1/manifest")
    assert missing("PUT", "/jobs/batch")
    assert not missing("GET", "/jobs/{id}?wait=true")
