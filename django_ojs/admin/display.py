"""Values as our pages show them: as HTML, in columns, and refusals in the viewer's language.

Everything that comes from a job is text here: escaped, printable, and of bounded length.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from typing import Any

from django.contrib import admin
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext, gettext_lazy, gettext_noop

from django_ojs import clock, jsontext
from django_ojs.messages import reason, translated
from django_ojs.rules.durations import parse_instant, spell
from django_ojs.rules.rows import END_OF_TIME
from django_ojs.states import State
from django_ojs.statistics.capacity import QueueFlow

NOTHING = "–"
#: Characters of one JSON value that a page shows.
MAX_CHARACTERS = 50_000
#: Values that fit in so many characters stay on one line.
LINE = 72

#: Words that the style sheet has a colour for.
_LABELS = {state.value for state in State} | {"running", "quiet", "terminate", "paused", "expired", "revoked", "silent"}


def colour_label(word: str, colour: str = "") -> SafeString:
    """A state as a coloured label; the word is always there, so that colour is never the only sign."""
    colour = colour or (word if word in _LABELS else "other")
    return format_html('<span class="ojs-label ojs-{}">{}</span>', colour, printable(word) or NOTHING)


def when(instant: dt.datetime | None) -> SafeString | str:
    """A time to the second in the site's zone; the tooltip has it exactly, in UTC."""
    if instant is None:
        return NOTHING
    if instant >= END_OF_TIME:
        return gettext("when an event comes")
    exact = instant.astimezone(dt.UTC).isoformat(timespec="milliseconds")
    short = timezone.localtime(instant).strftime("%Y-%m-%d %H:%M:%S")
    return format_html('<time class="ojs-time" datetime="{0}" title="{0}">{1}</time>', exact, short)


def instant(text: object) -> dt.datetime | None:
    """The instant that a text names; None for anything else."""
    try:
        return parse_instant(text) if isinstance(text, str) else None
    except ValueError:
        return None


def ago(instant: dt.datetime | None) -> SafeString | str:
    """How long ago something was, in its largest unit, with the time as tooltip."""
    if instant is None:
        return NOTHING
    seconds = int((clock.now() - instant).total_seconds())
    passed = " ".join(duration(seconds * 1000).split()[:2])
    text = gettext("%(time)s ago") % {"time": passed} if seconds > 0 else gettext("just now")
    exact = instant.astimezone(dt.UTC).isoformat(timespec="milliseconds")
    return format_html('<time datetime="{0}" title="{0}">{1}</time>', exact, text)


def amount(value: float | None) -> str:
    """A measured number, with one decimal."""
    return NOTHING if value is None else f"{value:,.1f}"


def count(number: int | None) -> str:
    """A number of things, as the filter `ojs_count` writes it in templates: `12,345`."""
    return NOTHING if number is None else f"{number:,}"


def duration(milliseconds: int | None) -> str:
    """A length of time as `spell` has it: `1.5 s`, `3 h 5 min`."""
    return NOTHING if milliseconds is None else spell(milliseconds)


def empty_in(flow: QueueFlow) -> str:
    """How long a queue takes to empty, as fast as it goes now; that it never does."""
    if flow.waiting <= 0:
        return NOTHING
    time = flow.empty_in
    if time is not None:
        return duration(round(time.total_seconds()) * 1000)
    return gettext("grows") if flow.growth > 0 else gettext("never")


def printable(value: object) -> str:
    """`value` as text that UTF-8 can carry: JSON may hold lone surrogates."""
    return str(value).encode("utf-8", "backslashreplace").decode()


def ellipsized(value: object, length: int = 80) -> str:
    text = " ".join(printable(value)[: length * 4].split())
    return text if len(text) <= length else text[: length - 1] + "…"


def code(text: object) -> SafeString | str:
    return format_html('<code class="ojs-code">{}</code>', printable(text)) if text else NOTHING


def codes(items: Iterable[object] | None, otherwise: str = NOTHING) -> SafeString | str:
    return format_html_join(" ", '<code class="ojs-code">{}</code>', ((printable(item),) for item in items or ())) or (
        otherwise
    )


