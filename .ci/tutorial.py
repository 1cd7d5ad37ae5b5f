"""Do what docs/tutorial.md says, block by block, in an empty folder, and compare what it promises.

    python3 .ci/tutorial.py --package dist/django_ojs-1.0-py3-none-any.whl [--python python3.12] [--django 6.0]

The page's fenced blocks are marked by what follows the language; what has no mark is prose:

    sh                                     typed, and has to succeed
    sh terminal=NAME                       started in a terminal of its own, ended when the page ends
    python title="PATH"                    the whole of a file
    python title="PATH" edit=replace       top-level assignments that take the place of those to the same names
    text output                            what the last command printed: these lines, in this order, `...` is anything
    text output wait                       the same; the command is repeated until it is so
    text output=NAME                       what the terminal of that name prints, sooner or later
    text page="URL"                        what the page shows sooner or later to who has logged in
    text page="URL" follow="TEXT"          ... the page that the first link in the first row with TEXT leads to
    text page="URL" press="LABEL"          ... after which the first button with that label is pressed

Three things are not taken by the word: `python3` is the interpreter asked for, `../django-ojs` is the package asked
for, and port 8000 is one that is free. Where pip looks for packages is up to the environment.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import html.parser
import http.cookiejar
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "tutorial.md"
FENCE = re.compile(r"^```(\w+)(?:[ \t]+([^\n]*))?\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
#: How long anything may take: on a machine that is busy with other things, too.
LIMIT = 600.0
PAUSE = 0.5


class Broken(Exception):
    """The page promises what is not so."""


@dataclasses.dataclass
class Block:
    line: int
    language: str
    marks: dict[str, str]
    text: str


def blocks(page: str) -> list[Block]:
    found = []
    for match in FENCE.finditer(page):
        language, info, text = match.groups()
        marks = dict(word.partition("=")[::2] for word in shlex.split(info or ""))
        found.append(Block(page.count("\n", 0, match.start()) + 1, language, marks, text))
    return found


def shows(text: str, promised: str) -> str:
    """The first promised line that is not in `text` behind those before it; empty if all are."""
    place = 0
    for line in promised.splitlines():
        parts = [re.escape(part.strip()) for part in line.split("...")]
        pattern = ".*?".join(r"[ \t]+".join(re.split(r"(?:\\ )+", part)) for part in parts)
        match = re.compile(pattern).search(text, place)
        if match is None:
            return line
        place = match.end()
    return ""


class Markup(html.parser.HTMLParser):
    """What a page shows, and what on it can be followed or pressed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.forms: dict[str, dict[str, str]] = {}  # by id or number: hidden fields, and "" for the action
        self.buttons: list[dict[str, str]] = []
        self.rows: list[tuple[list[str], list[str]]] = []  # words, links
        self._lines: list[str] = []
        self._form, self._skip, self._in_button, self._in_row = "", 0, False, False
        self.feed(text)

    @property
    def text(self) -> str:
        """A line for each row of a table, and for each text elsewhere."""
        return "\n".join(self._lines)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        if tag in ("script", "style"):
            self._skip += 1
        elif tag == "form":
            self._form = found.get("id") or str(len(self.forms))
            self.forms[self._form] = {"": found.get("action", "")}
        elif tag == "input" and found.get("name") and found.get("type") == "hidden" and self._form:
            self.forms[self._form][found["name"]] = found.get("value", "")
        elif tag == "button":
            self._in_button = True
            self.buttons.append({"form": self._form, **found, "label": ""})
        elif tag == "tr":
            self._in_row = True
            self.rows.append(([], []))
            self._lines.append("")
        elif tag == "a" and "href" in found and self._in_row:
            self.rows[-1][1].append(found["href"])

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._skip -= 1
        elif tag == "form":
            self._form = ""
        elif tag == "button":
            self._in_button = False
        elif tag == "tr":
            self._in_row = False

    def handle_data(self, data: str) -> None:
        word = " ".join(data.split())
        if not word or self._skip:
            return
        if self._in_button:
            self.buttons[-1]["label"] += word
        if self._in_row:
            self.rows[-1][0].append(word)
            self._lines[-1] = f"{self._lines[-1]} {word}".strip()
        else:
            self._lines.append(word)

    def link(self, text: str) -> str:
        for words, links in self.rows:
            if links and text in " ".join(words):
                return links[0]
        raise Broken(f"no row with {text!r} has a link")

    def button(self, label: str) -> dict[str, str]:
        for button in self.buttons:
            if button["label"] == label:
                return button
        raise Broken(f"there is no button {label!r}; there are {sorted({one['label'] for one in self.buttons})}")


