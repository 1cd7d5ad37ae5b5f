"""`manage.py ojs_validate`: what is wrong with job documents, before any server sees them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from django_ojs import jsontext, spellings
from django_ojs.management.shell import ShellCommand
from django_ojs.rules.problems import Problem, validate_sequence


class Command(ShellCommand):
    help = (
        "Checks files with a job document, a list of them, or an object with a list under `jobs`, and prints "
        "every problem with its place and a hint. Needs no database. Exits with 1 if there is a problem."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("files", nargs="+", metavar="FILE", help="- is standard input.")
        parser.add_argument("--complete", action="store_true", help="Demand all five attributes of a whole envelope.")
        parser.add_argument("--sequence", action="store_true", help="The files hold lists of operations.")
        parser.add_argument("--json", action="store_true", help="Print the problems as one JSON list.")

    def handle(self, *args: Any, **options: Any) -> None:
        found = [(name, problem) for name in options["files"] for problem in self._check(name, options)]
        if options["json"]:
            entries = [{"file": name, **problem._asdict()} for name, problem in found]
            self.stdout.write(json.dumps(entries, ensure_ascii=False, indent=2))
        else:
            for name, problem in found:
                self.stdout.write(f"{name}: {problem.path or 'document'}: {problem.message}")
                self.stdout.write(f"    {problem.hint}")
        if found:
            raise CommandError(f"{len(found)} problem{'s' if len(found) > 1 else ''} found.")
        if not options["json"]:
            self.stdout.write("No problems found.")

    def _check(self, name: str, options: dict[str, Any]) -> Iterator[Problem]:
        try:
            data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        except (OSError, ValueError) as error:  # the latter: a NUL in the name
            raise CommandError(f"Cannot read {name}: {getattr(error, 'strerror', error)}.") from error
        try:
            content = jsontext.loads(data)
        except jsontext.JSONTextError as error:
            yield Problem("", str(error).rstrip("."), "Make the file valid JSON.")
            return
        if options["sequence"]:
            yield from validate_sequence(spellings.operations(content))
            return
        for prefix, document in _documents(content):
            for problem in spellings.validate(document, complete=options["complete"]):
                yield problem._replace(path=f"{prefix}.{problem.path}".strip("."))


def _documents(content: Any) -> Iterator[tuple[str, Any]]:
    """The documents of a file, with what their paths begin with."""
    if isinstance(content, dict) and isinstance(content.get("jobs"), list) and "type" not in content:
        yield from ((f"jobs[{index}]", document) for index, document in enumerate(content["jobs"]))
    elif isinstance(content, list):
        yield from ((f"[{index}]", document) for index, document in enumerate(content))
    else:
        yield "", content
