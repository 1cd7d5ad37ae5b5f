"""Say, before anything runs, what in a case this runner does not understand. An unknown key is never ignored."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from ojs_conformance import jsonpath, values
from ojs_conformance.cases import OPERATIONS, Case, Object, objects
from ojs_conformance.exchange import body_expectation, expected_headers, expected_statuses, references
from ojs_conformance.handlers import HANDLERS
from ojs_conformance.matchers import OPERATORS, Reasons, is_path, items, text_matcher
from ojs_conformance.values import TYPE_NAMES, is_number, show

METHODS: Final = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})
_ABOUT: Final = frozenset({"id", "name", "description", "intent", "comment", "note"})
_REQUEST: Final = frozenset({"action", "headers", "body", "raw_body", "capture"})
_PUBLISHED_STEP: Final = _ABOUT | _REQUEST | {"path", "assertions", "delay_ms", "duration_ms", "repeat"}
_SEED_STEP: Final = _ABOUT | _REQUEST | {"expect", "wait"}
_PUBLISHED_EMPTY: Final = ("setup", "teardown", "input", "assertions")
_RESPONSE: Final = frozenset({"status", "status_one_of", "headers", "body"})
_HOLDS_EXPECTATIONS: Final = frozenset({"$size", "$not", "$or", "$and"})
_SETUP: Final = frozenset({"handler", "behavior", "queues", "cron", "jobs"})
BEHAVIOUR: Final = frozenset({"attempt", "state_after", "delay_after_failure", "active_for"})


def problems(case: Case) -> list[str]:
    """Everything in a case that is not understood; an empty list if it can run."""
    if case.format == "unreadable":
        return [case.problem]
    found = _published(case) if case.format == "published" else _seed(case)
    return found + _references(case)


def _published(case: Case) -> list[str]:
    found = [f"a published case has no {key!r}" for key in _PUBLISHED_EMPTY if case.raw.get(key)]
    for number, step in enumerate(case.steps, 1):
        found += _prefixed(str(step.get("id", number)), _published_step(step))
    return found


def _published_step(step: Object) -> list[str]:
    found = _unknown_keys(step, _PUBLISHED_STEP) + _numbers(step, "delay_ms", "duration_ms") + _repeat(step)
    assertions = step.get("assertions", {})
    if not isinstance(assertions, dict):
        return [*found, "assertions: no object"]
    match step.get("action"):
        case "WAIT":
            return found if {"duration_ms", "delay_ms"} & step.keys() else [*found, "WAIT names no duration"]
        case "ASSERT":
            return found + _equality(assertions)
        case action if action not in METHODS:
            found.append(f"unknown action {action!r}")
    if not isinstance(step.get("path"), str):
        found.append("no path")
    return found + response_problems(assertions)


def _equality(assertions: Mapping[str, object]) -> list[str]:
    found = [f"unknown assertion {key!r}" for key in assertions if key != "equality"]
    pairs = assertions.get("equality")
    if not isinstance(pairs, dict) or not pairs:
        return [*found, "ASSERT holds no equality"]
    return found + [p for path in pairs for p in _understood(jsonpath.parse, path)]


def _repeat(step: Object) -> list[str]:
    repeat = step.get("repeat", 1)
    if isinstance(repeat, dict):
        keys = ("count", "times", "delay_ms", "interval_ms")
        return _prefixed("repeat", _unknown_keys(repeat, set(keys)) + _numbers(repeat, *keys))
    return [] if isinstance(repeat, int) and repeat > 0 else [f"repeat: cannot read {repeat!r}"]


def _seed(case: Case) -> list[str]:
    found = _about_itself(case)
    for number, step in enumerate(case.steps, 1):
        found += _prefixed(f"step {number}", _seed_step(step))
    for number, assertion in enumerate(objects(case.raw.get("assertions")), 1):
        found += _prefixed(f"assertion {number}", _behaviour(assertion))
    setup, teardown = case.raw.get("setup") or {}, case.raw.get("teardown") or {}
    if isinstance(setup, dict):
        found += _prefixed("setup", _unknown_keys(setup, _SETUP))
    if isinstance(teardown, dict):
        found += _prefixed("teardown", _unknown_keys(teardown, {"steps"}))
        found += [p for step in objects(teardown.get("steps")) for p in _prefixed("teardown", _seed_step(step))]
    if bool(case.raw.get("assertions")) is not bool(case.raw.get("input")):
        found.append("`input` and behavioural `assertions` need each other")
    return found


def _about_itself(case: Case) -> list[str]:
    """What a case says of other cases, of its own validity, and of the handler it needs."""
    found: list[str] = []
    requires = case.raw.get("requires", [])
    if not isinstance(requires, list) or not all(isinstance(each, str) for each in requires):
        found.append("requires: no array of test ids")
    if not isinstance(case.raw.get("deprecated", False), bool):
        found.append("deprecated: neither true nor false")
    if case.deprecated and not case.raw.get("deprecated_reason"):
        found.append("deprecated without a deprecated_reason")
    if case.handler and case.handler not in {*HANDLERS, *case.handlers}:
        found.append(f"no handler {case.handler!r} among the standard ones nor in handlers/handlers.json")
    return found


def _seed_step(step: Object) -> list[str]:
    found = _unknown_keys(step, _SEED_STEP)
    method, _, path = str(step.get("action", "")).partition(" ")
    if step.get("action") not in OPERATIONS and (method not in METHODS or not path):
        found.append(f"unknown action {step.get('action')!r}")
    if "wait" in step:
        found += _understood(values.seconds, str(step["wait"]))
    expected = step.get("expect", {})
    return found + (response_problems(expected) if isinstance(expected, dict) else ["expect: no object"])


def _behaviour(assertion: Object) -> list[str]:
    found = _unknown_keys(assertion, BEHAVIOUR)
    if not isinstance(assertion.get("attempt"), int):
        found.append("names no attempt")
    return found + [p for key, each in assertion.items() for p in expectation_problems(each, key)]


def _references(case: Case) -> list[str]:
    """Published references to the response of a step that comes later, or not at all."""
    if case.format == "seed":
        return []
    known: set[str] = set()
    found: list[str] = []
    for number, step in enumerate(case.steps, 1):
        step_id = str(step.get("id", number))
        wanted = [name for name in references(step, single_braces=False) if name.startswith("steps.")]
        found += [f"{step_id}: {name!r} refers to no earlier step" for name in wanted if not _refers(name, known)]
        known.add(step_id)
    return found


def _refers(reference: str, steps: set[str]) -> bool:
    return any(reference.startswith(f"steps.{step}.") for step in steps)


def _unknown_keys(value: Mapping[str, object], known: frozenset[str] | set[str]) -> list[str]:
    return [f"unknown key {key!r}" for key in value if key not in known]


def _numbers(step: Object, *keys: str) -> list[str]:
    return [f"{key}: no number" for key in keys if key in step and not is_number(step[key])]


def _prefixed(prefix: str, found: list[str]) -> list[str]:
    return [f"{prefix}: {each}" for each in found]


def _understood(read: Callable[[str], object], text: str) -> list[str]:
    try:
        read(text)
    except ValueError as error:
        return [str(error)]
    return []


def response_problems(expected: Mapping[str, object]) -> list[str]:
    """What in a step's assertions this runner does not understand."""
    found = [f"unknown assertion {key!r}" for key in expected if key not in _RESPONSE]
    for status in expected_statuses(expected):
        found += expectation_problems(status, "status")
    for name, wanted in expected_headers(expected).items():
        found += expectation_problems(wanted, name)
    if "headers" in expected and not isinstance(expected["headers"], dict):
        found.append("headers: no object")
    return found + expectation_problems(body_expectation(expected.get("body")))


