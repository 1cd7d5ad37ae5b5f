"""The public names of the packages that a site imports from."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module

MODULES = ("django_ojs", "django_ojs.testing", "django_ojs.tasks", "django_ojs.routers", "django_ojs.events.filters")


def names(module: str) -> list[str]:
    """What the module offers: `__all__`, or else its own public names."""
    found = import_module(module)
    own = [name for name, value in vars(found).items() if getattr(value, "__module__", "") == module]
    return sorted(getattr(found, "__all__", [name for name in own if not name.startswith("_")]), key=str.lower)


def render() -> str:
    return "\n".join(line for module in MODULES for line in _module(module))


def _module(module: str) -> Iterator[str]:
    yield f"## {module}\n\n```{{eval-rst}}"
    for name in names(module):
        value = getattr(import_module(module), name)
        kind = "class" if inspect.isclass(value) else "function" if callable(value) else "data"
        if inspect.isclass(value) and issubclass(value, BaseException):
            kind = "exception"
        yield f".. auto{kind}:: {module}.{name}"
        if kind in ("class", "exception"):
            yield "   :members:\n   :show-inheritance:"
        yield ""
    yield "```\n"
