"""Fill in what a step takes from earlier ones: `{{steps.a.response.body.job.id}}`, `{job_id}`, `{now+5s}`."""

from __future__ import annotations

import datetime as dt
import json
import re
from dataclasses import dataclass, field

from . import durations, jsonpath
from .client import Response
from .clock import Clock
from .values import MISSING

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
            shift = dt.timedelta(seconds=durations.seconds(now[2])) if now[2] else dt.timedelta(0)
            return durations.timestamp(self.clock.now() - shift if now[1] == "-" else self.clock.now() + shift)
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
