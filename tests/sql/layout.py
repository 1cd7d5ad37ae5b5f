"""Lays SQL out in lines for a reader. Only white space changes, so what is shown is what is sent."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence

WIDTH = 110
_STEP = "    "

_TOKEN = re.compile(
    r"""(?P<space>\s*)(?P<token>
        '(?:[^']|'')*' | "[^"]*" | `[^`]*` | %\(\w+\)s | \w+ | [(),] | [^\s\w'"`(),]+
    )""",
    re.VERBOSE,
)

#: What begins a line of its own in a statement that is longer than one line.
_CLAUSES = {
    "SELECT", "INSERT", "UPDATE", "DELETE", "REPLACE", "FROM", "WHERE", "GROUP", "ORDER", "LIMIT", "SET", "VALUES",
    "RETURNING", "UNION", "FOR", "LEFT", "INNER", "CROSS", "FULL", "JOIN", "AND", "OR", "WHEN", "ELSE", "WITH", "USING",
}  # fmt: skip
#: Inside of the clause before.
_INNER = {"AND", "OR"}
#: Words after which one of the above goes on.
_GOING_ON = {
    ("LEFT", "JOIN"), ("INNER", "JOIN"), ("CROSS", "JOIN"), ("FULL", "JOIN"), ("FOR", "UPDATE"), ("DO", "UPDATE"),
    ("KEY", "UPDATE"), ("DELETE", "FROM"), ("INSERT", "OR"), ("OR", "REPLACE"), ("OR", "IGNORE"), ("UPDATE", "SET"),
    ("GROUP", "BY"),
}  # fmt: skip


@dataclasses.dataclass
class _Group:
    """What is between brackets, or between CASE and END."""

    opens: str
    closes: str = ""
    spaced: bool = False  #: whether white space is before it
    spaced_end: bool = False
    parts: list[_Part] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        inside = "".join(" " * part.spaced + str(part) for part in self.parts)
        return f"{self.opens}{inside}{' ' * self.spaced_end}{self.closes}"


@dataclasses.dataclass
class _Word:
    text: str
    spaced: bool

    def __str__(self) -> str:
        return self.text


_Part = _Group | _Word


def laid_out(sql: str) -> str:
    """The statement in lines of up to `WIDTH` characters, as far as its words let it."""
    return "\n".join(_lines(_parsed(sql), ""))


def _parsed(sql: str) -> list[_Part]:
    stack = [_Group("")]
    for found in _TOKEN.finditer(sql):
        token, spaced = found["token"], bool(found["space"])
        if token == "(" or token == "CASE":
            stack.append(_Group(token, spaced=spaced))
        elif (token == ")" and stack[-1].opens == "(") or (token == "END" and stack[-1].opens == "CASE"):
            group = stack.pop()
            group.closes, group.spaced_end = token, spaced
            stack[-1].parts.append(group)
        else:
            stack[-1].parts.append(_Word(token, spaced))
    assert len(stack) == 1, "every bracket is closed"
    return stack[0].parts


def _flat(parts: Sequence[_Part]) -> str:
    """In one line."""
    return "".join(" " * part.spaced + str(part) for part in parts).removeprefix(" ")


def _lines(parts: Sequence[_Part], indent: str) -> Iterator[str]:
    if len(indent) + len(_flat(parts)) <= WIDTH:
        yield indent + _flat(parts)
        return
    for clause in _clauses(parts):
        inner = isinstance(clause[0], _Word) and clause[0].text in _INNER
        yield from _clause_lines(clause, indent + "  " * inner)


def _clauses(parts: Sequence[_Part]) -> Iterator[list[_Part]]:
    clause: list[_Part] = []
    before = ""
    for part in parts:
        text = part.text if isinstance(part, _Word) else ""
        if clause and part.spaced and text in _CLAUSES and (before, text) not in _GOING_ON:
            yield clause
            clause = []
        clause.append(part)
        before = text
    yield clause


def _clause_lines(clause: Sequence[_Part], indent: str) -> Iterator[str]:
    """As much as fits in each line; a group that does not fit is opened."""
    begins = isinstance(clause[0], _Word) and clause[0].text in _CLAUSES - {"WITH"}
    further = indent + _STEP * begins
    line, empty = indent, True
    for piece in _pieces(clause):
        text = _flat(piece)
        space = " " * (piece[0].spaced and not empty)
        if len(line) + len(space) + len(text) <= WIDTH:
            line, empty = line + space + text, False
            continue
        if not empty:
            yield line
            line, empty = further, True
        for part in piece:
            space = " " * (part.spaced and not empty)
            if isinstance(part, _Group) and len(line) + len(space) + len(str(part)) > WIDTH:
                yield f"{line}{space}{part.opens}"
                base = line[: len(line) - len(line.lstrip())]
                yield from _lines(part.parts, base + _STEP)
                line, empty = f"{base}{part.closes}", False
            else:
                line, empty = line + space + str(part), False
    yield line


def _pieces(clause: Sequence[_Part]) -> Iterator[list[_Part]]:
    """A clause between its commas, which end a piece."""
    piece: list[_Part] = []
    for part in clause:
        piece.append(part)
        if isinstance(part, _Word) and part.text == ",":
            yield piece
            piece = []
    if piece:
        yield piece
