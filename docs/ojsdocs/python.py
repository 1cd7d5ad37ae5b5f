"""The public names that a site imports, from their signatures and docstrings."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
import typing
from collections.abc import Iterator
from functools import cache, cached_property
from importlib import import_module
from types import ModuleType
from typing import Any

from asgiref.sync import SyncToAsync

from ojsdocs.markdown import code, prose, table

MODULES = ("django_ojs", "django_ojs.testing", "django_ojs.tasks", "django_ojs.routers", "django_ojs.events.filters")
#: Of modules that otherwise may change with any version: what the pages tell sites to import.
CHOSEN = {
    "django_ojs.admin": ("register_all",),
    "django_ojs.queues.configuration": ("configure", "pause", "resume"),
    "django_ojs.queues.maintenance": ("current", "start", "stop"),
    "django_ojs.statistics.counters": ("count", "count_all", "Counts"),
    "django_ojs.statistics.throughput": ("stats", "Stats", "Rate", "Throughput"),
    "django_ojs.middleware": ("enqueue_chain", "execution_chain"),
    "django_ojs.signals": ("job_failed", "worker_started", "worker_stopped"),
    "django_ojs.envelope": ("validate",),
    "django_ojs.realtime.asgi": ("application",),
    "django_ojs.realtime.hub": ("Hub",),
    "django_ojs.telemetry.collector": ("OJSCollector",),
    "django_ojs.telemetry.gather": ("register",),
    "django_ojs.urls": ("served_by",),
}
#: What the public names take and return, and a site does not import.
SHAPES = (
    "django_ojs.client.definition.JobDefinition",
    "django_ojs.client.definition.PreparedJob",
    "django_ojs.client.options.HandlerOptions",
    "django_ojs.client.options.JobOptions",
    "django_ojs.client.options.RateWindow",
    "django_ojs.client.options.ScheduledOptions",
)
_SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises):$")
#: How the docstrings begin of what is there for the worker and not for a site.
INTERNAL = "For the worker"
_ENTRY = re.compile(r"^(\*{0,2}\w[\w.]*)(?: \([^)]*\))?: (.*)$")


def names(module: str) -> list[str]:
    """What the module offers: `__all__`, or else its own public names."""
    found = import_module(module)
    own = [name for name, value in vars(found).items() if getattr(value, "__module__", "") == module]
    return sorted(getattr(found, "__all__", [name for name in own if not name.startswith("_")]), key=str.lower)


def render() -> str:
    shapes = [path.rpartition(".") for path in SHAPES]
    offered = {module: names(module) for module in MODULES} | CHOSEN
    lines = [
        line
        for module, members in offered.items()
        for line in _section(module, [(module, name) for name in sorted(members, key=str.lower)])
    ]
    return "\n".join([*lines, *_section("What these take and return", [(module, name) for module, _, name in shapes])])


def _section(title: str, members: list[tuple[str, str]]) -> Iterator[str]:
    yield f"## {title}\n"
    for module, name in members:
        yield f"### {name}\n"
        value = getattr(import_module(module), name)
        first = next((one for one in MODULES if getattr(import_module(one), name, None) is value), module)
        if MODULES.count(module) and first != module:
            yield f"The same as in `{first}`.\n"
        elif inspect.isclass(value):
            yield from _class(name, value)
        elif callable(value) and not hasattr(value, "send_robust"):
            yield from _function(name, value)
        else:
            yield _text(_comment(module, name)) + "\n"


def _function(name: str, value: Any) -> Iterator[str]:
    of = getattr(value, "func", value)  # of `sync_to_async`
    yield _signature(_def(name, of, of is not value)) + "\n"
    if doc := inspect.getdoc(value) or inspect.getdoc(of):
        yield _text(doc) + "\n"


def _def(name: str, of: Any, awaited: bool = False) -> str:
    """The line that defines a function, with its types as the code writes them."""
    awaited = awaited or inspect.iscoroutinefunction(of)
    return f"{'async ' if awaited else ''}def {name}{_parameters(inspect.signature(of))}"


def _parameters(found: inspect.Signature) -> str:
    """As Python writes a signature, but annotations that are strings without their quotes."""
    shown = str(found)
    for one in (*(p.annotation for p in found.parameters.values()), found.return_annotation):
        if isinstance(one, str):
            shown = shown.replace(repr(one), one)
    return shown


def _signature(line: str) -> str:
    """In a block, a parameter a line where it would be long."""
    if len(line) > 100:
        tree = ast.parse(f"{line}: ...").body[0]
        assert isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef)
        end = f" -> {ast.unparse(tree.returns)}" if tree.returns else ""
        start = line.partition("(")[0]
        line = "\n".join([f"{start}(", *(f"    {one}," for one in _each(tree.args)), f"){end}"])
    return f"```python signature\n{line}: ...\n```"


def _each(of: ast.arguments) -> Iterator[str]:
    """The parameters of a function, one by one."""
    positional = [*of.posonlyargs, *of.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(of.defaults))
    for number, (one, default) in enumerate(zip(positional, [*defaults, *of.defaults], strict=True), 1):
        yield _parameter(one, default)
        if number == len(of.posonlyargs):
            yield "/"
    if of.vararg or of.kwonlyargs:
        yield f"*{ast.unparse(of.vararg) if of.vararg else ''}"
    for one, default in zip(of.kwonlyargs, of.kw_defaults, strict=True):
        yield _parameter(one, default)
    if of.kwarg:
        yield f"**{ast.unparse(of.kwarg)}"


def _parameter(one: ast.arg, default: ast.expr | None) -> str:
    return ast.unparse(one) + (f" = {ast.unparse(default)}" if default else "")


def _class(name: str, value: type) -> Iterator[str]:
    bases = [base.__name__ for base in value.__bases__ if base is not object and not base.__name__.startswith("_")]
    yield f"{'Exception' if issubclass(value, BaseException) else 'Class'} {code(name)}" + (
        f", of {', '.join(map(code, bases))}.\n" if bases and not typing.is_typeddict(value) else ".\n"
    )
    doc = vars(value).get("__doc__")
    if doc and not doc.startswith(f"{value.__name__}("):  # a dataclass without a docstring has its signature as one
        yield _text(inspect.cleandoc(doc)) + "\n"
    ours = _shown_here(value)
    init = next((one.__dict__["__init__"] for one in ours if "__init__" in one.__dict__), None)
    if init is not None and init.__doc__ and not typing.is_typeddict(value):
        yield _signature(_def("__init__", init)) + "\n"
        yield _text(inspect.cleandoc(init.__doc__)) + "\n"
    if rows := list(_attributes(value, ours)):
        yield table(("attribute", "type", "what it is"), rows)
    taken: set[str] = set()
    for one in ours:
        for member, found in vars(one).items():
            if member in taken or member.startswith("_"):
                continue
            taken.add(member)
            kind = found.__func__ if isinstance(found, classmethod | staticmethod) else getattr(found, "func", found)
            if (
                inspect.isfunction(kind)
                and kind.__doc__
                and not _internal(kind)
                and not isinstance(found, cached_property)
            ):
                yield f"#### {name}.{member}\n"
                yield _signature(_def(member, kind, isinstance(found, SyncToAsync))) + "\n"
                yield _text(inspect.cleandoc(kind.__doc__)) + "\n"


def _shown_here(value: type) -> list[type]:
    """The class, and those of its bases that have no place of their own on the page."""
    offered = {getattr(import_module(module), name) for module in MODULES for name in names(module)}
    bases = [one for one in value.__mro__[1:] if one.__module__.startswith("django_ojs")]
    hidden = {base for one in bases if one in offered for base in one.__mro__}
    return [value, *(one for one in bases if one not in hidden)]


def _attributes(value: type, ours: list[type]) -> Iterator[tuple[str, str, str]]:
    """Properties, and what comments of the code (`#:`) or the class's own fields name."""
    taken: set[str] = set()
    told = _entries(inspect.getdoc(value) or "")
    whole = typing.is_typeddict(value) or hasattr(value, "__dataclass_fields__") or issubclass(value, tuple)
    for one in ours if not typing.is_typeddict(value) else [value]:
        written = _written(one)
        for member, (kind, text) in written.items():
            if not member.startswith("_") and member not in taken and member not in told and (text or whole):
                if text.startswith(INTERNAL):
                    continue
                taken.add(member)
                yield code(member), code(kind), prose(text)
        if typing.is_typeddict(value):
            for member, hint in typing.get_type_hints(value).items():
                if member not in taken:
                    taken.add(member)
                    yield code(member), code(_named(hint)), ""
        for member, found in vars(one).items():
            if member in taken or member.startswith("_"):
                continue
            getter = found.func if isinstance(found, cached_property) else getattr(found, "fget", None)
            if getter is not None and not _internal(getter):
                taken.add(member)
                kind = getter.__annotations__.get("return", "")
                yield code(member), code(_named(kind)), prose(getter.__doc__ or "")


