"""Run many cases over several servers side by side, each server used by one case at a time."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ojs_conformance import lint, values
from ojs_conformance.cases import Case
from ojs_conformance.exchange import Client, StepFailed, reset
from ojs_conformance.report import Binding, Outcome, Report, Result, skip_reason
from ojs_conformance.running import WorkerFactory, needs_worker, run_published, run_seed
from ojs_conformance.values import Clock


@dataclass(frozen=True)
class Target:
    """A server under test: its base URL, its reset path if it has one, and how a worker for it is started.

    `handlers` are those that this worker has; None where the runner cannot know them. With `grpc`, the `host:port` of
    its gRPC binding, the steps of the cases go there.
    """

    url: str
    reset: str | None = None
    worker: WorkerFactory | None = None
    handlers: frozenset[str] | None = None
    grpc: str = ""

    def client(self) -> Client:
        """A client of the binding under test, for one case."""
        if not self.grpc:
            return Client(self.url)
        from ojs_conformance.grpcbinding import GrpcClient

        return GrpcClient(self.url, self.grpc)


def run_case(case: Case, target: Target, clock: Clock | None = None) -> Result:
    """Run one case on an emptied server. Never raises: what goes wrong is the result's reason."""
    clock = clock or Clock()
    skipped = skip_reason(case, "grpc" if target.grpc else "http")
    if skipped is not None:
        return Result(case, "skipped", skipped)
    not_understood = lint.problems(case)
    if not_understood:
        return Result(case, "failed", "not understood: " + "; ".join(not_understood))
    if target.handlers is not None and case.handler and case.handler not in target.handlers:
        return Result(case, "failed", f"the worker of this run has no handler {case.handler!r}")
    start = clock.seconds()
    over_http: list[str] = []
    outcome, reason = _attempt(case, target, clock, over_http)
    took = round((clock.seconds() - start) * 1000)
    return Result(case, outcome, reason, took, target.grpc or target.url, tuple(over_http))


def _attempt(case: Case, target: Target, clock: Clock, over_http: list[str]) -> tuple[Outcome, str]:
    try:
        with target.client() as client:
            client.over_http = over_http
            reset(client, target.reset)
            if case.format == "published":
                run_published(case, client, clock)
            else:
                run_seed(case, client, clock, target.worker)
    except StepFailed as failure:
        return "failed", str(failure)
    except Exception as error:  # noqa: BLE001 - a fault of the runner or a worker must not hide the other cases
        return "failed", f"the runner broke: {error!r}"
    return "passed", ""


