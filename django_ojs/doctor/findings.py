"""What a diagnosis is given (`Site`) and what it returns (`Finding`), and the title of every kind of finding."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

from django.apps import apps
from django.db import Error, connections

from django_ojs import clock
from django_ojs.conf import ojs_settings
from django_ojs.database import atomic
from django_ojs.guard import get_logger, words_of
from django_ojs.messages import Phrase, phrase
from django_ojs.models import Lease, Maintenance, Queue, Worker
from django_ojs.models.queue import ALL_DRAIN, TEMPLATE
from django_ojs.queues import maintenance
from django_ojs.rules import alertrules
from django_ojs.rules.alertrules import AlertRules
from django_ojs.states import State
from django_ojs.statistics import capacity, latency, throughput
from django_ojs.statistics.capacity import QueueFlow
from django_ojs.statistics.counters import Counts, count_all
from django_ojs.statistics.latency import Front
from django_ojs.statistics.throughput import Minutes
from django_ojs.workerregistry import directory

logger = get_logger(__name__)

#: The kind of finding that tells that a diagnosis failed.
NOT_EXAMINED = "not-examined"
#: Queues whose fronts are looked at for a caller that cannot wait; a look takes a second where there are 6,000 or so.
FRONTS = 1000
#: Seconds that a diagnosis waits on PostgreSQL for a lock, and for an answer: it is asked when something hangs.
PATIENCE, LONGEST = 2, 10

#: Every kind of finding by its id, in the order of docs/troubleshooting.md. Ids stay as they are: scripts compare them.
#: The findings of system checks have the checks' own ids (`django_ojs.W101`) and the title of `check`.
TITLES: dict[str, Phrase] = {
    "check": phrase("A system check reports a problem"),
    "migrations-missing": phrase("Migrations have not run"),
    "migrations-ahead": phrase("The database is ahead of the code"),
    "not-examined": phrase("Something could not be examined"),
    "commits-can-be-lost": phrase("A crash can lose committed jobs"),
    "database-read-only": phrase("The database is read-only"),
    "pooler-cursors": phrase("Server-side cursors behind a pooler"),
    "statements-lost": phrase("A pooler loses prepared statements"),
    "reads-elsewhere": phrase("Reads go to a replica"),
    "clock-offset": phrase("The clocks of this host and of the database differ"),
    "lock-wait": phrase("A session blocks others"),
    "transaction-long": phrase("A transaction has been open for long"),
    "write-lock-held": phrase("The write lock is held"),
    "wal-large": phrase("The write-ahead log of SQLite is large"),
    "connections-near-limit": phrase("Nearly all connections are in use"),
    "connections-too-few": phrase("The processes may need more connections than there are"),
    "scheduler-missing": phrase("No scheduler leads"),
    "scheduler-behind": phrase("The scheduler is behind"),
    "schedules-differ": phrase("Schedules are not as the code says"),
    "event-order-behind": phrase("Events are not put in order"),
    "metrics-behind": phrase("The metrics are behind the event log"),
    "webhooks-behind": phrase("The webhooks are behind the event log"),
    "outbox-aside": phrase("Entries of the outbox were set aside"),
    "worker-versions": phrase("A worker runs another version"),
    "worker-silent": phrase("A worker is silent"),
    "worker-threads-died": phrase("Threads of a worker died"),
    "type-kills-workers": phrase("A job type ends its workers"),
    "workers-died": phrase("Processes of workers died"),
    "workers-missing": phrase("Jobs wait and no worker runs"),
    "queue-unserved": phrase("A queue has no worker"),
    "type-unserved": phrase("A job type has no worker"),
    "maintenance-on": phrase("Maintenance mode is on"),
    "queue-paused": phrase("Jobs wait in a paused queue"),
    "wait-long": phrase("Jobs have been waiting for long"),
    "backlog-large": phrase("Many jobs wait in a queue"),
    "backlog-slow": phrase("A queue takes long to empty"),
    "queue-failing": phrase("Jobs of a queue fail"),
    "queue-dead-letters": phrase("A queue has new dead letters"),
    "type-failing": phrase("Jobs of a type fail"),
    "type-dead-letters": phrase("A job type has new dead letters"),
    "autovacuum-off": phrase("Autovacuum is off"),
    "vacuum-late": phrase("A table is not vacuumed"),
    "analyze-late": phrase("A table is not analyzed"),
    "index-bloat": phrase("An index has grown beyond its entries"),
    "file-bloat": phrase("The file of SQLite is mostly empty"),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One fault.

    Attributes:
        id: a key of `TITLES`, or the id of a system check.
        says: what is wrong, with the figures.
        mend: what to do about it: a command, a statement or a setting.
        about: which of several things it is: a queue, a worker, a table, a process of the database; '' for the whole.
        figures: the numbers of `says` by name, and what a script may want beside them.
    """

    id: str
    says: str
    mend: str
    about: str = ""
    figures: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def title(self) -> Phrase:
        return TITLES.get(self.id, TITLES["check"])

    def as_dict(self) -> dict[str, Any]:
        """As `ojs_doctor --json` writes it, in English."""
        return {**dataclasses.asdict(self), "title": str(self.title)}


