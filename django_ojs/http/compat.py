"""What single clients need beyond the spec, in one place: older shapes, doubled names, an alias in the media type."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

#: One published client looks for `application/json` in the Content-Type before it parses the body.
ALIASED_TYPE = 'application/openjobspec+json; alias="application/json"'


def wants_exact_shapes(request: HttpRequest) -> bool:
    """Whether the HTTP binding's exact shape is wanted where a superset breaks its type.

    The published clients send `OJS-Version`, the published conformance cases do not.
    """
    return "HTTP_OJS_VERSION" in request.META


def extensions(structured: dict[str, list[dict[str, str]]], request: HttpRequest) -> Any:
    """The manifest's extensions: grouped entries, or the flat list of names that older clients decode."""
    if not wants_exact_shapes(request):
        return structured
    return [entry["name"] for group in structured.values() for entry in group]


def workflow(shown: dict[str, Any], request: HttpRequest) -> dict[str, Any]:
    """A workflow or a line of a list: `active` is the word for one without a name, which the binding lacks."""
    exact = shown["state"] == "active" and wants_exact_shapes(request)
    return shown | {"state": "running"} if exact else shown


def event(envelope: dict[str, Any]) -> dict[str, Any]:
    """An event with the mirrors at its top level that dashboard, command line and SDK read when they poll."""
    data = envelope["data"]
    mirrors = {key: data[key] for key in ("job_id", "queue", "state") if key in data}
    return envelope | {"event": envelope["type"], "timestamp": envelope["time"]} | mirrors


def dead_letter(envelope: dict[str, Any]) -> dict[str, Any]:
    """A dead letter with the names that the JavaScript client and the companion document use."""
    times = {name: envelope[name] for name in ("created_at", "discarded_at") if name in envelope}
    return {"errors": [], **envelope, "total_attempts": envelope["attempt"], "metadata": times}


#: The states of a heartbeat's answer in the words of the reference servers' `directive`.
DIRECTIVES = {"running": "continue"}

#: The states of a worker in the words of the published case on graceful shutdown.
HEALTH_STATES = {"running": "running", "quiet": "draining", "terminate": "shutting_down"}


def whole(seconds: float) -> int | float:
    """Seconds as an integer where they are whole: typed clients decode integers only."""
    return int(seconds) if float(seconds).is_integer() else seconds
