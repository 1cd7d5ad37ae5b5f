"""The import table of docs/architecture.md, checked over every module."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "django_ojs"

#: What anybody may import: it imports nothing of ours itself, `jsontext` included.
BASEMENT = {"states", "errors", "clock", "conf", "database", "jsontext", "messages"}
#: Place -> what its modules may import when they are loaded, besides the basement. A dotted entry is one module.
ALLOWED: dict[str, set[str]] = {
    "states": set(), "errors": {"messages"}, "messages": set(), "clock": set(), "conf": set(), "jsontext": set(),
    "database": {"errors"},
    "rules": set(),
    "models": {"rules"},
    "doubles": set(),
    "audit": {"models"},
    "store": {"models", "events.catalogue"},
    "hooks": set(),
    "events": {"models", "store", "rules", "hooks"},
    "middleware": set(),
    "webhooks": {"rules"},
    "ideas": {"models", "rules", "store", "events", "middleware",
              "statistics", "hooks", "doubles", "audit", "webhooks"},
    "statistics": {"models", "rules", "store", "jobs.rows", "workers.directory"},
    "telemetry": {"hooks", "statistics", "ideas", "events", "models", "rules", "__init__"},
    "scheduler": {"ideas", "statistics", "events", "models", "telemetry", "webhooks"},
    "registry": set(),
    "client": {"ideas", "registry", "rules"},
    "worker": {"ideas", "scheduler", "client", "registry", "middleware", "events", "models",
               "rules", "telemetry", "__init__"},
    "keys": {"models", "rules"},
    "http": {"ideas", "statistics", "events", "rules", "models", "keys",
                    "middleware", "telemetry", "webhooks", "audit", "__init__"},
    "admin": {"ideas", "statistics", "events", "rules", "models",
              "keys", "webhooks", "audit"},
    "templatetags": set(),
    "tasks": {"ideas", "client", "registry", "rules", "models", "events", "doubles"},
    "realtime": {"ideas", "statistics", "events", "rules", "models", "keys", "http",
                 "scheduler.service"},
    "urls": {"http", "realtime"},
    "checks": set(),
    "routers": set(),
    "apps": set(),
    "__init__": set(),
}  # fmt: skip
#: Places that put the others together, and may import everything.
TOP = {"management", "testing", "conformance"}
#: The folders of the ideas, which make one place: each verb of one may need another.
IDEAS = {"jobs", "queues", "limits", "cron", "workflows", "workers", "webhooks"}
#: Those modules of `webhooks` that need no database are a place of their own, below.
WITHOUT_DATABASE = {"addresses", "transport"}
#: Imports inside a function or for types only, against the direction of the table: each is a knot to know of.
LATE: dict[str, set[str]] = {
    "__init__": {"client"},  # the public names, on first use
    "apps": {"checks", "models", "registry", "tasks", "telemetry"},
    "hooks": {"events", "rules"},  # for types
    "checks": {"middleware", "models", "rules", "registry", "webhooks"},
    "client": {"models"},
    "rules": {"models"},  # for types
    "database": {"models"},
    "templatetags": {"admin"},
}
#: Single modules that reach further than their place.
EXCEPTIONS: dict[str, set[str]] = {
    "http.testhooks": {"testing.database"},
    "http.manifest": {"conformance.claim"},  # what a recorded run has shown
    "admin.event": {"http.sockets"},
    "admin.live": {"http.sockets"},  # where the page finds the binding's WebSocket, and whether it lets its user in
    "client.sync": {"models"},  # the schedules in the code become rows
    "scheduler.scheduler": {"client.sync"},
}
#: Modules whose names begin with one of these hold no layer.
UNCHECKED = ("migrations",)


@cache
def modules() -> list[str]:
    names = [path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", ".") for path in PACKAGE.rglob("*.py")]
    return sorted(name for name in names if not name.startswith(UNCHECKED))


@cache
def tree(module: str) -> ast.Module:
    return ast.parse((PACKAGE / f"{module.replace('.', '/')}.py").read_text())


@cache
def imports(module: str) -> tuple[tuple[str, bool], ...]:
    """Every module of ours that this one imports, and whether only late: in a function, or for types."""
    found: list[tuple[str, bool]] = []
    pending: list[tuple[ast.AST, bool]] = [(tree(module), False)]
    while pending:
        node, late = pending.pop()
        late = late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or _for_types(node)
        found += [(name, late) for name in _named(node)]
        pending += [(child, late) for child in ast.iter_child_nodes(node)]
    return tuple(found)


def _for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _named(node: ast.AST) -> list[str]:
    """`from django_ojs.a import b` names a.b if that is a module, else a; `import django_ojs` names __init__."""
    if isinstance(node, ast.Import):
        full = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        assert not node.level, "imports name their module in full"
        full = [f"{node.module}.{alias.name}" for alias in node.names]
    else:
        return []
    return [_module(name) for name in full if f"{name}.".startswith("django_ojs.")]


@cache
def _module(name: str) -> str:
    parts = name.split(".")[1:]
    while parts and not (PACKAGE / "/".join(parts)).with_suffix(".py").exists():
        if (PACKAGE / "/".join(parts) / "__init__.py").exists():
            break
        parts.pop()
    return ".".join(parts) or "__init__"


def place(module: str) -> str:
    folder, _, name = module.partition(".")
    if folder == "webhooks" and (not name or name in WITHOUT_DATABASE):
        return "webhooks"
    return "ideas" if folder in IDEAS else folder


def covered(module: str, allowed: set[str]) -> bool:
    return place(module) in allowed or module in allowed


CHECKED = [module for module in modules() if place(module) not in TOP]


def test_every_place_is_in_the_table() -> None:
    assert set(ALLOWED) == {place(module) for module in CHECKED}
    assert set(ALLOWED) >= BASEMENT


def test_modules_import_only_what_their_place_may() -> None:
    wrong = {module: names for module in CHECKED if (names := _too_much(module))}
    assert wrong == {}, "see the table in docs/architecture.md"


def _too_much(module: str) -> set[str]:
    here = place(module)
    allowed = ALLOWED[here] | EXCEPTIONS.get(module, set()) | {here}
    if here not in BASEMENT:
        allowed |= BASEMENT
    late = allowed | LATE.get(here, set())
    return {name for name, is_late in imports(module) if not covered(name, late if is_late else allowed)}


def test_no_knot_is_allowed_in_vain() -> None:
    """An exception that nobody needs any more hides the day when somebody does."""
    for table in (LATE, EXCEPTIONS):
        for here, entries in table.items():
            found = {name for module in CHECKED if here in (module, place(module)) for name, _ in imports(module)}
            assert {entry for entry in entries if not any(covered(name, {entry}) for name in found)} == set(), here


def test_the_layers_below_the_bindings_know_no_binding() -> None:
    for module in CHECKED:
        if place(module) not in {"http", "admin", "urls", "realtime", "templatetags"}:
            assert {"http", "admin"}.isdisjoint(place(name) for name, _ in imports(module)), module


def test_code_that_ends_jobs_takes_their_workflows_further() -> None:
    """One verb that forgets it, and a workflow waits for ever for a member that is gone."""
    ends = ("discard", "discard_because", "expire", "cancel")
    ending = {"finish", "lose", "settle_error", "give_up", *(f"transitions.{name}" for name in ends)}
    # `push` does it for the jobs that backpressure drops; the functions of `transitions` change rows for the verbs.
    handed_on = {"queues.bounds", "jobs.transitions"}
    forgetful = set()
    for module in modules():
        called = {_called(node) for node in ast.walk(tree(module)) if isinstance(node, ast.Call)}
        if place(module) == "ideas" and called & ending and "settled" not in called:
            forgetful.add(module)
    assert forgetful == handed_on


def _called(call: ast.Call) -> str:
    function = call.func
    if not isinstance(function, ast.Attribute):
        return getattr(function, "id", "")
    of_transitions = isinstance(function.value, ast.Name) and function.value.id == "transitions"
    return f"transitions.{function.attr}" if of_transitions else function.attr
