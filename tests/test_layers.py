"""The strata of docs/architecture.md, held against the imports of every module."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

from django_ojs.lifecycle import ended
from tests.sources import PACKAGE, nodes, trees

#: From below. A module may import its own stratum and those below it, and never one above.
STRATA = (
    # the kernel
    """states errors messages jsontext clock conf database faults idleness lockwaits packets groupcommit backoff garbage
    guard hooks output parts middleware registry routers rules signals envelope spellings tenants""",
    "models store events",  # the rows
    "lifecycle",
    "queues limits statistics webhooks workerregistry access audit keys",  # what jobs go by
    "jobs",  # the verbs
    "workflows cron outbox retention",  # what is made of jobs
    """__init__ apps checks urls client worker tasks scheduler telemetry http realtime grpc admin templatetags
    management doctor alerts testing""",  # the faces
)
STRATUM = {place: number for number, places in enumerate(STRATA) for place in places.split()}
LIFE, VERBS = STRATUM["lifecycle"], STRATUM["cron"]
#: What reaches above its stratum all the same, for types or when it is called.
UPWARDS = {
    ("database", "models"),  # Django may not have loaded them when a site's settings import the module
    ("hooks", "events"),  # for types
    ("rules", "models"),  # for types: `render` is given rows
    ("spellings", "models"),  # for types
}
#: Rules are pure: of the kernel they may use these.
PURE = {"states", "errors", "messages", "jsontext", "clock", "conf", "rules"}
#: Faces that no others know than these. A site may leave out each of them but `http`.
ONLY_FOR = {
    "admin": {"templatetags"},
    "grpc": {"management", "checks", "testing"},
    "http": {"admin", "urls", "realtime", "grpc", "management", "testing"},
    "testing": {"management"},  # ojs_testserver
}
#: Modules that import another of ours inside a function.
LATE = {
    # Loaded before Django's models: by settings, by INSTALLED_APPS, or by a models.py that enqueues or has tasks.
    "apps", "database", "client.approvals", "client.definition", "client.durableevents", "client.handle",
    "client.locks", "client.workflow",
    "tasks.backend", "tasks.discovery", "tasks.options", "tasks.results", "templatetags.ojs_admin", "realtime.asgi",
    "realtime.handler", "telemetry.logs", "testing.plugin",
    # Loaded only where it is used, because it is large or needs a package that may be missing.
    "http.openapi", "management.commands.ojs_grpc", "management.commands.ojs_jobs", "telemetry.__init__",
    "telemetry.pushes", "telemetry.tracing", "testing.server",
}  # fmt: skip


@cache
def modules() -> list[str]:
    names = [path.removesuffix(".py").replace("/", ".") for path in trees()]
    return sorted(name for name in names if not name.startswith("migrations"))


def tree(module: str) -> ast.Module:
    return trees()[f"{module.replace('.', '/')}.py"]


def walked(module: str) -> tuple[ast.AST, ...]:
    return nodes(f"{module.replace('.', '/')}.py")


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
    return module.partition(".")[0]


def test_every_place_is_in_one_stratum() -> None:
    assert set(STRATUM) == {place(module) for module in modules()}
    assert len(STRATUM) == len(" ".join(STRATA).split())


def test_no_module_imports_a_stratum_above_its_own() -> None:
    found = {(place(module), place(name)) for module in modules() for name, _ in imports(module)}
    assert {(here, other) for here, other in found if STRATUM[other] > STRATUM[here]} == UPWARDS
    assert {other for here, other in found if here == "rules"} <= PURE | {"models"}


def test_what_reaches_upwards_is_not_loaded_with_the_module() -> None:
    loaded = {(place(module), place(name)) for module in modules() for name, late in imports(module) if not late}
    assert loaded.isdisjoint(UPWARDS)


def test_some_faces_are_known_by_few() -> None:
    for face, allowed in ONLY_FOR.items():
        knowing = {place(module) for module in modules() for name, _ in imports(module) if place(name) == face}
        assert knowing - {face} == allowed, face


def test_a_site_needs_nothing_that_only_a_checkout_has() -> None:
    """The conformance runner is a distribution of its own; tests and benchmarks are in no wheel."""
    absent = ("ojs_conformance", "tests", "benchmarks", "example_project")
    for module in modules():
        for node in walked(module):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.partition(".")[0] in absent], module


def test_imports_inside_functions_are_known() -> None:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    late = {
        module
        for module in modules()
        for node in walked(module)
        if isinstance(node, functions) and any(_named(inside) for inside in ast.walk(node))
    }
    assert late <= LATE


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports inside functions count, and those for types do not."""
    edges = {module: {name for name in _loading(tree(module)) if name != module} for module in modules()}
    while leaves := {module for module, known in edges.items() if not known & edges.keys()}:
        edges = {module: known for module, known in edges.items() if module not in leaves}
    assert not edges, sorted(edges)


