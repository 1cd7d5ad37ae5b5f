"""One step of a case, in either format: turn it into a request, send it, and check the answer.

A `Scope` fills in what a step takes from earlier ones: `{{steps.a.response.body.job.id}}`, `{job_id}`, `{now+5s}`. A
`Client` is one kept-alive connection to a server and sends every byte as given. `check_response` compares the answer
with the step's assertions (`assertions` or `expect`) about status, headers and body.
"""

from __future__ import annotations

import datetime as dt
import http.client
import json
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final
from urllib.parse import urlsplit

from ojs_conformance import jsonpath, values
from ojs_conformance.cases import Object
from ojs_conformance.matchers import check
from ojs_conformance.values import MISSING, Clock, show


class StepFailed(Exception):
    """A step did not go as expected. The text says which step and why."""


def send(client: Client, scope: Scope, step: Object, method: str, path: str) -> Response:
    """Send a step's request with its references filled in. StepFailed if the server cannot be reached."""
    body = body_bytes(scope, step)
    headers = request_headers(scope, step, body)
    looked_at = [name for key in ("assertions", "expect") for name in expected_headers(_object(step.get(key)))]
    try:
        return client.step(method, scope.text(path), headers, body, looked_at)
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


MEDIA_TYPE: Final = "application/openjobspec+json"
_GONE: Final = (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)


