"""Diagnoses that are the same on all databases: settings, migrations, clocks, the scheduler, workers and the event log.

Where another part of django-ojs decides what is wrong (`checks.py`, `workerregistry/directory.py`), it is asked.
"""

from __future__ import annotations

import datetime as dt
import time
from collections import Counter
from collections.abc import Callable, Iterator

from django.conf import settings
from django.core.checks import WARNING, Tags
from django.core.checks.registry import registry
from django.db import connections
from django.db.migrations.executor import MigrationExecutor

import django_ojs
from django_ojs import clock, outbox
from django_ojs.checks import check_schedules
from django_ojs.client.sync import NotSynchronised, out_of_date
from django_ojs.conf import ojs_settings
from django_ojs.cron import schedules
from django_ojs.doctor.findings import Finding, Site
from django_ojs.events import order
from django_ojs.jobs import timers
from django_ojs.messages import phrase
from django_ojs.models import WorkerDeath
from django_ojs.rules.durations import format_instant
from django_ojs.statistics import eventcounts
from django_ojs.tasks import discovery
from django_ojs.webhooks import relay
from django_ojs.workerregistry import deaths, directory

#: Seconds by which the clock of a host may be off.
CLOCKS = 2.0
#: Seconds after which what the scheduler does several times a second is late, and what it does in batches.
LATE, LAGGING = 30.0, 120.0
#: Seconds between two looks at what seems late: longer than the pauses of the duties in question.
SECOND_LOOK = 1.5
#: Schedules that a finding names.
NAMED = 10


def system_checks(site: Site) -> Iterator[Finding]:
    """The system checks of django-ojs, those for `--deploy` and `--database` too, that the site has not silenced."""
    for check in registry.get_checks(include_deployment_checks=True):
        module = getattr(check, "__module__", "")
        # The check of tasks that wait (W202) reads all of them; `types_without_workers` looks at the fronts of queues.
        # `schedules_of_code` knows more than the check of schedules (W111), which cannot ask who leads.
        elsewhere = (module.endswith("discovery") and Tags.database in check.tags) or check is check_schedules
        if not module.startswith("django_ojs.") or elsewhere:
            continue
        for message in check(app_configs=None, databases=_databases(site)):
            if message.is_serious(WARNING) and not message.is_silenced():
                yield Finding(str(message.id), str(message.msg), str(message.hint or ""), figures={})


def migrations(site: Site) -> Iterator[Finding]:
    """Migrations of django-ojs that this code has and the database has not, or the reverse."""
    for alias in _databases(site):
        executor = MigrationExecutor(connections[alias])
        loader = executor.loader
        leaves = [node for node in loader.graph.leaf_nodes() if node[0] == "django_ojs"]
        missing = [one.name for one, _ in executor.migration_plan(leaves) if one.app_label == "django_ojs"]
        if missing:
            yield Finding(
                "migrations-missing",
                phrase(
                    "The database %(database)s lacks migrations of django_ojs: %(names)s.",
                    database=alias, names=", ".join(missing),
                ),
                phrase("Run manage.py migrate --database %(database)s.", database=alias),
                alias,
                {"migrations": missing},
            )  # fmt: skip
        known = {name for app, name in loader.disk_migrations or () if app == "django_ojs"}
        ahead = sorted(name for app, name in loader.applied_migrations or () if app == "django_ojs")
        if known and (ahead := [name for name in ahead if name not in known]):
            yield Finding(
                "migrations-ahead",
                phrase(
                    "The database %(database)s has migrations that this code (%(version)s) does not know: %(names)s.",
                    database=alias, version=django_ojs.__version__, names=", ".join(ahead),
                ),
                phrase("Deploy the version of django-ojs that has them here, or migrate back with that version."),
                alias,
                {"migrations": ahead},
            )  # fmt: skip


def _databases(site: Site) -> list[str]:
    """The database of the jobs, and that of the outbox."""
    outbox = (getattr(settings, "OJS", None) or {}).get("OUTBOX")
    return list(dict.fromkeys([site.using, *([outbox] if outbox in settings.DATABASES else [])]))