def _loading(node: ast.AST) -> Iterator[str]:
    """The modules of ours that a module imports, sooner or later."""
    for child in ast.iter_child_nodes(node):
        yield from _named(child)
        if not _for_types(child):
            yield from _loading(child)


def test_those_who_follow_jobs_have_subscribed() -> None:
    followers = {
        name: sorted(function.__module__ for function in getattr(ended, name).subscribers)
        for name in ("jobs_ended", "jobs_revived", "jobs_read", "queues_claimed")
    }
    assert followers == {
        "jobs_ended": ["django_ojs.jobs.approvals", "django_ojs.workflows.advance"],
        "jobs_revived": ["django_ojs.workflows.advance"],
        "jobs_read": ["django_ojs.workflows.graphs"],
        "queues_claimed": ["django_ojs.cron.runs"],
    }


def test_code_that_ends_jobs_takes_their_workflows_further() -> None:
    """One verb that forgets it, and a workflow waits for ever for a member that is gone."""
    ends = ("discard", "discard_because", "expire", "cancel")
    ending = {"finish", "lose", "apply_retry_policy", "give_up", *(f"transitions.{name}" for name in ends)}
    # `push` does it for the jobs that backpressure drops; the functions of `transitions` change rows for the verbs.
    handed_on = {"queues.bounds", "lifecycle.transitions"}
    forgetful = set()
    for module in modules():
        called = {_called(node) for node in walked(module) if isinstance(node, ast.Call)}
        if LIFE <= STRATUM[place(module)] <= VERBS and called & ending and "jobs_ended" not in called:
            forgetful.add(module)
    assert forgetful == handed_on


def _called(call: ast.Call) -> str:
    function = call.func
    if not isinstance(function, ast.Attribute):
        return getattr(function, "id", "")
    of_transitions = isinstance(function.value, ast.Name) and function.value.id == "transitions"
    return f"transitions.{function.attr}" if of_transitions else function.attr


#: What only `faults` knows: the classes of a database's errors, and where their codes are.
JUDGED = {"DatabaseError", "DataError", "InterfaceError", "InternalError", "NotSupportedError", "OperationalError"}
JUDGED |= {"ProgrammingError", "TransactionManagementError"}
CODES = {"sqlstate", "pgcode", "sqlite_errorcode", "sqlite_errorname"}


def test_only_one_module_judges_the_errors_of_databases() -> None:
    """Others ask it. They may catch `Error`, which is all of them, and `IntegrityError`; and they may raise what they
    like."""
    found = set()
    for module in modules():
        pending: list[ast.AST] = [tree(module)] if module != "faults" else []
        while pending:
            node = pending.pop()
            name = getattr(node, "id", getattr(node, "attr", getattr(node, "value", None)))
            if name in (JUDGED if isinstance(node, ast.Name) else CODES) and isinstance(name, str):
                found.add((module, name))
            if not isinstance(node, ast.Raise):
                pending += ast.iter_child_nodes(node)
    assert found == set()


#: What a handler of IntegrityError asks, so that it takes no other constraint for a row that another has made.
SURE = {"only_if_taken", "unseen", "duplicate_of_id", "_with_free_ids", "duplicate_id"}