def _internal(found: Any) -> bool:
    return (found.__doc__ or "").startswith(INTERNAL)


def _named(hint: Any) -> str:
    return hint if isinstance(hint, str) else inspect.formatannotation(hint).replace("typing.", "")


def _written(one: type) -> dict[str, tuple[str, str]]:
    """The attributes that a class, or its `__init__`, annotates or comments on: the type and the text."""
    lines, definition = _definition(one)
    if definition is None:
        return {}
    bodies = [definition.body] + [
        node.body for node in definition.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"
    ]
    found: dict[str, tuple[str, str]] = {}
    for body in bodies:
        for node in body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for target in targets:
                name = (
                    target.id if isinstance(target, ast.Name) else target.attr if isinstance(target, ast.Attribute)
                    else ""
                )  # fmt: skip
                text = _beside(lines, node)
                annotated = isinstance(node, ast.AnnAssign)
                if name and (text or (annotated and body is definition.body)):
                    found[name] = (ast.unparse(node.annotation) if isinstance(node, ast.AnnAssign) else "", text)
    return found


def _definition(one: type) -> tuple[list[str], ast.ClassDef | None]:
    """The lines of the file that defines the class, and its definition; some call another module their own."""
    for module in [*sys.modules.values()]:
        if getattr(module, "__name__", "").startswith("django_ojs") and vars(module).get(one.__name__) is one:
            lines, tree = _parsed(module)
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and node.name == one.__name__:
                    return lines, node
    return [], None


