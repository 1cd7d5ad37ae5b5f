"""Read single values of a JSON body or a path, and refuse a faulty one with `invalid_request` and its name."""

from __future__ import annotations

import uuid
from typing import Any

from django_ojs import jsontext
from django_ojs.conf import ojs_settings
from django_ojs.errors import NotFound
from django_ojs.rules import faults, names
from django_ojs.rules.faults import checked, fault, shorten
from django_ojs.rules.ids import parse_id

#: The longest duration a request may name: ten years, in milliseconds.
MAX_DURATION_MS = 10 * 365 * 86_400_000
#: What fits the columns that hold a client's numbers.
MAX_INTEGER = 2**31 - 1


def path_id(text: str, resource: str = "job") -> uuid.UUID:
    """The job id in a path. What cannot be one is not found, rather than a bad request (binding 1.1)."""
    found = parse_id(text.lower())
    if found is None:
        raise NotFound.resource(resource, shorten(text))
    return found


def job_id(body: dict[str, Any], field: str = "job_id") -> uuid.UUID:
    """The id of the job that a body is about."""
    value = body.get(field)
    if not isinstance(value, str) or not value:
        raise fault(field, "must be the id of a job", value)
    return path_id(value)


def worker_id(body: dict[str, Any], *, required: bool = False) -> str:
    """The id of the calling worker; '' where it is optional and absent."""
    value = body.get("worker_id")
    if value is None and not required:
        return ""
    return check_worker_id(value)


def claimant(body: dict[str, Any]) -> str:
    """The id under which a worker answers for a job.

    A site that sets `STRICT_OWNERSHIP` lets no worker answer without one: else any caller that knows the id of a job
    could end it.
    """
    return worker_id(body, required=ojs_settings.STRICT_OWNERSHIP)


def check_worker_id(value: Any) -> str:
    return checked(names.check_worker_id, value, "worker_id")


def integer(body: dict[str, Any], field: str, *, minimum: int | None = None, maximum: int = MAX_INTEGER) -> int | None:
    """A whole number, `5.0` included; None where absent. Refused below `minimum`, cut to `maximum`."""
    value = body.get(field)
    if value is None:
        return None
    if not jsontext.is_integer(value):
        raise fault(field, "must be an integer", value)
    number = int(value)
    if minimum is not None and number < minimum:
        raise fault(field, f"must be at least {minimum}", value)
    return min(number, maximum)


def duration_ms(body: dict[str, Any], field: str) -> int | None:
    """Milliseconds, at least one and at most ten years; None where absent."""
    return integer(body, field, minimum=1, maximum=MAX_DURATION_MS)


def number(body: dict[str, Any], field: str) -> float | None:
    """A number of a self-description, such as memory in use; nonsense is refused."""
    value = body.get(field)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e15:
        raise fault(field, "must be a number", value)
    return float(value)


def text(body: dict[str, Any], field: str, *, maximum: int = 255) -> str | None:
    """A printable text of at most `maximum` characters; None where absent."""
    value = body.get(field)
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > maximum or not value.isprintable():
        raise fault(field, f"must be a printable text of at most {maximum} characters", value)
    return value


def flag(body: dict[str, Any], field: str) -> bool:
    """True or false; false where absent."""
    value = body.get(field)
    if value is not None and not isinstance(value, bool):
        raise fault(field, "must be true or false", value)
    return bool(value)


def member(body: dict[str, Any], field: str) -> dict[str, Any] | None:
    """An object; None where absent."""
    value = body.get(field)
    if value is not None and not isinstance(value, dict):
        raise fault(field, "must be an object", value)
    return value


def queue_name(value: Any, field: str = "queue") -> str:
    return checked(names.check_queue, value, field)


def queue_names(body: dict[str, Any], *, maximum: int = 1000) -> list[str]:
    """The queues of a FETCH: at least one, each once, in the order given."""
    value = body.get("queues")
    if not isinstance(value, list) or not value:
        raise fault("queues", "must be an array of at least one queue name", value)
    if len(value) > maximum:
        raise fault("queues", f"must not name more than {maximum} queues", value)
    return list(dict.fromkeys(queue_name(item, f"queues[{i}]") for i, item in enumerate(value)))


def texts(body: dict[str, Any], field: str, *, maximum: int = 1000) -> list[str] | None:
    """An array of short texts; None where absent."""
    value = body.get(field)
    if value is None:
        return None
    if not isinstance(value, list) or len(value) > maximum:
        raise fault(field, f"must be an array of at most {maximum} texts", value)
    for item in value:
        if not isinstance(item, str) or len(item) > 255 or not item.isprintable():
            raise fault(field, "must hold printable texts of at most 255 characters only", item)
    return value


def only(body: dict[str, Any], *names: str) -> dict[str, Any]:
    """The body of an operator's call; refused if it has other members than these."""
    faults.known_only(body, names)
    return body
