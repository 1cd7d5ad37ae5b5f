"""Put the events of the log in one order after their commit, so that no reader ever misses an event.

An id is given out when a row is written, but others see the row when its transaction commits, when rows with higher
ids may have been read already. And a reader that waited for all that still write would hang on the longest transaction.
So the order is given to what has *become visible*:

- SQLite has one writer at a time: ids are commit order already.
- PostgreSQL: every event knows its transaction. One pass compares the current snapshot with that of the
  last pass, finds the transactions that became visible in between and numbers them (`EventCommit`), one
  small row a transaction, in the order of their last events: who changed a job after another's commit wrote
  at least that event after it, though it may have begun to write before. Readers go by (number of the
  transaction, id).
- Elsewhere a pass stamps the newly visible rows with a running number (`Event.seq`).

A pass is short and a transaction of its own, serialised by the lock of the log's single row. The scheduler runs one
continuously, and a reader before it reads. Inside a caller's transaction there is no pass: it would hold the lock until
the caller commits, and all readers would wait for that. A reader there sees what was in order already, on PostgreSQL
and MariaDB without the events that its own transaction has written.

A `LogPosition` says where a reader is in the order, as a value that outlives the row it was taken from.

The history can change under its readers: an asynchronous failover loses the newest rows, a restore puts an older log in
the place of the log, and what comes then takes the ids and numbers of what is lost. So a place is trusted only with
the event that the reader saw there, whose id and time it has kept (`find`, `is_there`).
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
import time
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from django.db import Error, connections
from django.db.models import F, Q, QuerySet
from django.db.models.expressions import RawSQL

from django_ojs.database import atomic, commits_later
from django_ojs.events.ids import log_row
from django_ojs.faults import HeldByAnother, is_contention, is_not_offered, is_refused
from django_ojs.models import Event, EventCommit, EventLog

_EVENT, _COMMIT, _LOG = (m._meta.db_table for m in (Event, EventCommit, EventLog))
_STAMP_BATCH = 1000

#: The current snapshot, in which our own transaction counts as running: PostgreSQL leaves it out, but events
#: that it writes after this pass must be found by a later one.
_SNAPSHOT = """SELECT least(lowest, own) || ':' || ends || ':' || coalesce(
    (SELECT string_agg(x::text, ',' ORDER BY x) FROM (
        SELECT xip::text::bigint AS x FROM pg_snapshot_xip(seen) AS xip UNION SELECT own WHERE own < ends
    ) AS running), '')
