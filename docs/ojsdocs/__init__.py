"""The parts of the reference that are made of the code: what stands below `<!-- generated: settings -->` in a page.

Each module has a `render()` that returns Markdown. The pages are committed as they are made, so that they can be read
on a forge: `python -m docs.ojsdocs` writes them anew, and a test compares them with the code.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

PARTS = (
    "settings",
    "commands",
    "http",
    "filters",
    "spellings",
    "events",
    "metrics",
    "checks",
    "errors",
    "python",
    "words",
)
PAGES = Path(__file__).resolve().parents[1] / "reference"
#: Parts whose page is in another folder, seen from `PAGES`.
_ELSEWHERE = {"words": "../coming-from/words.md"}
#: How to write the pages anew, from the root of a checkout.
COMMAND = "python -m docs.ojsdocs"
_MARK = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)


def file(part: str) -> Path:
    """The page that has this part."""
    return PAGES / _ELSEWHERE.get(part, f"{part}.md")


def page(part: str) -> str:
    """The whole text of the page that has this part: what people wrote above the mark, and what the code says below."""
    written = file(part).read_text(encoding="utf-8")
    mark = _MARK.search(written)
    if mark is None or mark[1] != part:
        raise ValueError(f"docs/reference/{part}.md has no line <!-- generated: {part} -->")
    return f"{written[: mark.end()]}\n\n{render(part).strip()}\n"


def render(part: str) -> str:
    if part not in PARTS:
        raise ValueError(f"nothing generates {part!r}; there are {', '.join(PARTS)}")
    module = import_module(f"ojsdocs.{part}")
    text: str = module.render()
    return text
