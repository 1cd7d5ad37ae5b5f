"""Keep the template and the values of an English message, so that it can be translated later.

The protocol, logs and exceptions use the English message. The admin shows it in the user's language: it looks up the
template in its catalogue, and inserts the values again.
"""

from __future__ import annotations

from typing import Any


class Phrase(str):
    """An English sentence, or a part of one. `values` may hold others."""

    __slots__ = ("template", "values")
    template: str
    values: dict[str, Any]


def phrase(template: str, **values: Any) -> Phrase:
    """`template % values`. The template is the sentence's key in catalogues: write it out where this is called."""
    text = Phrase(template % values if values else template)
    text.template, text.values = template, values
    return text


def reason(error: Exception) -> str:
    """The message that an exception was raised with, with its template and values, which `str(error)` would lose."""
    return error.args[0] if error.args and isinstance(error.args[0], Phrase) else str(error)


def jobs(number: int) -> str:
    """`1 job`, `2,000 jobs`."""
    return f"{number} job" if number == 1 else f"{number:,} jobs"


def jobs_wait(number: int, which: str = "") -> str:
    """`1 job of the type a.b waits`, `2 jobs of the type a.b wait`, where `which` is ` of the type a.b`."""
    return f"{jobs(number)}{which} {'waits' if number == 1 else 'wait'}"
