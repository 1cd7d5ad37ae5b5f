"""What names and patterns of names may look like (binding 1.5), and which texts a database holds."""

from __future__ import annotations

import re
from functools import lru_cache

from django_ojs.messages import phrase

MAX_TYPE_LENGTH = 255
MAX_QUEUE_LENGTH = 128
MAX_WORKER_ID_LENGTH = 255

_TYPE = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)*")
_TYPE_WITH_HYPHENS = re.compile(r"[a-z][a-z0-9_\-]*(?:\.[a-z][a-z0-9_\-]*)*")
_QUEUE = re.compile(r"[a-z0-9][a-z0-9\-.]*")
#: A URI of RFC 3986 that says more than its scheme: no spaces, no letters but ASCII's, brackets only around a host.
_SCHEMA_URI = re.compile(
    r"[A-Za-z][A-Za-z0-9+.\-]*:(?=.)"
    r"(//([A-Za-z0-9\-._~!$&'()*+,;=:]|%[0-9A-Fa-f]{2})*@?\[[0-9A-Fa-fv:.]+\](:[0-9]*)?(?![^/?#]))?"
    r"([A-Za-z0-9\-._~!$&'()*+,;=:@/?]|%[0-9A-Fa-f]{2})*"
    r"(#([A-Za-z0-9\-._~!$&'()*+,;=:@/?]|%[0-9A-Fa-f]{2})*)?"
)
_UNSTORED = re.compile(r"[\x00\ud800-\udfff]")


def is_storable(text: str) -> bool:
    """Whether a column of each database holds this text: none has NUL, or half of a surrogate pair, which UTF-8 does
    not know."""
    return _UNSTORED.search(text) is None


def storable(text: str) -> str:
    """The text without what no column holds."""
    return _UNSTORED.sub("", text)


class NameTooLong(ValueError):
    """The name has a legal form but too many characters."""


def check_type(value: object, hyphens: bool = False) -> str:
    """`value` as plain text if it is a job type; `hyphens` also allows them inside segments (dialect `published`).

    ValueError with what is allowed, NameTooLong beyond 255 characters.
    """
    if isinstance(value, str):
        if len(value) > MAX_TYPE_LENGTH:
            raise NameTooLong(
                phrase("must have at most %(most)s characters, not %(number)s", most=MAX_TYPE_LENGTH, number=len(value))
            )
        if _is_type(value, hyphens):
            return value if type(value) is str else str.__str__(value)
    if hyphens:
        raise ValueError(
            phrase(
                "must be one or more segments joined by dots, each of lowercase letters, digits, underscores and "
                "hyphens and starting with a letter, such as email.send"
            )
        )
    raise ValueError(
        phrase(
            "must be one or more segments joined by dots, each of lowercase letters, digits and underscores "
            "and starting with a letter, such as email.send"
        )
    )


@lru_cache(maxsize=1024)
def _is_type(text: str, hyphens: bool) -> bool:
    return (_TYPE_WITH_HYPHENS if hyphens else _TYPE).fullmatch(text) is not None


@lru_cache(maxsize=1024)
def _is_queue(text: str) -> bool:
    return _QUEUE.fullmatch(text) is not None


def check_queue(value: object) -> str:
    """`value` as plain text if it names a queue; ValueError with what is allowed, NameTooLong beyond 128 characters."""
    if isinstance(value, str):
        if len(value) > MAX_QUEUE_LENGTH:
            raise NameTooLong(
                phrase(
                    "must have at most %(most)s characters, not %(number)s", most=MAX_QUEUE_LENGTH, number=len(value)
                )
            )
        if _is_queue(value):
            return value if type(value) is str else str.__str__(value)
    raise ValueError(
        phrase(
            "must be lowercase letters, digits, hyphens and dots, starting with a letter or digit, such as email-high"
        )
    )


def prefix(entry: str) -> str | None:
    """What a pattern's names begin with: `mail.*` is `mail.`, `*` is ''; None where `entry` means one name exactly.

    Every filter, limit and claim reads its job types by this function, so a pattern means the same everywhere.
    """
    return entry[:-1] if entry.endswith("*") else None


def covers(entry: str, job_type: str) -> bool:
    """Whether a job type is this one, or falls under this pattern: `mail.*` covers `mail.send`, not `mail`."""
    begin = prefix(entry)
    return job_type == entry if begin is None else job_type.startswith(begin)


def is_schema_uri(text: object) -> bool:
    """Whether `text` is a URI, as `schema` must be (core 5.2): a reference without a scheme is none."""
    return isinstance(text, str) and _SCHEMA_URI.fullmatch(text) is not None


def check_worker_id(value: object) -> str:
    """`value` if it can name a worker: 1 to 255 printable characters. ValueError otherwise."""
    if isinstance(value, str) and 1 <= len(value) <= MAX_WORKER_ID_LENGTH and value.isprintable():
        return value
    raise ValueError(
        phrase("must be 1 to %(most)s printable characters, such as host-1:4711", most=MAX_WORKER_ID_LENGTH)
    )