def ends(text: str) -> SafeString:
    """A long id by both its ends, whole in the tooltip: the beginning is time, and the same for rows of one minute."""
    head = text.find("_") + 9
    return format_html('<code class="ojs-id" title="{0}">{1}…{2}</code>', text, text[:head], text[-6:])


def json(value: Any) -> SafeString | str:
    """A JSON value as the indented text of a scrolling box."""
    if value is None:
        return NOTHING
    text = pretty(value)
    hidden = len(text) - MAX_CHARACTERS
    note = "\n" + gettext("… and %(number)s more characters") % {"number": f"{hidden:,}"} if hidden > 0 else ""
    return format_html('<pre class="ojs-json" tabindex="0">{}{}</pre>', text[:MAX_CHARACTERS], note)


def pretty(value: Any, indent: str = "") -> str:
    """JSON text with line breaks where a line would get long; numbers keep the form in which they were sent."""
    if isinstance(value, dict) and value:
        items = [f"{jsontext.dumps(key)}: {pretty(item, indent + '  ')}" for key, item in value.items()]
        return _wrapped("{", items, "}", indent)
    if isinstance(value, list) and value:
        return _wrapped("[", [pretty(item, indent + "  ") for item in value], "]", indent)
    return jsontext.dumps(value)


def _wrapped(opening: str, items: list[str], closing: str, indent: str) -> str:
    if sum(map(len, items)) + 2 * len(items) + len(indent) <= LINE and not any("\n" in item for item in items):
        return f"{opening}{', '.join(items)}{closing}"
    inner = f",\n{indent}  ".join(items)
    return f"{opening}\n{indent}  {inner}\n{indent}{closing}"


def errors(history: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """A job's errors, newest first, for the template `errors.html`."""
    return [_error(entry) for entry in reversed(history or ())]


def brief(error: dict[str, Any] | None) -> tuple[str, str]:
    """The kind and the message of a job's error, for lists of failures: the one place that decides what they show."""
    error = error or {}
    return ellipsized(error.get("type") or "", 80), ellipsized(error.get("message") or "", 160)


def error_line(error: object) -> str:
    """An error object as a short line; '' for anything else."""
    if not isinstance(error, dict):
        return ""
    return ellipsized(f"{error.get('type', 'error')}: {error.get('message', '')}", 160)


Column = Callable[[Any, Any], SafeString | str]


def column(render: Callable[[Any], SafeString | str], attribute: str, description: str) -> Column:
    """A column of lists and pages that shows an attribute: `created = column(when, "created_at", "created")`.

    The description is translated when it is shown.
    """

    def render_cell(model_admin: Any, obj: Any) -> SafeString | str:
        return render(getattr(obj, attribute))

    render_cell.__name__ = attribute
    return admin.display(description=gettext_lazy(description))(render_cell)


def _error(entry: dict[str, Any]) -> dict[str, Any]:
    backtrace = entry.get("backtrace") or ""
    lines = backtrace if isinstance(backtrace, list) else [backtrace]
    return {
        "type": printable(entry.get("type") or entry.get("code") or "error"),
        "message": printable(entry.get("message") or ""),
        "attempt": entry.get("attempt"),
        "time": when(at) if (at := instant(entry.get("occurred_at"))) else "",
        "backtrace": printable("\n".join(map(str, lines)))[:MAX_CHARACTERS],
        "details": pretty(entry["details"])[:MAX_CHARACTERS] if entry.get("details") else "",
    }


#: What `NotFound` calls things.
KINDS = (
    gettext_noop("Job"), gettext_noop("Dead letter job"), gettext_noop("Queue"), gettext_noop("Worker"),
    gettext_noop("Workflow"), gettext_noop("Cron"), gettext_noop("Api key"), gettext_noop("Webhook subscription"),
    gettext_noop("Webhook delivery"), gettext_noop("Bulk action"), gettext_noop("Approval"),
)  # fmt: skip


def explain(error: Exception) -> str:
    """What an operation refused, in the viewer's language. HTTP, Python and logs have the English text (`phrase`), and
    what a site's own middleware says stays as it is."""
    return translated(reason(error))
