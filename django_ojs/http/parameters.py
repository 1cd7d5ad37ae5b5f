"""Describes the parameters of a query for the OpenAPI document."""

from __future__ import annotations

from typing import Any

from django_ojs.jobs.filterfields import LIST, Member
from django_ojs.jobs.selection import JobFilter, names_in

#: The schemas of the parameters of a query that are no texts.
_PARAMETERS: dict[str, dict[str, Any]] = {
    **{name: {"type": "integer", "minimum": 1} for name in ("limit", "page", "per_page", "attempt")},
    **{name: {"type": "integer", "minimum": 0} for name in ("offset", "timeout")},
    **{name: {"type": "boolean"} for name in ("wait", "confirm", "dry_run", "cancel_active")},
}


def described(*names: str) -> list[dict[str, Any]]:
    """Parameters of the query, in the words of the document. `format=json|text` is one of these two words."""
    return [_parameter(*name.partition("=")) for name in names]


def _parameter(name: str, _: str, words: str) -> dict[str, Any]:
    schema = {"type": "string", "enum": words.split("|")} if words else _PARAMETERS.get(name, {"type": "string"})
    return {"name": name, "in": "query", "schema": schema}


def of_filter(kind: type[JobFilter]) -> list[dict[str, Any]]:
    """The parameters of a list of jobs, from the declarations of its filters; a site's own may have only a name."""
    members = names_in(LIST, kind)
    return [_declared(parameter, kind.base_filters[members[parameter["name"]]]) for parameter in described(*members)]


def _declared(parameter: dict[str, Any], member: Any) -> dict[str, Any]:
    if not isinstance(member, Member):
        return parameter
    return {**parameter, "schema": member.schema} | ({"description": member.sentence} if member.help else {})
