"""The event log on servers of PostgreSQL that fail over and into which dumps are restored.

    pytest -m wide tests/events/test_real_servers.py

A standby that has not received everything is a copy of the primary (`pg_basebackup`) that is promoted in its place, on
its port. `tests/events/test_history_changed.py` has the same within one database.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings

from benchmarks import postgres

pytest.importorskip("psycopg")

pytestmark = [
    pytest.mark.wide,
    pytest.mark.skipif(postgres.binaries() is None, reason="needs PostgreSQL's own programs: initdb and postgres"),
]

PUSH = """
from django_ojs.jobs.push import push
for name in given: push([{"type": name, "args": []}])
"""
READ = """
from django_ojs.events import log
page, names = log.read(after=given, limit=5000), []
said(cursor=page.cursor, gap=page.gap, names=[event["data"]["job_type"] for event in page.events])
"""
PRUNE = """
from django_ojs import retention
said(**retention.prune())
"""
LISTEN = """
import asyncio
from django_ojs.events.filters import Filter
from django_ojs.realtime.hub import Hub

async def listen():
    async with Hub.current().subscribe(Filter()) as stream:
        said(kind="ready")
        async for item in stream:
            said(kind=item.kind, name=item.envelope["data"]["job_type"] if item.envelope else "", details=item.details)

asyncio.run(listen())
"""
_FRAME = """
import json, logging, sys
import django
django.setup()
logging.disable(logging.INFO)
given = json.loads(sys.argv[1])
def said(**found): print(json.dumps(found), flush=True)
"""


class Server(postgres.PrivatePostgres):
    """A server with a site: programs run on it, and it can be copied and dumped."""

    def __init__(self) -> None:
        found = postgres.binaries()
        assert found is not None
        super().__init__(found)

    def command(self, program: str, given: Any = None) -> tuple[list[str], dict[str, str]]:
        environment = {
            **os.environ, "DJANGO_SETTINGS_MODULE": "tests.worker.settings", "OJS_TEST_DATABASE_URL": self.url,
            "PYTHONPATH": str(settings.BASE_DIR),
        }  # fmt: skip
        return [sys.executable, "-c", _FRAME + program, json.dumps(given)], environment

    def run(self, program: str, given: Any = None) -> dict[str, Any]:
        command, environment = self.command(program, given)
        done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
        return json.loads(done.stdout) if done.stdout else {}

    def migrate(self) -> None:
        self.run("from django.core.management import call_command\ncall_command('migrate', verbosity=0)")

    def spend(self, transactions: int) -> None:
        """Let the counter of transactions go on."""
        self.execute(
            f"DO $$ BEGIN FOR i IN 1..{transactions} LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$"
        )

    def copy(self) -> str:
        """A standby that receives nothing from now on."""
        target = self._directory / "standby"
        self.copy_to(target)
        return str(target)

    def fail_over(self, copy: str) -> None:
        """Die, and let the standby take over."""
        self.kill()
        self._data = self._directory / copy
        self._run("touch", f"{copy}/standby.signal")
        self.start()
        self.promote()

    def restore(self, source: Server) -> None:
        """Take the dump of another server, in the place of what is here."""
        self.execute("DROP SCHEMA public CASCADE")
        self.execute("CREATE SCHEMA public")
        dump = subprocess.run(
            [str(self._bin / "pg_dump"), source.url], check=True, stdout=subprocess.PIPE, cwd="/"
        ).stdout
        subprocess.run(
            [str(self._bin / "psql"), "-q", "-v", "ON_ERROR_STOP=1", self.url],
            check=True, input=dump.replace(b"CREATE SCHEMA public;", b""), stdout=subprocess.DEVNULL, cwd="/",
        )  # fmt: skip

    def _run(self, program: str, *arguments: str) -> None:
        if program == "touch":
            subprocess.run(["touch", *arguments], check=True, **self._as)
        else:
            super()._run(program, *arguments)


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    made = [Server(), Server()]
    try:
        for server in made:
            server.start()
        made[0].migrate()
        yield made
    finally:
        for server in made:
            server.remove()


@pytest.mark.parametrize("new", [3, 120], ids=["shorter", "longer"])
def test_an_asynchronous_failover(servers: list[Server], new: int) -> None:
    primary = servers[0]
    kept, lost = [f"a.k{n}" for n in range(40)], [f"a.l{n}" for n in range(60)]
    come = [f"a.n{n}" for n in range(new)]
    primary.run(PUSH, kept)
    command, environment = primary.command(LISTEN)
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as listener:
        assert listener.stdout is not None
        heard = (json.loads(line) for line in listener.stdout)
        assert next(heard)["kind"] == "ready"
        copy = primary.copy()
        primary.run(PUSH, lost)
        assert [next(heard)["name"] for _ in lost] == lost
        old = primary.run(READ)
        assert old["names"] == kept + lost
        primary.fail_over(copy)
        primary.run(PUSH, come)
        page = primary.run(READ, old["cursor"])
        assert page["names"] == come
        assert page["gap"]["reason"] == "history_changed"
        assert page["gap"]["gap_start"] < page["gap"]["gap_end"]
        assert len(lost) <= page["gap"]["estimated_missed_count"] < 2 * len(lost)
        gap = next(heard)
        assert (gap["kind"], gap["details"]["reason"]) == ("gap", "history_changed")
        assert [next(heard)["name"] for _ in come] == come
        listener.kill()


def test_moves_by_dump_and_restore(servers: list[Server]) -> None:
    """To a counter that overlaps what is in the log, to one that is far beyond it, and back, within the retention."""
    here, there = servers
    here.spend(3000)
    seen: list[str] = []
    cursor, first = None, None

    def go_on(server: Server, count: int) -> None:
        nonlocal cursor, first
        pushed = [f"a.e{len(seen) + n}" for n in range(count)]
        server.run(PUSH, pushed)
        page = server.run(READ, cursor)
        assert (page["names"], page["gap"]) == (pushed, None)
        seen.extend(pushed)
        cursor = page["cursor"]

    go_on(here, 50)
    there_first, back = (here, there), (there, here)
    for number, (source, target) in enumerate((there_first, back, there_first, back)):
        target.restore(source)
        if number == 0:  # to where the log's transactions are
            lowest = target.execute("SELECT min(txid) FROM django_ojs_event WHERE txid > 0")
            left = lowest - target.execute("SELECT pg_current_xact_id()::text::bigint") - 2
            assert left > 0
            target.spend(left)
        elif number == 2:
            target.spend(20_000)
        go_on(target, 60)
    assert servers[0].run(READ)["names"] == seen
    here.execute("UPDATE django_ojs_event SET time = time - interval '30 days'")
    assert here.run(PRUNE)["events"] == len(seen)
