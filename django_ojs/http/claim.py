"""Reads the conformance level that this release has been recorded at (conformance spec 4, 7.3).

`manage.py ojs_conformance --record` writes `claim.json` in a checkout, after runs that have passed; no hand edits it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).with_name("claim.json")


@dataclass(frozen=True)
class ConformanceClaim:
    """A conformance level, and the runs that showed it, one for each binding.

    Attributes:
        level: 0 to 4.
        suite, test_suite_version, digest: which cases were run: their name, version, and the SHA-256 of their files.
        passed_at: when the last of the runs began, an RFC 3339 text.
        bindings: by the name of a binding (`http`, `grpc`), how many cases there were and how they ended; `over_http`
            is the number of those with a step that this binding left to HTTP, because it has no equal.
    """

    level: int
    suite: str
    test_suite_version: str
    digest: str
    passed_at: str
    bindings: Mapping[str, Mapping[str, int]]


def read(file: Path = FILE) -> ConformanceClaim | None:
    """The recorded claim; None if there is none."""
    return ConformanceClaim(**json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else None
