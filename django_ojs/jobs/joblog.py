"""The lines that handlers log: stores them, keeps them within bounds, and reads them.

The lines of one attempt are numbered. Of an attempt that logs more than `OJS["JOB_LOG_LINES"]` lines or
`OJS["JOB_LOG_BYTES"]` bytes the first part and the last part stay, each half of the bound. The last part rolls: a new
line takes the place of its oldest. A row between the two has how many lines are missing.

Our own workers number the lines themselves, and write them in batches (`django_ojs.worker.joblogs`). Workers in other
languages send theirs (`append`), and lines of both kinds have numbers of their own.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import logging
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from django.db.models import Count, F, FloatField, Func, Max, Q, QuerySet, Sum, Value
from django.db.models.functions import Coalesce, Floor, Length

from django_ojs import clock
from django_ojs.conf import ojs_settings
from django_ojs.database import atomic, database, retried
from django_ojs.errors import InvalidRequest, NotFound
from django_ojs.models import JobLog
from django_ojs.models.fields import RawJSON
from django_ojs.packets import MOST_CHARACTERS
from django_ojs.rules import joblogs
from django_ojs.rules.rows import holds
from django_ojs.store import store_of

#: Where the numbers of the last part begin; the row that says how many lines are missing has this one.
TAIL = 2**31
#: What is added to the numbers of lines that were sent.
SENT = 2**33
BATCH = 500
_CURSOR = re.compile(r"([0-9a-f]{1,16})-([0-9a-f]{1,16})")


class LogBucket(NamedTuple):
    """Lines that were logged in the same stretch of time: how many, and the highest of their levels."""

    place: int
    lines: int
    level: int


class LogAttempt(NamedTuple):
    """One attempt of one job. `started_at` tells it from one of the same number, before a retry by hand."""

    job_id: uuid.UUID
    number: int
    started_at: dt.datetime


class LogLine(NamedTuple):
    """A line on its way to its row; `fields` is JSON text."""

    attempt: LogAttempt
    sequence: int
    time: dt.datetime
    level: int
    logger: str
    message: str
    fields: str | None = None
    exception: str = ""

    @property
    def size(self) -> int:
        return size_of(self.message, self.fields, self.exception)


@dataclasses.dataclass(slots=True)
class SentLine:
    """A line that a worker sends. `time` None: now."""

    message: str
    level: int = logging.INFO
    time: dt.datetime | None = None
    logger: str = ""
    fields: dict[str, Any] | None = None
    exception: str = ""


class LogBounds(NamedTuple):
    """How many lines, and bytes, each of the two parts of an attempt's lines may have."""

    lines: int
    size: int


