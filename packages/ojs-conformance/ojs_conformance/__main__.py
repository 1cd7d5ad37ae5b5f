"""Run conformance cases from the command line. Exit status: 0 all passed, 1 a case failed or none ran."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from ojs_conformance.cases import load_path, select
from ojs_conformance.report import Result, save
from ojs_conformance.suite import Target, run_report, suite_version
from ojs_conformance.workers import command_worker


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="ojs_conformance", description=__doc__)
    add = parser.add_argument
    add("--suites", action="append", required=True, type=Path, metavar="PATH",
        help="directory of JSON cases, a JSON case, or a Markdown document with example cases; repeatable")  # fmt: skip
    add("--target", action="append", required=True, metavar="URL",
        help="base URL of a server; repeat it to spread the cases over several")  # fmt: skip
    add("--grpc", action="append", default=[], metavar="HOST:PORT",
        help="where the target has its gRPC binding, once for each target: the steps of the cases go there, but for "
        "what gRPC has no equal of")  # fmt: skip
    add("--jobs", type=int, metavar="K", help="use only the first K targets")
    add("--level", type=int, help="run the levels up to this one, without cases tagged `ext`")
    add("--test", metavar="ID", help="run the cases with this test id, or of this file")
    add("--reset", metavar="PATH", help="POST here before each case, for example /ojs/v1/admin/reset")
    add("--worker", metavar="COMMAND",
        help="starts a worker with the standard handlers around each case that needs one; {target} in it becomes the "
        "base URL")  # fmt: skip
    add("--report", type=Path, metavar="FILE", help="write the JSON report here")
    add("--suite-version", help="named in the report; by default from the suite's manifest.json")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the command line asks for and print a table."""
    options = arguments().parse_args(argv)
    if absent := [str(path) for path in options.suites if not path.exists()]:
        arguments().error(f"there is no {', '.join(absent)}")
    if options.grpc and importlib.util.find_spec("django_ojs") is None:
        arguments().error("--grpc needs an extra: pip install 'ojs-conformance[grpc]'")
    cases = select([case for path in options.suites for case in load_path(path)], options.level, options.test)
    if options.grpc and len(options.grpc) != len(options.target):
        arguments().error("--grpc has to be given once for each --target")
    addresses = options.grpc or [""] * len(options.target)
    pairs = list(zip(options.target, addresses, strict=True))[: options.jobs]
    targets = [_target(url, address, options) for url, address in pairs]
    version = options.suite_version or suite_version(options.suites)
    report = run_report(cases, targets, options.level, version, on_result=_print_result)
    if options.report:
        save([report], options.report)
    _say(f"\n{report.as_text()}")
    return 1 if report.failed else 0


def _target(url: str, address: str, options: argparse.Namespace) -> Target:
    worker = command_worker(options.worker, url) if options.worker else None
    return Target(url, options.reset, worker, grpc=address)


def _print_result(result: Result) -> None:
    _say(result.line)


def _say(line: str) -> None:
    """Write a line to stdout; where it is closed, full or has no reader any more the run goes on."""
    try:
        print(line, flush=True)
    except (OSError, ValueError):
        sys.stdout = None  # print() writes nothing from now on


if __name__ == "__main__":
    sys.exit(main())