@dataclass(frozen=True)
class Response:
    """A server's answer. `body` is the JSON value, the text if it is no JSON, or MISSING if there are no bytes."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: object = MISSING

    def header(self, name: str) -> object:
        """The value of a header, whatever the case of its name; MISSING if it was not sent."""
        return self.headers.get(name.lower(), MISSING)

    def document(self) -> dict[str, object]:
        """The answer as JSON, for references such as `{{steps.a.response.body.job.id}}`."""
        body = None if self.body is MISSING else self.body
        return {"status": self.status, "headers": dict(self.headers), "body": body}


class Client:
    """Requests to a base URL, for one thread. A connection that lay idle is opened anew, as servers close them.

    Attributes:
        over_http: of a client for another binding, the steps that went over HTTP all the same: `GET /path: why`.
    """

    idle_limit: float = 3.0

    def __init__(self, base_url: str, timeout: float = 30.0) -> None:
        self.base_url = base_url.rstrip("/")
        self._url = urlsplit(self.base_url)
        self._timeout = timeout
        self.over_http: list[str] = []
        self._connection: http.client.HTTPConnection | None = None
        self._used = 0.0

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def request(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> Response:
        """Send a request and read the whole answer. `path` may be absolute. OSError if the server cannot be reached."""
        if self._connection is not None and time.monotonic() - self._used > self.idle_limit:
            self.close()
        reused = self._connection is not None
        try:
            return self._exchange(method, path, headers or {}, body)
        except _GONE:
            self.close()
            if not reused:
                raise
            return self._exchange(method, path, headers or {}, body)
        except (OSError, http.client.HTTPException):
            self.close()
            raise

    def step(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None, looked_at: Collection[str] = ()
    ) -> Response:
        """Send the request of a case's step, whose assertions look at these headers of the answer.

        Another binding than HTTP sends it its own way.
        """
        return self.request(method, path, headers, body)

    def json(self, method: str, path: str, body: object = MISSING) -> Response:
        """Send a JSON value with the protocol's media type."""
        if body is MISSING:
            return self.request(method, path, {"Accept": MEDIA_TYPE})
        headers = {"Accept": MEDIA_TYPE, "Content-Type": MEDIA_TYPE}
        return self.request(method, path, headers, json.dumps(body).encode())

    def _exchange(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> Response:
        if self._connection is None:
            self._connection = self._open()
        self._connection.request(method, self._target(path), body=body, headers=dict(headers))
        answer = self._connection.getresponse()
        content = answer.read()
        self._used = time.monotonic()
        if answer.will_close:
            self.close()
        lower = {name.lower(): value for name, value in answer.getheaders()}
        return Response(answer.status, lower, _decode(content))

    def _open(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._url.scheme == "https" else http.client.HTTPConnection
        return kind(self._url.hostname or "localhost", self._url.port, timeout=self._timeout)

    def _target(self, path: str) -> str:
        if path.startswith(("http://", "https://")):
            path = path.removeprefix(self.base_url)
        return self._url.path + path


def _decode(content: bytes) -> object:
    if not content:
        return MISSING
    try:
        return json.loads(content)
    except ValueError:
        return content.decode("utf-8", "replace")


_PUBLISHED = re.compile(r"\{\{\s*([^{}]+?)\s*\}\}")
_SEED = re.compile(r"\{([A-Za-z_][\w.-]*(?:[+-]\w[\w.]*)?)\}")
_NOW = re.compile(r"now(?:([+-])(.+))?")


class UnresolvedReference(ValueError):
    """A reference to something that no earlier step gave."""


@dataclass
class Scope:
    """What the steps run so far have given: their responses by step id, and captured values by name."""

    clock: Clock
    single_braces: bool = False
    steps: dict[str, object] = field(default_factory=dict)
    captured: dict[str, object] = field(default_factory=dict)

    def remember(self, step_id: str, response: Response) -> None:
        """Keep a response under the id of its step."""
        self.steps[step_id] = {"response": response.document()}

    def capture(self, wanted: object, response: Response) -> None:
        """Keep values of a response by name. UnresolvedReference if one is not there."""
        for name, path in (wanted if isinstance(wanted, dict) else {}).items():
            self.captured[name] = captured_value(str(path), response)

    def resolve(self, value: object) -> object:
        """A JSON value with every reference filled in. A text that is one reference takes its type as well."""
        if isinstance(value, str):
            return self._resolve_text(value)
        if isinstance(value, list):
            return [self.resolve(each) for each in value]
        if isinstance(value, dict):
            return {self.text(key): self.resolve(each) for key, each in value.items()}
        return value

    def text(self, value: str) -> str:
        """A text with every reference filled in as text."""
        return as_text(self._resolve_text(value))

    def _resolve_text(self, text: str) -> object:
        pattern = _SEED if self.single_braces else _PUBLISHED
        whole = pattern.fullmatch(text)
        if whole:
            return self._lookup(whole[1])
        return pattern.sub(lambda found: as_text(self._lookup(found[1])), text)

    def _lookup(self, reference: str) -> object:
        if reference in self.captured:
            return self.captured[reference]
        now = _NOW.fullmatch(reference)
        if now:
            shift = dt.timedelta(seconds=values.seconds(now[2])) if now[2] else dt.timedelta(0)
            return values.timestamp(self.clock.now() - shift if now[1] == "-" else self.clock.now() + shift)
        found = jsonpath.find(f"$.{reference}", {"steps": self.steps}).values
        if len(found) != 1 or found[0] is MISSING:
            raise UnresolvedReference(f"nothing is known as {reference!r}")
        return found[0]


def references(value: object, single_braces: bool) -> list[str]:
    """All references in a JSON value."""
    if isinstance(value, str):
        return (_SEED if single_braces else _PUBLISHED).findall(value)
    if isinstance(value, list):
        return [name for each in value for name in references(each, single_braces)]
    if isinstance(value, dict):
        return [name for pair in value.items() for each in pair for name in references(each, single_braces)]
    return []


def as_text(value: object) -> str:
    """A value as it stands inside a text."""
    return value if isinstance(value, str) else json.dumps(value)


def captured_value(path: str, response: Response) -> object:
    """The value at `body.job.id`, `$.job.id`, `headers.location` or `status` of a response."""
    rest = path.removeprefix("response.")
    if rest.startswith("$"):
        place = "$.body" + rest[1:]
    else:
        place = "$." + (rest.lower() if rest.startswith("headers.") else rest)
    found = jsonpath.find(place, response.document()).values
    if not found or found[0] is MISSING:
        raise UnresolvedReference(f"nothing to capture at {path!r}")
    return found[0]


def check_response(expected: Mapping[str, object], response: Response) -> list[str]:
    """The reasons why a response does not meet its assertions."""
    reasons: list[str] = []
    for status in expected_statuses(expected):
        reasons += check(status, response.status, "status")
    for name, wanted in expected_headers(expected).items():
        reasons += _check_header(name, wanted, response)
    if expected.get("body", MISSING) is not MISSING:
        reasons += check(body_expectation(expected["body"]), response.body) if expected["body"] != {} else []
    if reasons and response.status >= 400:
        reasons.append(f"the answer was {response.status} {show(response.body, 400)}")
    return reasons


def body_expectation(expected: object) -> object:
    """The expectation about a body, its keys as paths: the seed's `job.id` becomes `$.job.id`."""
    if not isinstance(expected, dict):
        return expected
    return {key if key.startswith("$") else _as_path(key): each for key, each in expected.items()}


def _as_path(key: str) -> str:
    return f"${key}" if key.startswith("[") else f"$.{key.removeprefix('body.')}"


def expected_statuses(expected: Mapping[str, object]) -> list[object]:
    """What the assertions say of the status: of `status_one_of`, an operator."""
    wanted = [expected[key] for key in ("status", "status_one_of") if expected.get(key) is not None]
    return [{"$in": each} if isinstance(each, list) else each for each in wanted]


def expected_headers(expected: Mapping[str, object]) -> dict[str, object]:
    """What the assertions say of headers, by name."""
    return _object(expected.get("headers"))


def _object(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _check_header(name: str, expected: object, response: Response) -> list[str]:
    """A header matches as text, exactly, or as the number that it spells if a number is expected."""
    text = response.header(name)
    reasons = check(expected, text, name)
    about_text = isinstance(expected, str) and not expected.startswith(("number:", "~"))
    if not reasons or about_text or not isinstance(text, str):
        return reasons
    try:
        return check(expected, float(text), name)
    except ValueError:
        return reasons
