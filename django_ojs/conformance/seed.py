"""Run a case of the seed document's format: steps with `expect`, or `input` and assertions about its attempts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from . import durations
from .behaviour import watch_input
from .cases import OPERATIONS, Case, Object, objects
from .client import Client
from .clock import Clock
from .exchange import StepFailed, send, verify
from .templates import Scope, UnresolvedReference

WorkerFactory = Callable[[], AbstractContextManager[None]]


def needs_worker(case: Case) -> bool:
    """Whether a worker with the standard handlers runs: the case names a handler, or expects `completed`.

    A case that fetches plays the worker itself; a second one would take its jobs away.
    """
    if case.format != "seed":
        return False
    return bool(case.handler) or (_expects_completed(case) and not _fetches(case))


def _fetches(case: Case) -> bool:
    return any(request_of(step)[1].endswith("/fetch") for step in case.steps)


def _expects_completed(case: Case) -> bool:
    expected = [step.get("expect") for step in case.steps]
    states = [assertion.get("state_after") for assertion in objects(case.raw.get("assertions"))]
    return _mentions([*expected, *states], "completed")


def _mentions(value: object, word: str) -> bool:
    if isinstance(value, dict):
        return any(_mentions(each, word) for each in value.values())
    if isinstance(value, list):
        return any(_mentions(each, word) for each in value)
    return value == word


def queues_of(case: Case) -> list[str]:
    """The queues that a case names, `default` first: what its worker has to serve."""
    found: set[str] = set()
    for body in [case.raw.get("input"), case.raw.get("setup"), *(step.get("body") for step in case.steps)]:
        _collect_queues(body, found)
    return ["default", *sorted(found - {"default"})]


def _collect_queues(value: object, found: set[str]) -> None:
    if isinstance(value, list):
        for each in value:
            _collect_queues(each, found)
    if isinstance(value, dict):
        named = [value.get("queue"), *(queues if isinstance(queues := value.get("queues"), list) else [])]
        found.update(name for name in named if isinstance(name, str))
        for each in value.values():
            _collect_queues(each, found)


def run_seed(case: Case, client: Client, clock: Clock, worker: WorkerFactory | None = None) -> None:
    """Run a case, with a worker around it if it needs one. StepFailed if anything does not hold."""
    wanted = needs_worker(case)
    if wanted and worker is None:
        raise StepFailed("the case needs a worker with the standard handlers, and none was given")
    scope = Scope(clock, single_braces=True)
    with worker() if wanted and worker else nullcontext():
        try:
            _prepare(case, client, scope)
            for number, step in enumerate(case.steps, 1):
                _run_step(step, f"step {number}", scope, client)
            if case.raw.get("input"):
                watch_input(case, client, scope)
        except UnresolvedReference as error:
            raise StepFailed(str(error)) from error
        finally:
            _tear_down(case, client, scope)


def _run_step(step: Object, name: str, scope: Scope, client: Client) -> None:
    if "wait" in step:
        scope.clock.sleep(durations.seconds(str(step["wait"])))
    method, path, body = request_of(step)
    response = send(client, scope, body, method, path)
    verify(scope, step.get("expect", {}), response, f"{name} ({step['action']})")
    scope.capture(step.get("capture"), response)


def request_of(step: Object) -> tuple[str, str, Object]:
    """Method, path and the step as it is to be sent: `POST /path` as it stands, an operation as HTTP spells it."""
    action = str(step.get("action"))
    method, path = OPERATIONS.get(action) or (action.partition(" ")[0], action.partition(" ")[2])
    if action not in OPERATIONS or "{job_id}" not in path:
        return method, path, step
    given = step.get("body")
    if isinstance(given, dict) and "job_id" in given:
        path = path.replace("{job_id}", str(given["job_id"]))
    return method, path, {name: value for name, value in step.items() if name != "body"}


def _prepare(case: Case, client: Client, scope: Scope) -> None:
    """Put the setup's jobs and cron entries on the server. Its queues need nothing: naming one makes it."""
    for key, path in (("jobs", "/ojs/v1/jobs"), ("cron", "/ojs/v1/cron")):
        for body in objects(_setup(case).get(key)):
            response = send(client, scope, {"body": body}, "POST", path)
            verify(scope, {"status": {"$in": [200, 201]}}, response, f"setup {key}")


def _tear_down(case: Case, client: Client, scope: Scope) -> None:
    teardown = case.raw.get("teardown")
    for step in objects(teardown.get("steps")) if isinstance(teardown, dict) else []:
        _run_step(step, "teardown", scope, client)


def _setup(case: Case) -> Object:
    setup = case.raw.get("setup")
    return setup if isinstance(setup, dict) else {}