def bounds() -> LogBounds:
    return LogBounds(max(1, ojs_settings.JOB_LOG_LINES // 2), max(1, ojs_settings.JOB_LOG_BYTES // 2))


def size_of(message: str, fields: str | None, exception: str) -> int:
    """What a line counts for: its characters, which are bytes for most, and some for the rest of the row."""
    return 64 + len(message) + len(fields or "") + len(exception)


# Writing


def store(lines: Sequence[LogLine], using: str) -> None:
    """Insert these lines. One that is there already stays as it is: a batch whose commit was not heard of may come
    again."""
    for batch in _batches(lines):
        rows = (_row(line) for line in batch)
        JobLog.objects.using(using).bulk_create(rows, ignore_conflicts=True)


def _batches(lines: Sequence[LogLine]) -> Iterator[list[LogLine]]:
    batch: list[LogLine] = []
    size = 0
    for line in lines:
        if batch and (len(batch) == BATCH or size + line.size > MOST_CHARACTERS):
            yield batch
            batch, size = [], 0
        batch.append(line)
        size += line.size
    if batch:
        yield batch


def _row(line: LogLine) -> JobLog:
    fields: Any = RawJSON(line.fields) if line.fields else None
    return JobLog(
        job_id=line.attempt.job_id, attempt=line.attempt.number, started_at=line.attempt.started_at,
        sequence=line.sequence, time=line.time, level=line.level, logger=line.logger, message=line.message,
        fields=fields, exception=line.exception,
    )  # fmt: skip


def drop(attempt: LogAttempt, first: int, dropped: int, using: str) -> None:
    """Delete the lines of the last part that come before the number `first`, and note that so many are missing in
    all."""
    base = SENT if first > SENT else 0
    with atomic(using=using):
        rows = _lines_of(attempt, using)
        rows.filter(sequence__gt=base + TAIL, sequence__lt=first)._raw_delete(using)
        if not rows.filter(sequence=base + TAIL).update(dropped=dropped):
            marker = JobLog(
                job_id=attempt.job_id, attempt=attempt.number, started_at=attempt.started_at, sequence=base + TAIL,
                time=clock.now(using), level=0, dropped=dropped,
            )  # fmt: skip
            JobLog.objects.using(using).bulk_create([marker], ignore_conflicts=True)


def settle(attempt: LogAttempt, using: str) -> None:
    """Bring the stored lines of an attempt within bounds, for lines whose worker did not live to do it."""
    _trim(attempt, 0, using)


def append(
    job_id: uuid.UUID, lines: Sequence[SentLine], *, worker_id: str = "", attempt: int | None = None,
    using: str | None = None,
) -> int:  # fmt: skip
    """Store the lines that a worker sends of the attempt that it runs; return how many were taken.

    None is taken where the job is not active, or another worker or another attempt has it. Raises NotFound.
    """
    return _append(job_id, lines, worker_id, attempt, using=database(using))


@retried
def _append(
    job_id: uuid.UUID, lines: Sequence[SentLine], worker_id: str, attempt: int | None, *, using: str
) -> int:  # fmt: skip
    with atomic(using=using):
        found = store_of(using).lock([job_id], columns=("id", "state", "worker_id", "attempt", "started_at"))
        if not found:
            raise NotFound.resource("job", str(job_id))
        (row,) = found
        taken = [line for line in lines if is_wanted(line.logger, line.level)] if ojs_settings.JOB_LOGS else []
        if not taken or not holds(row, worker_id, attempt):
            return 0
        mine, now = LogAttempt(job_id, row["attempt"], row["started_at"]), clock.now(using)
        numbered = _numbered(mine, taken, now, using)
        store(numbered, using)
        if numbered[-1].sequence > SENT + TAIL:
            _trim(mine, SENT, using)
        return len(taken)


def _numbered(attempt: LogAttempt, lines: Sequence[SentLine], now: dt.datetime, using: str) -> list[LogLine]:
    """These lines with the numbers that come next: of the first part while there is room, then of the last."""
    limit = bounds()
    sent = _lines_of(attempt, using).filter(sequence__gt=SENT)
    first = sent.filter(sequence__lt=SENT + TAIL).aggregate(number=Count("pk"), size=_size())
    last = sent.aggregate(last=Max("sequence"))["last"] or 0
    number, size = first["number"], first["size"] or 0
    tail = last - SENT - TAIL if last > SENT + TAIL else 0
    is_open = tail == 0
    found: list[LogLine] = []
    for line in lines:
        made = _made(attempt, line, now)
        is_open = is_open and number < limit.lines and size + made.size <= limit.size
        if is_open:
            number, size = number + 1, size + made.size
            found.append(made._replace(sequence=SENT + number))
        else:
            tail += 1
            found.append(made._replace(sequence=SENT + TAIL + tail))
    return found


def _made(attempt: LogAttempt, line: SentLine, now: dt.datetime) -> LogLine:
    limit = ojs_settings.JOB_LOG_LINE_LENGTH
    return LogLine(
        attempt, 0, line.time or now, joblogs.level_number(line.level), joblogs.text(line.logger, 255),
        joblogs.text(line.message, limit), joblogs.fields_text(line.fields, limit),
        joblogs.text(line.exception, limit) if ojs_settings.STORE_BACKTRACES else "",
    )  # fmt: skip


def _trim(attempt: LogAttempt, base: int, using: str) -> None:
    """Delete the oldest lines of the last part until it is within its bound."""
    limit = bounds()
    rows = _lines_of(attempt, using).filter(sequence__gt=base + TAIL, sequence__lt=base + TAIL * 2)
    sizes = rows.order_by("-sequence").annotate(size=_length()).values_list("sequence", "size")
    kept, size, first, last = 0, 0, 0, 0
    for sequence, length in sizes[: limit.lines]:
        if kept and size + length > limit.size:
            break
        kept, size, first, last = kept + 1, size + length, sequence, last or sequence
    if first and (dropped := last - base - TAIL - kept):
        drop(attempt, first, dropped, using)


def _length() -> Any:
    return 64 + Length("message") + Length("exception") + Coalesce(Length("fields"), 0)


def _size() -> Any:
    return Sum(_length())


def _lines_of(attempt: LogAttempt, using: str) -> QuerySet[JobLog]:
    return JobLog.objects.using(using).filter(job_id=attempt.job_id, started_at=attempt.started_at)


def is_wanted(logger: str, level: int) -> bool:
    """Whether the site stores lines of this logger and level."""
    return level >= joblogs.lowest(logger, ojs_settings.JOB_LOG_LEVEL, ojs_settings.JOB_LOG_LEVELS)


# Reading


@dataclasses.dataclass(slots=True)
class LogPage:
    """Lines of one job in their order, and where to go on."""

    lines: list[JobLog]
    cursor: str | None
    has_more: bool


#: Lines that one page has at most.
PAGE = 500


def read(
    job_id: uuid.UUID, *, attempt: int | None = None, level: int = 0, after: str | None = None, limit: int = PAGE,
    shows: Callable[[JobLog], bool] | None = None, using: str | None = None,
) -> LogPage:  # fmt: skip
    """The lines of a job behind the cursor `after`, at most `limit`.

    Args:
        level: the lowest level. Rows that say how many lines are missing come with all levels.
        shows: which lines are wanted besides, asked for each.

    Raises InvalidRequest for a cursor that is none.
    """
    using = database(using)
    place = _place(after) if after else None
    found: list[JobLog] = []
    while True:
        rows = _behind(job_id, place, attempt, level, using)
        page = list(rows[: limit + 1 if shows is None else max(limit + 1, PAGE)])
        found += page if shows is None else filter(shows, page)
        if len(found) > limit:
            found = found[: limit + 1]
            break
        if shows is None or len(page) <= limit:
            break
        place = page[-1].started_at, page[-1].sequence
    shown, has_more = found[:limit], len(found) > limit
    return LogPage(shown, cursor_of(shown[-1]) if shown else after, has_more)


def _behind(
    job_id: uuid.UUID, place: tuple[dt.datetime, int] | None, attempt: int | None, level: int, using: str
) -> QuerySet[JobLog]:  # fmt: skip
    rows = JobLog.objects.using(using).filter(job_id=job_id).order_by("started_at", "sequence")
    if place is not None:
        rows = rows.filter(Q(started_at=place[0], sequence__gt=place[1]) | Q(started_at__gt=place[0]))
    if attempt is not None:
        rows = rows.filter(attempt=attempt)
    if level:
        rows = rows.filter(Q(level__gte=level) | Q(dropped__isnull=False))
    return rows


def count(job_id: uuid.UUID, using: str) -> int:
    """How many lines of a job are kept."""
    return JobLog.objects.using(using).filter(job_id=job_id, dropped__isnull=True).count()


class Follower:
    """Reads what is new in the lines of one job, again and again: each line once, whichever writer it came from.

    Two attempts may overlap for a moment, one of a worker that has lost the job and goes on; and one attempt has two
    writers where its handler lets other programs send lines. So it knows a place for each of them.
    """

    def __init__(
        self, job_id: uuid.UUID, after: str | None = None, *, attempt: int | None = None, level: int = 0,
        using: str | None = None,
    ) -> None:  # fmt: skip
        self._job_id, self._attempt, self._level = job_id, attempt, level
        self._using = database(using)
        self._begin = _place(after) if after else None
        self._reached: dict[tuple[dt.datetime, bool], int] = {}
        self._missing: dict[dt.datetime, int] = {}

    def new(self, limit: int = PAGE) -> list[JobLog]:
        """The next lines, at most so many."""
        rows = _behind(self._job_id, self._begin, self._attempt, self._level, self._using)
        if self._reached:
            known = Q()
            for (started_at, sent), sequence in self._reached.items():
                span = Q(sequence__gt=SENT) if sent else Q(sequence__lt=SENT)
                known |= Q(started_at=started_at, sequence__lte=sequence) & span
            rows = rows.exclude(known & Q(dropped__isnull=True))
        found = [row for row in rows[:limit] if self._is_new(row)]
        for row in found:
            if row.dropped is None:
                self._reached[row.started_at, row.sequence > SENT] = row.sequence
            else:
                self._missing[row.started_at] = row.dropped
        return found

    def _is_new(self, row: JobLog) -> bool:
        """A row that says how many are missing comes again when it has grown."""
        return row.dropped is None or self._missing.get(row.started_at, 0) < row.dropped


def cursor_of(line: JobLog) -> str:
    """The place of a line, for whoever goes on behind it."""
    micros = (line.started_at - _EPOCH) // dt.timedelta(microseconds=1)
    return f"{micros:x}-{line.sequence:x}"


def is_cursor(text: str) -> bool:
    """Whether a text can be a place in a job's lines."""
    try:
        _place(text)
    except InvalidRequest:
        return False
    return True


def _place(cursor: str) -> tuple[dt.datetime, int]:
    found = _CURSOR.fullmatch(cursor)
    if found is not None:
        micros, sequence = (int(part, 16) for part in found.groups())
        if micros <= _LAST and sequence < 2**62:
            return _EPOCH + dt.timedelta(microseconds=micros), sequence
    raise InvalidRequest(
        "The cursor is none of a job's logs.", details={"field": "after"}, hint="Leave it out to begin at the start."
    )


_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_LAST = 2**57  #: microseconds: far behind the year 4000, and before 9999


# Deleting


def in_parts(ids: Sequence[uuid.UUID], most: int, using: str) -> Iterable[Sequence[uuid.UUID]]:
    """These jobs in parts that have so many lines together, or are one job: a transaction deletes a part."""
    counts = JobLog.objects.using(using).filter(job_id__in=list(ids)).values_list("job_id").annotate(Count("pk"))
    lines = dict(counts.order_by())
    if sum(lines.values()) <= most:
        return [ids]
    parts: list[list[uuid.UUID]] = [[]]
    number = 0
    for job_id in ids:
        mine = lines.get(job_id, 0)
        if parts[-1] and number + mine > most:
            parts.append([])
            number = 0
        parts[-1].append(job_id)
        number += mine
    return parts


@retried
def prune(now: dt.datetime, batch: int, using: str) -> int:
    """Delete lines that are too old, at most so many, the oldest first; return how many there were."""
    edge = now - dt.timedelta(seconds=ojs_settings.JOB_LOG_RETENTION)
    oldest = JobLog.objects.using(using).order_by("pk").values_list("pk", "time")[:batch]
    doomed = [pk for pk, time in oldest if time < edge]
    if doomed:
        JobLog.objects.using(using).filter(pk__in=doomed)._raw_delete(using)
    return len(doomed)


class _Seconds(Func):
    """The seconds of an instant since 1970."""

    output_field = FloatField()

    def as_sql(self, compiler: Any, connection: Any, **context: Any) -> Any:  # type: ignore[override]
        return super().as_sql(compiler, connection, template=_SECONDS[connection.vendor], **context)


_SECONDS = {
    "postgresql": "EXTRACT(EPOCH FROM %(expressions)s)",
    # julianday() is exact to some tenths of a millisecond only
    "sqlite": "(ROUND((julianday(SUBSTR(%(expressions)s, 1, 19)) - 2440587.5) * 86400.0)"
    " + CAST('0' || SUBSTR(%(expressions)s, 20) AS REAL))",
    "mysql": "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', %(expressions)s) / 1000000.0)",
}


def buckets(
    job_id: uuid.UUID, first: dt.datetime, last: dt.datetime, number: int, *, using: str | None = None
) -> list[LogBucket]:
    """The lines of a job between these instants, in so many stretches of the same length; those that have any.

    The database counts, so that an answer is as large for a million lines as for a hundred.
    """
    lines = JobLog.objects.using(database(using)).filter(
        job_id=job_id, dropped=None, time__gte=first, time__lte=last
    )  # fmt: skip
    width = max((last - first) / dt.timedelta(seconds=1), 0.001) / number
    place = Floor((_Seconds(F("time")) - Value(first.timestamp())) / Value(width))
    found = lines.order_by().annotate(place=place).values("place").annotate(number=Count("pk"), top=Max("level"))
    rows = found.order_by("place").values_list("place", "number", "top")
    return [LogBucket(min(max(int(at), 0), number - 1), count, level) for at, count, level in rows]