class Browser:
    """Follows links and presses buttons as somebody who logs in with `user` when asked to."""

    def __init__(self, user: tuple[str, str]) -> None:
        self.user = user
        cookies = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), cookies)

    def get(self, url: str) -> tuple[str, Markup]:
        found, markup = self._open(url)
        if "/login/" not in found:
            return found, markup
        fields = next(form for form in markup.forms.values() if "csrfmiddlewaretoken" in form)
        return self._post(found, {**fields, "username": self.user[0], "password": self.user[1]})

    def press(self, url: str, markup: Markup, label: str) -> tuple[str, Markup]:
        button = markup.button(label)
        form = markup.forms[button["form"]]
        action = button.get("formaction") or form[""]
        return self._post(urllib.parse.urljoin(url, action), form)

    def _post(self, url: str, fields: dict[str, str]) -> tuple[str, Markup]:
        sent = urllib.parse.urlencode({name: value for name, value in fields.items() if name})
        return self._open(url, sent.encode())

    def _open(self, url: str, data: bytes | None = None) -> tuple[str, Markup]:
        request = urllib.request.Request(url, data, {"Referer": url})
        with self._opener.open(request, timeout=60) as answer:
            return answer.url, Markup(answer.read().decode())


class Stranger:
    """Who reads the page in `folder`, and does what it says."""

    def __init__(self, folder: Path, python: str, package: Path, django: str) -> None:
        self.folder, self.package = folder, package
        self.port = _free_port()
        self.output = ""
        self.repeat: Callable[[], None] = lambda: None
        self.terminals: dict[str, tuple[subprocess.Popen[bytes], Path]] = {}
        self.browser = Browser(("", ""))
        self.tools = Path(tempfile.mkdtemp(prefix="tutorial-"))
        shim = self.tools / "python3"
        shim.write_text(f'#!/bin/sh\nexec {shlex.quote(python)} "$@"\n')
        shim.chmod(0o755)
        self.environment = {
            name: value for name, value in os.environ.items()
            if not name.startswith(("DJANGO_", "PYTHON", "VIRTUAL_ENV")) and name not in ("DATABASE_URL", "REDIS_URL")
        }  # fmt: skip
        self.environment |= {"PATH": f"{self.tools}{os.pathsep}{os.environ['PATH']}", "PYTHONUNBUFFERED": "1"}
        self.environment |= {"LC_ALL": "C.UTF-8", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        if django:
            constraint = self.tools / "constraint.txt"
            constraint.write_text(f"Django=={django}.*\n")
            given = os.environ.get("PIP_CONSTRAINT", "")
            self.environment["PIP_CONSTRAINT"] = f"{given} {constraint}".strip()

    def read(self, page: str) -> None:
        user = re.search(r"DJANGO_SUPERUSER_PASSWORD=(\S+).*--username (\S+)", page)
        if user is None:
            raise Broken("the page does not say how to log in")
        self.browser.user = (user[2], user[1])
        for block in blocks(page):
            self._told(f"{block.line}: {block.language} {' '.join(filter(None, block.marks))}".rstrip())
            try:
                self._do(block)
            except Broken as error:
                raise Broken(f"line {block.line}: {error}") from None

    def _do(self, block: Block) -> None:
        text = re.sub(r"\b8000\b", str(self.port), block.text)
        marks = {name: re.sub(r"\b8000\b", str(self.port), value) for name, value in block.marks.items()}
        match block.language, marks:
            case "sh", {"terminal": name}:
                self._start(name, text)
            case "sh", {}:
                self.repeat = lambda: self._type(text)
                self.repeat()
            case _, {"title": name, "edit": "replace"}:
                path = self.folder / name
                path.write_text(replaced(path.read_text(), text))
            case _, {"title": name}:
                self.folder.joinpath(name).write_text(text)
            case _, {"output": ""}:
                self._printed(text, again="wait" in marks)
            case _, {"output": name}:
                self._until(lambda: shows(self._log(name), text), lambda: self._log(name))
            case _, {"page": url}:
                self._look(url, text, marks)
            case _, {} if marks:
                raise Broken(f"nobody knows what {marks} means")

    def _type(self, command: str) -> None:
        command = command.replace("../django-ojs", shlex.quote(str(self.package)))
        process = subprocess.Popen(
            ["bash", "-e", "-o", "pipefail", "-c", command], cwd=self.folder, env=self.environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            printed, _ = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            raise Broken(f"this does not end:\n{command}") from None
        finally:
            if process.poll() is None:
                _signal(process, signal.SIGKILL)
                process.wait()
        self.output = printed.decode(errors="replace")
        if process.returncode:
            raise Broken(f"this ended with {process.returncode}:\n{command}\n{self.output}")

    def _printed(self, promised: str, *, again: bool) -> None:
        def look() -> str:
            missing = shows(self.output, promised)
            if missing and again:
                self.repeat()
            return missing

        self._until(look, lambda: self.output, limit=LIMIT if again else 0)

    def _start(self, name: str, command: str) -> None:
        log = self.tools / f"{name}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {command}"], cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
                stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self.terminals[name] = process, log
        if str(self.port) in command:
            self._until(lambda: self._answers(name), lambda: self._log(name))

    def _answers(self, name: str) -> str:
        if (code := self.terminals[name][0].poll()) is not None:
            raise Broken(f"{name} ended with {code}:\n{self._log(name)}")
        try:
            socket.create_connection(("127.0.0.1", self.port), 5).close()
        except OSError as error:
            return str(error)
        return ""

    def _log(self, name: str) -> str:
        return self.terminals[name][1].read_text(errors="replace")

    def _look(self, url: str, promised: str, marks: dict[str, str]) -> None:
        seen = ""

        def look() -> str:
            nonlocal seen
            try:
                found, markup = self.browser.get(url)
                if "follow" in marks:
                    found, markup = self.browser.get(urllib.parse.urljoin(found, markup.link(marks["follow"])))
            except (OSError, Broken) as error:
                seen = str(error)
                return seen
            seen = markup.text
            missing = shows(seen, promised)
            if not missing and "press" in marks:
                self.browser.press(found, markup, marks["press"])
            return missing

        try:
            self._until(look, lambda: f"{url} shows:\n{seen}")
        except OSError as error:
            raise Broken(f"{marks['press']} cannot be pressed: {error}") from None

    def _until(self, missing: Callable[[], str], seen: Callable[[], str], limit: float = LIMIT) -> None:
        deadline = time.monotonic() + limit
        while what := missing():
            if time.monotonic() >= deadline:
                raise Broken(f"this is not to be seen: {what}\n{seen()}")
            time.sleep(PAUSE)

    def leave(self) -> None:
        """End what was started: everything in a terminal has the same session."""
        for process, _ in self.terminals.values():
            _signal(process, signal.SIGTERM)
        for process, _ in self.terminals.values():
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                self._told(f"process {process.pid} does not end by itself")
            _signal(process, signal.SIGKILL)
            process.wait()

    def logs(self) -> str:
        return "\n".join(f"--- {name}\n{self._log(name)}" for name in self.terminals)

    def forget(self) -> None:
        shutil.rmtree(self.tools)

    @staticmethod
    def _told(text: str) -> None:
        print(f"  {text}", flush=True)


def replaced(source: str, text: str) -> str:
    """`source` with each top-level assignment of `text` in the place of that to the same name."""
    lines = source.splitlines(keepends=True)
    for name, code in _assignments(text).items():
        place = next((node for node in ast.parse("".join(lines)).body if _name(node) == name), None)
        if place is None:
            raise Broken(f"there is no {name} to replace")
        lines[place.lineno - 1 : place.end_lineno] = [code + "\n"]
    return "".join(lines)


def _assignments(text: str) -> dict[str, str]:
    found = {}
    for node in ast.parse(text).body:
        if not (name := _name(node)):
            raise Broken("edit=replace takes assignments only")
        found[name] = ast.get_source_segment(text, node) or ""
    return found


def _name(node: ast.stmt) -> str:
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    return ""


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--package", type=Path, required=True, help="a wheel or a checkout of django-ojs")
    parser.add_argument("--python", default=sys.executable, help="what `python3` is (default: this one)")
    parser.add_argument("--django", default="", metavar="6.0", help="which Django (default: the newest)")
    parser.add_argument("--folder", type=Path, help="an empty folder, which is left as it is at the end")
    arguments = parser.parse_args()

    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="tutorial-"))
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        parser.error(f"{folder} is not empty")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # with what was started
    stranger = Stranger(folder.resolve(), arguments.python, arguments.package.resolve(strict=True), arguments.django)
    began = time.monotonic()
    try:
        stranger.read(PAGE.read_text(encoding="utf-8"))
    except Broken as error:
        print(f"{PAGE.name}, {error}\n{stranger.logs()}", file=sys.stderr)
        return 1
    finally:
        stranger.leave()
        stranger.forget()
        if arguments.folder is None:
            shutil.rmtree(folder)
    print(f"The tutorial does what it says, in {time.monotonic() - began:.0f} s.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
