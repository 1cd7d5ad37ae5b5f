"""Run one case, of the published format or of the seed document's.

A published case has numbered HTTP steps with assertions, waits and comparisons. A seed case has steps with `expect`, or
an `input`: the job that it pushes is watched, and the assertions about its attempts are checked (5.6).
"""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Final

from ojs_conformance import jsonpath, matchers, values
from ojs_conformance.cases import OPERATIONS, Case, Object, objects
from ojs_conformance.exchange import Client, Scope, StepFailed, UnresolvedReference, captured_value, send, verify
from ojs_conformance.values import MISSING, Clock, equal, is_number, show

WorkerFactory = Callable[[], AbstractContextManager[None]]

POLL_SECONDS: Final = 0.025
WATCH_SECONDS: Final = 60.0
EVENT_LAG_SECONDS: Final = 1.0
# A server may be 100 ms late in promoting a due job, and the jitter of some reaches the very edge of the 50 %.
MEASURING_SLACK: Final = 0.15

TERMINAL: Final = frozenset({"completed", "cancelled", "discarded"})
STATE_AFTER: Final[Mapping[str, str]] = {
    "job.retrying": "retryable",
    "job.completed": "completed",
    "job.discarded": "discarded",
    "job.expired": "discarded",
    "job.cancelled": "cancelled",
    "job.stalled": "available",
}
EVENT_TYPES: Final = ("job.started", "job.failed", *STATE_AFTER)


def run_published(case: Case, client: Client, clock: Clock) -> None:
    """Run the steps in order. StepFailed at the first that does not hold: the later ones build on it."""
    scope = Scope(clock)
    for number, step in enumerate(case.steps, 1):
        name = str(step.get("id", number))
        try:
            _published_step(step, name, scope, client)
        except UnresolvedReference as error:
            raise StepFailed(f"{name}: {error}") from error


def _published_step(step: Object, name: str, scope: Scope, client: Client) -> None:
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
                _seed_step(step, f"step {number}", scope, client)
            if case.raw.get("input"):
                watch_input(case, client, scope)
        except UnresolvedReference as error:
            raise StepFailed(str(error)) from error
        finally:
            _tear_down(case, client, scope)


def _seed_step(step: Object, name: str, scope: Scope, client: Client) -> None:
    if "wait" in step:
        scope.clock.sleep(values.seconds(str(step["wait"])))
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
        _seed_step(step, "teardown", scope, client)


def _setup(case: Case) -> Object:
    setup = case.raw.get("setup")
    return setup if isinstance(setup, dict) else {}


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


def watch_input(case: Case, client: Client, scope: Scope) -> None:
    """Run the behavioural part of a case. StepFailed if an assertion does not hold, or not in time."""
    assertions = objects(case.raw.get("assertions"))
    response = send(client, scope, {"body": case.raw["input"]}, "POST", "/ojs/v1/jobs")
    verify(scope, {"status": {"$in": [200, 201]}}, response, "push of `input`")
    job_id = str(captured_value("body.job.id", response))
    last = max(int(str(assertion["attempt"])) for assertion in assertions)
    timeline = Timeline()
    try:
        _watch(client, scope, job_id, last, timeline)
        reasons = [reason for assertion in assertions for reason in check_attempt(assertion, timeline)]
    finally:
        _end(client, job_id, timeline)
    if reasons:
        raise StepFailed(f"{'; '.join(reasons)} ({timeline.describe()})")


def check_attempt(assertion: Object, timeline: Timeline) -> list[str]:
    """The reasons why one assertion about one attempt does not hold."""
    attempt = int(str(assertion["attempt"]))
    reasons: list[str] = []
    for key, expected in assertion.items():
        if key == "state_after":
            actual: object = timeline.state_after(attempt)
        elif key == "delay_after_failure":
            actual = _rounded(timeline.delay_after_failure(attempt))
        elif key == "active_for":
            actual = _rounded(timeline.active_for(attempt))
        else:
            continue
        reasons += _check_value(expected, actual, f"attempt {attempt}: {key}")
    return reasons


def _check_value(expected: object, actual: object, where: str) -> list[str]:
    """Compare; a measured duration holds as well if it does within what measuring it may add or take."""
    reasons = matchers.check(expected, MISSING if actual is None else actual, where)
    if not reasons or not is_number(actual) or not isinstance(actual, float):
        return reasons
    near = (actual - MEASURING_SLACK, actual + MEASURING_SLACK)
    return [] if any(not matchers.check(expected, each, where) for each in near) else reasons


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _watch(client: Client, scope: Scope, job_id: str, last: int, timeline: Timeline) -> None:
    """Poll until the last asserted attempt is over, then read the events that tell about it."""
    clock = scope.clock
    deadline = clock.seconds() + WATCH_SECONDS
    while not timeline.ended(last):
        _poll(client, scope, job_id, timeline)
        if timeline.samples[-1].state in TERMINAL:
            break
        if clock.seconds() > deadline:
            _load_events(client, job_id, timeline)
            raise StepFailed(f"attempt {last} is not over after {WATCH_SECONDS:.0f} s ({timeline.describe()})")
        clock.sleep(POLL_SECONDS)
    deadline = clock.seconds() + EVENT_LAG_SECONDS
    while _load_events(client, job_id, timeline) and timeline.event_end(last) is None and clock.seconds() < deadline:
        clock.sleep(POLL_SECONDS)


def _poll(client: Client, scope: Scope, job_id: str, timeline: Timeline) -> None:
    response = send(client, scope, {}, "GET", f"/ojs/v1/jobs/{job_id}")
    shape = {"$.job.state": "string:nonempty", "$.job.attempt": "number:non_negative"}
    verify(scope, {"status": 200, "body": shape}, response, "poll of the job")
    state, attempt = captured_value("body.job.state", response), captured_value("body.job.attempt", response)
    timeline.poll(scope.clock.seconds(), str(state), int(str(attempt)))


