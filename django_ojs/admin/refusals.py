"""What operations refuse, in the viewer's language. HTTP, Python and logs have the English text (`phrase`)."""

from __future__ import annotations

from django.utils.translation import gettext, gettext_noop

from django_ojs.messages import Phrase, reason

#: What `NotFound` calls things.
KINDS = (
    gettext_noop("Job"), gettext_noop("Dead letter job"), gettext_noop("Queue"), gettext_noop("Worker"),
    gettext_noop("Workflow"), gettext_noop("Cron"), gettext_noop("Api key"), gettext_noop("Webhook subscription"),
    gettext_noop("Webhook delivery"), gettext_noop("Bulk action"),
)  # fmt: skip


def local(error: Exception) -> str:
    """Why, as the viewer reads it. What a site's own middleware says stays as it is."""
    return translated(reason(error))


def translated(text: object) -> str:
    """A `Phrase` from the catalogue, with its values, which may be some themselves; anything else as it is."""
    if not isinstance(text, Phrase):
        return str(text)
    return gettext(text.template) % {name: translated(value) for name, value in text.values.items()}
