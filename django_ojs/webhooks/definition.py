"""A subscription as a client writes it, checked member by member (events 6.1)."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

from django_ojs import jsontext
from django_ojs.errors import OJSError
from django_ojs.messages import phrase, reason
from django_ojs.rules import names
from django_ojs.rules.faults import fault
from django_ojs.webhooks import urls
from django_ojs.webhooks.addresses import Refused
from django_ojs.webhooks.signing import FORMATS, SignatureFormat

MAX_EVENTS, MAX_FILTERS, MAX_HEADERS = 100, 1000, 20
MAX_SECRET, MAX_HEADER, MAX_METADATA = 512, 4096, 16_384
MIN_TIMEOUT, MAX_TIMEOUT = 5, 60

_EVENT = re.compile(r"\*|[a-z_]+(?:\.[a-z_]+)*(?:\.\*)?")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")
_HEADER_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
#: Headers that are ours, or that would change what HTTP makes of the request.
_OURS = frozenset({
    "host", "content-type", "content-length", "content-encoding", "transfer-encoding", "connection", "expect", "te",
    "trailer", "upgrade", "keep-alive", "proxy-authorization", "proxy-connection", "user-agent", "accept-encoding",
})  # fmt: skip


class UrlRefused(OJSError):
    """The URL of a webhook breaks the site's policy (422)."""

    code = "invalid_url"
    status = 422
    canonical = "INVALID_PAYLOAD"
    kind = "validation_error"
    hint = "Use a public https URL, or ask the operator of this server to let the host in."


@dataclasses.dataclass
class Definition:
    """What the body says; members that it does not name are not in `given`."""

    given: frozenset[str]
    url: str = ""
    events: list[str] = dataclasses.field(default_factory=list)
    active: bool = True
    secret: str = ""
    queues: list[str] | None = None
    job_types: list[str] | None = None
    metadata: dict[str, Any] = dataclasses.field(default_factory=dict)
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    timeout_seconds: int | None = None
    signature_format: SignatureFormat = "body"


def parse(body: Mapping[str, Any], *, partial: bool = False) -> Definition:
    """Raises InvalidRequest that names the member, or `UrlRefused`. `partial`: what is absent stays as it is."""
    flat = _flat(body)
    if not partial:
        for name in ("url", "events"):
            if flat.get(name) is None:
                raise fault(name, phrase("is required"))
    values: dict[str, Any] = {}
    for name, read in _READERS.items():
        if flat.get(name) is not None:
            values[name] = read(flat[name])
        elif name in flat and name in _CLEARABLE:
            values[name] = _CLEARABLE[name]()
    return Definition(frozenset(values), **values)


def check_url(value: Any) -> str:
    if not isinstance(value, str):
        raise fault("url", phrase("must be an absolute https URL"), value)
    try:
        urls.parse(value)
    except urls.Malformed as error:
        raise fault("url", reason(error), value) from error
    except Refused as error:
        raise UrlRefused(
            phrase("%(field)s: %(problem)s.", field="url", problem=reason(error)),
            details={"field": "url", "reason": str(error)},
        ) from error
    return value


def _flat(body: Mapping[str, Any]) -> dict[str, Any]:
    """The members with those of `filter` and of a `subscription` wrapper beside them; flat ones beat the wrapper."""
    inner = body.get("subscription")
    flat = {**inner, **body} if isinstance(inner, Mapping) else dict(body)
    given = flat.get("filter", flat.get("filters"))
    if given is not None and not isinstance(given, Mapping):
        raise fault("filter", phrase("must be an object"), given)
    for name in ("queues", "job_types"):
        flat.pop(name, None)
        if "filter" in flat or "filters" in flat:  # a filter is replaced as a whole
            flat[name] = (given or {}).get(name)
    return flat


def _events(value: Any) -> list[str]:
    found = _texts("events", value, MAX_EVENTS)
    if not found:
        raise fault("events", phrase("must be an array of at least one event type"), value)
    for name in found:
        if len(name) > 64 or not _EVENT.fullmatch(name):
            raise fault("events", phrase("must hold event types such as job.completed, job.* or *"), name)
    return found


def _queues(value: Any) -> list[str] | None:
    return _names("filter.queues", value, names.check_queue)


def _job_types(value: Any) -> list[str] | None:
    """Exact types, and `mail.*` for all below `mail`."""
    return _names(
        "filter.job_types", value, lambda entry: names.check_type(str(entry).removesuffix(".*"), hyphens=True)
    )


def _names(field: str, value: Any, check: Callable[[str], str]) -> list[str] | None:
    found = _texts(field, value, MAX_FILTERS)
    for name in found:
        try:
            check(name)
        except ValueError as error:
            raise fault(field, phrase("each entry %(problem)s", problem=reason(error)), name) from error
    return found or None


def _texts(field: str, value: Any, maximum: int) -> list[str]:
    if not isinstance(value, list) or len(value) > maximum or not all(isinstance(item, str) for item in value):
        raise fault(field, phrase("must be an array of at most %(most)s texts", most=maximum), value)
    return list(dict.fromkeys(value))


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise fault("active", phrase("must be true or false"), value)
    return value


def check_secret(value: Any) -> str:
    """Any text that can be a key; what was sent is not repeated in the error."""
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_SECRET or not value.isprintable():
        raise fault("secret", phrase("must be a printable text of 1 to %(most)s characters", most=MAX_SECRET))
    return value


def _metadata(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or len(jsontext.dumps(value)) > MAX_METADATA:
        raise fault("metadata", phrase("must be an object of at most %(most)s bytes", most=MAX_METADATA), value)
    return value


def _headers(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or len(value) > MAX_HEADERS:
        raise fault("headers", phrase("must be an object of at most %(most)s headers", most=MAX_HEADERS), value)
    for name, text in value.items():
        lower = name.lower()
        if not _HEADER.fullmatch(name) or lower in _OURS or lower.startswith("x-ojs-"):
            raise fault("headers", phrase("must name headers of your own, none that HTTP or this server sets"), name)
        if not isinstance(text, str) or len(text) > MAX_HEADER or not _HEADER_VALUE.fullmatch(text):
            raise fault(
                "headers",
                phrase(
                    "the value of %(name)s must be at most %(max_header)s visible ASCII characters",
                    name=name,
                    max_header=MAX_HEADER,
                ),
            )
    if len({name.lower() for name in value}) < len(value):
        raise fault("headers", phrase("must name each header once"))
    return dict(value)


def _timeout(value: Any) -> int:
    if not jsontext.is_integer(value) or not MIN_TIMEOUT <= value <= MAX_TIMEOUT:
        raise fault(
            "timeout_seconds",
            phrase("must be an integer from %(minimum)s to %(maximum)s", minimum=MIN_TIMEOUT, maximum=MAX_TIMEOUT),
            value,
        )
    return int(value)


def _format(value: Any) -> SignatureFormat:
    if value not in FORMATS:
        raise fault("signature_format", phrase("must be one of %(words)s", words=", ".join(FORMATS)), value)
    return "body" if value == "body" else "timestamp.body"


_READERS: dict[str, Callable[[Any], Any]] = {
    "url": check_url, "events": _events, "active": _flag, "secret": check_secret, "queues": _queues,
    "job_types": _job_types, "metadata": _metadata, "headers": _headers, "timeout_seconds": _timeout,
    "signature_format": _format,
}  # fmt: skip
#: What null means for a member that may be cleared.
_CLEARABLE: dict[str, Callable[[], Any]] = {
    "queues": lambda: None, "job_types": lambda: None, "metadata": dict, "headers": dict,
    "timeout_seconds": lambda: None,
}  # fmt: skip
