"""Run a case of the published format: numbered HTTP steps with assertions, waits and comparisons."""

from __future__ import annotations

from . import jsonpath
from .cases import Case, Object
from .client import Client
from .clock import Clock
from .exchange import StepFailed, send, verify
from .templates import Scope, UnresolvedReference
from .values import MISSING, equal, show


def run_published(case: Case, client: Client, clock: Clock) -> None:
    """Run the steps in order. StepFailed at the first that does not hold: the later ones build on it."""
    scope = Scope(clock)
    for number, step in enumerate(case.steps, 1):
        name = str(step.get("id", number))
        try:
            _run_step(step, name, scope, client)
        except UnresolvedReference as error:
            raise StepFailed(f"{name}: {error}") from error


def _run_step(step: Object, name: str, scope: Scope, client: Client) -> None:
    _sleep(scope, step.get("delay_ms"))
    match step["action"]:
        case "WAIT":
            _sleep(scope, step.get("duration_ms"))
        case "ASSERT":
            _assert_equal(step, name, scope)
        case method:
            _request(step, name, scope, client, str(method))


def _request(step: Object, name: str, scope: Scope, client: Client, method: str) -> None:
    count, delay = _repeat(step)
    for turn in range(count):
        if turn:
            _sleep(scope, delay)
        response = send(client, scope, step, method, str(step["path"]))
        scope.remember(name, response)
        verify(scope, step.get("assertions", {}), response, name)
        scope.capture(step.get("capture"), response)


def _repeat(step: Object) -> tuple[int, object]:
    """How often to send a step, and the milliseconds between: `repeat: 3` or `{"count": 3, "delay_ms": 100}`."""
    repeat = step.get("repeat", 1)
    if not isinstance(repeat, dict):
        return int(str(repeat)), None
    count = repeat.get("count", repeat.get("times", 1))
    return int(str(count)), repeat.get("delay_ms", repeat.get("interval_ms"))


def _assert_equal(step: Object, name: str, scope: Scope) -> None:
    assertions = step.get("assertions")
    pairs = assertions.get("equality") if isinstance(assertions, dict) else None
    for path, other in (pairs if isinstance(pairs, dict) else {}).items():
        found = jsonpath.find(scope.text(path), {"steps": scope.steps}).values or [MISSING]
        wanted = scope.resolve(other)
        if found[0] is MISSING or not equal(found[0], wanted):
            raise StepFailed(f"{name}: {path} is {show(found[0])} and {other} is {show(wanted)}")


def _sleep(scope: Scope, milliseconds: object) -> None:
    if isinstance(milliseconds, (int, float)) and milliseconds > 0:
        scope.clock.sleep(milliseconds / 1000)
