"""The hook into Sphinx: generated parts come into a page's text before it is read."""

from __future__ import annotations

import re
from typing import Any

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx
from sphinx.ext.napoleon import Config, GoogleDocstring
from sphinx.util import docname_join
from sphinx.util.matching import patfilter

import ojsdocs
from ojsdocs import site

_GLOBS = re.compile(r"^```\{toctree\}\n(?:(?!```).*\n)*?:glob:\n(?:(?!```).*\n)*", re.MULTILINE)


def setup(app: Sphinx) -> dict[str, Any]:
    site.start()
    app.add_lexer("mermaid", TextLexer)  # a forge draws it
    app.connect("source-read", _expand)
    app.connect("env-before-read-docs", _read_anew)
    app.connect("autodoc-process-docstring", _with_sections)
    return {"parallel_read_safe": False}


def _expand(app: Sphinx, docname: str, content: list[str]) -> None:
    content[0] = ojsdocs.expand(_without_empty_globs(content[0], docname, app.env.found_docs))


def _without_empty_globs(text: str, docname: str, pages: set[str]) -> str:
    """A folder that has no pages yet is no fault, but Sphinx warns of it and cannot be told not to."""

    def entries(found: re.Match[str]) -> str:
        lines = found[0].splitlines(keepends=True)
        return "".join(
            line for line in lines if "*" not in line or patfilter(others, docname_join(docname, line.strip()))
        )

    others = pages - {docname}
    return _GLOBS.sub(entries, text)


def _with_sections(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Sections such as `Args:`. Not in comments of attributes, whose colons are their own."""
    if what not in ("attribute", "property", "data"):
        lines[:] = GoogleDocstring(lines, Config(), app, what, name, obj).lines()


def _read_anew(app: Sphinx, env: Any, docnames: list[str]) -> None:
    """Code may have changed where the page has not."""
    marked = [name for name in env.found_docs if "<!-- generated: " in env.doc2path(name).read_text(encoding="utf-8")]
    docnames.extend(name for name in marked if name not in docnames)
