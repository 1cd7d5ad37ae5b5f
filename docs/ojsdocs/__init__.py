"""The parts of the reference that are made of the code. A page says `<!-- generated: settings -->` where one belongs.

Each module has a `render()` that returns Markdown, and nothing here needs Sphinx but `extension`: the tests look at the
same text.
"""

from __future__ import annotations

import re
from importlib import import_module

PARTS = ("settings", "commands", "http", "filters", "spellings", "events", "metrics", "checks", "errors", "python")
_MARK = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)


def expand(text: str) -> str:
    """The text of a page with its generated parts."""
    return _MARK.sub(lambda found: render(found[1]), text)


def render(part: str) -> str:
    if part not in PARTS:
        raise ValueError(f"nothing generates {part!r}; there are {', '.join(PARTS)}")
    module = import_module(f"ojsdocs.{part}")
    text: str = module.render()
    return text
