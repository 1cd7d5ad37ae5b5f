"""What workflows, unique jobs and limits cost, beside the same without them."""

from __future__ import annotations

from typing import Any

from benchmarks import measures
from django_ojs.jobs.push import push
from django_ojs.queues import configuration
from django_ojs.workflows import workflow

MEMBERS, STEPS = 1000, 10
TYPE = "bench.inline"


def group(jobs: int, database: str) -> float:
    """Jobs per second of groups of a thousand members."""
    return _flows({"type": "group", "jobs": [measures.plain(TYPE)] * MEMBERS}, MEMBERS, jobs, database)


def chain(jobs: int, database: str) -> float:
    """Jobs per second of chains of ten steps that run side by side; each step is enqueued by the one before it."""
    return _flows({"type": "chain", "steps": [measures.plain(TYPE)] * STEPS}, STEPS, jobs, database)


def unique_enqueue(jobs: int) -> float:
    """Unique jobs per second pushed one at a time, all with keys of their own."""
    return measures.enqueue(jobs, _unique)


def unique_enqueue_bulk(jobs: int) -> float:
    """The same a thousand at a time."""
    return measures.enqueue_bulk(jobs, _unique)


def unique(jobs: int, database: str) -> float:
    """Unique jobs per second that a worker completes."""
    for start in range(0, jobs, measures.BULK):
        push([_unique(i) | {"type": TYPE} for i in range(start, min(start + measures.BULK, jobs))])
    measures.analyze()
    return measures.drained(jobs, 1, database)


def rate_limited(jobs: int, database: str) -> float:
    """Jobs per second of a queue under limits that are looked at with each claim and never reached."""
    configuration.configure("default", {"concurrency": 100_000, "rate_limit": {"limit": 10_000_000, "period": "PT1M"}})
    configuration.forget()
    try:
        return measures.drain(jobs, TYPE.removeprefix("bench."), 1, database)
    finally:
        configuration.configure("default", {"concurrency": None, "rate_limit": None})


def _unique(number: int) -> dict[str, Any]:
    return measures.plain() | {"args": [number], "unique": {"keys": ["type", "args"]}}


def _flows(document: dict[str, Any], size: int, jobs: int, database: str) -> float:
    count = max(1, jobs // size)
    for number in range(count):
        workflow.create({**document, "name": f"flow {number}"})
    measures.analyze()
    return measures.drained(count * size, 1, database)
