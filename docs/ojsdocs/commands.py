"""The management commands, from their parsers."""

from __future__ import annotations

import argparse
import pkgutil
from collections.abc import Iterator
from importlib import import_module

from django.core.management import load_command_class
from django.core.management.base import BaseCommand

from ojsdocs.markdown import code, prose, table

#: What every command of Django takes.
COMMON = {
    option for action in BaseCommand().create_parser("manage.py", "any")._actions for option in action.option_strings
}


#: The apps with commands, and what a site has to do to have them.
APPS = {
    "django_ojs": "",
    "ojs_conformance.djangoapp": "Needs the distribution `ojs-conformance`, and `ojs_conformance.djangoapp` in "
    "`INSTALLED_APPS`, as the example project has it.",
    "benchmarks": "In a checkout only: the app `benchmarks` is not in the package that pip installs.",
}


def apps() -> dict[str, str]:
    """Every command, and the app that has it."""
    found = {}
    for app in APPS:
        commands = import_module(f"{app}.management.commands")
        found |= {one.name: app for one in pkgutil.iter_modules(commands.__path__) if one.name.startswith("ojs_")}
    return dict(sorted(found.items()))


def names() -> list[str]:
    return list(apps())


def parser(name: str) -> argparse.ArgumentParser:
    return load_command_class(apps()[name], name).create_parser("manage.py", name)


def subparsers(of: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def render() -> str:
    return "\n".join("\n".join(_command(name)) for name in names())


def _command(name: str) -> Iterator[str]:
    whole = parser(name)
    yield f"## {name}\n"
    yield prose(whole.description or "") + "\n"
    if needs := APPS[apps()[name]]:
        yield f"{needs}\n"
    yield _arguments(whole)
    for action in whole._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for verb, sub in action.choices.items():
                yield f"### {name} {verb}\n"
                yield _sentence(prose(sub.description or helps.get(verb, ""))) + "\n"
                yield _arguments(sub)


def _arguments(of: argparse.ArgumentParser) -> str:
    rows = [_row(of, action) for action in of._actions if _own(action)]
    return table(("argument", "meaning", "default"), rows) if rows else ""


def _own(action: argparse.Action) -> bool:
    if isinstance(action, argparse._SubParsersAction) or action.help == argparse.SUPPRESS:
        return False
    return not action.option_strings or not set(action.option_strings) <= COMMON


def _row(of: argparse.ArgumentParser, action: argparse.Action) -> tuple[str, str, str]:
    formatter = of._get_formatter()
    value = (
        "" if action.nargs == 0 else formatter._format_args(action, formatter._get_default_metavar_for_optional(action))
    )
    if not action.option_strings:
        shown = code(formatter._format_args(action, action.dest))
    else:
        shown = ", ".join(code(f"{option} {value}".strip()) for option in action.option_strings)
    text = formatter._expand_help(action) if action.help else ""
    told = action.default not in (None, argparse.SUPPRESS, False, [], "") and "(default" not in text
    return shown, prose(text), code(_shown(action.default)) if told else ""


def _shown(default: object) -> str:
    return " ".join(map(str, default)) if isinstance(default, list | tuple) else str(default)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?")) or not text else ".")
