"""The system checks: their numbers, what they say and advise, and when they run, from the code that makes them."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import NamedTuple

import django_ojs.checks
import django_ojs.tasks.discovery
import django_ojs.tasks.options
from ojsdocs.markdown import prose

MODULES = (django_ojs.checks, django_ojs.tasks.discovery, django_ojs.tasks.options)
LEVELS = {"E": "Errors", "W": "Warnings", "I": "Notes"}
_KINDS = {"Error", "Caution", "Warning", "Info"}
_TITLE = re.compile(r"\b([EWI]\d{3}) (.+?)(?=\s+[EWI]\d{3} |\s*$)", re.MULTILINE)

#: Names that a loop gives to literals.
Scope = Mapping[str, ast.expr]


class Check(NamedTuple):
    number: str
    title: str
    message: str
    hint: str
    when: str


def checks() -> list[Check]:
    titles = {number: title for module in MODULES for number, title in _TITLE.findall(module.__doc__ or "")}
    found: dict[tuple[str, str], Check] = {}
    for module in MODULES:
        for message in _messages(module):
            one = message._replace(title=titles[message.number])
            found.setdefault((one.number, one.message), one)
    return sorted(found.values())


def render() -> str:
    parts = []
    for level, title in LEVELS.items():
        parts.append(f"## {title}\n")
        for (number, about), found in groupby(checks(), lambda one: (one.number, one.title)):
            if number.startswith(level):
                parts += [f"### django_ojs.{number}: {about}\n", *map(_said, found)]
    return "\n".join(parts)


def _said(one: Check) -> str:
    return f"{prose(one.message)}\n: {prose(one.hint)} Runs {one.when}.\n"


def _messages(module: object) -> Iterator[Check]:
    tree = ast.parse(inspect.getsource(module))  # type: ignore[arg-type]
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    when = {function.name: _when(function) for function in functions}
    for function in functions:
        for callee in _called(function):  # what a registered check leaves to its helpers runs when it does
            if function.decorator_list and not when.get(callee):
                when[callee] = when[function.name]
    for function in functions:
        for call, scope in _calls(function, _assigned(function)):
            values = {word.arg: word.value for word in call.keywords}
            number = _text(values["id"], scope).removeprefix("django_ojs.")
            hint = _text(values["hint"], scope)
            yield Check(number, "", _text(call.args[0], scope), hint, when.get(function.name) or "with `check`")


def _when(function: ast.FunctionDef) -> str:
    for decorator in function.decorator_list:
        shown = ast.unparse(decorator)
        if "deploy=True" in shown:
            return "with `check --deploy`"
        if "Tags.database" in shown:
            return "with `check --database` and `migrate`"
        if "register(" in shown:
            return "with `check`"
    if function.name in ("_check_sqlite", "_check_postgresql", "_check_mysql"):  # by way of a table
        return "with `check --database` and `migrate`"
    return ""


def _called(function: ast.FunctionDef) -> set[str]:
    return {
        node.func.id for node in ast.walk(function) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }


def _assigned(function: ast.FunctionDef) -> dict[str, ast.expr]:
    """Names with one value in the function."""
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, []).append(node.value)
    return {name: values[0] for name, values in found.items() if len(values) == 1}


def _calls(node: ast.AST, scope: Scope) -> Iterator[tuple[ast.Call, Scope]]:
    """Every message that is made below `node`, once for each round of a loop over literals."""
    if isinstance(node, ast.For) and isinstance(node.target, ast.Tuple) and isinstance(node.iter, ast.Tuple):
        names = [name.id for name in node.target.elts if isinstance(name, ast.Name)]
        for item in node.iter.elts:
            assert isinstance(item, ast.Tuple)
            for child in node.body:
                yield from _calls(child, {**scope, **dict(zip(names, item.elts, strict=True))})
        return
    # Names that are given several values count as they were given last.
    body = getattr(node, "body", None)
    if isinstance(body, list):
        local = dict(scope)
        for child in body:
            if isinstance(child, ast.Assign) and isinstance(child.targets[0], ast.Name):
                local[child.targets[0].id] = child.value
            yield from _calls(child, local)
        for branch in ("orelse", "handlers", "finalbody"):
            for child in getattr(node, branch, []):
                yield from _calls(child, local)
        return
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _KINDS:
        yield node, scope
        return
    for child in ast.iter_child_nodes(node):
        yield from _calls(child, scope)


def _text(node: ast.expr, scope: Scope) -> str:
    """What an expression says; `…` for what only a running site knows."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text(part, scope) for part in parts)
        case ast.FormattedValue(value=ast.Name() as value):
            return _text(value, scope)
        case ast.Name(id=name) if name in scope:
            return _text(scope[name], {key: value for key, value in scope.items() if key != name})
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(left, scope) + _text(right, scope)
        case ast.IfExp(body=body):
            return _text(body, scope)
        case ast.Call(func=ast.Name(id="_options_hint"), keywords=words):
            options: dict[str, object] = {}
            for word in words:
                named = isinstance(word.value, ast.Name)  # a constant that the module has
                value = getattr(django_ojs.checks, ast.unparse(word.value)) if named else ast.literal_eval(word.value)
                options |= value if word.arg is None else {word.arg: value}
            return f'Set DATABASES["…"]["OPTIONS"] = {options}.'
    return "…"