FROM (SELECT pg_current_snapshot() AS seen, pg_current_xact_id()::text::bigint AS own,
    pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS lowest,
    pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS ends) AS now"""


#: Seconds in which a reader gets what was committed before in order, by waiting for the pass of another connection and
#: by passes of its own. A pass takes milliseconds: only a connection that hangs in the middle of one takes so long.
PATIENCE = 5.0
#: Seconds for which a pass may stand still before the database ends it. It is less than readers wait, so they are not
#: held up by a process that is stopped, or by a machine that is suspended.
IDLE_SECONDS = 2


def advance(using: str) -> int:
    """Put newly committed events in order, if no other connection is at it.

    Returns how many transactions or events were numbered; 0 in a caller's transaction, where there is no pass.
    """
    return 0 if commits_later(using) else _pass(using) or 0


def catch_up(using: str, *, strict: bool = True) -> None:
    """Put everything that was committed before this call in order, so that a reader finds it.

    A pass of another connection that is under way may have begun before; so this waits for its end, and makes one of
    its own. In a caller's transaction nothing is done.

    Args:
        strict: raise rather than return when that is not achieved within `PATIENCE`. False for readers, who come back
            for what is behind their place; what is not in order yet is not there for them, and nothing is passed.

    Raises:
        HeldByAnother: `strict`, and the order could not be had in time.
    """
    if commits_later(using):
        return
    began = time.monotonic()
    numbered = _pass(using)
    while numbered is None or numbered >= _STAMP_BATCH:  # one pass may not be enough
        left = began + PATIENCE - time.monotonic()
        if left <= 0:
            if strict:
                raise HeldByAnother(
                    f"The newest events could not be put in order within {PATIENCE:g} s: another connection holds the"
                    " event log."
                )
            return
        numbered = _pass(using, wait=left if numbered is None else None)


def unordered_since(using: str) -> dt.datetime | None:
    """The time of the earliest event that is committed and that no pass has put in order; None where there is none.

    It looks at a thousand of them at most, by an index, and makes no pass.
    """
    vendor = connections[using].vendor
    if vendor == "sqlite":
        return None
    if vendor == "postgresql":
        log = EventLog.objects.using(using).filter(pk=1).first()
        last = {"last": log.snapshot} if log is not None and log.snapshot else {}
        with connections[using].cursor() as cursor:
            cursor.execute(
                f"SELECT min(time) FROM (SELECT time FROM {_EVENT} WHERE {_fresh(bool(last))} LIMIT {_STAMP_BATCH})"
                " AS found",
                last,
            )
            found: dt.datetime | None = cursor.fetchone()[0]
        return found
    waiting = Event.objects.using(using).filter(seq__isnull=True).order_by("id")
    return waiting.values_list("time", flat=True).first()


def _fresh(has_last: bool) -> str:
    """The condition of the events that became visible behind the snapshot `last`; of all, where there is none yet."""
    return (
        "(txid >= pg_snapshot_xmax(%(last)s::pg_snapshot)::text::bigint OR txid = ANY("
        "ARRAY(SELECT x::text::bigint FROM pg_snapshot_xip(%(last)s::pg_snapshot) AS x)))"
        if has_last
        else "txid IS NOT NULL"
    )


def _pass(using: str, wait: float | None = None) -> int | None:
    """One pass: how much it numbered, or None if another connection is at it, after `wait` seconds still, or was."""
    vendor = connections[using].vendor
    if vendor == "sqlite":
        return 0
    try:
        with atomic(using=using, idle=IDLE_SECONDS):
            if wait is not None:
                _wait_for_lock(using, wait)
            locked = EventLog.objects.using(using).select_for_update(skip_locked=True).filter(pk=1)
            log = locked.first()
            if log is None:  # being advanced by another connection right now, or the very first pass
                if EventLog.objects.using(using).filter(pk=1).exists():
                    return None
                log_row(using)
                log = locked.first()
                if log is None:
                    return None
            return _number_transactions(using, log) if vendor == "postgresql" else _stamp_rows(using, log)
    except Error as error:
        if is_contention(error):  # of two nodes of a cluster one learns at its commit that the other was first
            return None
        if is_refused(error) and _may_ask_no_more(using):
            return None
        raise


def _wait_for_lock(using: str, seconds: float) -> None:
    """Take the lock, in turn with all that wait for it. Raises a contention error (`is_contention`) after `seconds`."""
    connection = connections[using]
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT set_config('lock_timeout', %s, true)", [str(math.ceil(seconds * 1000))])
            cursor.execute(f"SELECT 1 FROM {_LOG} WHERE id = 1 FOR UPDATE")
        else:
            cursor.execute(f"SELECT 1 FROM {_LOG} WHERE id = 1 FOR UPDATE WAIT {math.ceil(seconds)}")


def _number_transactions(using: str, log: EventLog) -> int:
    with connections[using].cursor() as cursor:
        cursor.execute(_IDENTITY if _knows_server(using) else _IDENTITY_OF_TABLE, {"last": log.snapshot})
        server, is_others, run = cursor.fetchone()
        # In the transaction of a test a pass is a savepoint, which has a number of its own and looks like another's.
        is_others = is_others and not connections[using].savepoint_ids
        if (log.server, log.run) != (server, run) or is_others:
            _meet(using, cursor, log, server, run, is_others=is_others)
        cursor.execute(
            f"WITH fresh AS (SELECT txid, max(id) AS last FROM {_EVENT} WHERE {_fresh(bool(log.snapshot))} "
            f"GROUP BY txid), "
            f"numbered AS (INSERT INTO {_COMMIT} (txid) SELECT txid FROM fresh ORDER BY last "
            f"ON CONFLICT DO NOTHING RETURNING 1) "
            f"UPDATE {_LOG} SET snapshot = ({_SNAPSHOT}), "
            f"last_seq = greatest(last_seq, (SELECT coalesce(max(last), 0) FROM fresh)) "
            f"WHERE id = 1 RETURNING (SELECT count(*) FROM numbered)",
            {"last": log.snapshot},
        )
        return int(cursor.fetchone()[0])


def _meet(using: str, cursor: Any, log: EventLog, server: str, run: str, *, is_others: bool) -> None:
    """The last pass was one of another server, table, history or run of the server: put right what went by those."""
    ordered = log.last_seq
    if not log.server:  # before this was written down, nothing else had the numbers of what is in order
        ordered = highest_id(using)
    is_moved = is_others or (bool(log.server) and log.server != server and not _is_rewritten(cursor, log, server))
    if is_moved:
        _keep_places(cursor, ordered)
        log.snapshot = ""
    log.server, log.last_seq = server, ordered
    if is_moved or (log.run and log.run != run):
        cursor.execute(
            f"SELECT id FROM {_EVENT} e WHERE {_fresh(bool(log.snapshot))}"
            f" AND NOT EXISTS (SELECT 1 FROM {_COMMIT} c WHERE c.txid = e.txid)",
            {"last": log.snapshot},
        )
        _note_change(using, log, [pk for (pk,) in cursor.fetchall()], is_known=is_moved or _is_other(log.run, run))
    log.run = run
    log.save(using=using, update_fields=["server", "last_seq", "run", "kept_to", "changes"])


def _is_rewritten(cursor: Any, log: EventLog, server: str) -> bool:
    """Whether only the file of the table is another one, as after VACUUM FULL, with the rows that the last pass saw: a
    restore would have written them since."""
    if log.server.startswith("-") or log.server.rpartition(":")[0] != server.rpartition(":")[0] or not log.snapshot:
        return False
    written = _XMIN.format(xmin="e.xmin")
    cursor.execute(
        f"SELECT pg_visible_in_snapshot({written}, %s::pg_snapshot) FROM {_EVENT} e JOIN {_COMMIT} c USING (txid),"
        f" {_NOW} WHERE e.id <= %s ORDER BY e.id DESC LIMIT 1",
        [log.snapshot, log.last_seq],
    )
    found = cursor.fetchone()
    return bool(found and found[0])


def _is_other(run: str, now: str) -> bool:
    """Whether a server has taken over, and not only begun again."""
    return run.partition("@")[0] != now.partition("@")[0]


def _note_change(using: str, log: EventLog, waiting: list[int], *, is_known: bool) -> None:
    """Passes may be lost; `waiting` are the events that have no place now, `is_known` that it is another history.

    A lost pass may have given some of the waiting events places, in an order of its own, and readers may have seen
    these, and not the others. So all get ids of now: whoever comes back with one of the old ids is told of a gap, and
    goes on behind what was in order before.
    """
    if waiting or is_known:
        log.kept_to = end_position(using).id
    log.changes += is_known
    _give_new_ids(using, waiting)


def _give_new_ids(using: str, waiting: list[int]) -> None:
    columns = ", ".join(
        connections[using].ops.quote_name(str(field.column))
        for field in Event._meta.local_fields
        if not field.primary_key
    )
    with connections[using].cursor() as cursor:
        # One by one, in their order: for a set MariaDB may scan the table, and wait for the rows of open transactions.
        for pk in sorted(waiting):
            cursor.execute(f"INSERT INTO {_EVENT} ({columns}) SELECT {columns} FROM {_EVENT} WHERE id = %s", [pk])
            cursor.execute(f"DELETE FROM {_EVENT} WHERE id = %s", [pk])


#: The transaction that wrote a row, with all its digits: it is not newer than `_NOW`.
_XMIN = "(now - ((now - {xmin}::text::bigint) & 4294967295))::text::xid8"
_NOW = "(SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS now) AS current"
#: Whether the log's row was written by something else than a pass of this server, or a later transaction: to a pass's
#: snapshot its own transaction counts as running. A restore writes the row in a transaction of its own.
_IS_OTHERS = (
    f"coalesce((SELECT pg_visible_in_snapshot({_XMIN.format(xmin='xmin')}, nullif(%(last)s, '')::pg_snapshot)"
    f" FROM {_LOG}, {_NOW} WHERE id = 1), false)"
)
#: Which run of a server this is, and which timeline of its history: each failover begins another.
_TIMELINE = "left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)"
_RUN = "'@' || extract(epoch FROM pg_postmaster_start_time())"
#: Which server numbers the transactions, which table theirs is, and in which file: another one, where a dump was
#: restored, also into the same table behind a TRUNCATE.
_IDENTITY = (
    f"SELECT system_identifier || ':' || '{_EVENT}'::regclass::oid || ':' || pg_relation_filenode('{_EVENT}'),"
    f" {_IS_OTHERS}, {_TIMELINE} || {_RUN} FROM pg_control_system()"
)
#: The same for a role that may not ask for the server: which transaction gave the table its file, instead.
_IDENTITY_OF_TABLE = (
    "SELECT '-:' || oid || ':' || pg_relation_filenode(oid) || ':' || xmin,"
    f" {_IS_OTHERS}, {_RUN} FROM pg_class WHERE oid = '{_EVENT}'::regclass"
)


@lru_cache
def _knows_server(using: str) -> bool:
    """Whether the role may ask for the server and its timeline, which some hosted services refuse. Asked once by each
    process."""
    try:
        with atomic(using=using), connections[using].cursor() as cursor:
            cursor.execute(f"SELECT {_TIMELINE} FROM pg_control_system()")
    except Error as error:
        if not is_not_offered(error):
            raise
        return False
    return True


def _may_ask_no_more(using: str) -> bool:
    """Whether the role has lost that right since this process asked."""
    had = _knows_server(using)
    _knows_server.cache_clear()
    return had and not _knows_server(using)


#: In the columns of transactions that another server has numbered: ids that no PostgreSQL gives out, made of the place
#: of the transaction, and of the id of an event without one (as `restored` makes them).
_KEPT, WITHOUT_PLACE = -(2**60), -(2**62)


def _keep_places(cursor: Any, ordered: int) -> None:
    """The rows that are here were numbered by another server: no transaction of this one may have such a number.

    What had a place keeps it. All of it has ids up to `ordered`, and what was written here since has higher ones. Of
    the rest, a row that was written by the transaction whose number it has was written here. What was not, or within a
    savepoint, is put in order by itself, in the order of the ids.
    """
    cursor.execute(
        f"UPDATE {_EVENT} e SET txid = {_KEPT} + c.seq FROM {_COMMIT} c "
        f"WHERE e.txid = c.txid AND c.txid > 0 AND e.id <= %s",
        [ordered],
    )
    cursor.execute(f"UPDATE {_COMMIT} SET txid = {_KEPT} + seq WHERE txid > 0")
    cursor.execute(
        f"UPDATE {_EVENT} SET txid = {WITHOUT_PLACE} + id WHERE txid > 0 "
        "AND (txid & 4294967295 <> xmin::text::bigint"
        " OR NOT pg_visible_in_snapshot(txid::text::xid8, pg_current_snapshot()))"
    )


def _stamp_rows(using: str, log: EventLog) -> int:
    unordered = Event.objects.using(using).filter(seq__isnull=True).order_by("id")
    waiting = unordered.values_list("id", flat=True)
    # Who orders them is asked with them, which costs next to nothing where none waits.
    run_of = RawSQL(_RUN_OF_MARIADB, ())  # noqa: S611 - a text of ours
    found = list(unordered.annotate(run=run_of).values_list("id", "run")[:_STAMP_BATCH])
    if not found:
        return 0
    ids, run = [pk for pk, _ in found], found[0][1]
    if log.run != run:
        if log.run:
            _note_change(using, log, list(waiting), is_known=_is_other(log.run, run))
            ids = list(waiting.all()[:_STAMP_BATCH])
        log.run = run
    with connections[using].cursor() as cursor:
        # Row by row: for a set the optimizer may scan the table, and wait for the rows of open transactions.
        cursor.executemany(
            f"UPDATE {_EVENT} SET seq = %s WHERE id = %s", [(log.last_seq + n, pk) for n, pk in enumerate(ids, 1)]
        )
    log.last_seq += len(ids)
    log.save(using=using, update_fields=["last_seq", "run", "kept_to", "changes"])
    return len(ids)


#: Which server this is, by the number that it has among those that replicate each other, and which run of it. The nodes
#: of a cluster of Galera are one server, which loses nothing when one of them fails.
_RUN_OF_MARIADB = (
    "SELECT coalesce(nullif(max(CASE WHEN variable_name = 'WSREP_CLUSTER_STATE_UUID' THEN variable_value END), ''),"
    " concat(@@server_id, '@', unix_timestamp() - max(CASE WHEN variable_name = 'UPTIME' THEN variable_value END)))"
    " FROM information_schema.global_status WHERE variable_name IN ('UPTIME', 'WSREP_CLUSTER_STATE_UUID')"
)

# Places in the order

#: What a reader has seen at a place: nothing, the `job.state_changed` made of the event, or the event too.
NOTHING, CHANGE, EVENT = 0, 1, 2


@dataclasses.dataclass(frozen=True, order=True, slots=True)
class LogPosition:
    """A place in the log; places compare in its order.

    `order` is the number of the transaction on PostgreSQL, the stamp on MariaDB and the id on SQLite; `id` is the
    event's. A `job.state_changed` comes right before the event it is made of: `seen` tells the two apart. `time` is the
    event's, where it is known: another event at this place has another.
    """

    order: int
    id: int
    seen: int = EVENT
    time: dt.datetime | None = dataclasses.field(default=None, compare=False)

    def having(self, seen: int) -> LogPosition:
        """The same place for a reader who has seen this much of its event."""
        return LogPosition(self.order, self.id, seen, self.time)


START = LogPosition(0, 0)

_SINCE = f"SELECT txid FROM {_COMMIT} WHERE seq >= %s"
_SINCE_UNTIL = f"{_SINCE} AND seq <= %s"
_ORDER = {"sqlite": "id", "postgresql": "commit__seq"}


def behind(using: str, place: LogPosition) -> QuerySet[Event]:
    """The events behind `place` that have been put in order, in it; `place_of` tells where each is."""
    column = _ORDER.get(connections[using].vendor, "seq")
    events = Event.objects.using(using).filter(**{f"{column}__isnull": False})
    if place != START:
        seen = Q(pk__lte=place.id) if place.seen == EVENT else Q(pk__lt=place.id)
        # Said by what is left out, of which PostgreSQL expects little: of "or behind this id" it expects next to
        # nothing, and then it sorts all that is behind for a page of a hundred.
        events = events.filter(~(Q(**{column: place.order}) & seen), **{f"{column}__gte": place.order})
    return events.annotate(place_order=F(column)).order_by(*dict.fromkeys((column, "id")))


def next_id(using: str, place: LogPosition) -> int | None:
    """The id of the event that comes next behind `place`; None at the end. `exists()` would forget the order, in which
    it is found at once."""
    return behind(using, place).values_list("pk", flat=True).first()


def between(using: str, place: LogPosition, last: LogPosition | None) -> QuerySet[Event]:
    """`behind(using, place)`, up to and with `last`; None: to the end. For a filter that no index finds.

    On PostgreSQL the transactions are looked up first: for a rare value the planner would rather read the whole log.
    """
    events = behind(using, place)
    if last is not None:
        column = _ORDER.get(connections[using].vendor, "seq")
        beyond = Q(**{column: last.order}, pk__gt=last.id)
        events = events.filter(~beyond, **{f"{column}__lte": last.order})
    if connections[using].vendor == "postgresql":
        orders = [place.order] if last is None else [place.order, last.order]
        chosen = _SINCE if last is None else _SINCE_UNTIL
        events = events.extra(where=[f"{_EVENT}.txid = ANY(ARRAY({chosen}))"], params=orders)  # noqa: S610
    return events


def waiting_since(using: str, place: LogPosition) -> dt.datetime | None:
    """The time of the event that comes next behind `place`, so since when a reader there is behind; None at the end."""
    return behind(using, place).values_list("time", flat=True).first()


def ahead(using: str, place: LogPosition, events: int) -> Event | None:
    """The event that comes about `events` events after `place`; None where the log ends before. It costs one look at
    an index.

    It goes by the ids, which follow the order closely: to know the number exactly, the rows would have to be counted.
    """
    begin = place.id
    if place == START:
        begin = Event.objects.using(using).order_by("id").values_list("id", flat=True).first() or 0
    return behind(using, place).filter(pk__gte=begin + events).order_by("pk").first()


def back(using: str, place: LogPosition | None, events: int) -> Event | None:
    """An event about so many `events` before `place`, or before the end of the log without one; None where the log
    begins after that. As `ahead`, by the ids."""
    top = newest_id(using) if place is None else place.id
    return behind(using, START).filter(pk__lte=top - events).order_by("-pk").first()


def place_of(event: Event) -> LogPosition:
    """The place of an event that `behind` found."""
    return LogPosition(event.place_order, event.pk, time=event.time)  # type: ignore[attr-defined]


def newest_id(using: str) -> int:
    """The highest id of an event; 0 where there is none."""
    return Event.objects.using(using).order_by("-id").values_list("id", flat=True).first() or 0


def latest(using: str, number: int) -> QuerySet[Event]:
    """The events with the last `number` ids that have been put in order, in it."""
    events = behind(using, START).filter(pk__gt=newest_id(using) - number)
    if connections[using].vendor == "postgresql":  # which would else read the numbers of all transactions
        top = EventCommit.objects.using(using).order_by("-seq").values_list("seq", flat=True).first() or 0
        events = events.filter(commit__seq__gt=top - number)
    return events


class Resumption(NamedTuple):
    """What has become of an event that a reader has seen, and the `place` behind which it goes on.

    - `here`: it is at this place.
    - `pruned`: it is older than what is left of the log, all of which is behind this place.
    - `lost`: the log's history has changed since. The place is that of the last event before it: all that the reader
      has not seen is behind that.
    - `ahead`: it has no place here yet. A standby lags, or the event waits to be put in order. The place is that of the
      last event before it.
    """

    state: Literal["here", "pruned", "lost", "ahead"]
    place: LogPosition


_MILLISECOND = dt.timedelta(milliseconds=1)
#: How much later than an event others may be that are in order on a standby while it is not: its transaction was open
#: meanwhile. Where they are later, the event will not come any more.
_LONG = dt.timedelta(minutes=1)
#: By how much clocks of hosts may differ where one said when it told of an event.
_SKEW = dt.timedelta(seconds=1)


def find(
    using: str, position: int, time: dt.datetime, *, order: int | None = None, seen: int = EVENT, told: bool = False
) -> Resumption:
    """What has become of the event with this row id that happened at `time`, to the millisecond.

    Args:
        order: its number in the order, where the reader knows it.
        told: `time` is not when it happened, but when the reader was told of it.
    """
    column = F(_ORDER.get(connections[using].vendor, "seq"))
    rows = Event.objects.using(using).filter(pk=position).annotate(place_order=column)
    row = rows.first()
    if row is not None and (row.time <= time + _SKEW if told else abs(row.time - time) < _MILLISECOND):
        found: int | None = row.place_order
        if found is None:
            earlier = before(using, time)
            if rows.filter(place_order__isnull=True).exists():
                return Resumption("ahead", earlier)
            return find(using, position, time, order=order, seen=seen, told=told)  # a pass was made meanwhile
        if order is None or found == order:
            return Resumption("here", place_of(row).having(seen))
    earlier = before(using, time)
    # Asked last: a pass that gives places to what had none yet tells in the same transaction that they are new.
    log = EventLog.objects.using(using).filter(pk=1).first()
    if row is None and log is not None and log.pruned_to >= position:
        return Resumption("pruned", START)
    if row is None and _is_standby(using) and (end_position(using).time or time) <= time + _LONG:
        return Resumption("ahead", earlier)
    return Resumption("lost", _kept(using, log, earlier))


def _kept(using: str, log: EventLog | None, found: LogPosition) -> LogPosition:
    """The place of the last event that readers of before and of now have in the same order; `found` goes by times, as
    clocks of different hosts had them.

    Where it has been pruned, and what came close behind it too, nothing is left that readers have in another order."""
    if log is None or log.kept_to is None or log.pruned_to >= log.kept_to + _NEAR:
        return found
    return min(found, last(using, pk=log.kept_to) or START)


def is_there(using: str, place: LogPosition) -> Resumption:
    """The same of the event at a place that this process has read."""
    if place.time is None:  # the start, or a place that was stored beside the log, and goes back with it
        return Resumption("here", place)
    return find(using, place.id, place.time, order=place.order, seen=place.seen)


def _is_standby(using: str) -> bool:
    """Whether this connection reads from a server that follows another."""
    asked = {"postgresql": "SELECT pg_is_in_recovery()", "mysql": "SELECT @@global.read_only"}
    statement = asked.get(connections[using].vendor)
    if statement is None:
        return False
    with connections[using].cursor() as cursor:
        cursor.execute(statement)
        return str(cursor.fetchone()[0]).upper() in ("TRUE", "1", "ON")


def end_position(using: str) -> LogPosition:
    """The place of the last event that has been put in order."""
    return last(using) or START


def highest_id(using: str) -> int:
    """The highest id of an event that has been put in order; 0 where there is none."""
    return behind(using, START).order_by("-pk").values_list("pk", flat=True).first() or 0


def last(using: str, **conditions: Any) -> LogPosition | None:
    """The place of the last event with these fields; None where there is none, or not any more."""
    event = behind(using, START).filter(**conditions).reverse().first()
    return None if event is None else place_of(event)


#: Ids by which events may be out of the order of their times: what a busy site writes in some seconds.
_NEAR = 5_000


def before(using: str, instant: dt.datetime) -> LogPosition:
    """The place of the last event that happened before `instant`, of those that are in order.

    No index has the times, but the ids follow them closely. So their range is halved until it is short.
    """
    events = Event.objects.using(using).order_by("id")
    low, high = events.values_list("id", flat=True).first() or 0, newest_id(using)
    while high - low > _NEAR:
        middle = (low + high) // 2
        found = events.filter(pk__gte=middle).values_list("pk", "time").first()
        if found is not None and found[1] < instant:
            low = found[0]
        else:
            high = middle
    near = behind(using, START).filter(time__lt=instant, pk__gte=low - _NEAR, pk__lte=high + _NEAR)
    event = near.order_by("-pk").first()
    return START if event is None else place_of(event)
