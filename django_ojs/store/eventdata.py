"""Writes in SQL what the events of jobs say, so that the statements that change jobs log them too.

What that is, `events.catalogue.TEMPLATES` says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from django_ojs.events.catalogue import OF_NEW_JOBS, TEMPLATES, Fact


class Dialect(NamedTuple):
    """How one database writes what databases write differently."""

    #: The text of the instant in a column, as JSON has it, without quotes.
    instant: Callable[[str], str]
    #: The milliseconds from one column to another.
    elapsed: Callable[[str, str], str]


def values(
    type: str, dialect: Dialect, *, state: str, attempt: str, component: str = "", of: str = "",
    without: Collection[str] = (),
) -> str:  # fmt: skip
    """The columns of an event (`Record`) from the row of its job, in SQL.

    Args:
        type: one that has a template, or "" for new jobs, whose state decides.
        state, attempt: the job's after the event, in SQL.
        component: what makes the event, in SQL, where the template does not say it.
        of: the name of the job's table in the statement.
        without: facts that are left out.
    """
    table = f"{of}." if of else ""
    first = TEMPLATES[type or next(iter(OF_NEW_JOBS.values()))]
    if type:
        name, told = f"'{type}'", data(type, dialect, of=of, without=without)
    else:
        (one, available), (_, scheduled) = OF_NEW_JOBS.items()
        name = f"CASE {table}state WHEN '{one}' THEN '{available}' ELSE '{scheduled}' END"
        told = (
            f"CASE {table}state WHEN '{one}' THEN {data(available, dialect, of=of)} "
            f"ELSE {data(scheduled, dialect, of=of)} END"
        )
    worker = f"{table}worker_id" if first.of_worker else "''"
    return (
        f"{name}, {table}{first.time}, {component or repr(first.component)}, '', {table}id, {table}type, {table}queue, "
        f"{state}, {attempt}, {worker}, {table}trace_id, {table}workflow_id, {told}"
    )


def data(type: str, dialect: Dialect, *, of: str = "", without: Collection[str] = ()) -> str:
    """The data of an event as JSON text, in SQL."""
    table, template = f"{of}." if of else "", TEMPLATES[type]
    parts, text = [], "{"
    for number, fact in enumerate(one for one in template.facts if one.name not in without):
        name = f'{"," * (number > 0)}"{fact.name}":'
        quote = '"' if fact.kind in ("text", "instant") else ""
        value = _value(fact, dialect, table, template.time)
        if fact.optional:
            column = f"{table}{fact.column}"
            more = f"'{name}{quote}' || {value}" + (f" || '{quote}'" if quote else "")
            parts += [f"'{text}'"] * bool(text)
            parts.append(f"CASE WHEN {column} = '' THEN '' ELSE {more} END" if quote else f"coalesce({more}, '')")
            text = ""
        else:
            parts += [f"'{text}{name}{quote}'", value]
            text = quote
    return " || ".join([*parts, f"'{text}}}'"])


def _value(fact: Fact, dialect: Dialect, table: str, time: str) -> str:
    column = f"{table}{fact.column}"
    if fact.kind == "instant":
        return dialect.instant(column)
    return dialect.elapsed(column, f"{table}{time}") if fact.kind == "elapsed" else column
