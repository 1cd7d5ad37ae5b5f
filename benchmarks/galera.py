"""`python -m benchmarks.galera`: what holds on a MariaDB Galera cluster all of whose nodes are written.

It starts three nodes on ports of this machine, in a folder that is gone afterwards, and lets two threads for each node
do the same at the same moment: push unique jobs, send a request with the same Idempotency-Key, claim under limits, fill
a bounded queue, read the log of events. Then a node is killed while all are used, and comes back. It needs mariadbd
with its library of Galera, and rsync (on Debian: mariadb-server, galera-4, rsync).
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
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from benchmarks.postgres import PATIENCE, free_ports

T = TypeVar("T")

NODES, THREADS = 3, 2
LIBRARIES = ("/usr/lib/galera/libgalera_smm.so", "/usr/lib64/galera-4/libgalera_smm.so")


class Node(NamedTuple):
    folder: Path
    port: int
    group_port: int
    transfer_port: int
    sync_port: int


class Cluster:
    """Some nodes of MariaDB with Galera; each is a process of its own."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self.nodes = [Node(folder / f"node{n}", *free_ports(4)) for n in range(nodes)]
        self._user = "mysql" if os.geteuid() == 0 else None  #: as root, rsync would give the data to nobody
        self._library = next(filter(os.path.exists, LIBRARIES))
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Make the first node, and let the others join, which get its data by rsync."""
        first, *others = self.nodes
        for node in self.nodes:
            node.folder.mkdir()
        if self._user:
            for folder in (first.folder.parent, *(node.folder for node in self.nodes)):
                shutil.chown(folder, self._user)
        subprocess.run(
            [_program("mariadb-install-db"), "--no-defaults", f"--datadir={first.folder}", "--skip-test-db",
             "--auth-root-authentication-method=normal"],
            check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, user=self._user,
        )  # fmt: skip
        self._start(first, "--wsrep-new-cluster")
        for node in others:
            self._start(node)

    def _start(self, node: Node, *options: str, at: int | None = None) -> None:
        members = ",".join(f"127.0.0.1:{each.group_port}" for each in self.nodes)
        provider = (
            f"gmcast.listen_addr=tcp://127.0.0.1:{node.group_port}; ist.recv_addr=127.0.0.1:{node.transfer_port}; "
            "gcache.size=32M; pc.weight=1"
        )
        with (node.folder.parent / f"{node.folder.name}.log").open("ab") as log:
            process = subprocess.Popen(
                [_program("mariadbd"), "--no-defaults", f"--datadir={node.folder}", f"--port={node.port}",
                 "--bind-address=127.0.0.1", f"--socket={node.folder}/socket", f"--pid-file={node.folder}/pid",
                 "--innodb-buffer-pool-size=64M", "--innodb-log-file-size=32M", "--innodb-flush-log-at-trx-commit=0",
                 "--transaction-isolation=READ-COMMITTED", "--binlog-format=ROW", "--innodb-autoinc-lock-mode=2",
                 "--wsrep-on=ON", f"--wsrep-provider={self._library}", f"--wsrep-cluster-address=gcomm://{members}",
                 f"--wsrep-node-address=127.0.0.1:{node.group_port}", f"--wsrep-provider-options={provider}",
                 "--wsrep-sst-method=rsync", f"--wsrep-sst-receive-address=127.0.0.1:{node.sync_port}", *options],
                stdout=log, stderr=log, user=self._user,
            )  # fmt: skip
        if at is None:
            self._processes.append(process)
        else:
            self._processes[at] = process
        deadline = time.monotonic() + PATIENCE
        while _ask(node, "SELECT VARIABLE_VALUE FROM information_schema.global_status "
                         "WHERE VARIABLE_NAME = 'wsrep_ready'") != "ON":  # fmt: skip
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{node.folder.name} did not start.\n{self.log(node)}\n{self.log(self.nodes[0])}")
            time.sleep(0.2)

    def kill(self, node: Node) -> None:
        """As if its machine lost its power."""
        process = self._processes[self.nodes.index(node)]
        process.kill()
        process.wait()

    def come_back(self, node: Node) -> None:
        """Let it join the others again. It waits until it is in step with them."""
        self._start(node, at=self.nodes.index(node))

    @property
    def urls(self) -> list[str]:
        """Of the database on each node."""
        return [f"mysql://root@127.0.0.1:{node.port}/ojs" for node in self.nodes]

    def log(self, node: Node) -> str:
        text = (node.folder.parent / f"{node.folder.name}.log").read_text(errors="replace")
        return "\n".join(text.splitlines()[-30:])

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()


def _program(name: str) -> str:
    return shutil.which(name) or f"/usr/sbin/{name}"


def _ask(node: Node, statement: str) -> str:
    """The only value that a node answers; '' while it answers nothing."""
    command = [_program("mariadb"), "--no-defaults", f"--socket={node.folder}/socket", "-u", "root", "-NBe", statement]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


@contextlib.contextmanager
def cluster(nodes: int) -> Iterator[Cluster]:
    """A cluster with an empty database."""
    with tempfile.TemporaryDirectory(prefix="ojs-galera-") as folder:
        found = Cluster(Path(folder), nodes)
        try:
            found.start()
            _ask(found.nodes[0], "CREATE DATABASE ojs CHARACTER SET utf8mb4")
            yield found
        finally:
            found.stop()


# What is tried. Each returns a line of figures, and what is wrong.

Outcome = tuple[str, list[str]]


def at_once(act: Callable[[int, str], None], number: int = THREADS) -> list[str]:
    """`act` in so many threads for each node, given the thread's number and the node's alias; what they raised."""
    from django.db import connections

    aliases = [alias for alias in connections for _ in range(number)]
    errors: list[str] = []

    def run(number: int, alias: str) -> None:
        try:
            act(number, alias)
        except Exception as error:  # noqa: BLE001 - it is counted
            errors.append(f"{type(error).__name__}: {error}")
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=each, daemon=True) for each in enumerate(aliases)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    return [*errors, *("a thread hangs" for thread in threads if thread.is_alive())]


def in_step(count: int, act: Callable[[int, str], str]) -> tuple[Counter[str], list[str]]:
    """`act` so many times in each thread, all of them at the same moment; how often it returned what."""
    from django.db import connections

    together, answers, lock = threading.Barrier(THREADS * len(list(connections))), Counter[str](), threading.Lock()

    def run(_: int, alias: str) -> None:
        for number in range(count):
            together.wait(PATIENCE)
            try:
                answer = act(number, alias)
            except Exception as error:  # noqa: BLE001 - it is counted
                answer = f"{type(error).__name__}: {error}"
            with lock:
                answers[answer] += 1

    return answers, at_once(run)


def _settled(count: Callable[[], int], wanted: int) -> None:
    """Wait until a node has applied what others have committed."""
    deadline = time.monotonic() + 5
    while count() < wanted and time.monotonic() < deadline:
        time.sleep(0.05)


def _others(answers: Counter[str], *known: str) -> list[str]:
    return [f"{number} x {answer}" for answer, number in answers.items() if answer not in known]


def unique(count: int) -> Outcome:
    """The same unique jobs are pushed on all nodes: one of each is stored, and the others are refused."""
    from django_ojs.errors import Duplicate
    from django_ojs.jobs.push import push
    from django_ojs.models import Job, UniqueLock

    # As where a site has pushed unique jobs for long: a new row of a lock is a change in itself.
    UniqueLock.objects.bulk_create([UniqueLock(stripe=number) for number in range(UniqueLock.STRIPES)], 10_000)

    def act(number: int, alias: str) -> str:
        policy = {"keys": ["type", "args"], "on_conflict": "reject"}
        job = {"type": "bench.unique", "args": [number], "queue": "unique", "unique": policy}
        try:
            push([job], using=alias)
        except Duplicate:
            return "duplicate"
        return "created"

    answers, faults = in_step(count, act)
    jobs = Job.objects.filter(queue="unique")
    _settled(jobs.count, count)
    keys = Counter(jobs.values_list("unique_key", flat=True))
    several = sum(number > 1 for number in keys.values())
    faults += _others(answers, "created", "duplicate")
    faults += [f"{several} keys have several live jobs"] * bool(several)
    return f"{several} of {len(keys)} keys have several live jobs; {dict(answers)}", faults


def idempotent(count: int) -> Outcome:
    """Requests with the same Idempotency-Key come to all nodes: the work of each is done once."""
    from django_ojs.errors import Conflict
    from django_ojs.jobs import idempotency
    from django_ojs.jobs.push import push
    from django_ojs.models import Job

    def act(number: int, alias: str) -> str:
        request = idempotency.KeyedRequest(f"key-{number}", "somebody", "push", b"")

        def work() -> idempotency.Answer:
            push([{"type": "bench.key", "args": [number], "queue": "key"}], using=alias)
            return idempotency.Answer(201, "{}", {})

        try:
            return "repeated" if idempotency.once(request, work, alias)[1] else "done"
        except Conflict:
            return "still running"

    answers, faults = in_step(count, act)
    jobs = Job.objects.filter(queue="key")
    _settled(jobs.count, count)
    times = Counter(str(args) for args in jobs.values_list("args", flat=True))
    several = sum(number > 1 for number in times.values())
    faults += _others(answers, "done", "repeated", "still running")
    faults += [f"the work of {several} keys was done several times"] * bool(several)
    return f"the work of {several} of {len(times)} keys was done several times; {dict(answers)}", faults


def concurrency(count: int) -> Outcome:
    """Workers of all nodes run the jobs of a queue of which two may run at the same time."""
    ran, errors, faults = _run("two", {"concurrency": 2}, count, 0.02, lambda ran: len(ran) >= count)
    most = _most_at_once(ran)
    faults += [f"{most} jobs ran at the same time"] * (most > 2)
    faults += [f"{len(ran)} of {count} jobs have run"] * (len(ran) != count)
    return f"at most {most} of {count} jobs ran at the same time, where 2 may; {dict(errors)}", faults


def rate(count: int) -> Outcome:
    """Workers of all nodes start jobs of a queue of which a third may start in an hour."""
    most, until = count // 3, time.monotonic() + 3
    limits = {"rate_limit": {"limit": most, "period": "PT1H"}}
    ran, errors, faults = _run("rate", limits, count, 0.0, lambda ran: time.monotonic() > until)
    faults += [f"{len(ran)} jobs started"] * (len(ran) > most)
    return f"{len(ran)} jobs started, where {most} may; {dict(errors)}", faults


def _run(
    queue: str, limits: dict[str, Any], count: int, seconds: float, over: Callable[[list[Any]], bool]
) -> tuple[list[tuple[float, float]], Counter[str], list[str]]:
    """Run jobs of a queue under limits, each for so many seconds; when each began and ended, and what claims raised."""
    from django.db import Error

    from django_ojs.jobs.fetch import Fetch, fetch
    from django_ojs.jobs.finish import Ack, ack
    from django_ojs.jobs.push import push
    from django_ojs.queues import configuration

    configuration.configure(queue, limits)
    push([{"type": f"bench.{queue}", "args": [number], "queue": queue} for number in range(count)])
    ran: list[tuple[float, float]] = []
    errors: Counter[str] = Counter()
    deadline = time.monotonic() + PATIENCE

    def act(number: int, alias: str) -> None:
        worker = f"{queue}-{number}"
        while not over(ran) and time.monotonic() < deadline:
            try:
                rows = fetch(Fetch([queue], worker_id=worker), using=alias)
            except Error as error:
                errors[str(error.args[0])] += 1
                continue
            began = time.monotonic()
            time.sleep(seconds if rows else 0.005)
            for row in rows:
                ran.append((began, time.monotonic()))
                ack([Ack(row["id"], "1", worker, 1)], using=alias)

    faults = at_once(act)
    return ran, errors, faults


def bounded(count: int) -> Outcome:
    """All nodes push into a queue that takes a third of the jobs."""
    from django_ojs.errors import QueueFull
    from django_ojs.jobs.push import push
    from django_ojs.models import Job
    from django_ojs.queues import configuration

    most = max(1, count // 3)
    configuration.configure("bounded", {"backpressure": {"max_depth": most}})
    _settled(lambda: sum(_knows_queue(alias) for alias in _aliases()), NODES)

    def act(number: int, alias: str) -> str:
        try:
            push([{"type": "bench.bounded", "args": [number], "queue": "bounded"}], using=alias)
        except QueueFull:
            return "full"
        return "stored"

    answers, faults = in_step(count, act)
    jobs = Job.objects.filter(queue="bounded")
    _settled(jobs.count, most)
    faults += _others(answers, "stored", "full")
    faults += [f"{jobs.count()} jobs are in it"] * (jobs.count() > most)
    return f"{jobs.count()} jobs are in the queue, which takes {most}; {dict(answers)}", faults


def _aliases() -> list[str]:
    from django.db import connections

    return list(connections)


def _knows_queue(alias: str) -> bool:
    from django_ojs.models import Queue

    return Queue.objects.using(alias).filter(name="bounded").exists()


def events(count: int) -> Outcome:
    """Each node is pushed to and read from: each reader gets each event once, and none is refused."""
    from django_ojs.events import log
    from django_ojs.jobs.push import push

    pushers = THREADS * NODES // 2
    heard: dict[str, Counter[str]] = {}
    deadline = time.monotonic() + PATIENCE

    def act(number: int, alias: str) -> None:
        if number % THREADS == 0:
            for each in range(count):
                push([{"type": "bench.log", "args": [each], "queue": f"log-{number}"}], using=alias)
            return
        cursor, found = None, heard.setdefault(alias, Counter())
        while len(found) < pushers * count and time.monotonic() < deadline:
            page = log.read(after=cursor, types=["job.enqueued"], limit=500, using=alias)
            cursor = page.cursor
            found.update(event["subject"] for event in page.events if event["data"]["job_type"] == "bench.log")

    faults = at_once(act)
    missing = {alias: pushers * count - len(found) for alias, found in heard.items()}
    twice = sum(number > 1 for found in heard.values() for number in found.values())
    faults += [f"events missed: {missing}"] * any(missing.values()) + [f"{twice} events came twice"] * bool(twice)
    figures = f"{len(heard)} readers of {pushers * count} events each; missed {sum(missing.values())}, twice {twice}"
    return figures, faults


class Killing:
    """What callers on all nodes do while one of these is killed and comes back, and what came of it.

    Callers of the dead node try again until it is there, as without a load balancer.
    """

    def __init__(self, count: int, servers: Cluster) -> None:
        self.count, self.servers = count, servers
        self.acknowledged: set[int] = set()
        self.ran: list[tuple[Any, float, float]] = []  #: jobs, with when each began and ended
        self.heard: dict[str, Counter[str]] = {alias: Counter() for alias in _aliases()}
        self.errors, self.gaps = Counter[str](), 0
        self._over = threading.Event()
        self._deadline = time.monotonic() + PATIENCE - 20

    def go(self) -> list[str]:
        """What the threads raised."""
        roles = (self._push, self._work, self._read)
        warden = threading.Thread(target=self._kill, daemon=True)
        warden.start()
        faults = at_once(lambda number, alias: roles[number % len(roles)](alias), len(roles))
        self._over.set()
        warden.join(PATIENCE)
        return faults

    def _again(self, call: Callable[..., T], *given: Any, **named: Any) -> T:
        """The answer to a call that is repeated, by a new connection, while the database is away."""
        from django.db import Error, connections

        from django_ojs.errors import BackendUnavailable

        while True:
            try:
                return call(*given, **named)
            except (Error, BackendUnavailable) as error:
                self.errors[type(error).__name__] += 1
                connections.close_all()
                if time.monotonic() > self._deadline:
                    raise
                time.sleep(0.1)

    def _push(self, alias: str) -> None:
        from django_ojs.errors import Duplicate
        from django_ojs.jobs.push import push
        from django_ojs.states import State

        policy = {"keys": ["type", "args"], "on_conflict": "reject", "states": [str(state) for state in State]}
        for number in range(self.count):
            job = {"type": "bench.killed", "args": [number], "queue": "killed", "unique": policy}
            with contextlib.suppress(Duplicate):
                self._again(push, [job], using=alias)
            self.acknowledged.add(number)
            time.sleep(0.02)

    def _work(self, alias: str) -> None:
        from django_ojs.errors import OJSError
        from django_ojs.jobs.fetch import Fetch, fetch
        from django_ojs.jobs.finish import Ack, ack

        name = f"killed-{alias}"
        while not self._over.is_set():
            rows = self._again(fetch, Fetch(["killed"], worker_id=name, visibility_ms=15_000), using=alias)
            began = time.monotonic()
            time.sleep(0.005)
            for row in rows:
                with contextlib.suppress(OJSError):  # it was told before, and the answer was lost
                    self._again(ack, [Ack(row["id"], "1", name, row["attempt"])], using=alias)
                self.ran.append((row["id"], began, time.monotonic()))

    def _read(self, alias: str) -> None:
        from django_ojs.events import log

        cursor, found = None, self.heard[alias]
        while not self._over.is_set() or (len(found) < self.count and time.monotonic() < self._deadline):
            page = self._again(log.read, after=cursor, types=["job.enqueued"], limit=500, using=alias)
            cursor = page.cursor
            self.gaps += bool(page.gap)
            found.update(event["subject"] for event in page.events if event["data"]["queue"] == "killed")

    def _kill(self) -> None:
        """Kill a node when a third is pushed, let it come back, and end when all is done."""
        from django.db import connections

        from django_ojs.jobs.timers import apply_due
        from django_ojs.models import Job

        completed = Job.objects.filter(queue="killed", state="completed")
        victim, is_killed, done = self.servers.nodes[-1], False, 0
        while not (is_killed and done == self.count == len(self.acknowledged)) and time.monotonic() < self._deadline:
            self._again(apply_due, using="default")
            if not is_killed and len(self.acknowledged) > self.count // 3:
                is_killed = True
                self.servers.kill(victim)
                time.sleep(2)
                self.servers.come_back(victim)
            done = self._again(completed.count)
            time.sleep(0.2)
        self._over.set()
        connections.close_all()


def killed(count: int, servers: Cluster) -> Outcome:
    """A node is killed while all push the same unique jobs, run them under a limit and read the log; it comes back."""
    from django.db import connections

    from django_ojs.models import Job
    from django_ojs.queues import configuration

    configuration.configure("killed", {"concurrency": 2})
    tried = Killing(count, servers)
    faults = tried.go()
    connections.close_all()  # that to the killed node, from an earlier measure, is dead
    lost = several = left = 0
    for alias in _aliases():
        jobs = Job.objects.using(alias).filter(queue="killed")
        _settled(jobs.filter(state="completed").count, count)
        keys: Counter[Any] = Counter(args[0] for args in jobs.values_list("args", flat=True))
        lost = max(lost, len(tried.acknowledged - keys.keys()))
        several = max(several, sum(number > 1 for number in keys.values()))
        left = max(left, jobs.exclude(state="completed").count())
    twice = sum(number > 1 for number in Counter(job for job, _, _ in tried.ran).values())
    missed = sum(count - len(found) for found in tried.heard.values())
    repeated = sum(number > 1 for found in tried.heard.values() for number in found.values())
    most = _most_at_once([(began, ended) for _, began, ended in tried.ran])
    wrong = {
        "pushes are lost": lost, "keys have several jobs": several, "jobs have not run": left, "jobs ran twice": twice,
        "events were missed": missed, "events came twice": repeated, "gaps were told": tried.gaps,
        "jobs ran at the same time": most if most > 2 else 0,
    }  # fmt: skip
    faults += [f"{number} {what}" for what, number in wrong.items() if number]
    figures = (
        f"of {len(tried.acknowledged)} keys pushed on all nodes {lost} are lost, {several} stored twice; {twice} jobs"
        f" ran twice, at most {most} at the same time, where 2 may; of {count} events {len(tried.heard)} readers missed"
        f" {missed}, got {repeated} twice; {dict(tried.errors)} tried again"
    )
    return figures, faults


def _most_at_once(times: list[tuple[float, float]]) -> int:
    """How many of them ran at the same time, at most; given when each began and ended."""
    most = running = 0
    for _, step in sorted([(began, 1) for began, _ in times] + [(ended, -1) for _, ended in times]):
        running += step
        most = max(most, running)
    return most


MEASURES: dict[str, Callable[..., Outcome]] = {
    each.__name__: each for each in (unique, idempotent, concurrency, rate, bounded, events, killed)
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.galera", description=__doc__.split("\n\n")[0])
    parser.add_argument("--count", type=int, default=150, help="keys, jobs and pushes of each measure")
    parser.add_argument("--only", nargs="*", choices=list(MEASURES), default=list(MEASURES))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and end the servers
    options = parser.parse_args()
    if not any(map(os.path.exists, LIBRARIES)):
        parser.error("MariaDB's library of Galera is not installed.")
    with cluster(NODES) as servers:
        _set_up(servers.urls)
        wrong = 0
        for name in options.only:
            given = [servers] if name == "killed" else []
            figures, faults = MEASURES[name](options.count, *given)
            sys.stdout.write(f"{name}: {figures}\n{''.join(f'  WRONG: {fault}{chr(10)}' for fault in faults[:10])}")
            sys.stdout.flush()
            wrong += bool(faults)
    return min(1, wrong)


def _set_up(urls: list[str]) -> None:
    """A site whose databases are the nodes; the first is `default`."""
    os.environ |= {"DJANGO_SETTINGS_MODULE": "benchmarks.settings", "OJS_BENCH_DATABASE": urls[0]}
    import django
    from django.conf import settings
    from django.core.management import call_command

    from django_ojs.database import parse_url

    for number, url in enumerate(urls):
        settings.DATABASES["default" if not number else f"node{number}"] = parse_url(url, Path.cwd())
    django.setup()
    call_command("migrate", verbosity=0)


if __name__ == "__main__":
    sys.exit(main())
