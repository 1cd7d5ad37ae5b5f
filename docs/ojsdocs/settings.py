"""Every key of the `OJS` setting, from the class that types them."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import pprint
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from django_ojs.conf import FIELDS, Settings
from ojsdocs.markdown import code, prose


class Setting(typing.NamedTuple):
    section: str
    name: str
    type: str
    unit: str
    default: Any
    text: str


def settings() -> Iterator[Setting]:
    """In the order of the code."""
    source = textwrap.dedent(inspect.getsource(Settings))
    lines = source.splitlines()
    hints = typing.get_type_hints(Settings, include_extras=True)
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    section, text, end = "", "", 0
    for node in definition.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            comments = [line.strip() for line in lines[end : node.lineno - 1] if line.strip().startswith("#")]
            section = next((line[2:] for line in comments if line.startswith("# ")), section)
            # One comment may speak of several keys.
            text = " ".join(line[3:] for line in comments if line.startswith("#: ")) or text
            hint = hints[node.target.id]
            yield Setting(section, node.target.id, _type(hint), _unit(hint), _default(FIELDS[node.target.id]), text)
        end = node.end_lineno or end


def render() -> str:
    parts, section = [], ""
    for one in settings():
        if one.section != section:
            section = one.section
            parts.append(f"## {section}\n")
        shown = pprint.pformat(one.default, sort_dicts=False, underscore_numbers=True)
        if one.unit == "seconds" and isinstance(one.default, int | float):
            shown = f"{one.default:g}" if one.default < 10**6 else f"{one.default:_.0f}"
        facts = [f"Type {code(one.type)}", one.unit, f"default {code(' '.join(shown.split()))}" + _spoken(one)]
        parts.append(f"### {one.name}\n\n{', '.join(filter(None, facts))}.\n\n{prose(one.text)}\n")
    return "\n".join(parts)


def _spoken(one: Setting) -> str:
    """How long that is, where it is more than some minutes."""
    if one.unit != "seconds" or not isinstance(one.default, int | float):
        return ""
    for name, length in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if one.default >= 2 * length and one.default % length == 0:
            return f" ({one.default / length:g} {name})"
    return ""


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _unit(hint: Any) -> str:
    if typing.get_origin(hint) is Annotated:
        return str(hint.__metadata__[0])
    return next(filter(None, map(_unit, typing.get_args(hint))), "")


def _type(hint: Any) -> str:
    """As Python writes it, without the unit."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _type(arguments[0])
    if origin is typing.Literal:
        return " | ".join(map(repr, arguments))
    if origin in (types.UnionType, typing.Union):
        return " | ".join(map(_type, arguments))
    if origin is tuple:
        return f"tuple[{_type(arguments[0])}, ...]"
    if origin is not None and issubclass(origin, Mapping):
        return f"dict[{', '.join(map(_type, arguments))}]"
    return "None" if hint is type(None) else getattr(hint, "__name__", str(hint).removeprefix("typing."))
