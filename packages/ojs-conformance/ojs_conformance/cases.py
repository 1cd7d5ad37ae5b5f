"""Load conformance cases from JSON files, from dictionaries and from the seed document's examples."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

Format = Literal["published", "seed", "unreadable"]
Object = dict[str, object]

#: The operations of core section 7 as the HTTP binding spells them, for steps that name an operation (5.5). Where the
#: path has a `{job_id}` it is the one in the step's body, or what an earlier step captured; no body is sent then.
OPERATIONS: Final[dict[str, tuple[str, str]]] = {
    "PUSH": ("POST", "/ojs/v1/jobs"),
    "FETCH": ("POST", "/ojs/v1/workers/fetch"),
    "ACK": ("POST", "/ojs/v1/workers/ack"),
    "FAIL": ("POST", "/ojs/v1/workers/nack"),
    "BEAT": ("POST", "/ojs/v1/workers/heartbeat"),
    "CANCEL": ("DELETE", "/ojs/v1/jobs/{job_id}"),
    "INFO": ("GET", "/ojs/v1/jobs/{job_id}"),
}

_METHOD_AND_PATH = re.compile(r"[A-Z]+ \S+")
_EXAMPLES_HEADING = re.compile(r"^\W*6\. Example Test Cases\W*$", re.MULTILINE)
_NOT_CASES = ("manifest.json", "handlers.json")


@dataclass(frozen=True)
class Case:
    """One conformance case. `file` is its key, since published test ids repeat."""

    file: str
    test_id: str
    level: int | None
    name: str
    format: Format
    raw: Object = field(repr=False)
    problem: str = ""
    #: The handlers that the suite's `handlers/handlers.json` defines.
    handlers: frozenset[str] = frozenset()

    @property
    def requires(self) -> list[str]:
        """The test ids that must have passed before this case can run (5.3)."""
        return texts(self.raw.get("requires"))

    @property
    def deprecated(self) -> bool:
        """Whether the case is run and reported, and counts for nothing (9.4)."""
        return self.raw.get("deprecated") is True

    @property
    def handler(self) -> str:
        """The handler that the case names in its setup; '' for none."""
        setup = self.raw.get("setup")
        return str(setup.get("handler") or "") if isinstance(setup, dict) else ""

    @property
    def steps(self) -> list[Object]:
        """The case's steps, in order."""
        return objects(self.raw.get("steps"))

    @property
    def tags(self) -> list[str]:
        """The case's tags."""
        return texts(self.raw.get("tags"))


def objects(value: object) -> list[Object]:
    """The JSON objects of a JSON array; an empty list if it is no array."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def texts(value: object) -> list[str]:
    """The members of a JSON array as texts; an empty list if it is no array."""
    return [str(each) for each in value] if isinstance(value, list) else []


def load_dict(raw: Mapping[str, object], file: str = "") -> Case:
    """The case that a JSON object describes. What is no case becomes one that fails with its reason."""
    test_id, level = str(raw.get("test_id") or file), raw.get("level")
    kind = recognise(raw)
    return Case(
        file=file or test_id,
        test_id=test_id,
        level=level if isinstance(level, int) and not isinstance(level, bool) else None,
        name=str(raw.get("name") or ""),
        format=kind,
        raw=dict(raw),
        problem="neither the published nor the seed format" if kind == "unreadable" else "",
    )


def recognise(raw: Mapping[str, object]) -> Format:
    """Which format a case is written in: the first step's action says it, or by `input`."""
    steps = objects(raw.get("steps"))
    if "test_id" not in raw or not (steps or "input" in raw):
        return "unreadable"
    if not steps:
        return "seed"
    action = str(steps[0].get("action", ""))
    if (action in OPERATIONS and "path" not in steps[0]) or _METHOD_AND_PATH.fullmatch(action) or "expect" in steps[0]:
        return "seed"
    return "published" if "action" in steps[0] else "unreadable"


def load_file(path: Path, file: str = "") -> Case:
    """The case in a JSON file. Broken JSON becomes a case that fails with its reason."""
    file = file or path.name
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        return Case(file, file, None, "", "unreadable", {}, f"no valid JSON: {error}")
    if not isinstance(raw, dict):
        return Case(file, file, None, "", "unreadable", {}, "no JSON object")
    return load_dict(raw, file)


def load_path(path: Path) -> list[Case]:
    """The cases of a directory (all JSON files below it), of a JSON file, or of a Markdown document's examples."""
    if path.is_dir():
        files = [file for file in sorted(path.rglob("*.json")) if file.name not in _NOT_CASES]
        handlers = frozenset(defined_handlers(path))
        return [replace(load_file(file, file.relative_to(path).as_posix()), handlers=handlers) for file in files]
    if path.suffix == ".json":
        return [load_file(path)]
    raws = extract_seed_cases(path.read_text(encoding="utf-8"))
    return [load_dict(raw, f"{path.name}#{raw['test_id']}") for raw in raws]


def defined_handlers(suite: Path) -> dict[str, str]:
    """The handlers that a suite's `handlers/handlers.json` defines (8.1), with what each does; none without that file.

    The file is an array of objects with `name` and `behavior`, alone or under `handlers`, or an object: texts by name.
    """
    file = suite / "handlers" / "handlers.json"
    if not file.is_file():
        return {}
    content = json.loads(file.read_text(encoding="utf-8"))
    content = content.get("handlers", content) if isinstance(content, dict) else content
    if isinstance(content, dict):
        return {name: str(behavior) for name, behavior in content.items()}
    return {str(each.get("name")): str(each.get("behavior", "")) for each in objects(content)}


def extract_seed_cases(markdown: str) -> list[Object]:
    """The JSON objects with a `test_id` and a `level` after the heading "6. Example Test Cases"."""
    heading = _EXAMPLES_HEADING.search(markdown)
    if heading is None:
        return []
    found: list[Object] = []
    decoder, position = json.JSONDecoder(), heading.end()
    while (start := re.compile(r"^\s*\{", re.MULTILINE).search(markdown, position)) is not None:
        try:
            value, position = decoder.raw_decode(markdown, start.end() - 1)
        except ValueError:
            position = start.end()
            continue
        if isinstance(value, dict) and {"test_id", "level"} <= value.keys():
            found.append(value)
    return found


def _required(case: Case, chosen: Iterable[Case]) -> bool:
    return case.format == "seed" and any(case.test_id in other.requires for other in chosen)


def select(cases: Iterable[Case], level: int | None = None, test_id: str | None = None) -> list[Case]:
    """The cases up to a level and with a test id or file; cases tagged `ext` only without a level.

    What a case requires is chosen with it.
    """
    cases = list(cases)
    chosen = [case for case in cases if test_id is None or test_id in (case.test_id, case.file)]
    while more := [case for case in cases if case not in chosen and _required(case, chosen)]:
        chosen += more
    if level is None:
        return chosen
    return [case for case in chosen if "ext" not in case.tags and (case.level is None or case.level <= level)]
