"""Find out what is wrong with a site, and how to mend it: `examine()` looks at the installation, `attention()` at jobs.

A *diagnosis* is a function that looks at one thing and yields a `Finding` for each fault. It reads settings, catalogues
of the database, counters and the fronts of indexes, never a table from end to end, so an examination costs the same
beside ten million jobs. `manage.py ojs_doctor` and the admin show the same findings; docs/troubleshooting.md explains
each.

`health.py` has what is the same on all databases, `postgresql.py` and `engines.py` what is special to one, and
`work.py` what jobs and queues need.
"""

from __future__ import annotations

from collections.abc import Iterable

from django_ojs.database import database
from django_ojs.doctor import engines, health, postgresql, work
from django_ojs.doctor.findings import NOT_EXAMINED, TITLES, Diagnosis, Finding, Site, diagnosis_name, run_diagnosis

__all__ = ["TITLES", "WORK", "Finding", "Site", "attention", "examine", "unseen"]

#: In the order in which the findings are shown: causes come before what they cause.
DIAGNOSES = (
    health.system_checks, engines.durability, postgresql.durability, postgresql.read_only, postgresql.pooler,
    postgresql.reads_elsewhere,
    health.clock_offset,
    postgresql.lock_waits, postgresql.long_transactions, engines.write_lock, engines.wal,
    postgresql.connections_used, postgresql.connections_needed,
    health.scheduler, health.schedules_of_code, health.due_jobs, health.event_order, health.metrics, health.webhooks,
    health.entries_aside,
    health.worker_versions, health.silent_workers, health.dead_threads, health.dead_workers,
    health.queues_without_workers,
    health.types_without_workers,
    postgresql.autovacuum, postgresql.vacuum, postgresql.index_bloat, engines.free_pages,
)  # fmt: skip


#: What an operator who has nothing to do with the installation looks at first, each with the kinds of its findings.
WORK: dict[Diagnosis, tuple[str, ...]] = {
    work.maintenance_mode: ("maintenance-on",),
    health.scheduler: ("scheduler-missing",),
    health.schedules_of_code: ("schedules-differ",),
    health.due_jobs: ("scheduler-behind",),
    health.queues_without_workers: ("workers-missing", "queue-unserved"),
    health.types_without_workers: ("type-unserved",),
    work.types: ("type-failing", "type-dead-letters"),
    work.queues: (
        "backlog-large", "queue-paused", "wait-long", "backlog-slow", "queue-failing", "queue-dead-letters",
    ),
    health.silent_workers: ("worker-silent",),
    health.dead_threads: ("worker-threads-died",),
    health.dead_workers: ("type-kills-workers", "workers-died"),
    health.event_order: ("event-order-behind",),
    health.metrics: ("metrics-behind",),
    health.webhooks: ("webhooks-behind",),
    health.entries_aside: ("outbox-aside",),
}  # fmt: skip


def attention(site: Site) -> list[Finding]:
    """What about the site's jobs needs an operator's attention now, the gravest first; empty if nothing does.

    The overview of the admin, `ojs_status` and the alerts show the same findings. How much waiting and failing is
    allowed, `OJS["ALERTS"]` says.
    """
    return [finding for diagnosis in WORK for finding in run_diagnosis(diagnosis, site, impatient=False)]


def unseen(findings: Iterable[Finding]) -> set[str]:
    """The kinds of findings for which `attention` could not look, as these findings of it tell."""
    failed = {finding.about for finding in findings if finding.id == NOT_EXAMINED}
    return {kind for diagnosis, kinds in WORK.items() if diagnosis_name(diagnosis) in failed for kind in kinds}


def examine(using: str | None = None) -> list[Finding]:
    """What is wrong, as far as this process and its database user can see; empty if nothing is.

    Where tables are missing, nothing else is looked at but the system checks. A diagnosis that fails is a finding of
    its own.

    Raises:
        OperationalError, InterfaceError: the database does not answer.
    """
    site = Site(database(using))
    unmigrated = run_diagnosis(health.migrations, site)
    if any(finding.id == "migrations-missing" for finding in unmigrated):
        return [*run_diagnosis(health.system_checks, site), *unmigrated]
    return [*unmigrated, *(finding for diagnosis in DIAGNOSES for finding in run_diagnosis(diagnosis, site))]
