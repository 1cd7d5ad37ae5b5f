"""Finds what a code base uses of other queues, by reading its Python files; nothing of it is imported or run.

The words and what becomes of them are those of `client.otherwords`. A word counts where it comes from a package of
another queue, is used on what comes from there (an app, a scheduler, a function that is a task), or tells by itself
what it is (`.delay(...)`), in a code base that uses that queue.
"""

from __future__ import annotations

import ast
import dataclasses
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from django_ojs.client import otherwords
from django_ojs.client.otherwords import QUEUES, Word

#: Attributes that tell by themselves what they are.
_TELLING = frozenset(
    {
        "delay", "apply_async", "delay_on_commit", "apply_async_on_commit", "si", "send_task", "send_with_options",
        "message_with_options", "defer_async", "batch_defer", "enqueue_in", "enqueue_at", "add_periodic_task",
        "add_job", "scheduled_job",
    }
)  # fmt: skip
#: Calls whose keywords are options of a job or a schedule, and of these the ones that take nothing else.
_OPTIONS = frozenset(
    {
        "apply_async", "send_with_options", "configure", "using", "enqueue", "enqueue_call", "enqueue_at", "enqueue_in",
        "schedule", "cron", "async_task", "add_job",
    }
)  # fmt: skip
_ONLY_OPTIONS = frozenset({"apply_async", "send_with_options"})
#: Options that are called so here, too, or that hold the arguments.
_SAME = frozenset({"queue", "priority", "args", "kwargs", "timeout", "timezone", "cron"})
#: Options by which a task gets something of its queue's as its first parameter.
_BINDING = frozenset({"bind", "pass_context", "takes_context"})
#: Queues whose tasks are enqueued by a plain call.
_CALLED = frozenset({"huey", "background"})
#: Folders that hold no code of the site's.
_SKIPPED = frozenset({"node_modules", "site-packages", "__pycache__"})
#: What becomes of a word in a migration, which Django runs in every empty database.
_IN_MIGRATION = "nothing in a migration, but it keeps the package; see Migrations in docs/coming-from/index.md"
#: Fields of a schedule, and what to say where it restricts two of them.
_DAYS = frozenset({"day", "day_of_month", "day_of_week"})
_ONE_IS_ENOUGH = "of two days one is enough here; see Days of schedules in docs/coming-from/index.md"
#: Names, by the queue that they come from.
Names = dict[str, str]


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Use:
    """A place that uses another queue, and what it becomes; '': the table of words does not say that."""

    path: str
    line: int
    queue: str
    word: str
    ours: str


@dataclasses.dataclass(frozen=True, slots=True)
class Unread:
    """A file that is not Python as this version reads it, and why."""

    path: str
    why: str


def find_uses(root: Path) -> tuple[list[Use], list[Unread]]:
    """What the Python files below a folder use, in the order of files and lines. Raises OSError."""
    files, unread = [], []
    for path in _paths(root):
        name = path.relative_to(root).as_posix() if path != root else path.name
        try:
            files.append(_File(name, ast.parse(path.read_bytes())))
        except (SyntaxError, ValueError, RecursionError) as error:
            unread.append(Unread(name, str(error)))
    base = _CodeBase(files)
    return sorted({use for file in files for use in _Reader(base, file).uses()}), unread


def uses_by_queue(uses: Iterable[Use]) -> dict[str, list[Use]]:
    """The same by queue, in the order of `QUEUES`."""
    found: dict[str, list[Use]] = {name: [] for name in QUEUES}
    for use in uses:
        found[use.queue].append(use)
    return {name: some for name, some in found.items() if some}


def _paths(root: Path) -> Iterator[Path]:
    if not root.is_dir():
        yield root
        return
    for folder, folders, names in os.walk(root, onerror=_raise):
        folders[:] = sorted(name for name in folders if not _is_skipped(Path(folder, name)))
        yield from (Path(folder, name) for name in sorted(names) if name.endswith(".py"))


def _is_skipped(folder: Path) -> bool:
    return folder.name in _SKIPPED or folder.name.startswith(".") or (folder / "pyvenv.cfg").exists()


def _raise(error: OSError) -> None:
    raise error


def _queue_of(module: str) -> str:
    """The queue that a module belongs to; '' where it is none of another queue."""
    if f"{module}.".startswith("django.tasks."):
        return "tasks"
    package = module.partition(".")[0]
    return next((name for name, queue in QUEUES.items() if package in queue.packages), "")


_WORDS = {queue: list(otherwords.words(queue)) for queue in QUEUES}


def _word(queue: str, name: str, *, option: bool = False) -> Word | None:
    return next((one for one in _WORDS[queue] if one.word == name and one.is_option == option), None)


def _setting_word(queue: str, name: str) -> Word | None:
    """The word of a setting: its own, or one that stands for all that begin so."""
    begin = (one for one in _WORDS[queue] if one.word.endswith("_") and name.startswith(one.word))
    return _word(queue, name) or next(begin, None)


