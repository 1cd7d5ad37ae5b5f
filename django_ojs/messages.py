"""Keep the template and the values of an English message, so that it can be translated later.

The protocol, logs and exceptions use the English message. The admin shows it in the user's language: it looks up the
template in its catalogue, and inserts the values again.
"""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext


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


def translated(text: object) -> str:
    """A `Phrase` from the catalogue, with its values, which may be some themselves; anything else as it is."""
    if not isinstance(text, Phrase):
        return str(text)
    return gettext(text.template) % {name: translated(value) for name, value in text.values.items()}


def packed(text: str) -> Any:
    """A `Phrase` as JSON that `unpacked` reads again; any other text as it is."""
    if not isinstance(text, Phrase):
        return text
    values = {name: packed(value) if isinstance(value, str) else value for name, value in text.values.items()}
    return {"template": str(text.template), "values": values}


def unpacked(value: Any) -> str:
    """What `packed` wrote."""
    if not isinstance(value, dict):
        return str(value)
    return phrase(value["template"], **{name: unpacked(one) for name, one in value["values"].items()})


def count(number: int, one: str, several: str = "") -> str:
    """`1 worker`, `2,000 workers`, where `one` is `worker`; `several` is for words that do not end in `s`."""
    return f"{number} {one}" if number == 1 else f"{number:,} {several or one + 's'}"


def shown(value: object, most: int = 80) -> str:
    """A caller's value as Python writes it, at most so many characters; its type where that cannot be written."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - more digits than Python writes, too deep, or an object of the site's
        text = f"<{type(value).__name__}>"
    return text if len(text) <= most else f"{text[: most - 1]}…"


def with_article(noun: str) -> str:
    """`a uuid.UUID`, `an object`."""
    return f"{'an' if noun[0] in 'aeioAEIO' else 'a'} {noun}"


def jobs(number: int) -> str:
    """`1 job`, `2,000 jobs`."""
    return count(number, "job")


def jobs_run(number: int, adverb: str = "") -> str:
    """`1 job is running`, `2 jobs are running`; with the adverb `still`, `2 jobs are still running`."""
    return " ".join(filter(None, (jobs(number), "is" if number == 1 else "are", adverb, "running")))


def jobs_wait(number: int, which: str = "") -> str:
    """`1 job of the type a.b waits`, `2 jobs of the type a.b wait`, where `which` is ` of the type a.b`."""
    return f"{jobs(number)}{which} {'waits' if number == 1 else 'wait'}"
