"""The package's own code, parsed once for all tests that read it."""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "django_ojs"


@cache
def trees() -> dict[str, ast.Module]:
    """The tree of each module by its path in the package, as `jobs/push.py`."""
    gc.disable()  # it would look again and again at what stays
    try:
        return {
            path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
            for path in sorted(PACKAGE.rglob("*.py"))
        }
    finally:
        gc.freeze()
        gc.enable()


@cache
def nodes(path: str) -> tuple[ast.AST, ...]:
    """All nodes of a module, outer ones first."""
    return tuple(ast.walk(trees()[path]))
