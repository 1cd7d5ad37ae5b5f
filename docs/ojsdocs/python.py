"""The public names of the packages that a site imports from."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator
from importlib import import_module

MODULES = ("django_ojs", "django_ojs.testing", "django_ojs.tasks", "django_ojs.routers", "django_ojs.events.filters")
#: What the public names take and return, and a site does not import.
SHAPES = (
    "django_ojs.client.definition.JobDefinition",
    "django_ojs.client.definition.PreparedJob",
    "django_ojs.client.options.HandlerOptions",
    "django_ojs.client.options.JobOptions",
    "django_ojs.client.options.RateWindow",
    "django_ojs.client.options.ScheduledOptions",
)


def names(module: str) -> list[str]:
    """What the module offers: `__all__`, or else its own public names."""
    found = import_module(module)
    own = [name for name, value in vars(found).items() if getattr(value, "__module__", "") == module]
    return sorted(getattr(found, "__all__", [name for name in own if not name.startswith("_")]), key=str.lower)


def render() -> str:
    shapes = [path.rpartition(".") for path in SHAPES]
    lines = [line for module in MODULES for line in _section(module, [(module, name) for name in names(module)])]
    return "\n".join([*lines, *_section("What these take and return", [(module, name) for module, _, name in shapes])])


def _section(title: str, members: list[tuple[str, str]]) -> Iterator[str]:
    yield f"## {title}\n\n```{{eval-rst}}"
    for module, name in members:
        yield from _directive(module, name)
    yield "```\n"


def _place(module: str) -> int:
    return MODULES.index(module) if module in MODULES else 0


def _directive(module: str, name: str) -> Iterator[str]:
    value = getattr(import_module(module), name)
    if not inspect.isclass(value):
        yield f".. autofunction:: {module}.{name}\n"
        return
    yield f".. auto{'exception' if issubclass(value, BaseException) else 'class'}:: {module}.{name}\n   :members:"
    if any(getattr(import_module(earlier), name, None) is value for earlier in MODULES[: _place(module)]):
        yield "   :no-index:"  # two modules offer it: links lead to the first
    if typing.is_typeddict(value):  # its keys are attributes without a docstring
        yield "   :undoc-members:"
    elif value.__bases__ != (object,):
        foreign = [base.__name__ for base in value.__mro__ if not base.__module__.startswith("django_ojs")]
        yield f"   :show-inheritance:\n   :inherited-members: {', '.join(foreign)}"
    yield ""
