"""PostgreSQL servers of a test's or a benchmark's own, that may be killed, copied, followed and promoted."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATIENCE = 120.0


def binaries() -> Path | None:
    """Where initdb and postgres are; the newest of several."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).resolve().parent if on_path else None


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def until(condition: Callable[[], object], what: str, pause: float = 0.1) -> None:
    """Wait until it holds. Raises RuntimeError after `PATIENCE`."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"It did not happen in time: {what}")
        time.sleep(pause)


def unprivileged() -> dict[str, Any]:
    """PostgreSQL refuses to run as root."""
    if os.getuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            return {"user": name, "group": pwd.getpwnam(name).pw_gid, "extra_groups": []}
        except KeyError:
            continue
    raise LookupError("There is no user to run PostgreSQL as.")


class PrivatePostgres:
    """`start()`, `stop()`, `kill()`; `url` stays the same."""

    def __init__(self, bin_directory: Path, *options: str, like: PrivatePostgres | None = None) -> None:
        """A server with these settings (`name=value`); `like`: one that follows that server, as it is now."""
        self._bin, self._options = bin_directory, options
        self._directory = Path(tempfile.mkdtemp(prefix="ojs-pg-"))
        self._as = unprivileged()
        if self._as:
            shutil.chown(self._directory, self._as["user"])
        (self.port,) = free_ports(1)
        self._data = self._directory / "data"
        self._server: subprocess.Popen[bytes] | None = None
        if like is None:
            self._run("initdb", "-D", str(self._data), "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8")
        else:
            like.copy_to(self._data, "-R")

    @property
    def url(self) -> str:
        return f"postgres://postgres@127.0.0.1:{self.port}/postgres"

    @property
    def log(self) -> str:
        """What the server has logged."""
        return (self._directory / "log").read_text(errors="replace")

    def start(self) -> None:
        settings = ["listen_addresses=127.0.0.1", *self._options]
        options = [
            "-p",
            str(self.port),
            "-k",
            str(self._directory),
            *(part for each in settings for part in ("-c", each)),
        ]
        with (self._directory / "log").open("ab") as log:
            self._server = subprocess.Popen(
                [str(self._bin / "postgres"), "-D", str(self._data), *options],
                cwd="/", stdout=log, stderr=log, start_new_session=True, **self._as,
            )  # fmt: skip
        for _ in range(600):
            ready = [str(self._bin / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port), "-t", "1"]
            if subprocess.run(ready, check=False).returncode == 0:
                return
            if self._server.poll() is not None:
                self.start()  # after a kill its children may have held the shared memory still
                return
            try:
                self._server.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
        raise AssertionError("The private PostgreSQL did not start.")

    def stop(self) -> None:
        """The fast way: open transactions are rolled back, clients are cut off."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """As if the plug were pulled: the server and all its processes."""
        assert self._server is not None
        os.killpg(self._server.pid, signal.SIGKILL)
        self._server.wait()

    def execute(self, sql: str) -> Any:
        """Run one statement; the first value that it returns."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            found = cursor.fetchone() if cursor.description else None
            return found[0] if found else None

    def set(self, name: str, value: str) -> None:
        """Change a setting of the running server."""
        self.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        self.execute("SELECT pg_reload_conf()")

    def promote(self) -> None:
        """Let a standby take over."""
        self.execute("SELECT pg_promote()")
        until(lambda: not self.execute("SELECT pg_is_in_recovery()"), "the standby has taken over")

    def copy_to(self, target: Path, *options: str) -> None:
        """Copy all that is in the server, as a standby does at first."""
        self._run(
            "pg_basebackup", "-D", str(target), "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres",
            "-c", "fast", "--no-sync", *options,
        )  # fmt: skip

    def remove(self) -> None:
        if self._server is not None and self._server.poll() is None:
            self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _end(self, number: signal.Signals) -> None:
        if self._server is not None and self._server.poll() is None:
            self._server.send_signal(number)
            self._server.wait(60)

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run([str(self._bin / program), *arguments], check=True, cwd="/", stdout=subprocess.DEVNULL,
                       **self._as)  # fmt: skip
