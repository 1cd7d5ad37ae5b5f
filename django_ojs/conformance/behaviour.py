"""Push a seed case's `input`, watch the job, and check the behavioural assertions about its attempts (5.6)."""

from __future__ import annotations

import http.client
from typing import Final

from . import matchers
from .cases import Case, Object, objects
from .client import Client
from .exchange import StepFailed, send, verify
from .templates import Scope, captured_value
from .timeline import EVENT_TYPES, TERMINAL, Timeline, read_events
from .values import is_number

POLL_SECONDS: Final = 0.025
WATCH_SECONDS: Final = 60.0
EVENT_LAG_SECONDS: Final = 1.0
# A server may be 100 ms late in promoting a due job, and default jitter reaches the very edge of the 50 %.
MEASURING_SLACK: Final = 0.15


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
        reasons += _check(expected, actual, f"attempt {attempt}: {key}")
    return reasons


def _check(expected: object, actual: object, where: str) -> list[str]:
    """Compare; a measured duration holds as well if it does within what measuring it may add or take."""
    reasons = matchers.check(expected, matchers.MISSING if actual is None else actual, where)
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
