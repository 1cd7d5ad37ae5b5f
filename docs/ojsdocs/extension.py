"""The hook into Sphinx: generated parts come into a page's text before it is read."""

from __future__ import annotations

from typing import Any

import ojsdocs
from ojsdocs import site
from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx


def setup(app: Sphinx) -> dict[str, Any]:
    site.start()
    app.add_lexer("mermaid", TextLexer)  # a forge draws it
    app.connect("source-read", _expand)
    app.connect("env-before-read-docs", _read_anew)
    return {"parallel_read_safe": False}


def _expand(app: Sphinx, docname: str, content: list[str]) -> None:
    content[0] = ojsdocs.expand(content[0])


def _read_anew(app: Sphinx, env: Any, docnames: list[str]) -> None:
    """Code may have changed where the page has not."""
    marked = [name for name in env.found_docs if "<!-- generated: " in env.doc2path(name).read_text(encoding="utf-8")]
    docnames.extend(name for name in marked if name not in docnames)
