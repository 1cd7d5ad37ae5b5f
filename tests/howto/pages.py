"""The fenced blocks of docs/how-to: by what follows the language, `title="worker.py"` names one."""

from __future__ import annotations

import re

from django.conf import settings

HOW_TO = settings.BASE_DIR / "docs" / "how-to"
_FENCE = re.compile(r"^```(\w+)(?: title=\"(.+?)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str, language: str) -> list[str]:
    """The blocks without a title, in order."""
    found = _FENCE.findall((HOW_TO / f"{page}.md").read_text(encoding="utf-8"))
    return [text for name, title, text in found if name == language and not title]


def titled(page: str, title: str) -> str:
    found = _FENCE.findall((HOW_TO / f"{page}.md").read_text(encoding="utf-8"))
    [text] = [text for _, name, text in found if name == title]
    return str(text)