def run_suite(
    cases: Iterable[Case],
    targets: Sequence[Target],
    clock: Clock | None = None,
    on_result: Callable[[Result], None] | None = None,
) -> list[Result]:
    """Run all cases, the longest first so that none is left over at the end, and each after those that it requires.

    A case is skipped where one that it requires did not pass or is not run. Results are sorted by file.
    """
    line = _Line(cases, on_result)

    def serve(target: Target) -> None:
        while (case := line.take()) is not None:
            try:
                result = run_case(case, target, clock)
            except BaseException as error:  # noqa: BLE001 - the others would wait for it for ever
                result = Result(case, "failed", f"the runner broke: {error!r}")
            line.done(result)

    threads = [threading.Thread(target=serve, args=(target,), name=f"case@{target.url}") for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    line.skip_rest()
    return sorted(line.results, key=lambda result: result.case.file)


class _Line:
    """The cases that wait, given out to the threads when what they require has passed."""

    def __init__(self, cases: Iterable[Case], on_result: Callable[[Result], None] | None) -> None:
        self.results: list[Result] = []
        self._waiting = sorted(cases, key=waiting_time)
        self._on_result = on_result
        self._running: list[Case] = []
        self._changed = threading.Condition()

    def take(self) -> Case | None:
        """The next case that may run, waiting for one; None when none is left."""
        with self._changed:
            while True:
                self._skip_hopeless()
                open_ids = {case.test_id for case in (*self._waiting, *self._running) if case.format == "seed"}
                for case in reversed(self._waiting):
                    if open_ids.isdisjoint(case.requires):
                        self._waiting.remove(case)
                        self._running.append(case)
                        return case
                if not self._waiting:
                    return None
                if self._running:
                    self._changed.wait()
                else:
                    self._skip(self._waiting[-1], f"{', '.join(self._waiting[-1].requires)} and it wait for each other")

    def done(self, result: Result) -> None:
        with self._changed:
            self._running.remove(result.case)
            self._changed.notify_all()  # they go on when this thread lets go of the lock
            self._note(result)

    def skip_rest(self) -> None:
        """Skip what no thread is left for."""
        with self._changed:
            for case in list(self._waiting):
                self._skip(case, "no thread of the runner was left for it")

    def _skip_hopeless(self) -> None:
        """Skip what requires a case that did not pass or is not there; and what requires that, in turn."""
        while hopeless := [(case, why) for case in self._waiting if (why := self._missing(case))]:
            for case, why in hopeless:
                self._skip(case, f"requires {why}, which did not pass")

    def _missing(self, case: Case) -> str:
        """A test id that the case requires and that can no longer pass; '' for none."""
        still = {other.test_id for other in (*self._waiting, *self._running) if other.format == "seed"}
        ended = [result for result in self.results if result.case.format == "seed"]
        failed = {result.case.test_id for result in ended if result.outcome != "passed"}
        passed = {result.case.test_id for result in ended} - failed
        return next((each for each in case.requires if each not in passed | still or each in failed), "")

    def _skip(self, case: Case, reason: str) -> None:
        self._waiting.remove(case)
        self._note(Result(case, "skipped", reason))

    def _note(self, result: Result) -> None:
        self.results.append(result)
        if self._on_result:
            try:
                self._on_result(result)
            except Exception as error:  # noqa: BLE001 - what shows the results must not end the run
                self._on_result = None
                self.results[-1] = replace(result, reason=result.reason or f"not shown: {error!r}")


def waiting_time(case: Case) -> float:
    """Roughly how long a case will take, in seconds: the waits that it names."""
    named = [step.get(key) for step in case.steps for key in ("delay_ms", "duration_ms")]
    waits = [float(ms) / 1000 for ms in named if isinstance(ms, (int, float))]
    waits += [values.seconds(str(step["wait"])) for step in case.steps if _readable(step.get("wait"))]
    return sum(waits) + (5 if case.raw.get("input") else 0) + (2 if needs_worker(case) else 0)


def _readable(wait: object) -> bool:
    try:
        return wait is not None and values.seconds(str(wait)) >= 0
    except ValueError:
        return False


def run_report(
    cases: Sequence[Case],
    targets: Sequence[Target],
    level: int | None = None,
    suite_version: str | None = None,
    clock: Clock | None = None,
    on_result: Callable[[Result], None] | None = None,
) -> Report:
    """Run all cases and report about them."""
    clock = clock or Clock()
    run_at = clock.now()
    results = run_suite(cases, targets, clock, on_result)
    took = round((clock.now() - run_at).total_seconds() * 1000)
    names = ", ".join(target.grpc or target.url for target in targets)
    requested = Report.requested_level if level is None else level
    binding: Binding = "grpc" if any(target.grpc for target in targets) else "http"
    return Report(results, names, run_at, took, requested, suite_version, binding)


def suite_version(suites: Sequence[Path]) -> str | None:
    """Name and version in the `manifest.json` of the first suite directory that has one, so that ours is not taken for
    the suite of the specification's authors; the version alone where the manifest has no name."""
    for path in suites:
        manifest = path / "manifest.json"
        if manifest.is_file():
            content = json.loads(manifest.read_text(encoding="utf-8"))
            named = [str(content[key]) for key in ("name", "version") if key in content]
            return " ".join(named) if "version" in content else None
    return None
