"""How large and how nested an envelope may be (binding 1.4 and 1.6)."""

from __future__ import annotations

from typing import Any

from django_ojs import jsontext
from django_ojs.errors import MetadataTooLarge, PayloadTooLarge
from django_ojs.messages import phrase
from django_ojs.rules.faults import job_fault, shorten

MAX_DEPTH = 32  #: nested arrays and objects, the envelope itself included
MAX_MEMBERS = 10_000  #: keys and values below the attributes
MAX_ARRAY = 10_000
MAX_STRING = 1_048_576  #: characters

# What the envelope's keys, its type, queue, id and punctuation add to the texts of args, meta and extra:
# well under this, so that only envelopes near the limit are serialised as a whole to be measured.
_OVERHEAD_BYTES = 1_024
_WIDEST = 4  #: bytes of a character at most, so that most texts need not be measured


def to_text(value: Any, path: str, canonical: str = "") -> str:
    """The JSON text of an attribute; InvalidPayload for what JSON cannot hold (Python callers can send it)."""
    try:
        return jsontext.dumps(value)
    except (TypeError, ValueError) as error:
        raise job_fault(
            path, phrase("must hold JSON values only (%(error)s)", error=error), canonical=canonical
        ) from error


def byte_length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def check_meta(text: str, maximum: int) -> None:
    """MetadataTooLarge where the text of `meta` has more than `maximum` bytes."""
    if len(text) * _WIDEST <= maximum:
        return
    size = byte_length(text)
    if size > maximum:
        details = {"actual_bytes": size, "max_bytes": maximum, "field": "meta"}
        raise MetadataTooLarge(
            phrase("meta takes %(size)s bytes; at most %(maximum)s are allowed.", size=size, maximum=maximum),
            details=details,
        )


def check_envelope(document: dict[str, Any], texts: tuple[str, ...], maximum: int) -> None:
    """PayloadTooLarge where `document` takes more than `maximum` bytes; `texts` are those of its attributes."""
    if sum(map(len, texts)) * _WIDEST + _OVERHEAD_BYTES <= maximum:
        return
    if sum(map(byte_length, texts)) + _OVERHEAD_BYTES <= maximum:
        return
    size = byte_length(to_text(document, "job"))
    if size > maximum:
        details = {"actual_bytes": size, "max_bytes": maximum, "field": "envelope"}
        raise PayloadTooLarge(
            phrase("The envelope takes %(size)s bytes; at most %(maximum)s are allowed.", size=size, maximum=maximum),
            details=details,
        )


def check_shape(attributes: dict[str, Any], texts: tuple[str, ...]) -> None:
    """InvalidPayload where `attributes` nest too deeply or hold too many or too long values.

    The texts tell most envelopes clean without a walk: no bracket opens nothing, no comma separates nothing.
    """
    opened = separated = longest = 0
    for text in texts:
        opened += text.count("[") + text.count("{")
        separated += text.count(",") + text.count(":")
        longest = max(longest, len(text))
    # Each container holds one value more than it has commas.
    if opened < MAX_DEPTH and opened + separated < MAX_MEMBERS and longest <= MAX_STRING:
        return
    for name, value in attributes.items():
        if jsontext.is_deeper(value, MAX_DEPTH - 1):
            raise job_fault(
                shorten(name),
                phrase("must not nest deeper than %(most)s levels, the envelope included", most=MAX_DEPTH),
            )
    _check_members(attributes)


def _check_members(attributes: dict[str, Any]) -> None:
    total = 2 * (len(attributes) - 2)  # without args and meta, so that an array of the largest size fits
    for name, value in attributes.items():
        level = [value]
        while level:
            total += sum(_members(node, name) for node in level)
            if total > MAX_MEMBERS:
                raise job_fault(
                    shorten(name),
                    phrase("must not take the envelope beyond %(most)s keys and values", most=MAX_MEMBERS),
                )
            level = [
                child for node in level for child in _children(node) if isinstance(child, str | list | tuple | dict)
            ]


def _members(node: Any, name: str) -> int:
    if isinstance(node, dict):
        return 2 * len(node)
    if isinstance(node, list | tuple):
        if len(node) > MAX_ARRAY:
            raise job_fault(
                shorten(name), phrase("must not hold an array of more than %(most)s elements", most=MAX_ARRAY)
            )
        return len(node)
    if isinstance(node, str) and len(node) > MAX_STRING:
        raise job_fault(
            shorten(name), phrase("must not hold a string of more than %(most)s characters", most=MAX_STRING)
        )
    return 0


def _children(node: Any) -> Any:
    if isinstance(node, dict):
        return [*node, *node.values()]
    return node if isinstance(node, list | tuple) else ()
