"""The hook into Sphinx: what it would warn of in pages that are right."""

from __future__ import annotations

import re
from typing import Any

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx
from sphinx.util import docname_join
from sphinx.util.matching import patfilter

_GLOBS = re.compile(r"^```\{toctree\}\n(?:(?!```).*\n)*?:glob:\n(?:(?!```).*\n)*", re.MULTILINE)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_lexer("mermaid", TextLexer)  # a forge draws it
    app.connect("source-read", _expand)
    return {"parallel_read_safe": True}


def _expand(app: Sphinx, docname: str, content: list[str]) -> None:
    content[0] = _without_empty_globs(content[0], docname, app.env.found_docs)


def _without_empty_globs(text: str, docname: str, pages: set[str]) -> str:
    """A folder that has no pages yet is no fault, but Sphinx warns of it and cannot be told not to."""

    def entries(found: re.Match[str]) -> str:
        lines = found[0].splitlines(keepends=True)
        return "".join(
            line for line in lines if "*" not in line or patfilter(others, docname_join(docname, line.strip()))
        )

    others = pages - {docname}
    return _GLOBS.sub(entries, text)
