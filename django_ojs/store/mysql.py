"""Makes the statements for MariaDB and MySQL: the ORM's, but for the locks of unique keys."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from django.db import Error, connections
from django.db.models import F, Q, QuerySet, Value
from django.db.models.functions import Concat
from django.db.models.lookups import In

from django_ojs import packets
from django_ojs.faults import lacks_index
from django_ojs.models import Job, UniqueLock, Worker
from django_ojs.models.job import JobRow
from django_ojs.states import State
from django_ojs.store.orm import M, Store, T

_LOCK, _JOB = UniqueLock._meta.db_table, Job._meta.db_table
_UNIQUE = "ojs_job_unique_mariadb"


#: Characters that a row of a statement has beside its long texts: ids, times, names.
_BESIDES = 200
_LEAST = dt.timedelta(microseconds=1)
_IN_CLUSTER = "@@wsrep_on"


@lru_cache
def _knows_clusters(using: str) -> bool:
    """Whether the server was built for Galera; MySQL is not. Asked once by each process."""
    with connections[using].cursor() as cursor:
        cursor.execute("SHOW VARIABLES LIKE 'wsrep_on'")
        return cursor.fetchone() is not None


class MySQLStore(Store):
    # The same way through the index; it ends a recursion after a thousand rows.
    _available_queues = f"SELECT DISTINCT queue FROM {_JOB} WHERE state = 'available'"

    def releases_of(self, worker_ids: Collection[str]) -> Mapping[str, Any]:
        """Read before the insert: a SELECT inside of one would lock the rows of the workers, and their heartbeats would
        wait for the commit."""
        wanted = [worker_id for worker_id in worker_ids if worker_id]
        found = Worker.objects.using(self.using).filter(pk__in=wanted) if wanted else Worker.objects.none()
        return {**dict.fromkeys(worker_ids, ""), **dict(found.values_list("pk", "release"))}

    def in_parts(self, items: Sequence[T], size: Callable[[T], int]) -> Iterable[Sequence[T]]:
        sizes = [_BESIDES + size(item) for item in items]
        total = sum(sizes)
        if total <= packets.FEW_CHARACTERS or total <= (room := packets.room(self.using)):
            return super().in_parts(items, size)
        parts: list[list[T]] = []
        filled = 0
        for item, weight in zip(items, sizes, strict=True):
            if not parts or filled + weight > room:
                parts.append([])
                filled = 0
            parts[-1].append(item)
            filled += weight
        return parts

    waits_since = "due_at - INTERVAL retry_delay_ms * 1000 MICROSECOND"

    def lock_stripes(self, stripes: Sequence[int]) -> None:
        """One upsert makes and locks the rows.

        INSERT IGNORE would share the lock of a row that is there, and two who share it cannot both have it. The value
        is always another one than before: see `certify`.
        """
        marks = ", ".join(["(%s, TRUE)"] * len(stripes))
        with connections[self.using].cursor() as cursor:
            cursor.execute(
                f"INSERT INTO {_LOCK} (stripe, used) VALUES {marks} ON DUPLICATE KEY UPDATE used = NOT used",
                list(stripes),
            )

    def certify(self, rows: QuerySet[M], moment: str = "updated_at") -> None:
        """A node of a Galera cluster tells the others what a transaction has changed, and not what it has locked: two
        that hold the same row on different nodes would both commit. Where both have changed it, the second is refused
        as for a deadlock. A change to the same value is none.

        On a server that is in no cluster the condition fails before a row is looked at, so nothing is written. A claim
        under a full limit, which starts nothing, writes in a cluster: before that it cannot know that it will not.
        """
        if _knows_clusters(self.using):
            QuerySet.update(rows.extra(where=[_IN_CLUSTER]), **{moment: F(moment) + _LEAST})  # noqa: S610

    def lock_live(self, keys: Sequence[str], live: Sequence[State]) -> list[JobRow]:
        """By the index, come what may: a scan of the table waits for every row that another transaction has locked.

        The look has to lock, or under REPEATABLE READ it would not see what the last holder committed. Tables that a
        site's tests make without migrations lack the index.
        """
        look = (
            "SELECT id FROM {} "
            f"WHERE unique_key IN ({', '.join(['%s'] * len(keys))}) "
            f"AND state IN ({', '.join(['%s'] * len(live))}) FOR UPDATE"
        )
        given = [*keys, *map(str, live)]
        with connections[self.using].cursor() as cursor:
            try:
                cursor.execute(look.format(f"{_JOB} FORCE INDEX ({_UNIQUE})"), given)
            except Error as error:
                if not lacks_index(error):
                    raise
                cursor.execute(look.format(_JOB), given)
            ids = [uuid.UUID(str(found)) for (found,) in cursor.fetchall()]
        return self.lock(ids) if ids else []

    def still_in(self, states: Sequence[State]) -> Q:
        """In words that fit no index: the server may think that few jobs are in the state, find the job among them, and
        wait there for one that another transaction has locked."""
        return Q(In(Concat(F("state"), Value("")), list(map(str, states))))
