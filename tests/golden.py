"""Record what the outside sees while the tests run, and compare two recordings: a net for changes that change nothing.

    pytest -p tests.golden --golden /tmp/before -p no:randomly tests/http tests/api     before the change
    pytest -p tests.golden --golden /tmp/after -p no:randomly tests/http tests/api      after it
    python -m tests.golden /tmp/before /tmp/after                                       what differs

One text file for each test has, in their order, the HTTP answers that it received (status, headers, body), what the
commands printed, and at its end the events and audit entries in the database. Identifiers, instants, durations and
tokens are replaced by names, in the order in which they appear. `--golden-dialect published` answers in that dialect.

A test with threads or processes may differ between two runs of the same code: record twice before the change
(`/tmp/before`, `/tmp/again`), and give the second as `--unstable /tmp/again`; what differs there is left out.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

#: Headers that the server's library or the moment decides.
MOMENTARY = {"date", "content-length", "set-cookie", "etag"}
_PATTERNS = {
    "id": r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "trace": r"\b(?:[0-9a-f]{32}|[0-9a-f]{16})\b",
    "digest": r"\b[0-9a-f]{40,128}\b",
    "key": r"ojs_[A-Za-z0-9_-]{16,}",
    "csrf": r'(?<=name="csrfmiddlewaretoken" value=")[A-Za-z0-9]+',
    "nonce": r'(?<=nonce=")[^"]+',
    "time": r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)?",
}
_NAMED = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in _PATTERNS.items()), re.IGNORECASE)
#: Members whose value is how long something took, or a moment as a number.
_MEASURED = re.compile(r'("(?:\w*_ms|\w*_seconds|uptime\w*|latency\w*|rss\w*|pid|memory\w*)": )-?\d+(?:\.\d+)?')


class Names:
    """Replaces what differs from run to run by its kind and the order of its first appearance."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}
        self.counts: dict[str, int] = {}

    def __call__(self, text: str) -> str:
        return _MEASURED.sub(r"\1<number>", _NAMED.sub(self._name, text))

    def _name(self, match: re.Match[str]) -> str:
        kind = str(match.lastgroup)
        if kind == "time":
            return "<time>"
        if (found := match.group()) not in self.known:
            self.counts[kind] = self.counts.get(kind, 0) + 1
            self.known[found] = f"<{kind} {self.counts[kind]}>"
        return self.known[found]


class Recorder:
    def __init__(self) -> None:
        self.entries: list[str] = []

    def answer(self, request: dict[str, Any], response: Any) -> None:
        address = request.get("PATH_INFO") or request.get("path", "")
        query = request.get("QUERY_STRING") or request.get("query_string", "")
        if isinstance(query, bytes):
            query = query.decode()
        lines = [f"{request.get('REQUEST_METHOD') or request.get('method')} {address}{'?' + query if query else ''}"]
        lines.append(str(response.status_code))
        lines += sorted(f"{name}: {value}" for name, value in response.items() if name.lower() not in MOMENTARY)
        lines.append("<stream>" if response.streaming else _body(response))
        self.entries.append("\n".join(lines))

    def command(self, name: str, printed: str) -> None:
        self.entries.append(f"$ {name}\n{printed}")

    def write(self, path: Path) -> None:
        if self.entries:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(Names()("\n\n".join(self.entries)) + "\n", errors="backslashreplace")


def _body(response: Any) -> str:
    text: str = response.content.decode(errors="replace")
    if "json" in response.get("Content-Type", ""):
        try:
            return json.dumps(json.loads(text), indent=1, sort_keys=True, ensure_ascii=False)
        except ValueError:
            return text
    return re.sub(r"\n\s*\n+", "\n", text)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("golden", "what the outside sees")
    group.addoption("--golden", metavar="DIR", type=Path, help="Record answers, events, output and audit entries here.")
    group.addoption("--golden-dialect", default="spec", choices=["spec", "published"])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    directory: Path | None = item.config.getoption("--golden")
    if directory is None:
        return (yield)
    recorder = Recorder()
    with pytest.MonkeyPatch.context() as patch:
        _listen(recorder, patch, item.config.getoption("--golden-dialect"))
        try:
            return (yield)
        finally:
            recorder.entries += _rows(item)
            recorder.write(directory / f"{re.sub(r'[^A-Za-z0-9_.:-]', '_', item.nodeid.replace('/', '.'))[:200]}.txt")


