"""Describes the parameters of a query, and the headers of answers, for the OpenAPI document."""

from __future__ import annotations

from typing import Any

from django_ojs.jobs.filterfields import LIST, DeclaredFilter
from django_ojs.jobs.selection import JobFilter, names_in

#: The schemas of the parameters of a query that are no texts.
_PARAMETERS: dict[str, dict[str, Any]] = {
    **{name: {"type": "integer", "minimum": 1} for name in ("limit", "page", "per_page", "attempt")},
    **{name: {"type": "integer", "minimum": 0} for name in ("offset", "timeout")},
    **{name: {"type": "boolean"} for name in ("wait", "confirm", "dry_run", "cancel_active")},
}

#: The headers that answers may have: what each says, and the schema of those that are no texts.
_NUMBER: dict[str, Any] = {"type": "integer", "minimum": 0}
_HEADERS: dict[str, tuple[str, dict[str, Any]]] = {
    "OJS-Version": ("The version of the specification.", {}),
    "X-OJS-Version": ("The same, by the name of older clients.", {}),
    "X-Request-Id": ("The id of the request: the one that the client sent, or a new one.", {}),
    "X-Content-Type-Options": ("`nosniff`: the media type is as it says.", {}),
    "Cache-Control": ("Whether a cache may keep the answer.", {}),
    "Location": ("The path of what was made.", {}),
    "Retry-After": ("After how many seconds the call is worth another try.", _NUMBER),
    "WWW-Authenticate": ("Which credentials are needed.", {}),
    "Content-Disposition": ("The name of the file that it is.", {}),
    "Last-Modified": ("When it changed last.", {}),
    "Idempotency-Replayed": ("`true`: this answers an earlier request with the same `Idempotency-Key`.", {}),
    "X-RateLimit-Limit": ("How many jobs may start within the window of the limit that the new job is under.", _NUMBER),
    "X-RateLimit-Remaining": ("How many of them are left.", _NUMBER),
    "X-RateLimit-Reset": ("When the window begins anew, in seconds since 1970 (UTC).", _NUMBER),
    "X-OJS-Batch-Size": ("How many jobs the request named.", _NUMBER),
    "X-OJS-Max-Batch-Size": ("How many it may name.", _NUMBER),
    "X-OJS-Queue-Depth": ("How many jobs wait in the fullest of the queues that were pushed to.", _NUMBER),
    "X-OJS-Queue-Bound": ("How many that queue takes.", _NUMBER),
    "X-OJS-Queue-Pressure": ("The share of its bound that is used, such as `0.85`.", {"type": "number", "minimum": 0}),
    "X-OJS-Progress": ("The progress of the job in percent.", {"type": "number", "minimum": 0, "maximum": 100}),
    "X-OJS-Limit-Clamped": ("`true`: the limit that was asked for is above the largest, which was used.", {}),
}
#: Those of every answer, and those that errors of a status may have.
OF_ALL = ("OJS-Version", "X-OJS-Version", "X-Request-Id", "X-Content-Type-Options", "Cache-Control")
OF_ERRORS = {
    401: ("WWW-Authenticate",), 409: ("Retry-After",), 413: ("X-OJS-Batch-Size", "X-OJS-Max-Batch-Size"),
    429: ("Retry-After", "X-OJS-Queue-Depth", "X-OJS-Queue-Bound"), 503: ("Retry-After",),
}  # fmt: skip
#: Those of answers to a push: about the fullest queue, and about the limit that the job is under.
PRESSURE = "X-OJS-Queue-Depth X-OJS-Queue-Bound X-OJS-Queue-Pressure"
RATE = "X-RateLimit-Limit X-RateLimit-Remaining X-RateLimit-Reset"


def header(name: str) -> dict[str, Any]:
    """A header of answers, in the words of the document."""
    text, schema = _HEADERS[name]
    return {"description": text, "required": name in OF_ALL, "schema": schema or {"type": "string"}}


def described(*names: str) -> list[dict[str, Any]]:
    """Parameters of the query, in the words of the document. `format=json|text` is one of these two words."""
    return [_parameter(*name.partition("=")) for name in names]


def _parameter(name: str, _: str, words: str) -> dict[str, Any]:
    schema = {"type": "string", "enum": words.split("|")} if words else _PARAMETERS.get(name, {"type": "string"})
    return {"name": name, "in": "query", "schema": schema}


def of_filter(kind: type[JobFilter]) -> list[dict[str, Any]]:
    """The parameters of a list of jobs, from the declarations of its filters; a site's own may have only a name."""
    names = names_in(LIST, kind)
    return [_declared(parameter, kind.base_filters[names[parameter["name"]]]) for parameter in described(*names)]


def _declared(parameter: dict[str, Any], declared: Any) -> dict[str, Any]:
    if not isinstance(declared, DeclaredFilter):
        return parameter
    return {**parameter, "schema": declared.schema} | ({"description": declared.sentence} if declared.help else {})
