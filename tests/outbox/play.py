"""What processes of the site in `settings` do: `python -m tests.outbox.play VERB [ARGUMENT...]`, answers as JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import django


def order(names: str) -> list[str]:
    """Data and job in one transaction, for each of the names."""
    from django.contrib.auth.models import Group
    from django.db import transaction

    from tests.outbox.jobs import ship

    ids = []
    for name in names.split(","):
        with transaction.atomic():
            Group.objects.create(name=f"ordered {name}")
            ids.append(str(ship.enqueue(name).id))
    return ids


def hand_on(names: str) -> list[str]:
    """A job for each of the names, which enqueues others."""
    from tests.outbox.jobs import hand_on

    return [str(hand_on.enqueue(name).id) for name in names.split(",")]


def die_between() -> None:
    """Relay, and be killed when the jobs are stored and the entries are not deleted yet."""
    from django_ojs import outbox

    outbox._delete = lambda keys, source: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
    outbox.relay()


def relay() -> int:
    from django_ojs import outbox

    return sum(iter(outbox.relay, 0))


def look() -> dict[str, Any]:
    from django.contrib.auth.models import Group
    from django.db import connections

    from django_ojs.models import Job, OutboxEntry

    def tables(alias: str) -> list[str]:
        return sorted(connections[alias].introspection.table_names())

    jobs = Job.objects.order_by("enqueued_at").values_list("id", "args", "state")
    return {
        "groups": sorted(Group.objects.using("default").values_list("name", flat=True)),
        "jobs": [[str(pk), args[0], state] for pk, args, state in jobs],
        "outbox": [str(pk) for pk in OutboxEntry.objects.order_by("id").values_list("target_id", flat=True)],
        "default": tables("default"),
        "jobs_tables": tables("jobs"),
    }  # fmt: skip


if __name__ == "__main__":
    django.setup()
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
