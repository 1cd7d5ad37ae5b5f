"""`manage.py ojs_conformance`: run conformance cases against servers, given ones or its own."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from django_ojs.conformance import claim, servers
from django_ojs.conformance.cases import load_path, select
from django_ojs.conformance.report import Report, Result
from django_ojs.conformance.servers import command_worker
from django_ojs.conformance.suite import Target, run_report, suite_version

DEFAULT_SERVERS = 2


class Command(BaseCommand):
    help = (
        "Runs conformance cases in both formats against the given targets, or against test servers of its own, with "
        "a real worker where a case needs one. Exit status 1 if a case fails or none ran."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("--suites", nargs="+", action="extend", required=True, type=Path, metavar="PATH",
            help="Directories of JSON cases, cases, or Markdown documents with examples.")  # fmt: skip
        add("--target", nargs="+", action="extend", default=[], metavar="URL",
            help="Base URLs of servers under test. Default: own ones on throwaway databases.")  # fmt: skip
        add("--level", type=int, choices=range(5), help="Up to this level, without cases tagged `ext`.")
        add("--test", metavar="ID", help="Only the cases with this test id, or of this file.")
        add("--report", type=Path, metavar="FILE", help="Write the JSON report here.")
        add("--jobs", type=int, metavar="K", help=f"Servers side by side. Default: every target, or {DEFAULT_SERVERS}.")
        add("--dialect", choices=["spec", "published"], default="spec", help="Of own servers. Default: spec.")
        add("--database", default="", metavar="URL", help="Where own servers make their databases. Default: SQLite.")
        add("--reset", metavar="PATH", help="POST here on a given target before each case: it EMPTIES the server.")
        add("--worker", metavar="COMMAND",
            help="For given targets: starts a worker with the standard handlers; {target} is the URL.")  # fmt: skip
        add("--record", action="store_true", help="Keep the level that a whole, passing run shows as our claim.")

    def handle(self, *args: Any, **options: Any) -> None:
        paths: list[Path] = options["suites"]
        self._check(paths, options)
        cases = select([case for path in paths for case in load_path(path)], options["level"], options["test"])
        if not cases:
            raise CommandError("No case was found.")
        with _targets(options) as targets:
            report = run_report(cases, targets, options["level"], suite_version(paths), on_result=self._print)
        self.stdout.write(f"\n{report.as_text()}")
        if options["report"]:
            report.save(options["report"])
        if options["record"]:
            self._record(report, paths[0])
        if report.failed:
            raise SystemExit(1)

    def _check(self, paths: list[Path], options: dict[str, Any]) -> None:
        absent = [str(path) for path in paths if not path.exists()]
        if absent:
            raise CommandError(f"There is no {', '.join(absent)}.")
        if options["jobs"] is not None and options["jobs"] < 1:
            raise CommandError("--jobs must be at least 1.")
        if options["target"] and (options["database"] or options["dialect"] != "spec"):
            raise CommandError("--database and --dialect are for own servers: leave them out with --target.")
        if not options["target"] and (options["reset"] or options["worker"]):
            raise CommandError("--reset and --worker go with --target: own servers have both.")
        if options["record"] and (options["target"] or options["dialect"] != "spec" or len(paths) != 1):
            raise CommandError("--record takes one suite on own servers in the dialect `spec`.")

    def _record(self, report: Report, suite: Path) -> None:
        try:
            found = claim.claim_of(report, suite)
        except claim.NoClaim as error:
            raise CommandError(f"Nothing recorded: {error}") from error
        claim.write(found)
        self.stdout.write(f"\nrecorded: level {found.level} by {found.suite} {found.test_suite_version}")

    def _print(self, result: Result) -> None:
        self.stdout.write(result.line)
        self.stdout.flush()


@contextlib.contextmanager
def _targets(options: dict[str, Any]) -> Iterator[list[Target]]:
    urls, jobs = options["target"], options["jobs"]
    if urls:
        command = options["worker"]
        yield [
            Target(url.rstrip("/"), options["reset"], command_worker(command, url) if command else None)
            for url in urls[:jobs]
        ]
        return
    try:
        with servers.farm(jobs or DEFAULT_SERVERS, options["dialect"], options["database"]) as targets:
            yield targets
    except servers.NotStarted as error:
        raise CommandError(str(error)) from error
