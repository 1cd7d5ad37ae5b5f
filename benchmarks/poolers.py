"""`python -m benchmarks.poolers`: what PgBouncer and pgpool do to a site's statements, and what the mends are worth.

It starts a PostgreSQL with a replica that is 0.3 s behind, PgBouncer and pgpool on ports of this machine, in a folder
that is gone afterwards. Through each pooler, with each setting, a worker runs jobs that threads push and then look for
on another connection. It needs the programs of PostgreSQL, pgbouncer and pgpool2.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import postgres, processes
from benchmarks.postgres import PATIENCE, PrivatePostgres, free_ports, until

THREADS = 6


class Setting(NamedTuple):
    """A pooler with its configuration, and what the site says in its URL."""

    pooler: str
    pool: str
    site: str


OFF = "prepare_threshold=none"
SETTINGS = {
    "pgbouncer": Setting("pgbouncer", "", ""),
    "pgbouncer, prepared": Setting("pgbouncer", "", "prepare_threshold=5"),
    "pgpool": Setting("pgpool", "", ""),
    "pgpool, not prepared": Setting("pgpool", "", OFF),
    "pgpool, not prepared, always": Setting("pgpool", "disable_load_balance_on_write = 'always'", OFF),
    "pgpool, not prepared, primary": Setting("pgpool", "database_redirect_preference_list = 'ojs:primary'", OFF),
}


class Servers:
    """A primary, its replica, and the pooler before them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.user = postgres.unprivileged().get("user")
        self.pooler, self.control = free_ports(2)
        self._started: list[PrivatePostgres] = []

    def start(self) -> None:
        if self.user:
            shutil.chown(self.folder, self.user)
        self.primary = self._serve()
        self.replica = self._serve("recovery_min_apply_delay=300ms", like=self.primary)
        self.primary.execute("CREATE DATABASE ojs")

    def url(self, port: int, query: str = "") -> str:
        return processes.extended(f"postgres://postgres@127.0.0.1:{port}/ojs", query)

    def _serve(self, *more: str, like: PrivatePostgres | None = None) -> PrivatePostgres:
        programs = postgres.binaries()
        assert programs is not None
        server = PrivatePostgres(programs, "fsync=off", "max_connections=200", *more, like=like)
        self._started.append(server)
        server.start()
        return server

    @contextlib.contextmanager
    def behind(self, setting: Setting) -> Iterator[str]:
        """The URL of the database behind this pooler, for a site with this setting."""
        text = getattr(self, f"_{setting.pooler}")() + setting.pool + "\n"
        file = self.folder / f"{setting.pooler}.conf"
        file.write_text(text, encoding="utf-8")
        none = f"{self.folder}/none"
        command = {
            "pgbouncer": ["/usr/sbin/pgbouncer", "-q", str(file)],
            "pgpool": ["/usr/sbin/pgpool", "-n", "-f", str(file), "-a", none, "-F", none],
        }[setting.pooler]
        with (self.folder / f"{setting.pooler}.log").open("ab") as log:
            pooler = subprocess.Popen(command, stdout=log, stderr=log, user=self.user, cwd=self.folder)
        try:
            until(lambda: _answers(self.pooler), f"{setting.pooler} answers")
            query = "&".join(filter(None, ["conn_max_age=60", "disable_server_side_cursors=true", setting.site]))
            yield self.url(self.pooler, query)
        finally:
            pooler.terminate()
            pooler.wait(PATIENCE)

    def _pgbouncer(self) -> str:
        users = self.folder / "users"
        users.write_text('"postgres" ""\n', encoding="utf-8")
        return (
            f"[databases]\nojs = host=127.0.0.1 port={self.primary.port} user=postgres dbname=ojs\n[pgbouncer]\n"
            "listen_addr = 127.0.0.1\n"
            f"listen_port = {self.pooler}\nauth_type = any\npool_mode = transaction\ndefault_pool_size = 4\n"
            f"auth_file = {users}\nunix_socket_dir =\n"
        )

    def _pgpool(self) -> str:
        def backend(number: int, port: int, weight: int) -> str:
            return (
                f"backend_hostname{number} = '127.0.0.1'\nbackend_port{number} = {port}\n"
                f"backend_weight{number} = {weight}\nbackend_flag{number} = 'DISALLOW_TO_FAILOVER'\n"
            )

        return (
            f"backend_clustering_mode = 'streaming_replication'\nlisten_addresses = '127.0.0.1'\nport = {self.pooler}\n"
            f"pcp_port = {self.control}\nunix_socket_directories = '{self.folder}'\npcp_socket_dir = '{self.folder}'\n"
            f"pid_file_name = '{self.folder}/pgpool.pid'\nlogdir = '{self.folder}'\nnum_init_children = 48\n"
            "load_balance_mode = on\nsr_check_user = 'postgres'\nsr_check_period = 5\nmax_pool = 1\n"
            + backend(0, self.primary.port, 0)
            + backend(1, self.replica.port, 1)
        )

    def stop(self) -> None:
        for server in reversed(self._started):
            server.remove()


