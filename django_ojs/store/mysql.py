"""MariaDB and MySQL: the ORM's statements, but for the locks of unique keys."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from django.db import connections
from django.db.models import F, Q, Value
from django.db.models.functions import Concat
from django.db.models.lookups import In

from django_ojs.models import Job, UniqueLock
from django_ojs.models.job import JobRow
from django_ojs.states import State
from django_ojs.store.base import Store

_LOCK, _JOB = UniqueLock._meta.db_table, Job._meta.db_table


class MySQLStore(Store):
    def lock_stripes(self, stripes: Sequence[int]) -> None:
        """One upsert makes and locks the rows.

        INSERT IGNORE would share the lock of a row that is there, and two who share it cannot both have it.
        """
        marks = ", ".join(["(%s, TRUE)"] * len(stripes))
        with connections[self.using].cursor() as cursor:
            cursor.execute(
                f"INSERT INTO {_LOCK} (stripe, used) VALUES {marks} ON DUPLICATE KEY UPDATE used = TRUE", list(stripes)
            )

    def lock_live(self, keys: Sequence[str], live: Sequence[State]) -> list[JobRow]:
        """By the index, come what may: a scan of the table waits for every row that another transaction has locked.

        The look has to lock, or under REPEATABLE READ it would not see what the last holder committed.
        """
        with connections[self.using].cursor() as cursor:
            cursor.execute(
                f"SELECT id FROM {_JOB} FORCE INDEX (ojs_job_unique_mariadb) "
                f"WHERE unique_key IN ({', '.join(['%s'] * len(keys))}) "
                f"AND state IN ({', '.join(['%s'] * len(live))}) FOR UPDATE",
                [*keys, *map(str, live)],
            )
            ids = [uuid.UUID(str(found)) for (found,) in cursor.fetchall()]
        return self.lock(ids) if ids else []

    def still_in(self, states: Sequence[State]) -> Q:
        """In words that fit no index: the server may think that few jobs are in the state, find the job among them, and
        wait there for one that another transaction has locked."""
        return Q(In(Concat(F("state"), Value("")), list(map(str, states))))