def expectation_problems(expected: object, where: str = "$") -> Reasons:
    """What in an expectation this runner does not understand; nothing is compared."""
    try:
        if isinstance(expected, str):
            text_matcher(expected)
        if isinstance(expected, list):
            return [p for i, each in enumerate(expected) for p in expectation_problems(each, f"{where}[{i}]")]
        if isinstance(expected, dict):
            return [p for key, each in expected.items() for p in _key_problems(key, each, expected, where)]
    except (ValueError, re.error) as error:
        return [f"{where}: {error}"]
    return []


def _key_problems(key: str, argument: object, expected: dict[str, object], where: str) -> Reasons:
    if is_path(key):
        jsonpath.parse(key)
        return expectation_problems(argument, where + key[1:])
    if key.startswith("$"):
        return _operator_problems(key, argument, where)
    mixed = any(other.startswith("$") for other in expected)
    return [f"{where}: {key!r} stands beside operators"] if mixed else expectation_problems(argument, f"{where}.{key}")


def _operator_problems(key: str, argument: object, where: str) -> Reasons:
    if key not in OPERATORS:
        return [f"{where}: unknown operator {key!r}"]
    if key in _HOLDS_EXPECTATIONS:
        return expectation_problems(argument, f"{where} {key}")
    if key in ("$match", "$regex"):
        re.compile(str(argument))
    if key == "$type" and not TYPE_NAMES.issuperset(str(name) for name in items(argument)):
        return [f"{where}: unknown type in {show(argument)}"]
    return []