def _answers(port: int) -> bool:
    import psycopg

    try:
        with psycopg.connect(f"host=127.0.0.1 port={port} user=postgres dbname=ojs connect_timeout=3") as connection:
            return connection.execute("SELECT 1").fetchone() == (1,)
    except psycopg.Error:
        return False


def measure(servers: Servers, setting: Setting, count: int) -> str:
    """Figures of so many jobs in each of the threads."""
    from django.core.management import call_command
    from django.db import connections

    from django_ojs import doctor
    from django_ojs.models import Job

    with servers.behind(setting) as url:
        _connect(url)
        log = servers.folder / "worker.log"
        with log.open("wb") as out:
            command = [sys.executable, *processes.worker("--concurrency", "4")]
            worker = subprocess.Popen(command, env=processes.environment(url), stdout=out, stderr=out)
        try:
            answers = _push_and_look(count)
            _connect(servers.url(servers.primary.port))
            with contextlib.suppress(RuntimeError):
                until(lambda: Job.objects.filter(state="completed").count() >= answers["pushed"], "all jobs have run")
        finally:
            worker.terminate()
            worker.wait(PATIENCE)
        jobs = Counter(Job.objects.values_list("state", "attempt"))
        once = jobs["completed", 1]
        _connect(url)
        known = ("statements-lost", "reads-elsewhere")
        found = ", ".join(finding.id for finding in doctor.examine() if finding.id in known)
        connections.close_all()
        _connect(servers.url(servers.primary.port))
        call_command("flush", interactive=False, verbosity=0)
    text = log.read_text(errors="replace")
    died = text.count("thread died") + text.count("has died")
    return (
        f"pushed {answers['pushed']}, failed {answers['failed']}, looked for and not found {answers['missing']}; "
        f"run once {once}, threads died {died}; doctor: {found or 'nothing'}"
    )


def _push_and_look(count: int) -> Counter[str]:
    from django.db import Error, connections

    from django_ojs.errors import OJSError
    from django_ojs.jobs.push import push
    from django_ojs.models import Job

    answers: Counter[str] = Counter()

    def run(number: int) -> None:
        for each in range(count):
            try:
                (pushed,) = push([{"type": "bench.sync", "args": [each], "queue": "default"}])
            except (Error, OJSError):
                answers["failed"] += 1
                continue
            answers["pushed"] += 1
            connections.close_all()  # another request, in another thread
            try:
                answers["missing"] += not Job.objects.filter(pk=pushed.row["id"]).exists()  # type: ignore[index]
            except Error:
                answers["failed"] += 1
        connections.close_all()

    threads = [threading.Thread(target=run, args=[number], daemon=True) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    return answers


def _connect(url: str) -> None:
    """Let `default` be this database, in all threads."""
    from django.db import connections

    from django_ojs.database import parse_url

    connections.close_all()
    connections.settings = connections.configure_settings({"default": parse_url(url, Path.cwd())})
    with contextlib.suppress(AttributeError):
        del connections["default"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.poolers", description=str(__doc__).split("\n\n")[0])
    parser.add_argument("--count", type=int, default=50, help=f"jobs that each of {THREADS} threads pushes")
    parser.add_argument("--only", nargs="*", choices=list(SETTINGS), default=list(SETTINGS))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and end the servers
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="ojs-poolers-") as folder:
        servers = Servers(Path(folder))
        try:
            servers.start()
            _set_up(servers.url(servers.primary.port))
            for name in options.only:
                sys.stdout.write(f"{name}: {measure(servers, SETTINGS[name], options.count)}\n")
                sys.stdout.flush()
        finally:
            servers.stop()
    return 0


def _set_up(url: str) -> None:
    os.environ |= {"DJANGO_SETTINGS_MODULE": "benchmarks.settings", "OJS_BENCH_DATABASE": url}
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)


if __name__ == "__main__":
    sys.exit(main())
