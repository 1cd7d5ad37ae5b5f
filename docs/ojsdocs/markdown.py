"""Markdown from values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines) + "\n"


def code(text: object) -> str:
    """As a code span, whatever backticks it has."""
    shown = str(text)
    fence = "``" if "`" in shown else "`"
    pad = " " if "`" in shown else ""
    return f"{fence}{pad}{shown}{pad}{fence}" if shown else ""


def prose(text: str) -> str:
    """A docstring or comment as Markdown: in one line, with nothing that would be read as HTML or emphasis."""
    parts = re.split(r"(`+[^`]+`+)", " ".join(text.split()))
    return "".join(part if part.startswith("`") else re.sub(r"([<>*_\[\]{}])", r"\\\1", part) for part in parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