def _conf_word(queue: str, name: str) -> Word | None:
    """The word of a setting of an app (`app.conf.timezone`), which Django's settings have with a prefix."""
    prefixed = (_setting_word(queue, f"{prefix}{name.upper()}") for prefix in QUEUES[queue].settings)
    return _word(queue, name) or next(prefixed, None)


def _is_open(field: ast.expr) -> bool:
    """Whether a field of a schedule restricts nothing, or both rules about two days agree (`*/2`)."""
    return isinstance(field, ast.Constant) and (field.value is None or str(field.value).startswith("*"))


def _dotted(node: ast.AST) -> list[str]:
    """The names of `a.b.c`, and of `a.b().c`; none of anything else."""
    names: list[str] = []
    while True:
        if isinstance(node, ast.Attribute):
            names.append(node.attr)
            node = node.value
        elif isinstance(node, ast.Call):
            node = node.func
        elif isinstance(node, ast.Name):
            return [*names, node.id][::-1]
        else:
            return []


class _File:
    """A file, and what its names stand for as far as it says that itself."""

    def __init__(self, path: str, tree: ast.Module) -> None:
        self.path, self.tree = path, tree
        self.nodes = list(ast.walk(tree))
        self.imported: Names = {}  #: what comes from packages of other queues
        self.brought: dict[str, str] = {}  #: what comes from anywhere, and its own name there
        self.strangers: list[tuple[int, str, str]] = []  #: what is imported and no word: line, queue, name
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self._import(node, alias, alias.name, whole=True)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    module = node.module if node.module and not node.level else "."
                    self._import(node, alias, f"{module}.{alias.name}", whole=False)
        self.objects = {
            target.id: queue
            for node in self.nodes
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
            for queue in [self.imported.get((_dotted(node.value) or [""])[0], "")]
            for target in node.targets
            if queue and isinstance(target, ast.Name)
        }

    def _import(self, node: ast.Import | ast.ImportFrom, alias: ast.alias, full: str, *, whole: bool) -> None:
        name = alias.asname or alias.name.partition(".")[0]
        self.brought[name] = alias.name
        if queue := _queue_of(full):
            self.imported[name] = queue
            if not whole and not _word(queue, alias.name):
                self.strangers.append((node.lineno, queue, full))


#: What `mock.patch("shop.tasks.pay.delay")` names: something of a module, by its path.
_PATH = re.compile(r"\w+(\.\w+)+")


class _CodeBase:
    """What the files of a code base tell one another: which queues it uses, the apps and schedulers, and the tasks."""

    def __init__(self, files: list[_File]) -> None:
        self.queues = {queue for file in files for queue in file.imported.values()}
        self.objects: Names = {name: queue for file in files for name, queue in file.objects.items()}
        self.tasks: Names = {name: queue for file in files for name, queue in self.tasks_in(file).items()}

        self.imported: Names = {name: queue for file in files for name, queue in file.imported.items()}

    def objects_in(self, file: _File) -> Names:
        """The apps, schedulers and the like by the names that they have in a file."""
        brought = {name: self.objects[own] for name, own in file.brought.items() if own in self.objects}
        return brought | file.objects | file.imported

    def tasks_in(self, file: _File) -> Names:
        known = self.objects_in(file)
        return {
            node.name: queue
            for node in file.nodes
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            for decorator in node.decorator_list
            if (queue := _decorator(decorator, known)[0])
        }


def _decorator(node: ast.expr, known: Names) -> tuple[str, str]:
    """The queue whose task a decorator makes, and what it becomes; '' where it is another one."""
    names = _dotted(node)
    queue = known.get(names[0], "") if names else ""
    ours = next((one.ours for one in _WORDS.get(queue, ()) if one.is_decorator and one.word == names[-1]), "")
    return (queue, ours) if ours else ("", "")


