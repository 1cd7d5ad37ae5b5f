"""A PostgreSQL of the test's own, that may be stopped, killed and started again."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any


def binaries() -> Path | None:
    """Where initdb and postgres are; the newest of several."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).resolve().parent if on_path else None


def _unprivileged() -> dict[str, Any]:
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

    def __init__(self, bin_directory: Path) -> None:
        self._bin = bin_directory
        self._directory = Path(tempfile.mkdtemp(prefix="ojs-pg-"))
        self._as = _unprivileged()
        if self._as:
            shutil.chown(self._directory, self._as["user"])
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._data = self._directory / "data"
        self._run("initdb", "-D", str(self._data), "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8")
        self._server: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgres://postgres@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        options = ["-p", str(self.port), "-c", "listen_addresses=127.0.0.1", "-k", str(self._directory)]
        self._server = subprocess.Popen(
            [str(self._bin / "postgres"), "-D", str(self._data), *options],
            cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, **self._as,
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

    def _end(self, number: signal.Signals) -> None:
        if self._server is not None and self._server.poll() is None:
            self._server.send_signal(number)
            self._server.wait(60)

    def remove(self) -> None:
        if self._server is not None and self._server.poll() is None:
            self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run([str(self._bin / program), *arguments], check=True, cwd="/", stdout=subprocess.DEVNULL,
                       **self._as)  # fmt: skip
