"""Check a response against a step's assertions (`assertions` or `expect`): status, headers, body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from .client import Response
from .matchers import check
from .recognition import problems
from .values import MISSING, show

KEYS: Final = frozenset({"status", "status_one_of", "headers", "body"})


def check_response(expected: Mapping[str, object], response: Response) -> list[str]:
    """The reasons why a response does not meet its assertions."""
    reasons: list[str] = []
    for status in _statuses(expected):
        reasons += check(status, response.status, "status")
    for name, wanted in _headers(expected).items():
        reasons += _check_header(name, wanted, response)
    if expected.get("body", MISSING) is not MISSING:
        reasons += check(body_expectation(expected["body"]), response.body) if expected["body"] != {} else []
    if reasons and response.status >= 400:
        reasons.append(f"the answer was {response.status} {show(response.body, 400)}")
    return reasons


def response_problems(expected: Mapping[str, object]) -> list[str]:
    """What in a step's assertions this runner does not understand."""
    found = [f"unknown assertion {key!r}" for key in expected if key not in KEYS]
    for status in _statuses(expected):
        found += problems(status, "status")
    for name, wanted in _headers(expected).items():
        found += problems(wanted, name)
    if "headers" in expected and not isinstance(expected["headers"], dict):
        found.append("headers: no object")
    return found + problems(body_expectation(expected.get("body")))


def body_expectation(expected: object) -> object:
    """The expectation about a body, its keys as paths: the seed's `job.id` becomes `$.job.id`."""
    if not isinstance(expected, dict):
        return expected
    return {key if key.startswith("$") else _as_path(key): each for key, each in expected.items()}


def _as_path(key: str) -> str:
    return f"${key}" if key.startswith("[") else f"$.{key.removeprefix('body.')}"


def _statuses(expected: Mapping[str, object]) -> list[object]:
    wanted = [expected[key] for key in ("status", "status_one_of") if expected.get(key) is not None]
    return [{"$in": each} if isinstance(each, list) else each for each in wanted]


def _headers(expected: Mapping[str, object]) -> dict[str, object]:
    headers = expected.get("headers")
    return headers if isinstance(headers, dict) else {}


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
