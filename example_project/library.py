"""What the jobs of this site work on: the modules of the standard library of the Python that runs it."""

from __future__ import annotations

import collections
import functools
import hashlib
import io
import keyword
import os
import sysconfig
import tokenize
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(sysconfig.get_path("stdlib"))

_SKIPPED = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})


class NotInLibrary(ValueError):
    """A name that leads out of the standard library. Jobs come over HTTP, too."""


def path_of(module: str) -> Path:
    """The file of a module such as `"json/decoder.py"`, whether it exists or not. Raises NotInLibrary."""
    path = PurePosixPath(module)
    if path.is_absolute() or ".." in path.parts or path.suffix != ".py":
        raise NotInLibrary(f"{module!r} is not a path such as 'json/decoder.py' inside the standard library.")
    return ROOT / path


@functools.cache
def modules() -> tuple[str, ...]:
    """The paths of all modules below the root, tests left out, sorted."""
    return tuple(sorted(_walk()))


def package(name: str) -> list[str]:
    """The modules of one top-level package, such as `"asyncio"`."""
    return [module for module in modules() if module.startswith(f"{name}/")]


@functools.cache
def packages() -> tuple[str, ...]:
    """The top-level packages with at least three modules."""
    sizes = collections.Counter(module.partition("/")[0] for module in modules() if "/" in module)
    return tuple(sorted(name for name, size in sizes.items() if size >= 3))


def checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def words(source: bytes) -> dict[str, int]:
    """Lines and words, as `wc` counts them."""
    return {"lines": source.count(b"\n"), "words": len(source.split())}


def comments(source: bytes) -> dict[str, int]:
    """Lines with something on them, and how many of those are comments."""
    lines = [line.strip() for line in source.splitlines()]
    return {"lines": sum(map(bool, lines)), "comments": sum(line.startswith(b"#") for line in lines)}


def names(source: bytes) -> collections.Counter[str]:
    """How often each name is used."""
    tokens = tokenize.tokenize(io.BytesIO(source).readline)
    return collections.Counter(
        token.string for token in tokens if token.type == tokenize.NAME and not keyword.iskeyword(token.string)
    )


def describe(module: str, data: bytes) -> dict[str, Any]:
    return {"module": module, "bytes": len(data), "sha256": checksum(data)}


def _walk() -> Iterator[str]:
    for folder, children, files in os.walk(ROOT):
        children[:] = [child for child in children if child not in _SKIPPED]
        for file in files:
            if file.endswith(".py"):
                yield (Path(folder) / file).relative_to(ROOT).as_posix()
