"""`python -m benchmarks.failover`: what a failover of PostgreSQL loses, what readers of the event log see of it, and
what reads from a replica that stands still.

It starts a primary and a standby on ports of this machine, in folders that are gone afterwards, and a site with both
addresses: uvicorn and a scheduler. Threads push over HTTP, and others read the log in every way. Then the primary is
killed and the standby promoted: a synchronous one, and one that has received nothing for some seconds. It needs the
programs of PostgreSQL, uvicorn, websockets, and what webhooks need.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from benchmarks import postgres, processes
from benchmarks.postgres import PrivatePostgres, until

PUSHERS = 4
#: Seconds of pushing before the failover and behind it, and between two pushes of a thread.
BEFORE, BEHIND, PAUSE = 4.0, 4.0, 0.02
#: Of so many jobs one is in the queue whose events go to a webhook.
HOOKED = 10
TYPE = "job.enqueued"


class ReadsFromReplica:
    """The router of a site that has its reads answered by a replica."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "replica"

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "default"

    def allow_relation(self, obj1: Any, obj2: Any, **hints: Any) -> bool:
        return True


# The site


class Site:
    """A primary with its standby, and the processes of a site that knows both addresses."""

    def __init__(self, stack: contextlib.ExitStack, *, replica: bool = False) -> None:
        self._stack = stack
        programs = postgres.binaries()
        assert programs is not None
        self.primary = PrivatePostgres(programs, "fsync=off", "max_connections=200")
        stack.callback(self.primary.remove)
        self.primary.start()
        self.standby = PrivatePostgres(
            programs, "fsync=off", "max_connections=200", "log_statement=all", like=self.primary
        )
        stack.callback(self.standby.remove)
        self.standby.start()
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in (self.primary, self.standby))
        self.url = (
            f"postgres://postgres@{hosts}/postgres?target_session_attrs=read-write&connect_timeout=3&conn_max_age=60"
        )
        self.environment = processes.environment(self.url)
        if replica:
            self.environment["OJS_BENCH_REPLICA"] = self.standby.url
        self.django("migrate", "-v", "0")
        (self.port,) = postgres.free_ports(1)
        self._run(
            "-m", "uvicorn", "benchmarks.asgi:application", "--port", str(self.port), "--http", "h11",
            "--log-level", "error", "--no-access-log", "--lifespan", "off",
        )  # fmt: skip
        until(lambda: self.call("GET", "/health")[0] == 200, "the site answers")

    def django(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "django", *arguments]
        return subprocess.run(command, env=self.environment, check=True, stdout=subprocess.PIPE, text=True).stdout

    def run_scheduler(self) -> None:
        self._run(*processes.scheduler())

    def call(self, method: str, path: str, body: Any = None, key: str = "") -> tuple[int, Any]:
        """Status and body of an answer; 0 where there is none."""
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        try:
            with contextlib.closing(client):
                client.request(method, f"/ojs/v1{path}", json.dumps(body) if body is not None else None, headers)
                answer = client.getresponse()
                text = answer.read()
        except OSError:
            return 0, None
        is_json = "json" in (answer.getheader("Content-Type") or "")
        return answer.status, json.loads(text) if is_json else text.decode()

    def fail_over(self) -> None:
        self.primary.kill()
        self.standby.promote()

    def _run(self, *command: str) -> None:
        process = subprocess.Popen(
            [sys.executable, *command], env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

        def end() -> None:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

        self._stack.callback(end)


class Pushers:
    """Threads that push, each job with a number of its own, and remember what was acknowledged."""

    def __init__(self, site: Site) -> None:
        self._site, self._stopping = site, threading.Event()
        self.acknowledged: list[str] = []
        self.refused = 0
        self._threads = [threading.Thread(target=self._push, args=[n], daemon=True) for n in range(PUSHERS)]
        for thread in self._threads:
            thread.start()

    def _push(self, thread: int) -> None:
        number = 0
        while not self._stopping.wait(PAUSE):
            number += 1
            queue = "default" if number % HOOKED else "hooked"
            job = {"type": "bench.sync", "args": [f"{thread}-{number}"], "options": {"queue": queue}}
            status, answer = self._site.call("POST", "/jobs", job)
            if status == 201:
                self.acknowledged.append(answer["job"]["id"])
            else:
                self.refused += 1

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()


# The readers


class Reader:
    """One way to read the log, in a thread that begins again where it was. It keeps the ids of jobs, and the gaps."""

    name = ""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.events: list[tuple[str, str]] = []  #: the ids of event and job
        self.gaps: list[dict[str, Any]] = []
        self.cursor = ""
        self.ready = threading.Event()
        threading.Thread(target=self._go, daemon=True).start()

    def _go(self) -> None:
        while True:
            with contextlib.suppress(Exception):  # and again
                self.read()
            time.sleep(0.1)

    def read(self) -> None:
        raise NotImplementedError

    def heard(self, envelope: dict[str, Any]) -> None:
        self.events.append((envelope["id"], envelope["data"]["job_id"]))
        self.cursor = envelope["id"]

    def jobs(self) -> set[str]:
        return {job for _, job in self.events}

    def wants(self, queue: str) -> bool:
        return True


class EventStream(Reader):
    name = "event stream (SSE)"

    def read(self) -> None:
        client = http.client.HTTPConnection("127.0.0.1", self.site.port, timeout=60)
        with contextlib.closing(client):
            client.request("GET", f"/ojs/v1/events/stream?types={TYPE}", headers={"Last-Event-ID": self.cursor})
            kind = ""
            for line in client.getresponse():
                name, _, value = line.decode().rstrip("\n").partition(": ")
                self.ready.set()
                if name == "event":
                    kind = value
                elif name == "data" and kind == TYPE:
                    self.heard(json.loads(value))
                elif name == "data" and kind == "system.gap":
                    self.gaps.append(json.loads(value))


class WebSocket(Reader):
    name = "WebSocket"
    more: dict[str, Any] = {}

    def read(self) -> None:
        from websockets.sync.client import connect

        with connect(f"ws://127.0.0.1:{self.site.port}/ojs/v1/ws", proxy=None) as socket:
            ask = {"action": "subscribe", "channel": "events", "filter": {"event_types": [TYPE]}, **self.more}
            socket.send(json.dumps(ask | ({"after": self.cursor} if self.cursor else {})))
            for text in socket:
                frame = json.loads(text)
                if frame.get("action") == "subscribed":
                    self.ready.set()
                elif frame.get("type") == TYPE:
                    self.heard(frame)
                elif frame.get("type") == "system.gap":
                    self.gaps.append(frame["data"])


class LivePage(WebSocket):
    """As the script of the admin's pages: an event says that it is time to ask for the page again."""

    name = "live page"
    more = {"min_interval_ms": 500}


class Poller(Reader):
    name = "polling"

    def read(self) -> None:
        after = f"&after={self.cursor}" if self.cursor else ""
        status, page = self.site.call("GET", f"/events?types={TYPE}&limit=500{after}")
        if status != 200:
            return
        self.ready.set()
        if page.get("gap"):
            self.gaps.append(page["gap"])
        for event in page["events"]:
            self.heard(event)
        self.cursor = page["cursor"] or self.cursor


class Webhook(Reader):
    """What a receiver gets of one queue."""

    name = "webhook"

    def __init__(self, site: Site) -> None:
        reader = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                envelope = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if envelope["type"] == "system.gap":
                    reader.gaps.append(envelope["data"])
                else:
                    reader.heard(envelope)
                self.send_response(204)
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        super().__init__(site)
        url = f"http://127.0.0.1:{self._server.server_address[1]}/"
        status, answer = site.call(
            "POST", "/webhooks/subscriptions", {"url": url, "events": [TYPE], "filter": {"queues": ["hooked"]}}
        )
        assert status == 201, answer
        self.ready.set()

    def read(self) -> None:
        self._server.serve_forever()

    def wants(self, queue: str) -> bool:
        return queue == "hooked"


READERS: tuple[type[Reader], ...] = (EventStream, WebSocket, LivePage, Poller, Webhook)


# What is measured. Each writes lines, and returns what is wrong.

Say = Callable[[str], None]


def failover(say: Say, missing: float | None) -> list[str]:
    """The standby is synchronous, or has received nothing for so many seconds."""
    with contextlib.ExitStack() as stack:
        site = Site(stack)
        if missing is None:
            site.primary.set("synchronous_standby_names", "*")
        site.run_scheduler()
        readers = [kind(site) for kind in READERS]
        until(lambda: all(reader.ready.is_set() for reader in readers), "all readers are connected")
        pushers = Pushers(site)
        time.sleep(BEFORE)
        if missing is not None:
            site.standby.set("primary_conninfo", "")  # ends the receiver
            time.sleep(missing)
        before = len(pushers.acknowledged)
        site.fail_over()
        until(lambda: len(pushers.acknowledged) > before, "the site pushes again")
        time.sleep(BEHIND)
        pushers.stop()
        return _compare(say, site, pushers, readers, before, lossless=missing is None)


def _compare(
    say: Say, site: Site, pushers: Pushers, readers: list[Reader], before: int, *, lossless: bool
) -> list[str]:
    stored = _rows(site, "SELECT id::text, args FROM django_ojs_job")
    logged = _rows(site, f"SELECT job_id::text, queue FROM django_ojs_event WHERE type = '{TYPE}'")
    lost = len(set(pushers.acknowledged) - stored.keys())
    twice = len(stored) - len(set(stored.values()))
    say(
        f"  pushes: {len(pushers.acknowledged)} acknowledged ({before} before the failover), {lost} of them lost, "
        f"{twice} stored twice; {pushers.refused} answered with an error meanwhile"
    )
    faults = [f"{lost} acknowledged pushes are lost"] * bool(lost and lossless) + [f"{twice} jobs twice"] * bool(twice)
    for reader in readers:
        if isinstance(reader, LivePage):
            behind = set(pushers.acknowledged[before:])
            until(lambda: reader.jobs() & behind, "the live page hears of what comes then")  # noqa: B023 - at once
            say(f"  {reader.name}: asks again after the failover, too; gaps told {len(reader.gaps)}")
            continue
        wanted = {job for job, queue in logged.items() if reader.wants(queue)}
        with contextlib.suppress(RuntimeError):
            until(lambda: wanted <= reader.jobs(), "all has come")  # noqa: B023 - at once
        missed = len(wanted - reader.jobs())
        again = sum(number - 1 for number in Counter(event for event, _ in list(reader.events)).values())
        gone = len(reader.jobs() - logged.keys())
        told = "; ".join(
            f"{gap['reason']}, at most {gap.get('estimated_missed_count', 'an unknown number of')} events"
            for gap in reader.gaps
        )
        say(
            f"  {reader.name}: {len(wanted)} events in the log, missed {missed}, twice {again}; "
            f"{gone} seen that are lost; gaps told {len(reader.gaps)}{f' ({told})' if told else ''}"
        )
        faults += [f"{reader.name} missed {missed}"] * bool(missed)
    counted = f"counted by the metrics: {_until_counted(site, len(logged))} of {len(logged)}"
    say(f"  {counted}")
    return faults + [counted] * (_counted(site) != len(logged))


def _rows(site: Site, sql: str) -> dict[str, str]:
    import psycopg

    with psycopg.connect(site.standby.url) as connection:
        return dict(connection.execute(sql.encode()).fetchall())


def _counted(site: Site) -> int:
    status, answer = site.call("GET", "/metrics")
    return int(answer["jobs_enqueued_total"]) if status == 200 else 0


def _until_counted(site: Site, number: int) -> int:
    with contextlib.suppress(RuntimeError):
        until(lambda: _counted(site) >= number, "all is counted")
    return _counted(site)


def frozen(say: Say) -> list[str]:
    """A router sends reads to a replica that replays nothing any more."""
    with contextlib.ExitStack() as stack:
        site = Site(stack, replica=True)
        old = _key(site, "old")
        for number in range(3):
            site.call("POST", "/jobs", {"type": "bench.sync", "args": [number]}, old)
        until(lambda: site.standby.execute("SELECT count(*) FROM django_ojs_job") == 3, "the replica has it")
        site.standby.execute("SELECT pg_wal_replay_pause()")
        until(lambda: site.standby.execute("SELECT pg_get_wal_replay_pause_state()") == "paused", "it stands still")
        asked = len(_statements(site))
        faults = []

        def expect(what: str, found: Any, right: Any) -> None:
            say(f"  {what}: {found}")
            if found != right:
                faults.append(f"{what}: {found} instead of {right}")

        site.django("ojs_apikey", "revoke", "old", "--yes")
        expect("a revoked key reads", site.call("GET", "/jobs", key=old)[0], 401)
        expect("a revoked key pushes", site.call("POST", "/jobs", {"type": "bench.sync", "args": []}, old)[0], 401)
        new = _key(site, "new")
        status, pushed = site.call("POST", "/jobs", {"type": "bench.sync", "args": [9], "options": {"queue": "q"}}, new)
        expect("a new key pushes", status, 201)
        job = pushed["job"]["id"]
        expect("the new job is read", site.call("GET", f"/jobs/{job}", key=new)[0], 200)
        listed = [each["id"] for each in site.call("GET", "/jobs", key=new)[1]["jobs"]]
        expect("the list of jobs has it", job in listed, True)
        queues = [each["name"] for each in site.call("GET", "/queues", key=new)[1]["queues"]]
        expect("the list of queues has the new queue", "q" in queues, True)
        events = site.call("GET", "/events?limit=1000", key=new)[1]["events"]
        expect("the log has its event", job in {event["subject"] for event in events}, True)
        worker = {"worker_id": "w-1", "queues": ["q"], "hostname": "h"}
        site.call("POST", "/workers/register", worker, new)
        expect("a new worker's health", site.call("GET", "/workers/w-1/health", key=new)[0], 200)
        expect("ojs_apikey list has the new key", "new" in site.django("ojs_apikey", "list"), True)
        expect("ojs_jobs list has the new job", job in site.django("ojs_jobs", "list", "--json"), True)
        ours = _statements(site)[asked:]
        expect("statements about our tables on the replica", len(ours), 0)
        return faults


def _statements(site: Site) -> list[str]:
    """What the replica was asked of our tables by the site."""
    return [line for line in site.standby.log.splitlines() if '"django_ojs_' in line]


def _key(site: Site, name: str) -> str:
    text = site.django("ojs_apikey", "create", name, "--scope", "admin", "--json")
    return str(json.loads(text)["key"])


MEASURES: dict[str, tuple[str, Callable[[Say], list[str]]]] = {
    "synchronous": ("a synchronous standby", lambda say: failover(say, None)),
    "3s": ("an asynchronous standby, 3 s behind", lambda say: failover(say, 3.0)),
    "8s": ("an asynchronous standby, 8 s behind", lambda say: failover(say, 8.0)),
    "frozen": ("reads go to a replica that stands still", frozen),
}


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.failover", description=str(__doc__).split("\n\n")[0])
    parser.add_argument("--only", nargs="*", choices=list(MEASURES), default=list(MEASURES))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and end the servers
    options = parser.parse_args()
    if postgres.binaries() is None:
        parser.error("PostgreSQL's own programs are not installed.")
    wrong = 0
    for name in options.only:
        title, measure = MEASURES[name]
        _say(f"{title}:")
        faults = measure(_say)
        for fault in faults:
            _say(f"  WRONG: {fault}")
        wrong += bool(faults)
    return min(1, wrong)


if __name__ == "__main__":
    sys.exit(main())
