"""Which dead letters are meant, the same for whoever acts on all that fit: by type, queue and error, up to a moment;
and the event of one more."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping

from django.db.models import Q, QuerySet

from django_ojs import jsontext
from django_ojs.conf import ojs_settings
from django_ojs.events import catalogue
from django_ojs.events.catalogue import Record
from django_ojs.models import Job
from django_ojs.models.job import JobRow
from django_ojs.policies import redaction
from django_ojs.policies.durations import format_instant, parse_instant

#: Characters of a text that is looked for: databases have a limit for patterns.
LONGEST = 1000
_TEXTS = ("type", "queue", "error")


@dataclasses.dataclass(frozen=True, slots=True)
class Filter:
    """Which dead letters are meant: a type (or `mail.*`), a queue, a text in their errors; not newer than `until`."""

    type: str = ""
    queue: str = ""
    error: str = ""
    until: dt.datetime | None = None

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Filter:
        """From the parameters of a request; an unreadable time counts as none."""
        texts = {name: given.get(name, "").replace("\0", "").strip()[:LONGEST] for name in _TEXTS}
        try:
            until = parse_instant(given["until"]) if given.get("until") else None
        except ValueError:
            until = None
        return cls(**texts, until=until)

    def fields(self) -> dict[str, str]:
        """What `of` reads this filter from."""
        texts = {name: getattr(self, name) for name in _TEXTS if getattr(self, name)}
        return texts | ({"until": format_instant(self.until)} if self.until else {})

    def jobs(self, using: str | None = None) -> QuerySet[Job]:
        found = Job.objects.using(using).dead_letters().filter(named("type", self.type) & named("queue", self.queue))
        if self.error:
            found = found.filter(telling(self.error))
        return found.filter(finished_at__lte=self.until) if self.until else found


def added(row: JobRow, now: dt.datetime, component: str) -> list[Record]:
    """What tells that a job which has just been discarded is a dead letter now; nothing unless the site asks for it."""
    if not (ojs_settings.EXTENSION_EVENTS and row["dead_letter"]):
        return []
    return [catalogue.of_job("dead_letter.added", row, now, component)]


def named(field: str, value: str) -> Q:
    """Rows with this name: `mail.*` means what begins with `mail.`; nothing means all."""
    if value.endswith("*"):
        return Q(**{f"{field}__startswith": value[:-1]})
    return Q(**{field: value}) if value else Q()


def telling(text: str) -> Q:
    """`mentions`, for whoever acts on what fits. Where the site hides anything, the text has to be an error's type,
    which is never hidden: else one could find out the rest by asking what fits."""
    return mentions(text) if redaction.active() is None else typed(text)


def typed(name: str) -> Q:
    """Jobs with an error of this type. Errors are stored with their type and code first (`policies.errorobjects`)."""
    return Q(errors__contains=f'{{"type":{jsontext.dumps(name)},"code":')


def mentions(text: str) -> Q:
    """Jobs in whose errors this text is, as they are stored."""
    return Q(errors__contains=jsontext.dumps(text)[1:-1])
