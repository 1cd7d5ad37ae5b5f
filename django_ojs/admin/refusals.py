"""What operations refuse, in the viewer's language: everybody else is told in English (`told`)."""

from __future__ import annotations

from django.utils.translation import gettext, gettext_noop

from django_ojs.told import Told, reason

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
    """A `Told` from the catalogue, with its values, which may be some themselves; anything else as it is."""
    if not isinstance(text, Told):
        return str(text)
    return gettext(text.template) % {name: translated(value) for name, value in text.values.items()}
