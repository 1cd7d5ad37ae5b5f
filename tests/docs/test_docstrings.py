"""What docstrings and comments of the package name between backticks, with a full stop in it, is there; and what the
pages of the documentation say that a class has."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from types import ModuleType

from django_ojs.events.catalogue import DESCRIBED
from django_ojs.models import APIKey
from tests.docs.test_names import importable
from tests.sources import PACKAGE, nodes

_PARTS = {path.stem for path in PACKAGE.iterdir() if path.is_dir() or path.suffix == ".py"}
_NAME = re.compile(r"`([a-z_]+(?:\.\w+)+)(?:\([^`]*\))?`")
_FILE = re.compile(r"\.(?:py|js|html)$")
MODULES = sorted(
    path.relative_to(PACKAGE.parent)
    for path in PACKAGE.rglob("*.py")
    if path.name != "manage.py" and path.parent.name != "migrations"
)


def named(text: str) -> set[str]:
    """The dotted names that begin with a part of the package."""
    others = set(DESCRIBED) | set(APIKey.Scope.values)
    found = {name for name in _NAME.findall(text) if name.partition(".")[0] in _PARTS}
    return {name for name in found if not _FILE.search(name) and name not in others}


def is_there(name: str, module: ModuleType) -> bool:
    """In the package, in its rules, beside the module, or in what the module has imported."""
    folder = module.__name__.rpartition(".")[0]
    places = ("django_ojs", "django_ojs.rules", folder, module.__name__)
    first, _, rest = name.partition(".")
    if isinstance(library := getattr(module, first, None), ModuleType) and not library.__name__.startswith(
        "django_ojs"
    ):
        return importable(f"{library.__name__}.{rest}")
    return importable(name) or any(importable(f"{place}.{name}") for place in places)


def test_every_dotted_name_is_there() -> None:
    missing: dict[str, list[str]] = {}
    for path in MODULES:
        if names := named((PACKAGE.parent / path).read_text(encoding="utf-8")):
            try:
                module = import_module(".".join(path.with_suffix("").parts).removesuffix(".__init__"))
            except ImportError:  # of what an extra brings
                continue
            if lost := [name for name in sorted(names) if not is_there(name, module)]:
                missing[str(path)] = lost
    assert missing == {}


#: The queue with the site's defaults, and how the names of counters end.
NO_NAMES_OF_CODE = {"_default", "_total"}
_PRIVATE = re.compile(r"`(_[A-Za-z]\w+)(?:\(\))?`")


def lost_names(text: str) -> list[str]:
    """The private names between backticks of which the rest of a module knows nothing."""
    rest = _PRIVATE.sub("", text)
    return [
        name for name in sorted(set(_PRIVATE.findall(text)) - NO_NAMES_OF_CODE) if not re.search(rf"\b{name}\b", rest)
    ]


def test_a_private_name_is_one_of_the_module() -> None:
    texts = {path: (PACKAGE.parent / path).read_text(encoding="utf-8") for path in MODULES}
    assert {str(path): lost for path, text in texts.items() if (lost := lost_names(text))} == {}
    assert lost_names('"""What `_OLD` says, and `_new()`."""\ndef _new(): ...') == ["_OLD"]


@cache
def attributes() -> dict[str, set[str]]:
    """What the classes of the package have, by their names: of those of one name together."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in MODULES:
        for node in nodes(path.relative_to(PACKAGE.name).as_posix()):
            if isinstance(node, ast.ClassDef):
                found[node.name].update(_of_class(node))
    return found


def _of_class(node: ast.ClassDef) -> Iterator[str]:
    for inner in ast.walk(node):
        match inner:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.Constant(value=str(name)):  # __slots__
                yield name


_MEMBER = re.compile(r"`(?:[a-z_]+\.)*([A-Z]\w*[a-z]\w*)\.(\w+)(?:\([^`]*\))?`")
#: Their base classes are Django's or Python's, and have the rest.
_INHERITED = {"objects", "DoesNotExist", "pk", "value", "as_view", "using"}


def test_every_member_of_a_class_of_ours_is_there() -> None:
    pages = [*(PACKAGE.parent / "docs").rglob("*.md"), *map(PACKAGE.parent.joinpath, MODULES)]
    missing: dict[str, list[str]] = {}
    for page in pages:
        if page.parent.name == "coming-from" or page.name == "otherwords.py":  # classes of others
            continue
        text = page.read_text(encoding="utf-8")
        found = {(kind, name) for kind, name in _MEMBER.findall(text) if kind in attributes()}
        lost = [f"{kind}.{name}" for kind, name in sorted(found) if name not in attributes()[kind] | _INHERITED]
        if lost:
            missing[str(page)] = lost
    assert missing == {}
