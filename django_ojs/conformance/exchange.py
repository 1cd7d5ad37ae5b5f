"""What both formats share: turn a step into a request, send it, and check the answer."""

from __future__ import annotations

import http.client
import json

from .cases import Object
from .client import MEDIA_TYPE, Client, Response
from .responses import check_response
from .templates import Scope
from .values import MISSING


class StepFailed(Exception):
    """A step did not go as expected. The text says which step and why."""


def send(client: Client, scope: Scope, step: Object, method: str, path: str) -> Response:
    """Send a step's request with its references filled in. StepFailed if the server cannot be reached."""
    body = body_bytes(scope, step)
    headers = request_headers(scope, step, body)
    try:
        return client.request(method, scope.text(path), headers, body)
    except (OSError, http.client.HTTPException) as error:
        raise StepFailed(f"{method} {path}: no answer: {error!r}") from error


def body_bytes(scope: Scope, step: Object) -> bytes | None:
    """The bytes to send: `raw_body` untouched, `body` as JSON, or None for a step with neither."""
    if "raw_body" in step:
        raw = step["raw_body"]
        return (raw if isinstance(raw, str) else json.dumps(raw)).encode()
    if "body" not in step:
        return None
    return json.dumps(scope.resolve(step["body"]), ensure_ascii=False).encode()


def request_headers(scope: Scope, step: Object, body: bytes | None) -> dict[str, str]:
    """The step's headers, and the protocol's media type where it names none. A null header is left out."""
    given = step.get("headers")
    headers = {"Accept": MEDIA_TYPE} if body is None else {"Accept": MEDIA_TYPE, "Content-Type": MEDIA_TYPE}
    for name, value in (given if isinstance(given, dict) else {}).items():
        headers = {known: each for known, each in headers.items() if known.lower() != name.lower()}
        if value is not None:
            headers[name] = scope.text(str(value))
    return headers


def verify(scope: Scope, expected: object, response: Response, step_name: str) -> None:
    """Check a response against a step's assertions. StepFailed with every difference."""
    wanted = scope.resolve(expected)
    reasons = check_response(wanted, response) if isinstance(wanted, dict) else []
    if reasons:
        raise StepFailed(f"{step_name}: " + "; ".join(reasons))


def reset(client: Client, path: str | None) -> None:
    """Empty the server through its test-only reset URL, if it has one. StepFailed if it refuses."""
    if path is None:
        return
    try:
        response = client.json("POST", path, {})
    except (OSError, http.client.HTTPException) as error:
        raise StepFailed(f"reset: no answer: {error!r}") from error
    if not 200 <= response.status < 300:
        body = "" if response.body is MISSING else f" {response.body}"
        raise StepFailed(f"reset: POST {path} answered {response.status}{body}")
