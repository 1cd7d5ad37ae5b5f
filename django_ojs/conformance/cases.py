"""Load conformance cases from JSON files, from dictionaries and from the seed document's examples."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Format = Literal["published", "seed", "unreadable"]
Object = dict[str, object]

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

    @property
    def steps(self) -> list[Object]:
        """The case's steps, in order."""
        return objects(self.raw.get("steps"))

    @property
    def tags(self) -> list[str]:
        """The case's tags."""
        tags = self.raw.get("tags")
        return [str(tag) for tag in tags] if isinstance(tags, list) else []


def objects(value: object) -> list[Object]:
    """The JSON objects of a JSON array; an empty list if it is no array."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


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
    """Which format a case is written in: told by the first step's action, or by `input`."""
    steps = objects(raw.get("steps"))
    if "test_id" not in raw or not (steps or "input" in raw):
        return "unreadable"
    if not steps:
        return "seed"
    if _METHOD_AND_PATH.fullmatch(str(steps[0].get("action", ""))) or "expect" in steps[0]:
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
        return [load_file(file, file.relative_to(path).as_posix()) for file in files]
    if path.suffix == ".json":
        return [load_file(path)]
    raws = extract_seed_cases(path.read_text(encoding="utf-8"))
    return [load_dict(raw, f"{path.name}#{raw['test_id']}") for raw in raws]


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


def select(cases: Iterable[Case], level: int | None = None, test_id: str | None = None) -> list[Case]:
    """The cases up to a level and with a test id or file; cases tagged `ext` only without a level."""
    chosen = [case for case in cases if test_id is None or test_id in (case.test_id, case.file)]
    if level is None:
        return chosen
    return [case for case in chosen if "ext" not in case.tags and (case.level is None or case.level <= level)]