def clock_offset(site: Site) -> Iterator[Finding]:
    """The wall clock of this host against that of the database."""
    offset = clock.offset(site.using)
    if offset is not None and abs(offset) > CLOCKS:
        yield Finding(
            "clock-offset",
            phrase(
                "The clock of this host differs from the clock of the database by %(seconds)s s (ahead is positive). "
                "Jobs follow the database; times that the site computes with timezone.now(), and the log, do not.",
                seconds=f"{offset:+.1f}",
            ),
            phrase("Run an NTP service on both hosts, and look at timedatectl on each."),
            figures={"seconds": round(offset, 3)},
        )


# The scheduler and what it does


def scheduler(site: Site) -> Iterator[Finding]:
    """No scheduler leads although it has something to do. A site without jobs, schedules and workers needs none."""
    if site.is_led:
        return
    live = sum(counts.depth for counts in site.counted.values())
    if live or site.workers or schedules.next_due(using=site.using):
        yield Finding(
            "scheduler-missing",
            phrase(
                "No process leads the scheduler: no schedule fires, and no delayed job, retry or timeout comes due "
                "except in queues that a worker fetches from. Jobs that have not ended: %(jobs)s.",
                jobs=f"{live:,}",
            ),
            phrase("Start a worker (manage.py ojs_worker) without --no-scheduler, or manage.py ojs_scheduler."),
            figures={"jobs": live},
        )


def schedules_of_code(site: Site) -> Iterator[Finding]:
    """What `@job(cron=...)` says is not in the database. Where the scheduler synchronises, one that leads has not."""
    if ojs_settings.SYNC_SCHEDULES and not site.is_led:
        return  # it will when it leads
    try:
        names = out_of_date(site.using)
        if names and ojs_settings.SYNC_SCHEDULES and site.patient:  # one may have taken the lead just now
            time.sleep(SECOND_LOOK)
            names = out_of_date(site.using)
    except NotSynchronised as error:
        says = phrase("The schedules of the code cannot be stored. %(why)s", why=str(error))
        yield Finding("schedules-differ", says, phrase("Mend that, then run manage.py ojs_cron sync."))
        return
    if names:
        yield Finding(
            "schedules-differ",
            phrase(
                "Schedules of the code (@job with cron=) are not in the database as the code says: %(names)s.",
                names=", ".join(names[:NAMED]) + ", …" * (len(names) > NAMED),
            ),
            phrase(
                "Run manage.py ojs_cron sync, at each deploy too. With OJS['SYNC_SCHEDULES'] the scheduler does it "
                "when a process takes its lead."
            ),
            figures={"schedules": names},
        )


def due_jobs(site: Site) -> Iterator[Finding]:
    """A scheduler leads, and jobs that are due stay as they are. In maintenance mode they are to."""
    due = timers.next_due(using=site.using) if site.is_led else None
    if due is None or site.maintenance:
        return
    if (late := (site.now - due).total_seconds()) > LATE:
        yield Finding(
            "scheduler-behind",
            phrase(
                "A scheduler leads, and a job has been due for %(seconds)s s without a change.", seconds=f"{late:,.0f}"
            ),
            phrase(
                "Look for a session that holds its row (lock-wait, transaction-long) and for errors in the log of the "
                "leading process. If that process is busy with handlers, run manage.py ojs_scheduler on its own."
            ),
            figures={"seconds": round(late)},
        )


def event_order(site: Site) -> Iterator[Finding]:
    """Committed events that no pass has put in order, which readers therefore do not get."""
    if site.is_led and (since := _since(site, lambda: order.unordered_since(site.using), LATE)):
        seconds = (site.now - since).total_seconds()
        yield Finding(
            "event-order-behind",
            phrase(
                "Events have been waiting for their place in the log since %(since)s (%(seconds)s s).",
                since=format_instant(since), seconds=f"{seconds:,.0f}",
            ),
            phrase(
                "Look for a session that holds the row of django_ojs_eventlog (lock-wait, transaction-long) and for "
                "errors in the log of the leading process."
            ),
            figures={"since": format_instant(since), "seconds": round(seconds)},
        )  # fmt: skip


def metrics(site: Site) -> Iterator[Finding]:
    """Events that the metrics have not counted; they are kept until they are."""
    if ojs_settings.METRICS and site.is_led:
        yield from _behind(site, "metrics-behind", eventcounts.counted_up_to)


