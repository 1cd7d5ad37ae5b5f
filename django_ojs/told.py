"""What was refused and why, in English, and what the sentence is made of.

The protocol, logs and exceptions say it in English. A binding for people says it in their language: it looks the
template up in its catalogue, and puts the values in again.
"""

from __future__ import annotations

from typing import Any


class Told(str):
    """An English sentence, or a part of one. `values` may hold others."""

    __slots__ = ("template", "values")
    template: str
    values: dict[str, Any]


def told(template: str, **values: Any) -> Told:
    """`template % values`. The template is the sentence's key in catalogues: write it out where this is called."""
    text = Told(template % values if values else template)
    text.template, text.values = template, values
    return text


def reason(error: Exception) -> str:
    """What an exception was raised with: its text, which `str(error)` would tell without its parts."""
    return error.args[0] if error.args and isinstance(error.args[0], Told) else str(error)
