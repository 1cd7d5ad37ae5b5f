"""The filters of jobs with their names in each notation, from `jobs/selection.py`."""

from __future__ import annotations

from django_ojs.jobs.filterfields import COMMAND, LIST, OPERATOR, PAGE, PRODUCER, DeclaredFilter, Index, Notation
from django_ojs.jobs.selection import JobFilter, names_in
from django_ojs.states import State
from ojsdocs.markdown import code, prose, table

#: The columns of the table, by the notation.
COLUMNS = {
    LIST: "list over HTTP", OPERATOR: "operator's body", PRODUCER: "producer's body", PAGE: "admin",
    COMMAND: "commands",
}  # fmt: skip


def declared() -> dict[str, DeclaredFilter]:
    """The filters that a caller can name, by the names of their declarations."""
    called = {declaration for notation in Notation for declaration in names_in(notation).values()}
    return {name: declaration for name, declaration in JobFilter.base_filters.items() if name in called}


def render() -> str:
    rows = (
        (
            prose(f"only {declaration.help}"),
            *(_names(declaration, name, one) for one in COLUMNS),
            _index(declaration, name),
        )
        for name, declaration in declared().items()
    )
    return table(("finds", *COLUMNS.values(), "searched as"), rows)


def _names(declaration: DeclaredFilter, name: str, notation: Notation) -> str:
    names = declaration.names_in(notation, name)
    if notation is COMMAND:
        names = tuple(f"--{one.replace('_', '-')}" for one in names)
    return ", ".join(map(code, names))


def _index(declaration: DeclaredFilter, name: str) -> str:
    """What `OJS["INDEXED_FILTERS"]` calls it where lists may have to search for its jobs."""
    ended = JobFilter({"states": [State.COMPLETED]})
    return code(declaration.setting(name)) if declaration.index(ended) is Index.NONE else ""
