"""`manage.py ojs_conformance`: run conformance cases against servers, given ones or its own."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from django_ojs.http import claim as recorded
from django_ojs.management.shell import SteadyCommand
from ojs_conformance import claim
from ojs_conformance.cases import load_path, select
from ojs_conformance.djangoapp import servers
from ojs_conformance.report import BINDINGS, Binding, Report, Result, save
from ojs_conformance.suite import Target, run_report, suite_version
from ojs_conformance.workers import command_worker

DEFAULT_SERVERS = 2


class Command(SteadyCommand):
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
        add("--binding", nargs="+", choices=BINDINGS, default=["http"],
            help="Which binding the steps of the cases go to, one run each; what gRPC has no equal of goes over HTTP "
            "and is listed. Default: http.")  # fmt: skip
        add("--grpc", nargs="+", action="extend", default=[], metavar="HOST:PORT",
            help="For given targets: where each has its gRPC binding, in the order of --target.")  # fmt: skip
        add("--reset", metavar="PATH", help="POST here on a given target before each case: it EMPTIES the server.")
        add("--worker", metavar="COMMAND",
            help="For given targets: starts a worker with the standard handlers; {target} is the URL.")  # fmt: skip
        add(
            "--record",
            action="store_true",
            help="Keep the level that whole, passing runs over all bindings show as our claim.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        paths: list[Path] = options["suites"]
        self._check(paths, options)
        cases = select([case for path in paths for case in load_path(path)], options["level"], options["test"])
        if not cases:
            raise CommandError("No case was found.")
        reports = []
        for binding in dict.fromkeys(options["binding"]):
            with _targets(options, binding) as targets:
                report = run_report(cases, targets, options["level"], suite_version(paths), on_result=self._print)
            self.say(f"\nover {binding}:\n{report.as_text()}")
            reports.append(report)
        if options["report"]:
            save(reports, options["report"])
        if options["record"]:
            self._record(reports, paths[0])
        if any(report.failed for report in reports):
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
        if "grpc" in options["binding"] and importlib.util.find_spec("grpc") is None:
            raise CommandError("grpcio is needed: pip install 'django-ojs[grpc]'.")
        addresses = len(options["target"]) if options["target"] and "grpc" in options["binding"] else 0
        if len(options["grpc"]) != addresses:
            raise CommandError("--grpc goes with --target and --binding grpc: one HOST:PORT for each target.")
        if options["record"] and (options["target"] or options["dialect"] != "spec" or len(paths) != 1):
            raise CommandError("--record takes one suite on own servers in the dialect `spec`.")

    def _record(self, reports: list[Report], suite: Path) -> None:
        try:
            found = claim.claim_of(reports, suite)
        except claim.NoClaim as error:
            raise CommandError(f"Nothing recorded: {error}") from error
        recorded.FILE.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        self.say(f"\nrecorded: level {found['level']} by {found['suite']} {found['test_suite_version']}")

    def _print(self, result: Result) -> None:
        self.say(result.line)


@contextlib.contextmanager
def _targets(options: dict[str, Any], binding: Binding) -> Iterator[list[Target]]:
    urls, jobs = options["target"], options["jobs"]
    if urls:
        command = options["worker"]
        addresses = options["grpc"] if binding == "grpc" else [""] * len(urls)
        yield [
            Target(url.rstrip("/"), options["reset"], command_worker(command, url) if command else None, grpc=address)
            for url, address in list(zip(urls, addresses, strict=True))[:jobs]
        ]
        return
    try:
        with servers.farm(jobs or DEFAULT_SERVERS, options["dialect"], options["database"], binding) as targets:
            yield targets
    except servers.NotStarted as error:
        raise CommandError(str(error)) from error
