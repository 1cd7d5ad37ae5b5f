"""Run many cases over several servers side by side, each server used by one case at a time."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import durations, lint
from .cases import Case
from .client import Client
from .clock import Clock
from .exchange import StepFailed, reset
from .published import run_published
from .report import Outcome, Report, Result, skip_reason
from .seed import WorkerFactory, needs_worker, run_seed


@dataclass(frozen=True)
class Target:
    """A server under test: its base URL, its reset path if it has one, and how a worker for it is started."""

    url: str
    reset: str | None = None
    worker: WorkerFactory | None = None


def run_case(case: Case, target: Target, clock: Clock | None = None) -> Result:
    """Run one case on an emptied server. Never raises: what goes wrong is the result's reason."""
    clock = clock or Clock()
    skipped = skip_reason(case)
    if skipped is not None:
        return Result(case, "skipped", skipped)
    not_understood = lint.problems(case)
    if not_understood:
        return Result(case, "failed", "not understood: " + "; ".join(not_understood))
    start = clock.seconds()
    outcome, reason = _attempt(case, target, clock)
    return Result(case, outcome, reason, round((clock.seconds() - start) * 1000), target.url)


def _attempt(case: Case, target: Target, clock: Clock) -> tuple[Outcome, str]:
    try:
        with Client(target.url) as client:
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
    """Run all cases, the longest first so that none is left over at the end. Results are sorted by file."""
    waiting = sorted(cases, key=waiting_time)
    results: list[Result] = []
    lock = threading.Lock()

    def serve(target: Target) -> None:
        while True:
            with lock:
                if not waiting:
                    return
                case = waiting.pop()
            result = run_case(case, target, clock)
            with lock:
                results.append(result)
                if on_result:
                    on_result(result)

    threads = [threading.Thread(target=serve, args=(target,), name=f"case@{target.url}") for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(results, key=lambda result: result.case.file)


def waiting_time(case: Case) -> float:
    """Roughly how long a case will take, in seconds: the waits that it names."""
    named = [step.get(key) for step in case.steps for key in ("delay_ms", "duration_ms")]
    waits = [float(ms) / 1000 for ms in named if isinstance(ms, (int, float))]
    waits += [durations.seconds(str(step["wait"])) for step in case.steps if _readable(step.get("wait"))]
    return sum(waits) + (5 if case.raw.get("input") else 0) + (2 if needs_worker(case) else 0)


def _readable(wait: object) -> bool:
    try:
        return wait is not None and durations.seconds(str(wait)) >= 0
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
    names = ", ".join(target.url for target in targets)
    requested = Report.requested_level if level is None else level
    return Report(results, names, run_at, took, requested, suite_version)


def suite_version(suites: Sequence[Path]) -> str | None:
    """The version in the `manifest.json` of the first suite directory that has one."""
    for path in suites:
        manifest = path / "manifest.json"
        if manifest.is_file():
            content = json.loads(manifest.read_text(encoding="utf-8"))
            return str(content["version"]) if "version" in content else None
    return None