def webhooks(site: Site) -> Iterator[Finding]:
    """Events that have not become deliveries."""
    if site.is_led:
        yield from _behind(site, "webhooks-behind", relay.relayed_up_to)


def entries_aside(site: Site) -> Iterator[Finding]:
    """Entries of the outbox that the jobs' database refused for good."""
    if entries := outbox.count_aside():
        yield Finding(
            "outbox-aside",
            phrase(
                "Jobs and workflows that were refused on their way from the outbox, and are not tried again: "
                "%(entries)s.",
                entries=f"{entries:,}",
            ),
            phrase(
                "Look at the entries of the outbox in the admin: each says why. Mend that and press Try again, or "
                "discard the entry."
            ),
            figures={"entries": entries},
        )  # fmt: skip


def _behind(site: Site, id: str, place_of: Callable[[str], order.LogPosition | None]) -> Iterator[Finding]:
    def next_event() -> dt.datetime | None:
        place = place_of(site.using)
        return None if place is None else order.waiting_since(site.using, place)

    if (since := _since(site, next_event, LAGGING)) is None or (place := place_of(site.using)) is None:
        return
    seconds, events = (site.now - since).total_seconds(), max(order.newest_id(site.using) - place.id, 0)
    yield Finding(
        id,
        phrase(
            "The reader of the event log is %(seconds)s s behind, by about %(events)s events.",
            seconds=f"{seconds:,.0f}", events=f"{events:,}",
        ),
        phrase(
            "Look for errors in the log of the leading process. If it is busy with handlers, run manage.py "
            "ojs_scheduler on its own."
        ),
        figures={"since": format_instant(since), "seconds": round(seconds), "events": events},
    )  # fmt: skip


def _since(site: Site, earliest: Callable[[], dt.datetime | None], seconds: float) -> dt.datetime | None:
    """The time of the earliest event that waits, if it is older than this; None otherwise.

    The events of a long transaction are old when it commits. So what seems late is looked at again, when a scheduler
    that does its duties has done them; unless the caller cannot wait (`Site.patient`).
    """

    def late() -> dt.datetime | None:
        found = earliest()
        return found if found is not None and (site.now - found).total_seconds() > seconds else None

    if (found := late()) is None or not site.patient:
        return found
    time.sleep(SECOND_LOOK)
    return late()


# Workers


def worker_versions(site: Site) -> Iterator[Finding]:
    """Our own workers that run another version than this process; those of other languages have their own."""
    here = django_ojs.__version__
    for worker in site.workers:
        if worker.incarnation and worker.version and worker.version != here:
            yield Finding(
                "worker-versions",
                phrase(
                    "The worker %(worker)s on %(host)s runs django-ojs %(theirs)s, this process %(here)s.",
                    worker=worker.pk, host=worker.hostname, theirs=worker.version, here=here,
                ),
                phrase("Finish the deploy: restart the processes that run the older version."),
                worker.pk,
                {"version": worker.version, "here": here, "host": worker.hostname},
            )  # fmt: skip


def silent_workers(site: Site) -> Iterator[Finding]:
    """Workers that ended without deregistering, or cannot reach the database."""
    for worker in directory.silent(site.using):
        seconds = (site.now - worker.heard_at).total_seconds()
        yield Finding(
            "worker-silent",
            phrase(
                "The worker %(worker)s (process %(pid)s on %(host)s) has sent no heartbeat for %(seconds)s s.",
                worker=worker.pk, pid=worker.pid or "?", host=worker.hostname or "?", seconds=f"{seconds:,.0f}",
            ),
            phrase(
                "Start it again, or find out why it cannot reach the database. A leading scheduler takes its jobs back "
                "and forgets it."
            ),
            worker.pk,
            {"seconds": round(seconds), "host": worker.hostname, "pid": worker.pid},
        )  # fmt: skip


