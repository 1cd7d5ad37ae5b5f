"""Looking for jobs that no index finds: among the newest only, in slices that double, within the limits of the site.

Who searches through here says how far it looked (`Look`), so that nobody takes the newest jobs for all there are.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from django.db.models import Q, QuerySet
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from django_ojs import clock, jsontext
from django_ojs.conf import ojs_settings
from django_ojs.models import Job
from django_ojs.operations import walking
from django_ojs.operations.walking import FIRST, time_of
from django_ojs.policies import redaction
from django_ojs.policies.durations import EARLIEST, LATEST, format_instant, parse_duration_ms, parse_instant

#: Whether a job that the database found is one in truth, from its row.
Check = Callable[[dict[str, Any]], bool]


@dataclasses.dataclass(slots=True)
class Look:
    """How far a search looked.

    Attributes:
        looked: jobs, the newest; None: all that there are.
        back_to: the time of the last of them.
        ended: by what it ended: `found`, `all`, `depth` or `time`.
        further: the time `until` of a search that goes on from there.
        edge: the last of them: its id, or its end where the search goes along the ends.
    """

    looked: int | None = None
    back_to: dt.datetime | None = None
    ended: str = "all"
    further: str = ""
    edge: Any = None


def search(
    base: QuerySet[Job], along: str, rest: Q, checks: Sequence[Check], columns: Sequence[str], enough: int,
    first: int = FIRST,
) -> tuple[list[uuid.UUID], Look]:  # fmt: skip
    """The ids that fit `rest` and `checks` among the newest jobs of `base`, `along` their `id` or `finished_at`.

    It ends with `enough` (there may be more), after `OJS["SEARCH_DEPTH"]` jobs, or with the first slice that is done
    when `OJS["SEARCH_SECONDS"]` have passed.
    """
    done = walking.walk(
        base, along, lambda part: fitting(part.filter(rest), checks, columns), enough,
        depth=ojs_settings.SEARCH_DEPTH, seconds=ojs_settings.SEARCH_SECONDS, first=first,
    )  # fmt: skip
    if done.ended == "all":
        return done.found, Look()
    back_to = done.edge if isinstance(done.edge, dt.datetime) else time_of(done.edge)
    # The next search may see a job of the same instant again, and misses none.
    further = format_instant(back_to + dt.timedelta(milliseconds=1))
    return done.found, Look(done.looked, back_to, done.ended, further, done.edge)


def fitting(part: QuerySet[Job], checks: Sequence[Check], columns: Sequence[str]) -> Iterable[uuid.UUID]:
    """The ids of the jobs of `part` that pass all checks, which take these columns."""
    if not checks:
        return part.values_list("pk", flat=True)
    rows = part.values("pk", *dict.fromkeys(columns)).iterator(chunk_size=200)
    return [row["pk"] for row in rows if all(check(row) for check in checks)]


def tagged(tag: str) -> Q:
    """Jobs in whose other attributes this tag may be: `tags` of a row tells whether it is."""
    return Q(extra__contains=jsontext.dumps(tag))


def holding(text: str) -> Q:
    """Jobs in whose arguments or meta this text is, as they are stored."""
    needle = jsontext.dumps(text)[1:-1]
    return Q(args__contains=needle) | Q(meta__contains=needle)


def checks(tag: str, text: str, error: str = "") -> tuple[list[Check], list[str]]:
    """What the database cannot decide, and the columns it takes: tags are inside a JSON text, and nobody may find out
    by searching what the site hides."""
    found: list[Check] = []
    columns: list[str] = []
    hides = redaction.active() is not None
    if tag:
        found.append(lambda row: tag in tags(row["extra"]))
        columns += ["extra"]
    if hides and error:
        found.append(lambda row: _shows(error, row, "errors"))
        columns += ["type", "meta", "errors"]
    if hides and text:
        found.append(lambda row: _shows(text, row, "args", "meta"))
        columns += ["type", "meta", "args"]
    return found, columns


def tags(extra: Any) -> Any:
    """The tags among the other attributes of a job."""
    found = extra.get("tags") if isinstance(extra, dict) else None
    return found if isinstance(found, list) else ()


def moment(text: str) -> dt.datetime | None:
    """`2h` ago, an instant with its zone, or a time in the site's own; ValueError for anything else."""
    text = text.strip()
    if not text:
        return None
    try:
        return clock.now() - dt.timedelta(milliseconds=parse_duration_ms(text))
    except (ValueError, OverflowError):
        pass
    try:
        return parse_instant(text.replace(" ", "+") if text.count(":") > 2 else text)
    except ValueError:
        naive = parse_datetime(text if ":" in text else f"{text} 00:00")
    if naive is None or not EARLIEST.year < naive.year < LATEST.year:
        raise ValueError(text)
    return naive if timezone.is_aware(naive) else timezone.make_aware(naive)


def _shows(text: str, row: Mapping[str, Any], *parts: str) -> bool:
    """Whether this text is in what operators see of these parts. Databases differ about case: none counts here."""
    shown = (redaction.part(name, row[name], row["type"], row["meta"]) for name in parts)
    needle = jsontext.dumps(text)[1:-1].casefold()
    return any(needle in jsontext.dumps(value).casefold() for value in shown)
