"""A process that is stopped (SIGSTOP) in the middle of transactions, as on a suspended machine.

`python -m tests.processes.frozen DEED...`: `order` puts the log in order and `reader` reads it; each stops in the pass.
`duty` is a duty of a scheduler that holds a queue, and `migration` undoes one. The others are of `TOGETHER`: each runs
in a thread of its own up to the commit of its first transaction, and the process stops when all are there.

It says on stdout that it is about to stop; going on, it says how each fared.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import uuid
from collections.abc import Callable
from typing import Any

import django


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def freeze() -> None:
    say("frozen")
    os.kill(os.getpid(), signal.SIGSTOP)
    signal.sigwait({signal.SIGCONT})  # the thread that stops its process may get a little further


def stop_in_the_pass() -> None:
    from django_ojs.events import order

    for name in ("_number_transactions", "_stamp_rows"):
        original = getattr(order, name)

        def stopping(*args: Any, original: Any = original) -> int:
            if threading.current_thread().name not in stopped:
                stopped.add(threading.current_thread().name)
                freeze()
            return int(original(*args))

        setattr(order, name, stopping)


stopped: set[str] = set()


class Holds:
    """A duty that stops once in the middle of its transaction."""

    name = "holds"
    rounds = 0

    def run_once(self, using: str) -> float:
        from django_ojs.database import atomic
        from django_ojs.models import Queue

        self.rounds += 1
        with atomic(using=using):
            Queue.objects.select_for_update().get(name="held")
            if self.rounds == 1:
                freeze()
            Queue.objects.filter(name="held").update(draining=True)
        say("done")
        return 3600.0


# What holds a lock of the server's own: each is done by the process that stops, and then by another. It returns
# something true where it has done it, and not where another is at it.

BATCH = [str(uuid.UUID(f"01900000-0000-7000-8000-{number:012x}")) for number in range(600)]


def lease() -> Any:
    from django_ojs.scheduler.scheduler import Leadership

    return Leadership("scheduler", f"process {os.getpid()}", "default").run_once()


def unique() -> Any:
    from django_ojs.jobs.push import push

    return push([{"type": "f.unique", "args": [], "unique": {"keys": ["type", "args"], "on_conflict": "replace"}}])


def bounded() -> Any:
    from django_ojs.jobs.push import push

    return push([{"type": "f.bounded", "args": [], "queue": "bounded"}])


def batch() -> Any:
    from django_ojs.jobs.fetch import Fetch, fetch
    from django_ojs.jobs.push import push

    for _ in range(6):  # by then a connection to PostgreSQL sends a batch in parts, in a transaction
        fetch(Fetch(["empty"], worker_id="w"))

    return push([{"type": "f.batch", "args": [], "queue": "batch", "id": job_id} for job_id in BATCH])


def keyed() -> Any:
    from django_ojs.jobs.idempotency import Answer, KeyedRequest, once

    return once(KeyedRequest("a-key", "someone", "bulk", b"{}"), lambda: Answer(200, "{}", {}), "default")


def member() -> Any:
    from django_ojs.jobs.finish import Ack, ack_one
    from django_ojs.models import Job

    return ack_one(Ack(Job.objects.get(type="f.member").pk))


def failure() -> Any:
    from django_ojs.jobs.finish import Failure, fail_one
    from django_ojs.models import Job

    return fail_one(Failure(Job.objects.get(type="f.failure").pk, {"message": "no"}))


def cancel() -> Any:
    from django_ojs.jobs.cancel import cancel_one
    from django_ojs.models import Job

    return cancel_one(Job.objects.get(type="f.cancel").pk)


def timers() -> Any:
    from django_ojs.jobs.timers import apply_due

    return apply_due()


def limited() -> Any:
    from django_ojs.jobs.fetch import Fetch, fetch

    return fetch(Fetch(["limited"], worker_id="w"))


def beat() -> Any:
    from django_ojs.workerregistry.heartbeat import Beat, beat

    return beat(Beat("w"))


def dead() -> Any:
    from django_ojs.workerregistry.dead import rescue_dead_workers

    return rescue_dead_workers()


def queue() -> Any:
    from django_ojs.queues.configuration import pause

    return pause("paused")


def cron() -> Any:
    from django_ojs.cron.runs import tick

    return tick()


def schedule() -> Any:
    from django_ojs.cron.schedules import set_enabled

    return set_enabled("weekly", False)


def fold() -> Any:
    from django_ojs.statistics.counters import fold

    return fold()


def roll_up() -> Any:
    from django_ojs.statistics.history import roll_up

    return roll_up()


def count() -> Any:
    from django_ojs.statistics.eventcounts import count

    return count()


def relay() -> Any:
    from django_ojs.webhooks.relay import relay

    return relay()


def deliveries() -> Any:
    from django_ojs.webhooks.deliveries import claim

    return claim(8, {})


def prune() -> Any:
    from django_ojs.retention import prune

    return prune()["jobs"]


def maintenance() -> Any:
    from django_ojs.queues.maintenance import start

    return start(reason="a test")


#: Those that need nothing of each other. On MariaDB the last three wait for rows that others have not committed.
TOGETHER: tuple[tuple[Callable[[], Any], ...], ...] = (
    (lease, unique, bounded, batch, keyed, member, failure, cancel, timers, limited, beat, queue, cron, schedule,
     count, relay, deliveries, prune, maintenance),
    (roll_up, dead),
    (fold,),
)  # fmt: skip


def stop_at_commits(names: list[str]) -> None:
    """Bring each deed to its commit, stop, and go on with all."""
    from django.db import connection, connections

    from django_ojs.errors import OJSError

    go = threading.Event()
    threads = []
    deeds = {deed.__name__: deed for some in TOGETHER for deed in some}
    for deed in map(deeds.__getitem__, names):
        there = threading.Event()

        def act(deed: Callable[[], Any] = deed, there: threading.Event = there) -> None:
            connection.ensure_connection()
            commit = connection.commit

            def stop() -> None:
                connection.commit = commit  # type: ignore[method-assign]
                there.set()
                go.wait()
                commit()

            connection.commit = stop  # type: ignore[method-assign]
            try:
                deed()
            except OJSError as error:  # the other process has done it meanwhile
                say(f"{deed.__name__}: answered by {error}".replace("\n", " "))
            except Exception as error:  # noqa: BLE001 - the test reads it
                say(f"{deed.__name__}: {type(error).__name__}: {error}".replace("\n", " "))
            else:
                say(f"{deed.__name__}: done")
            finally:
                there.set()
                connections.close_all()

        threads.append(threading.Thread(target=act))
        threads[-1].start()
        there.wait()
    freeze()
    go.set()
    for thread in threads:
        thread.join()


def migrate() -> None:
    """Stop in the middle of a migration that has locked a table: in the first that is undone, so that all of it is
    rolled back with this process."""
    from django.core.management import call_command
    from django.db import migrations

    original = migrations.Migration.unapply

    def stopping(self: Any, state: Any, editor: Any, *options: Any, **named: Any) -> Any:
        found = original(self, state, editor, *options, **named)
        editor.execute("LOCK TABLE django_ojs_job")  # which everybody needs
        freeze()
        return found

    migrations.Migration.unapply = stopping  # type: ignore[method-assign]
    call_command("migrate", "django_ojs", "0010", verbosity=0)


def main(*deeds: str) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCONT})
    django.setup()
    from django.db import Error

    from django_ojs.events import log, order
    from django_ojs.scheduler.service import DutyThread

    logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s")
    if deeds == ("duty",):
        thread = DutyThread("test", [Holds()], "default")
        thread.start()
        sys.stdin.readline()
        thread.stop()
        return
    if deeds[0] not in ("order", "reader", "migration"):
        stop_at_commits(list(deeds))
        return
    stop_in_the_pass()
    acts: dict[str, Callable[[], Any]] = {
        "order": lambda: order.advance("default"),
        "reader": log.read,
        "migration": migrate,
    }
    try:
        acts[deeds[0]]()
    except Error as error:
        say(f"ended: {error}".replace("\n", " "))
    else:
        say("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