def _load_events(client: Client, job_id: str, timeline: Timeline) -> bool:
    """Read the event log, page by page. False if the server has none: polling is optional (events spec 6.4)."""
    path = f"/ojs/v1/events?types={','.join(EVENT_TYPES)}&limit=1000"
    raw: list[Object] = []
    cursor = ""
    while True:
        response = client.json("GET", path + (f"&after={cursor}" if cursor else ""))
        if response.status != 200 or not isinstance(response.body, dict):
            return False
        raw += objects(response.body.get("events"))
        if not response.body.get("has_more") or not response.body.get("cursor"):
            break
        cursor = str(response.body["cursor"])
    timeline.events = read_events(raw, job_id)
    return True


def _end(client: Client, job_id: str, timeline: Timeline) -> None:
    """Cancel a job that is still alive, so that its worker can stop. Whether that works is another case's concern."""
    if timeline.samples and timeline.samples[-1].state in TERMINAL:
        return
    try:
        client.json("DELETE", f"/ojs/v1/jobs/{job_id}")
    except (OSError, http.client.HTTPException):
        client.close()


@dataclass(frozen=True)
class Sample:
    """One poll of the job. `at` is in seconds of the runner's clock."""

    at: float
    state: str
    attempt: int


@dataclass(frozen=True)
class Event:
    """One event of the job. `at` is in seconds of the server's clock."""

    at: float
    type: str
    attempt: int


@dataclass
class Timeline:
    """What happened to one job, attempt by attempt, from two witnesses: polls (changes only) and the event log.

    The event log is exact and misses nothing; polling is what every server has. A duration is taken from one witness
    alone, since two clocks may differ. A state that was over between two polls, and that no event names, is inferred
    only where the transition table (L0-LC-002) leaves one way.
    """

    samples: list[Sample] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def poll(self, at: float, state: str, attempt: int) -> None:
        """Add a poll; one that shows no change is dropped."""
        last = self.samples[-1] if self.samples else None
        if last is None or (last.state, last.attempt) != (state, attempt):
            self.samples.append(Sample(at, state, attempt))

    def ended(self, attempt: int) -> bool:
        """Whether polling has shown that an attempt is over."""
        return self._sample_end(attempt) is not None

    def event_end(self, attempt: int) -> Event | None:
        """The event that tells the state after an attempt."""
        return next((e for e in self.events if e.attempt == attempt and e.type in STATE_AFTER), None)

    def state_after(self, attempt: int) -> str | None:
        """The state that followed `active` in an attempt; None if neither witness can tell."""
        event = self.event_end(attempt)
        if event is not None:
            return STATE_AFTER[event.type]
        sample = self._sample_end(attempt)
        if sample is not None and sample.attempt == attempt:
            return sample.state
        failed = self._event_at("job.failed", attempt) is not None
        started_again = not self.events or self._event_at("job.started", attempt + 1) is not None
        if sample is not None and started_again and not failed:
            return "available"  # handed back without a failure: a reservation that expired (L1-VT-002)
        return None

    def active_for(self, attempt: int) -> float | None:
        """Seconds from the start of an attempt to its end."""
        start, end = self._event_at("job.started", attempt), self._event_ended_at(attempt)
        if start is None or end is None:
            start, end = self._sample_start(attempt), self._at(self._sample_end(attempt))
        return None if start is None or end is None else end - start

    def delay_after_failure(self, attempt: int) -> float | None:
        """Seconds from the failure of the attempt before to the start of this one."""
        failed, started = self._event_at("job.failed", attempt - 1), self._event_at("job.started", attempt)
        if failed is None or started is None:
            failed, started = self._at(self._sample_end(attempt - 1)), self._sample_start(attempt)
        return None if failed is None or started is None else started - failed

    def describe(self) -> str:
        """The course of the job in one line, for a reason."""
        polled = " → ".join(f"{s.state}({s.attempt})" for s in self.samples)
        seen = ", ".join(f"{e.type}({e.attempt})" for e in self.events)
        return f"polled {polled or 'nothing'}; events {seen or 'none'}"

    def _event_at(self, kind: str, attempt: int) -> float | None:
        return next((e.at for e in self.events if e.type == kind and e.attempt == attempt), None)

    def _event_ended_at(self, attempt: int) -> float | None:
        ends = [e.at for e in self.events if e.attempt == attempt and e.type != "job.started"]
        return min(ends, default=None)

    def _sample_start(self, attempt: int) -> float | None:
        return next((s.at for s in self.samples if s.attempt == attempt), None)

    def _sample_end(self, attempt: int) -> Sample | None:
        """The first poll that shows the attempt over: another state of it, or a later attempt."""
        over = (s for s in self.samples if s.attempt > attempt or (s.attempt == attempt and s.state != "active"))
        return next(over, None)

    @staticmethod
    def _at(sample: Sample | None) -> float | None:
        return None if sample is None else sample.at


def read_events(raw: Iterable[Mapping[str, object]], job_id: str) -> list[Event]:
    """The events of one job, in order. An event without `attempt` belongs to the attempt started last."""
    events: list[Event] = []
    current = 0
    for each in raw:
        data = each.get("data")
        if not isinstance(data, Mapping) or job_id not in (data.get("job_id"), each.get("subject")):
            continue
        kind, attempt = str(each.get("type")), data.get("attempt")
        current = attempt if isinstance(attempt, int) else current + (kind == "job.started")
        events.append(Event(values.instant(str(each.get("time"))).timestamp(), kind, current))
    return events