def test_only_a_row_that_is_there_counts_as_made_by_another() -> None:
    """A column of a newer release that may not be NULL refuses inserts, too: what says "taken" then hides it."""
    handlers = (
        (module, node)
        for module in modules()
        for node in ast.walk(tree(module))
        if isinstance(node, ast.ExceptHandler) and getattr(node.type, "id", "") == "IntegrityError"
    )
    unsure = {
        module
        for module, handler in handlers
        if not SURE & {_called(node) for node in ast.walk(handler) if isinstance(node, ast.Call)}
    }
    assert unsure == set()


#: Loops that go on after any error, and wait for nothing: each round does something else, or there are two at most.
OTHER_WORK = {
    ("lifecycle.transitions", "in_turns"), ("scheduler.webhooks", "_run"), ("worker.writer", "_report_or_refuse"),
    ("worker.keepalive", "run"),
}  # fmt: skip
ANY_ERROR = {"BaseException", "Exception", "Error", "OSError"}
#: What a loop asks how long to wait: a `Backoff` or a step of a durable job, and `database` for a few tries. The looks
#: at rights, which come by the clock whether they fail or not, have one log (`lost_rights`).
ASKED = {"failed", "waits_to_try_again", "lost_rights"}


def test_what_is_tried_again_waits_as_backoff_says() -> None:
    """A loop of its own kind soon tries without a pause, logs a line each time, or never tells that it fails."""
    found = {
        (module, function)
        for module in modules()
        for function, loop in _loops(tree(module))
        for part in ast.walk(loop)
        if _goes_on(part) and not ASKED & {getattr(node, "attr", getattr(node, "id", "")) for node in ast.walk(part)}
    }
    assert found == OTHER_WORK


def _loops(root: ast.AST, function: str = "") -> Iterator[tuple[str, ast.While]]:
    for node in ast.iter_child_nodes(root):
        name = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else function
        if isinstance(node, ast.While):
            yield name, node
        yield from _loops(node, name)


def _goes_on(part: ast.AST) -> bool:
    """Whether this part of a loop takes any error, and lets the next round begin."""
    if isinstance(part, ast.ExceptHandler):
        caught = (
            {"BaseException"}
            if part.type is None
            else {node.id for node in ast.walk(part.type) if isinstance(node, ast.Name)}
        )
        ends = isinstance(part.body[-1], ast.Raise | ast.Return | ast.Break)
        return bool(caught & ANY_ERROR) and (not ends or any(isinstance(node, ast.Continue) for node in ast.walk(part)))
    return isinstance(part, ast.With | ast.AsyncWith) and any(
        isinstance(node, ast.Name) and node.id in {"suppress_passing", *ANY_ERROR}
        for item in part.items
        for node in ast.walk(item.context_expr)
    )


BEGINNERS = {
    "Thread", "Timer", "ThreadPoolExecutor", "ProcessPoolExecutor", "start_new_thread", "create_task", "ensure_future",
    "TaskGroup", "to_thread", "run_in_executor", "Process", "Popen", "fork", "forkpty", "create_subprocess_exec",
}  # fmt: skip
#: Where threads and tasks begin that are no `Part`.
NO_PARTS = {
    # They end with what they are for: a request, a call, a stream, a step, a process that hands jobs back.
    "client.branches", "client.steps", "database", "events.ids", "grpc.eventstream", "grpc.jobstream", "grpc.server",
    "guard", "http.probes", "management.commands.ojs_grpc", "realtime.shutdown", "realtime.sse", "realtime.websocket",
    "webhooks.transport", "worker.supervisor",
    # Their owner makes others: for the next request, webhook or job, or (the hub) in its own rounds.
    "http.waits", "realtime.handler", "realtime.hub", "scheduler.webhooks", "worker.execution",
    # These make parts.
    "parts", "scheduler.service",
}  # fmt: skip


def test_what_lasts_as_long_as_its_process_is_in_the_register_of_parts() -> None:
    """A thread or task that nobody looks after ends in silence: make it a `Service` or a `LastingTask`."""
    calls = ((module, node) for module in modules() for node in walked(module) if isinstance(node, ast.Call))
    assert {module for module, call in calls if _called(call) in BEGINNERS} == NO_PARTS
