"""The filters of jobs with their names in each notation, from `jobs/selection.py`."""

from __future__ import annotations

from django_ojs.jobs.filterfields import COMMAND, LIST, OPERATOR, PAGE, PRODUCER, Index, Member, Notation
from django_ojs.jobs.selection import JobFilter, names_in
from django_ojs.states import State
from ojsdocs.markdown import code, prose, table

#: The columns of the table, by the notation.
COLUMNS = {
    LIST: "list over HTTP", OPERATOR: "operator's body", PRODUCER: "producer's body", PAGE: "admin",
    COMMAND: "commands",
}  # fmt: skip


def declared() -> dict[str, Member]:
    """The filters that a caller can name, by the names of their declarations."""
    called = {member for notation in Notation for member in names_in(notation).values()}
    return {name: member for name, member in JobFilter.base_filters.items() if name in called}


def render() -> str:
    rows = (
        (prose(f"only {member.help}"), *(_names(member, name, one) for one in COLUMNS), _index(member, name))
        for name, member in declared().items()
    )
    return table(("finds", *COLUMNS.values(), "searched as"), rows)


def _names(member: Member, name: str, notation: Notation) -> str:
    names = member.names_in(notation, name)
    if notation is COMMAND:
        names = tuple(f"--{one.replace('_', '-')}" for one in names)
    return ", ".join(map(code, names))


def _index(member: Member, name: str) -> str:
    """What `OJS["INDEXED_FILTERS"]` calls it where lists may have to search for its jobs."""
    ended = JobFilter({"states": [State.COMPLETED]})
    return code(member.setting(name)) if member.index(ended) is Index.NONE else ""