class _Reader(ast.NodeVisitor):
    """Notes what one file uses."""

    def __init__(self, base: _CodeBase, file: _File) -> None:
        self._base, self._file = base, file
        self._objects = base.objects_in(file)
        self._tasks = base.tasks_in(file) | {
            name: base.tasks[own] for name, own in file.brought.items() if own in base.tasks
        }
        self._bound: Names = {}  #: first parameters of the tasks around
        self._found: list[Use] = []

    def uses(self) -> list[Use]:
        for line, queue, name in self._file.strangers:
            self._found.append(Use(self._file.path, line, queue, name, ""))
        self.visit(self._file.tree)
        if "migrations" in Path(self._file.path).parts[:-1]:
            return [dataclasses.replace(use, ours=_IN_MIGRATION) for use in self._found]
        return self._found

    def _note(self, node: ast.AST, queue: str, shown: str, ours: str) -> None:
        self._found.append(Use(self._file.path, getattr(node, "lineno", 0), queue, shown, ours.replace("`", "")))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._function(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        around = self._bound
        for decorator in node.decorator_list:
            queue, ours = _decorator(decorator, self._objects)
            if not queue:
                self.visit(decorator)
                continue
            self._note(decorator, queue, f"@{'.'.join(_dotted(decorator))}", ours)
            if isinstance(decorator, ast.Call):
                self._options(decorator, queue, unknown=queue != "scheduler")
                self._days(decorator, queue)
                for child in (*decorator.args, *decorator.keywords):
                    self.visit(child)
                if node.args.args and any(one.arg in _BINDING for one in decorator.keywords):
                    self._bound = {**self._bound, node.args.args[0].arg: queue}
        for part in (node.args, *node.body):
            self.visit(part)
        self._bound = around

    def visit_Name(self, node: ast.Name) -> None:
        queue = self._file.imported.get(node.id, "")
        if queue and (word := _word(queue, self._file.brought[node.id])):
            self._note(node, queue, word.word, word.ours)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        queue = self._queue(node)
        if queue and (word := _word(queue, node.attr)):
            self._note(node, queue, f".{node.attr}", word.ours)
        self.generic_visit(node)

    def _queue(self, node: ast.Attribute) -> str:
        """The queue whose an attribute is; '' where nothing tells that."""
        base = _dotted(node.value) or [""]
        for known in (self._bound, self._objects, self._tasks):
            if base[0] in known:
                return known[base[0]]
        if base[-1] in self._base.tasks:
            return self._base.tasks[base[-1]]
        queues = [one for one in QUEUES if one in self._base.queues and _word(one, node.attr)]
        return queues[0] if queues and node.attr in _TELLING else ""

    def visit_Call(self, node: ast.Call) -> None:
        called, name = node.func, (_dotted(node.func) or [""])[-1]
        if isinstance(called, ast.Attribute):
            queue = self._queue(called)
        else:
            queue = self._file.imported.get(name, "")
            if (task := self._tasks.get(name, "")) in _CALLED:
                self._note(node, task, f"{name}(...)", f"{name}.enqueue(...), if it shall be a job")
                self._options(node, task, unknown=False)
        if queue and name in _OPTIONS:
            self._options(node, queue, unknown=name in _ONLY_OPTIONS)
        if queue and _dotted(called)[1:] == ["conf", "update"]:
            for keyword in node.keywords:
                if keyword.arg:
                    word = _conf_word(queue, keyword.arg)
                    self._note(keyword, queue, f"{keyword.arg}=", word.ours if word else "")
        self._days(node, queue)
        self.generic_visit(node)

    def _days(self, node: ast.Call, queue: str) -> None:
        days = [one for one in node.keywords if one.arg in _DAYS and not _is_open(one.value)]
        if queue and len(days) > 1:
            self._note(node, queue, f"{days[0].arg}=, {days[1].arg}=", _ONE_IS_ENOUGH)

    def _options(self, node: ast.Call, queue: str, *, unknown: bool) -> None:
        for keyword in node.keywords:
            name = keyword.arg or ""
            word = _word(queue, name, option=True) or _word(queue, name)
            if name and name not in _SAME and (word or unknown):
                self._note(keyword, queue, f"{name}=", word.ours if word else "")

    def visit_Constant(self, node: ast.Constant) -> None:
        """A test replaces a word of another queue by the path of it."""
        if not isinstance(node.value, str) or not _PATH.fullmatch(node.value):
            return
        *path, name = node.value.split(".")
        queue = self._base.tasks.get(path[-1], "") or self._base.imported.get(name, "")
        if queue and (word := _word(queue, name)):
            self._note(node, queue, f'"{node.value}"', word.ours)

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._setting(target)
            if _dotted(target) == ["INSTALLED_APPS"]:
                self._apps(node.value)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._setting(node.target)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if _dotted(node.target) == ["INSTALLED_APPS"]:
            self._apps(node.value)
        self.generic_visit(node)

    def _setting(self, target: ast.expr) -> None:
        """A setting of Django's, or of an app (`app.conf.timezone = ...`)."""
        names = _dotted(target) or [""]
        if len(names) == 3 and names[1] == "conf" and (queue := self._objects.get(names[0], "")):
            if not _word(queue, names[2]):  # else the attribute is noted
                word = _conf_word(queue, names[2])
                self._note(target, queue, ".".join(names), word.ours if word else "")
        elif len(names) == 1 and names[0].isupper():
            for queue, facts in QUEUES.items():
                word = _setting_word(queue, names[0])
                if names[0].startswith(facts.settings) or (word and queue in self._base.queues):
                    self._note(target, queue, names[0], word.ours if word else "")

    def _apps(self, value: ast.expr) -> None:
        for node in ast.walk(value):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and (queue := _queue_of(node.value)):
                self._note(
                    node,
                    queue,
                    f'"{node.value}"',
                    "nothing: remove the app when no job and no migration needs it",
                )