def _listen(recorder: Recorder, patch: pytest.MonkeyPatch, dialect: str) -> None:
    from django.core.management.base import BaseCommand
    from django.test import client

    from django_ojs import conf

    if dialect != "spec":
        patch.setattr(conf.Settings, "DIALECT", dialect)
    sync, asynchronous, execute = client.Client.request, client.AsyncClient.request, BaseCommand.execute

    def request(self: Any, **asked: Any) -> Any:
        response = sync(self, **asked)
        recorder.answer(self._base_environ(**asked), response)
        return response

    async def arequest(self: Any, **asked: Any) -> Any:
        response = await asynchronous(self, **asked)
        recorder.answer({**asked}, response)
        return response

    def run(self: Any, *args: Any, **options: Any) -> Any:
        printed: list[str] = []
        for stream in (self.stdout, self.stderr):
            patch.setattr(stream, "write", _copying(stream.write, printed))
        if options.get("stdout") is not None:
            options["stdout"] = _Copy(options["stdout"], printed)
        try:
            return execute(self, *args, **options)
        finally:
            recorder.command(type(self).__module__.rpartition(".")[2], "".join(printed))

    patch.setattr(client.Client, "request", request)
    patch.setattr(client.AsyncClient, "request", arequest)
    patch.setattr(BaseCommand, "execute", run)


def _copying(write: Callable[..., Any], printed: list[str]) -> Callable[..., Any]:
    def copy(text: str = "", *args: Any, **kwargs: Any) -> Any:
        printed.append(str(text))
        return write(text, *args, **kwargs)

    return copy


class _Copy:
    """A stream that also keeps what is written to it."""

    def __init__(self, stream: Any, printed: list[str]) -> None:
        self._stream = stream
        self.write = _copying(stream.write, printed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _rows(item: pytest.Item) -> list[str]:
    """The events and audit entries that the test has left, while its transaction still stands."""
    from django.db import Error, connection

    from django_ojs.models import AuditEntry, Event

    if not {"db", "transactional_db"} & set(getattr(item, "fixturenames", ())):
        return []
    if connection.connection is None or connection.needs_rollback:
        return []
    try:
        events = list(Event.objects.order_by("pk").values_list("type", "job_id", "data")[:500])
        entries = list(AuditEntry.objects.order_by("pk").values_list("actor", "action", "target", "outcome", "detail"))
    except Error as error:
        return [f"<database: {type(error).__name__}>"]
    found = [f"event {kind} {job} {json.dumps(data, default=str, sort_keys=True)}" for kind, job, data in events]
    return [*found, *(f"audit {json.dumps(entry, default=str, sort_keys=True)}" for entry in entries)]


def main() -> int:
    parser = argparse.ArgumentParser(description="What differs between two recordings.")
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--unstable", type=Path, help="A second recording of the code before the change.")
    options = parser.parse_args()
    before, after, again = (_read(path) for path in (options.before, options.after, options.unstable))
    different = 0
    for name in sorted(before | after):
        if options.unstable and before.get(name) != again.get(name):
            continue
        if (old := before.get(name, "")) != (new := after.get(name, "")):
            different += 1
            sys.stdout.writelines(difflib.unified_diff(old.splitlines(True), new.splitlines(True), name, name, n=2))
    print(f"{different} of {len(before | after)} tests see something else.")
    return int(bool(different))


def _read(path: Path | None) -> dict[str, str]:
    return {file.name: file.read_text() for file in path.glob("*.txt")} if path else {}


if __name__ == "__main__":
    sys.exit(main())
