"""A word means one thing: no two things of the package that are read without their module have the same name."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache

import django_ojs
from django_ojs.client.workflow import PreparedWorkflow
from django_ojs.models import Workflow
from tests.docs.test_docstrings import MODULES, PACKAGE
from tests.sources import nodes, trees

#: Classes of one name on purpose, and names that modules import from several others, each with the reason.
SAME_CLASSES = {
    "Command": "Django finds a command by this name in the module of the command",
    "Workflow": "the model; `client/workflow.py` has the name by which sites know `PreparedWorkflow`",
}
SAME_IMPORTS = {
    "Workflow": SAME_CLASSES["Workflow"],
    "logger": "each module has its own; a module that belongs to another one logs under the name of that",
}


def dotted(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


#: Each module by its name, and where it is in the package.
PLACES = {dotted(str(path)): path.relative_to(PACKAGE.name).as_posix() for path in MODULES}


def top_level(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """The names that a module gives to things of its own, and whether it is a class or stands for a type."""
    for node in tree.body:
        match node:
            case ast.ClassDef(name=name):
                yield name, True
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name, False
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                is_variable = isinstance(node.value, ast.Call) and getattr(node.value.func, "id", "").endswith("Var")
                if not is_variable:
                    yield name, name[:1].isupper() and not name.isupper()


@cache
def defined() -> dict[str, dict[str, bool]]:
    return {module: dict(top_level(trees()[path])) for module, path in PLACES.items()}


def test_the_vocabulary_has_each_word_once() -> None:
    page = (PACKAGE.parent / "docs/vocabulary.md").read_text()
    words = [word.strip() for row in re.findall(r"^\| (.+?) \|", page, re.MULTILINE) for word in row.split(",")]
    assert len(words) > 100
    assert {word for word, number in Counter(words).items() if number > 1} == {"word"}  # the head of each table


def test_a_class_and_a_name_of_a_type_are_defined_once() -> None:
    places = defaultdict(list)
    for module, names in defined().items():
        for name, is_type in names.items():
            if is_type:
                places[name].append(module)
    twice = {name: modules for name, modules in places.items() if len(modules) > 1}
    assert twice.keys() == SAME_CLASSES.keys(), twice


def test_a_name_that_is_imported_by_itself_comes_from_one_module() -> None:
    """`retry(…)` in a module that imports it says nothing of where it is from, so all that do mean the same function.
    What several modules have by one name, such as `prune`, is used as `deliveries.prune`."""
    sources = defaultdict(set)
    for path in PLACES.values():
        for node in nodes(path):
            if isinstance(node, ast.ImportFrom) and node.module in defined():
                for one in node.names:
                    if one.asname is None and one.name in defined()[node.module]:
                        sources[one.name].add(node.module)
    several = {name: sorted(modules) for name, modules in sources.items() if len(modules) > 1}
    assert several.keys() == SAME_IMPORTS.keys(), several


def test_in_the_package_a_workflow_is_the_model() -> None:
    """Only `django_ojs` itself, for sites, has the other name of the client's class."""
    importers = {
        module
        for module, path in PLACES.items()
        for node in nodes(path)
        if isinstance(node, ast.ImportFrom) and node.module == "django_ojs.client.workflow"
        if any(one.name == "Workflow" for one in node.names)
    }
    assert importers == {"django_ojs"}
    assert django_ojs.Workflow is PreparedWorkflow is not Workflow