class Site:
    """What the diagnoses look at. Facts that several need are read once.

    Args:
        rules: how much waiting and failing is allowed; None: what the settings say.
        patient: whether a diagnosis may take a second: to look twice at what may be over in a moment, or at thousands
            of queues.
    """

    def __init__(self, using: str, *, rules: AlertRules | None = None, patient: bool = True) -> None:
        self.using, self.patient = using, patient
        self.rules = alertrules.parse(ojs_settings.ALERTS) if rules is None else rules

    @property
    def connection(self) -> Any:
        return connections[self.using]

    @property
    def vendor(self) -> str:
        return str(self.connection.vendor)

    def rows(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(sql, params)
            return list(cursor.fetchall())

    @cached_property
    def tables(self) -> list[str]:
        """The tables of django-ojs."""
        return [model._meta.db_table for model in apps.get_app_config("django_ojs").get_models()]

    @cached_property
    def now(self) -> dt.datetime:
        return clock.now(self.using)

    @cached_property
    def counted(self) -> dict[str, Counts]:
        return count_all(using=self.using)

    @cached_property
    def maintenance(self) -> Maintenance | None:
        return maintenance.current(using=self.using)

    @cached_property
    def status(self) -> dict[str, str]:
        """The status of each queue that has a row, by name."""
        rows = Queue.objects.using(self.using).exclude(pk=TEMPLATE).only("name", "paused", "draining")
        return {queue.name: queue.status for queue in rows.annotate(**ALL_DRAIN)}

    @cached_property
    def waiting(self) -> dict[str, int]:
        """The available jobs of each queue that has any, the largest number first."""
        numbers = {name: counts.states[State.AVAILABLE] for name, counts in self.counted.items()}
        return dict(sorted((item for item in numbers.items() if item[1] > 0), key=lambda item: (-item[1], item[0])))

    @cached_property
    def fronts(self) -> dict[str, Front]:
        """The front of each queue that has available jobs; of those with most for a caller that cannot wait."""
        return latency.fronts(list(self.waiting)[: None if self.patient else FRONTS], self.now, using=self.using)

    @cached_property
    def work(self) -> Minutes:
        """What each queue did in the last hour, by the minute."""
        return throughput.by_queue(self.now - dt.timedelta(hours=1), using=self.using)

    @cached_property
    def flows(self) -> dict[str, QueueFlow]:
        """How each queue fills and empties, of those that have jobs or did anything lately."""
        return capacity.flows(self.waiting, self.work, self.now, using=self.using)

    @cached_property
    def workers(self) -> list[Worker]:
        """Those that were heard within the heartbeat timeout."""
        facts = ("threads_replaced", "hostname", "incarnation", "concurrency", "version")
        return list(directory.connected(self.using).only(*facts).order_by("pk"))

    @cached_property
    def is_led(self) -> bool:
        """Whether a scheduler does its duties. Where none does, all that it does is behind, and need not be told."""
        return Lease.is_held("scheduler", self.using)


#: Looks at one thing.
Diagnosis = Callable[[Site], Iterable[Finding]]

#: The databases that a diagnosis is for, where it is not for all.
_VENDORS: dict[Diagnosis, frozenset[str]] = {}


def only_on(*vendors: str) -> Callable[[Diagnosis], Diagnosis]:
    """For a diagnosis of these databases, by Django's names of their vendors."""

    def register(diagnosis: Diagnosis) -> Diagnosis:
        _VENDORS[diagnosis] = frozenset(vendors)
        return diagnosis

    return register


def run_diagnosis(diagnosis: Diagnosis, site: Site, *, impatient: bool = True) -> list[Finding]:
    """What one diagnosis finds, nothing where it is for other databases; that it cannot look, where the database
    refuses it or it fails for another reason. Raises what says that the database is away.

    `impatient` is for what reads catalogues and may have to wait for locks: its statements end after a while.
    """
    if site.vendor not in _VENDORS.get(diagnosis, {site.vendor}):
        return []
    try:
        with _impatient(site) if impatient else contextlib.nullcontext():
            return list(diagnosis(site))
    except Error as error:
        if site.connection.connection is None or not site.connection.is_usable():
            raise
        mend = phrase(
            "If a right is missing, give the database user the role pg_monitor. If it waited for a lock, look "
            "for the session in the way (lock-wait, transaction-long) and try again."
        )
        return [_not_examined(diagnosis, " ".join(str(error).split()), mend)]
    except Exception as error:
        logger.exception("The diagnosis %s failed.", diagnosis_name(diagnosis))
        mend = phrase("A system check of the site or the diagnosis itself has a fault. The log says where.")
        return [_not_examined(diagnosis, f"{type(error).__name__}: {words_of(error)}", mend)]


def _not_examined(diagnosis: Diagnosis, reason: str, mend: Phrase) -> Finding:
    name = diagnosis_name(diagnosis)
    says = phrase("The diagnosis %(name)s failed: %(reason)s", name=name, reason=reason)
    return Finding(NOT_EXAMINED, says, mend, name, {"error": reason})


def diagnosis_name(diagnosis: Diagnosis) -> str:
    """What a finding calls a diagnosis that failed."""
    return getattr(diagnosis, "__name__", str(diagnosis))


@contextlib.contextmanager
def _impatient(site: Site) -> Iterator[None]:
    """On PostgreSQL: end a statement that waits, and leave a caller's transaction usable whatever fails."""
    if site.vendor != "postgresql":
        yield
        return
    callers = site.connection.in_atomic_block
    with atomic(using=site.using):
        before = _limit(site, f"{PATIENCE}s", f"{LONGEST}s")
        yield
        if callers:
            _limit(site, *before)


def _limit(site: Site, lock: str, statement: str) -> tuple[str, str]:
    """Set the timeouts of this transaction; return those that it had."""
    ((old_lock, old_statement, *_),) = site.rows(
        "SELECT was.lock, was.statement, set_config('lock_timeout', %s, true), "
        "set_config('statement_timeout', %s, true) FROM (SELECT current_setting('lock_timeout') AS lock, "
        "current_setting('statement_timeout') AS statement OFFSET 0) AS was",
        [lock, statement],
    )
    return old_lock, old_statement
