"""A database that goes away while jobs flow: nothing is lost, nothing is done twice because of it.

It is a PostgreSQL of the test's own, never the machine's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from django.conf import settings

from benchmarks import postgres
from tests.waiting import eventually
from tests.worker.conftest import WorkerCommand

psycopg = pytest.importorskip("psycopg")

pytestmark = [
    pytest.mark.wide,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.skipif(postgres.binaries() is None, reason="needs PostgreSQL's own programs: initdb and postgres"),
]

FULL = os.environ.get("OJS_TEST_FULL") == "1"
JOBS = 20_000 if FULL else 1500
DOWN = 60.0 if FULL else 3.0  #: seconds


class Site:
    """A site on the private server: enqueues, looks, and has workers."""

    def __init__(self, server: postgres.PrivatePostgres, traces: Path) -> None:
        self.server, self.traces = server, traces
        self.environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.worker.settings",
            "OJS_TEST_DATABASE_URL": server.url,
            "OJS_TEST_TRACES": str(traces),
            # What is lost by an outage must not come back by mere waiting
            "OJS_TEST_VISIBILITY": "600",
            "PYTHONPATH": str(settings.BASE_DIR),
            "PYTHONUNBUFFERED": "1",
        }
        self.worker: WorkerCommand | None = None

    def manage(self, *arguments: str) -> None:
        command = [sys.executable, str(Path(settings.BASE_DIR) / "manage.py"), *arguments]
        subprocess.run(command, env=self.environment, check=True, stdout=subprocess.DEVNULL)

    def enqueue(self, count: int) -> None:
        jobs = f"[('site.note', [n]) for n in range({count})]"
        self.manage("shell", "-c", f"from django_ojs import enqueue_many; enqueue_many({jobs})")

    def work(self, **environment: str) -> WorkerCommand:
        arguments = ("ojs_worker", "--name", "w", "--processes", "2", "--concurrency", "4")
        self.worker = WorkerCommand(self.environment | environment, self.traces, *arguments)
        return self.worker

    def query(self, sql: str) -> list[Any]:
        with psycopg.connect(self.server.url, autocommit=True) as connection:
            found: list[Any] = connection.execute(sql).fetchall()
            return found

    def done(self) -> int:
        return len(self.lines())

    def repeated(self) -> list[Any]:
        """The jobs whose handlers ran more than once, each with its events."""
        numbers = [int(number) for number, runs in Counter(self.lines()).items() if runs > 1]
        return self.query(
            "SELECT j.args, e.type, e.time, e.attempt, e.worker_id, e.data FROM django_ojs_event e"
            " JOIN django_ojs_job j ON j.id = e.job_id"
            f" WHERE j.args = ANY (ARRAY{[f'[{number}]' for number in numbers]}::text[]) ORDER BY j.args, e.seq"
        )

    def lines(self) -> list[str]:
        path = self.traces / "notes"
        return path.read_text().split() if path.exists() else []


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    directory = postgres.binaries()
    assert directory is not None
    server = postgres.PrivatePostgres(directory)
    site = Site(server, tmp_path)
    try:
        server.start()
        site.manage("migrate", "-v", "0")
        yield site
    finally:
        if site.worker is not None:
            family = {site.worker.process.pid, *(child.pid for child in site.worker.relatives())}
            for pid in family:
                if psutil.pid_exists(pid):
                    os.kill(pid, signal.SIGKILL)
            site.worker.process.wait()
            site.worker._reader.join(5)
            assert site.worker.process.stdout is not None
            site.worker.process.stdout.close()
        server.remove()


def restart(site: Site) -> None:
    site.server.stop()
    site.server.start()


def pull_the_plug(site: Site) -> None:
    site.server.kill()
    site.server.start()


def stay_away(site: Site) -> None:
    site.server.stop()
    time.sleep(DOWN)
    site.server.start()


def cut_all_connections(site: Site) -> None:
    site.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")


@pytest.mark.parametrize("happen", [restart, pull_the_plug, stay_away, cut_all_connections])
def test_jobs_flow_on_when_the_database_is_back(site: Site, happen: Callable[[Site], None]) -> None:
    site.enqueue(JOBS)
    worker = site.work()
    for part in (0.2, 0.5):
        eventually(lambda part=part: site.done() >= JOBS * part, timeout=120)
        happen(site)
    eventually(lambda: site.done() >= JOBS, timeout=200)
    eventually(
        lambda: site.query("SELECT count(*) FROM django_ojs_job WHERE state <> 'completed'") == [(0,)], timeout=60
    )
    assert not site.repeated(), worker.output
    assert site.query("SELECT DISTINCT attempt FROM django_ojs_job ORDER BY 1")[0] == (1,)
    assert site.query("SELECT count(*) FROM django_ojs_job WHERE errors <> ''") == [(0,)]
    assert site.query("SELECT count(*) FROM django_ojs_event WHERE type = 'job.completed'") == [(JOBS,)]
    worker.signal(signal.SIGTERM)
    assert worker.wait(60) == 0, worker.output
    assert worker.output.count("The database cannot be used") >= 2, "each process says it"
    assert "Traceback" not in worker.output, worker.output


@pytest.mark.parametrize("happen", [restart, pull_the_plug, cut_all_connections])
def test_handlers_that_use_the_database_lose_no_attempt(site: Site, happen: Callable[[Site], None]) -> None:
    """Each has one attempt, and many are in a query, or in a transaction, when the database goes away."""
    kinds = ("site.query", "site.query_later", "site.query_inline", "site.write", "site.write_inline")
    each = JOBS // len(kinds)
    jobs = f"[(kind, [n]) for n in range({each}) for kind in {kinds}]"
    site.manage("shell", "-c", f"from django_ojs import enqueue_many; enqueue_many({jobs})")
    worker = site.work()

    def completed() -> int:
        return int(site.query("SELECT count(*) FROM django_ojs_job WHERE state = 'completed'")[0][0])

    for part in (0.2, 0.4, 0.6):
        eventually(lambda part=part: completed() >= len(kinds) * each * part, timeout=120)
        happen(site)
    eventually(lambda: completed() >= len(kinds) * each, timeout=200)
    assert site.query("SELECT count(*) FROM auth_group") == [(2 * each,)], "what a handler wrote is there once"
    assert site.query("SELECT count(*) FROM django_ojs_job WHERE attempt - coalesce(uncounted, 0) <> 1") == [(0,)]
    codes = site.query("SELECT DISTINCT errors::jsonb -> 0 ->> 'code' FROM django_ojs_job WHERE errors <> ''")
    assert codes == [("database_outage",)], "some were met by it, and by nothing else"
    (lost,) = site.query("SELECT count(*) FROM django_ojs_job WHERE errors <> ''")[0]
    assert worker.output.count("was cut off, because the database went away, and runs again") >= lost
    ended = site.query("SELECT count(*) FROM django_ojs_event WHERE type IN ('job.failed', 'job.discarded')")
    assert ended == [(0,)]
    worker.signal(signal.SIGTERM)
    assert worker.wait(60) == 0, worker.output


def test_reservations_that_ended_during_an_outage_are_not_taken_from_those_that_worked(site: Site) -> None:
    """Nobody could renew them, and nobody could beat: workers get the time to say that they live."""
    site.enqueue(JOBS)
    worker = site.work(OJS_TEST_VISIBILITY="15", OJS_TEST_HEARTBEAT_TIMEOUT="15")
    eventually(lambda: site.done() >= JOBS * 0.3, timeout=120)
    site.server.stop()
    time.sleep(18)  # longer than both
    site.server.start()
    eventually(lambda: site.done() >= JOBS, timeout=200)
    eventually(
        lambda: site.query("SELECT count(*) FROM django_ojs_job WHERE state <> 'completed'") == [(0,)], timeout=60
    )
    assert set(Counter(site.lines()).values()) == {1}, "no handler ran twice"
    assert site.query("SELECT count(*) FROM django_ojs_event WHERE type IN ('job.stalled', 'job.failed')") == [(0,)]
    worker.signal(signal.SIGTERM)
    assert worker.wait(60) == 0, worker.output


def test_what_ended_while_the_database_was_away_is_reported_by_the_next_worker(site: Site) -> None:
    """The worker is told to stop before the database is back."""
    names = ["a", "b", "c"]
    site.manage(
        "shell", "-c", f"from django_ojs import enqueue_many; enqueue_many([('site.hold', [n]) for n in {names}])"
    )
    spool = {"OJS_TEST_SPOOL": str(site.traces / "spool"), "OJS_TEST_GRACE": "1"}
    worker = site.work(**spool)
    eventually(lambda: all(worker.trace(f"{name}.started") for name in names))
    site.server.stop()
    for name in names:
        worker.let_go(name)
    worker.signal(signal.SIGTERM)
    assert worker.wait(90) == 0, worker.output
    assert worker.said("the database is away"), worker.output
    assert list((site.traces / "spool").iterdir())
    worker.process.stdout.close()  # type: ignore[union-attr]
    site.server.start()
    worker = site.work(**spool)
    eventually(
        lambda: site.query("SELECT DISTINCT state, attempt FROM django_ojs_job") == [("completed", 1)], timeout=60
    )
    eventually(lambda: not list((site.traces / "spool").iterdir()))  # deleted after the commit
    worker.signal(signal.SIGTERM)
    assert worker.wait(60) == 0, worker.output
