"""Writes what the gate's summary says of a run of pytest: its failures, of which kind they are, and its slowest tests.

As a plugin, which `conftest.py` registers where the environment has one of

    OJS_TEST_REPORT   the file to write, a JSON object for each line
    OJS_TEST_ONLY     a file with ids of tests, a line each: only these run

and as a command: `reporting.py again FILE` prints the ids of the tests to run once more, or ends with 1 if one of the
failures may not be; `reporting.py failures FILE…` and `reporting.py slowest FILE…` print lines for people, and
`reporting.py files FILE…` the seconds of each file of tests, which say where a gate's time goes.
"""

from __future__ import annotations

import collections
import json
import re
import sys
from pathlib import Path
from typing import Any

#: A wait that ran out says nothing of what it waited for, but that it was not there yet. Every other failure does.
DEADLINE = re.compile(r"(\w+: )?It did not happen in time|Failed: Timeout \(>|([\w.]*\.)?(\w*Timeout\w*|Empty)\b")
#: As many of a step may be tried once more; if there are more, something is wrong.
CHANCES = 5
SLOW_SECONDS = 1.0


class Reports:
    def __init__(self, file: str, only: str) -> None:
        self._file = file
        self._only = set(Path(only).read_text().splitlines()) if only else None
        self._seconds: collections.Counter[str] = collections.Counter()

    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        if self._only is not None:
            config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in self._only])
            items[:] = [item for item in items if item.nodeid in self._only]

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._seconds[report.nodeid] += report.duration
        if report.failed:
            error = _error(report)
            deadline = report.when == "call" and bool(DEADLINE.match(error))
            self._write(test=report.nodeid, when=report.when, error=error, deadline=deadline)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._write(test=report.nodeid, when="collect", error=_error(report), deadline=False)

    def pytest_sessionfinish(self) -> None:
        for test, seconds in self._seconds.most_common(20):
            if seconds >= SLOW_SECONDS:
                self._write(test=test, seconds=round(seconds, 1))
        files: collections.Counter[str] = collections.Counter()
        for test, seconds in self._seconds.items():
            files[test.partition("::")[0]] += seconds
        for file, seconds in files.most_common():
            self._write(file=file, seconds=round(seconds, 1))

    def _write(self, **members: Any) -> None:
        if self._file:
            with Path(self._file).open("a") as lines:
                lines.write(json.dumps(members) + "\n")


def _error(report: Any) -> str:
    """The first line of what was raised: of the exception, not of what it was raised from."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr)
    return next(iter(text.strip().splitlines()), "")[:300]


def _read(files: list[str]) -> list[tuple[str, dict[str, Any]]]:
    found = [Path(file) for file in files if Path(file).exists()]
    return [(file.stem, json.loads(line)) for file in found for line in file.read_text().splitlines()]


def main(verb: str, *files: str) -> int:
    entries = _read(list(files))
    if verb == "slowest":
        slow = [
            (entry["seconds"], step, entry["test"]) for step, entry in entries if {"test", "seconds"} <= entry.keys()
        ]
        for seconds, step, test in sorted(slow, reverse=True)[:10]:
            print(f"{seconds:6.1f} s  {step}: {test}")
        return 0
    if verb == "files":
        for step, entry in entries:
            if "file" in entry:
                print(f"{entry['seconds']:7.1f} s  {step}: {entry['file']}")
        return 0
    failures = [(step, entry) for step, entry in entries if "error" in entry]
    if verb == "failures":
        for step, entry in failures:
            print(f"{step}: {entry['test']} ({entry['when']})\n    {entry['error']}")
        return 0
    assert verb == "again", verb
    tests = {entry["test"] for _, entry in failures}
    if not 0 < len(tests) <= CHANCES or not all(entry["deadline"] for _, entry in failures):
        return 1
    print(*sorted(tests), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