@cache
def _parsed(module: ModuleType) -> tuple[list[str], ast.Module]:
    source = inspect.getsource(module)
    return source.splitlines(), ast.parse(source)


def _comment(module: str, name: str) -> str:
    """What a comment says about a name of a module."""
    lines, tree = _parsed(import_module(module))
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and target.id == name:
            return _beside(lines, node)
    raise ValueError(f"{module} has no {name} with a comment")


def _beside(lines: list[str], node: ast.stmt) -> str:
    """The comment (`#:`) behind a statement or above it."""
    behind = lines[(node.end_lineno or node.lineno) - 1].partition("#: ")[2]
    above: list[str] = []
    at = node.lineno - 2
    while at >= 0 and lines[at].strip().startswith("#:"):
        above.insert(0, lines[at].strip()[2:].strip())
        at -= 1
    return behind or " ".join(above)


def _entries(doc: str) -> dict[str, str]:
    """What the section `Attributes:` of a docstring names."""
    section = re.search(r"^Attributes:\n((?:[ ]+.*\n?|\n)*)", doc, re.MULTILINE)
    return dict(re.findall(r"^    (\w+): (.*)$", section[1], re.MULTILINE)) if section else {}


def _text(doc: str) -> str:
    """A docstring as Markdown: sections as lists, indented code as blocks, one line for each paragraph."""
    made: list[str] = []
    for block in re.split(r"\n\s*\n(?=\S)", doc):
        head, _, rest = block.partition("\n")
        section = _SECTION.match(head)
        if section:
            made.append(f"{section[1]}:\n\n{_list(textwrap.dedent(rest))}")
        elif "::\n" in f"{block}\n":
            told, _, example = block.partition("::\n")
            made.append(f"{prose(told)}:\n\n```python signature\n{textwrap.dedent(example.strip(chr(10)))}\n```")
        elif block.startswith("- "):
            made.append("\n".join(f"- {prose(one)}" for one in re.split(r"\n?- ", block)[1:]))
        else:
            before, dash, items = block.partition("\n- ")
            made.append(prose(before))
            if dash:
                made.append("\n".join(f"- {prose(one)}" for one in re.split(r"\n- ", items)))
    return "\n\n".join(made)


def _list(text: str) -> str:
    entries: list[str] = []
    for line in text.splitlines():
        if line.startswith(" ") and entries:
            entries[-1] += f" {line.strip()}"
        elif line.strip():
            entries.append(line)
    if not any(_ENTRY.match(entry) for entry in entries):
        return prose(" ".join(entries))
    shown = ((_ENTRY.match(entry), entry) for entry in entries)
    return "\n".join(
        f"- {code(found[1])}: {prose(found[2])}" if found else f"- {prose(entry)}" for found, entry in shown
    )
