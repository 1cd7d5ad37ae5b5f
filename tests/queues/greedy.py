"""A worker process that takes what it can get: `python -m tests.queues.greedy NAME QUEUE...`, until all have ended.

It begins at a word on its input, fails some jobs and completes the rest, and folds the counts in between. The one
called doomed stops with jobs in its hands, and waits to be killed.
"""

from __future__ import annotations

import random
import sys
import time

import django

django.setup()

from django_ojs.jobs.fetch import Fetch, fetch  # noqa: E402
from django_ojs.jobs.finish import Ack, Failure, ack, fail  # noqa: E402  # noqa: E402
from django_ojs.jobs.timers import apply_due  # noqa: E402
from django_ojs.models import Job  # noqa: E402 - needs the apps
from django_ojs.statistics import counters  # noqa: E402


def main(name: str, *queues: str) -> None:
    chance = random.Random(name)
    print("ready", flush=True)
    sys.stdin.readline()
    while Job.objects.live().exists():
        wanted = chance.sample(queues, len(queues))
        rows = fetch(Fetch(wanted, count=chance.randint(1, 4), worker_id=name, check_worker=False, visibility_ms=2000))
        time.sleep(0.002 * chance.random())  # the work
        if name == "doomed" and len(rows) > 1:
            print("holding", flush=True)
            sys.stdin.readline()
        kept = [row for row in rows if chance.random() < 0.9]
        lost = [row for row in rows if row not in kept]
        ack([Ack(row["id"], None, name, row["attempt"]) for row in kept])
        fail([Failure(row["id"], {"message": "no"}, name, row["attempt"]) for row in lost])
        apply_due()
        if chance.random() < 0.2:
            counters.fold(limit=chance.randint(1, 200))


main(*sys.argv[1:])
