"""Diagnoses of the jobs themselves: what waits for too long, what fails too often, and what an operator has stopped.

How much of it is too much, the site's limits say (`rules/alertrules.py`). What is measured is in `statistics/`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

from django_ojs.doctor.findings import Finding, Site
from django_ojs.messages import Phrase, phrase
from django_ojs.rules.alertrules import AlertLimits
from django_ojs.rules.durations import format_instant, spell
from django_ojs.statistics import jobtypes
from django_ojs.statistics.throughput import Work

#: The time over which a part of failures is measured, and the failures below which there is none: one job of two that
#: fails says little.
WINDOW, FEWEST = dt.timedelta(minutes=15), 10
#: With fewer available jobs a queue is never reported as slow to empty.
SMALL = 100


def maintenance_mode(site: Site) -> Iterator[Finding]:
    """No worker gets a job, since an operator wanted that."""
    mode = site.maintenance
    if mode is None:
        return
    since, end = format_instant(mode.enabled_at), mode.estimated_end
    reason = f" ({mode.reason})" if mode.reason else ""
    if end is not None and end <= site.now:
        says = phrase(
            "Maintenance mode is on since %(since)s%(reason)s. It should have ended at %(end)s.",
            since=since, reason=reason, end=format_instant(end),
        )  # fmt: skip
    elif end is not None:
        says = phrase(
            "Maintenance mode is on since %(since)s%(reason)s: no worker gets a job until about %(end)s.",
            since=since, reason=reason, end=format_instant(end),
        )  # fmt: skip
    else:
        says = phrase(
            "Maintenance mode is on since %(since)s%(reason)s: no worker gets a job.", since=since, reason=reason
        )
    yield Finding(
        "maintenance-on", says, phrase("End it when the work is done: manage.py ojs_maintenance off."),
        figures={"since": since, "ends_at": format_instant(end) if end else None},
    )  # fmt: skip


def queues(site: Site) -> Iterator[Finding]:
    """What is wrong with each queue: those with the most available jobs first."""
    hour: dict[str, Work] = {}
    window: dict[str, Work] = {}
    for (name, minute), done in site.work.items():
        hour.setdefault(name, Work()).add(done)
        if minute >= site.now - WINDOW:
            window.setdefault(name, Work()).add(done)
    for name in dict.fromkeys([*site.waiting, *sorted(hour)]):
        limits = site.rules.of_queue(name)
        yield from _waiting(site, name, limits)
        yield from _failing(name, window.get(name, Work()), hour.get(name, Work()), limits)


def _waiting(site: Site, name: str, limits: AlertLimits) -> Iterator[Finding]:
    """What is wrong with the waiting jobs of one queue. A paused queue is reported as paused, not as slow."""
    jobs = site.waiting.get(name, 0)
    if not jobs:
        return
    if limits.backlog is not None and jobs > limits.backlog:
        yield Finding(
            "backlog-large",
            phrase(
                "Jobs that wait in the queue %(queue)s: %(jobs)s. More than %(limit)s are too many.",
                queue=name, jobs=f"{jobs:,}", limit=f"{limits.backlog:,}",
            ),
            _more_slots(name),
            name,
            {"jobs": jobs, "limit": limits.backlog},
        )  # fmt: skip
    if site.status.get(name) == "paused":
        yield Finding(
            "queue-paused",
            phrase("The queue %(queue)s is paused. Jobs that wait in it: %(jobs)s.", queue=name, jobs=f"{jobs:,}"),
            phrase("Resume it: manage.py ojs_queues resume %(queue)s.", queue=name),
            name,
            {"jobs": jobs},
        )
    elif not site.maintenance:
        yield from _slow(site, name, limits)


def _slow(site: Site, name: str, limits: AlertLimits) -> Iterator[Finding]:
    oldest = site.fronts[name].oldest if name in site.fronts else None
    if limits.oldest_wait is not None and oldest is not None and site.now - oldest > limits.oldest_wait:
        yield Finding(
            "wait-long",
            phrase(
                "A job in the queue %(queue)s has been waiting since %(since)s (%(time)s).",
                queue=name, since=format_instant(oldest), time=_spelled(site.now - oldest),
            ),
            phrase(
                "Look at the page of the queue: whether workers serve it, how many slots it needs, and whether a limit "
                "holds its jobs back."
            ),
            name,
            {"since": format_instant(oldest), "seconds": round((site.now - oldest).total_seconds())},
        )  # fmt: skip
    flow = site.flows[name]
    time = flow.drain_time
    if limits.drain_time is not None and time is not None and flow.waiting >= SMALL and time > limits.drain_time:
        facts = {"queue": name, "jobs": f"{flow.waiting:,}", "time": _spelled(time), "ended": f"{flow.ended:,.4g}"}
        if flow.growth > 0:
            says = phrase(
                "Jobs that wait in the queue %(queue)s: %(jobs)s, and by %(growth)s more a minute. At %(ended)s jobs a "
                "minute they take %(time)s.",
                growth=f"{flow.growth:,.4g}", **facts,
            )  # fmt: skip
        else:
            says = phrase(
                "Jobs that wait in the queue %(queue)s: %(jobs)s. At %(ended)s jobs a minute they take %(time)s.",
                **facts,
            )
        yield Finding(
            "backlog-slow", says, _more_slots(name), name,
            {"jobs": flow.waiting, "ended_per_minute": flow.ended, "enqueued_per_minute": flow.enqueued,
             "seconds": round(time.total_seconds())},
        )  # fmt: skip


def _more_slots(name: str) -> Phrase:
    return phrase(
        "Give the queue more slots: another worker with --queues %(queue)s, or a higher --concurrency. Its page says "
        "how many its jobs need.",
        queue=name,
    )


def _failing(name: str, window: Work, hour: Work, limits: AlertLimits) -> Iterator[Finding]:
    ended = window.completed + window.failed
    if (
        limits.error_rate is not None
        and window.failed >= FEWEST
        and (part := window.failed / ended) > limits.error_rate
    ):
        yield Finding(
            "queue-failing",
            phrase(
                "In the queue %(queue)s failures ended %(failed)s of %(ended)s jobs within 15 minutes (%(part)s %%).",
                queue=name, failed=f"{window.failed:,}", ended=f"{ended:,}", part=f"{part:.0%}".rstrip("%"),
            ),
            _look_at_errors(),
            name,
            {"failed": window.failed, "ended": ended, "error_rate": round(part, 4)},
        )  # fmt: skip
    if limits.dead_letters is not None and hour.failed >= limits.dead_letters:
        yield Finding(
            "queue-dead-letters",
            phrase(
                "Failures ended jobs of the queue %(queue)s within an hour: %(jobs)s.",
                queue=name, jobs=f"{hour.failed:,}",
            ),
            _look_at_errors(),
            name,
            {"jobs": hour.failed},
        )  # fmt: skip


def types(site: Site) -> Iterator[Finding]:
    """Job types of which too many attempts fail, or too many jobs end so; those with the most failures first."""
    window = jobtypes.since(site.now - WINDOW, using=site.using)
    for name, found in sorted(window.items(), key=lambda item: (-item[1].failed, item[0])):
        rate = site.rules.of_type(name).error_rate
        if rate is not None and found.failed >= FEWEST and found.error_rate > rate:
            attempts = found.completed + found.failed
            yield Finding(
                "type-failing",
                phrase(
                    "Of %(attempts)s attempts of %(type)s within 15 minutes failed %(failed)s (%(part)s %%).",
                    attempts=f"{attempts:,}", type=name, failed=f"{found.failed:,}",
                    part=f"{found.error_rate:.0%}".rstrip("%"),
                ),
                _look_at_errors(),
                name,
                {"failed": found.failed, "attempts": attempts, "discarded": found.discarded,
                 "error_rate": round(found.error_rate, 4)},
            )  # fmt: skip
    hour = jobtypes.since(site.now - dt.timedelta(hours=1), using=site.using)
    for name, found in sorted(hour.items(), key=lambda item: (-item[1].discarded, item[0])):
        most = site.rules.of_type(name).dead_letters
        if most is not None and found.discarded >= most:
            yield Finding(
                "type-dead-letters",
                phrase(
                    "Failures ended jobs of the type %(type)s within an hour: %(jobs)s.",
                    type=name, jobs=f"{found.discarded:,}",
                ),
                _look_at_errors(),
                name,
                {"jobs": found.discarded},
            )  # fmt: skip


def _look_at_errors() -> Phrase:
    return phrase(
        "Look at the errors on the page of dead letters, mend the cause, and retry from there; a new deploy of the "
        "handler may be the cause."
    )


def _spelled(time: dt.timedelta) -> str:
    return spell(round(time.total_seconds()) * 1000)