def dead_threads(site: Site) -> Iterator[Finding]:
    """Workers in which threads that run handlers have died. Others took their places, and the log has the errors."""
    for worker in site.workers:
        if worker.threads_replaced:
            yield Finding(
                "worker-threads-died",
                phrase(
                    "In the worker %(worker)s on %(host)s threads that run handlers have died and were replaced: "
                    "%(threads)s.",
                    worker=worker.pk, host=worker.hostname or "?", threads=f"{worker.threads_replaced:,}",
                ),
                phrase("Look for `A thread that runs handlers has died` in its log: the error there says why."),
                worker.pk,
                {"threads": worker.threads_replaced, "host": worker.hostname},
            )  # fmt: skip


def dead_workers(site: Site) -> Iterator[Finding]:
    """Processes of workers that died within an hour while they ran jobs: of one type of job, or of several jobs."""
    found = deaths.since(site.now - dt.timedelta(hours=1), site.using)
    mend = phrase(
        "Look at the pages of these jobs. After a SIGKILL that no one has sent, the kernel wanted memory: let the "
        "handler need less at once, lower --concurrency, or give the machine or the container more."
    )
    alone: dict[str, list[WorkerDeath]] = {}
    together: dict[tuple[str, dt.datetime], WorkerDeath] = {}
    for death in found:
        if death.alone:
            alone.setdefault(death.job_type, []).append(death)
        else:
            together.setdefault((death.worker_id, death.at), death)
    for name, those in alone.items():
        yield Finding(
            "type-kills-workers",
            phrase(
                "Processes of workers died within an hour while they ran a job of the type %(type)s and no other: "
                "%(deaths)s. The last one: %(how)s.",
                type=name, deaths=f"{len(those):,}", how=deaths.describe(those[0]),
            ),
            mend,
            name,
            {"deaths": len(those), "signal": those[0].signal, "memory_mb": those[0].memory_mb},
        )  # fmt: skip
    if together:
        last = next(iter(together.values()))
        yield Finding(
            "workers-died",
            phrase(
                "Processes of workers died within an hour while they ran several jobs: %(deaths)s. Each of these jobs "
                "is run alone next time. The last one: %(how)s.",
                deaths=f"{len(together):,}", how=deaths.describe(last),
            ),
            mend,
            figures={"deaths": len(together), "signal": last.signal, "memory_mb": last.memory_mb},
        )  # fmt: skip


def queues_without_workers(site: Site) -> Iterator[Finding]:
    """Available jobs that no live worker takes: of all queues, or of some."""
    unserved = directory.unserved_queues(site.counted, using=site.using)
    unserved = {name: jobs for name, jobs in unserved.items() if site.rules.of_queue(name).workers}
    if unserved and not directory.serving(site.using):
        jobs = sum(unserved.values())
        yield Finding(
            "workers-missing",
            phrase("No worker runs, and jobs wait: %(jobs)s.", jobs=f"{jobs:,}"),
            phrase("Start a worker: manage.py ojs_worker."),
            figures={"jobs": jobs, "queues": unserved},
        )
        return
    for name, jobs in unserved.items():
        yield Finding(
            "queue-unserved",
            phrase(
                "No worker serves the queue %(queue)s, and jobs wait in it: %(jobs)s.", queue=name, jobs=f"{jobs:,}"
            ),
            phrase(
                "Add the queue to the --queues of a worker, or start one: manage.py ojs_worker --queues %(queue)s. "
                "If the name is a slip, move the jobs.",
                queue=name,
            ),
            name,
            {"jobs": jobs},
        )


def types_without_workers(site: Site) -> Iterator[Finding]:
    """Types of jobs at the front of queues for which no live worker has a handler."""
    if not directory.serving(site.using):
        return
    types: Counter[str] = Counter()
    for front in site.fronts.values():
        types += front.types
    for name, jobs in directory.unserved_among(types, site.using).items():
        if not site.rules.of_type(name).workers:
            continue
        yield Finding(
            "type-unserved",
            phrase(
                "No worker has a handler for %(type)s. Jobs of that type at the front of queues: %(jobs)s.",
                type=name, jobs=f"{jobs:,}",
            ),
            phrase(
                "Deploy the handler to the workers: its module must be %(modules)s of an installed app. If "
                "it was renamed, keep the old name until its jobs are done, or cancel them: manage.py ojs_jobs "
                "cancel --type %(type)s.",
                modules=discovery.modules(), type=name,
            ),
            name,
            {"jobs": jobs},
        )  # fmt: skip
