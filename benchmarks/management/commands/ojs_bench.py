"""`manage.py ojs_bench`: measure, beside plain SQL on the same rows in the same session."""

from __future__ import annotations

import argparse
import functools
import json
import platform
import socket
from collections.abc import Callable, Collection, Iterator
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connection, connections
from django.test import override_settings

from benchmarks import (
    crash,
    crowds,
    durable,
    measures,
    neighbours,
    processes,
    reference,
    serving,
    subscribers,
    weight,
    workloads,
)
from benchmarks.result import Result, table
from benchmarks.soak.run import soak
from django_ojs.database import url_of
from django_ojs.testing.server import throwaway_database

KINDS = ("async", "inline", "sync")
MEASURES = ("enqueue", "enqueue_bulk", "drain", "latency", "weight", "http", "grpc", "workflows", "unique", "limits")
LATENCIES = 200  #: jobs of a measure of latency: of 50 the p99 would be the slowest, which says nothing but noise
#: Take a while and some disk, or many sockets: only when asked for.
LARGE = ("crowds", "history", "subscribers", "neighbours", "durable")
CROWDS, HISTORY, SUBSCRIBERS, NEIGHBOURS, DURABLE = LARGE


class Command(BaseCommand):
    help = (
        "Measures enqueue, drain, latency and HTTP on a throwaway database of the site's own server, each beside plain "
        "SQL or DRF without a database; and workflows, unique jobs, limits and crowded tables, each beside the same "
        "without. Quote medians and ratios: machines are noisy."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--jobs", type=int, default=20_000, help="jobs a drain; other measures take a part of it")
        parser.add_argument("--runs", type=int, default=3, help="runs of each measure; the median counts")
        parser.add_argument(
            "--only", nargs="*", choices=(*MEASURES, *LARGE), default=MEASURES,
            help=f"some measures only (default: all but {', '.join(LARGE)})",
        )  # fmt: skip
        parser.add_argument(
            "--crowd", type=int, default=1_000_000, help=f"jobs that stand about in {CROWDS} and {HISTORY}"
        )
        parser.add_argument("--sockets", type=int, default=1000, help=f"of {SUBSCRIBERS}, beside one and 100")
        parser.add_argument("--rate", type=float, default=1000, help=f"jobs a second that run in {SUBSCRIBERS}")
        parser.add_argument("--seconds", type=float, default=20, help=f"how long they run in {SUBSCRIBERS}")
        parser.add_argument(
            "--connections", nargs="*", type=int, default=[1, 8, 64], help="connections of the HTTP client, in turn"
        )
        parser.add_argument("--kinds", nargs="*", choices=KINDS, default=KINDS, help="handlers to drain with")
        parser.add_argument("--database", default="", help="URL of another server to measure on")
        parser.add_argument(
            "--soak", type=float, metavar="MINUTES", help="instead: a steady mixed load, and whether it adds up"
        )
        parser.add_argument(
            "--crash",
            type=int,
            metavar="CALLS",
            help="instead: so many calls of HTTP servers that are killed meanwhile",
        )
        parser.add_argument(
            "--flows",
            type=int,
            metavar="FLOWS",
            help="instead: so many durable jobs of ten steps; workers, scheduler and connections are killed meanwhile",
        )
        parser.add_argument("--json", action="store_true", help="print JSON instead of a table")

    def handle(self, *args: Any, **options: Any) -> None:
        with override_settings(DEBUG=False):  # with it Django logs each statement, and django-ojs prepares none
            self._run(options)

    def _run(self, options: dict[str, Any]) -> None:
        url = options["database"] or url_of(connections["default"].settings_dict)
        if url.startswith("sqlite"):
            url = ""  # a new file, never the site's
        if options["soak"]:
            self._soak(options, url)
            return
        if options["crash"]:
            self._crash(options, url)
            return
        if options["flows"]:
            self._flows(options, url)
            return
        results: list[Result] = []
        with throwaway_database(url, durable=True) as database:
            for result in self._measure(options, database):
                results.append(result)
                if not options["json"]:
                    self.stderr.write(table([result]).splitlines()[1])
            machine = self._describe()
        if options["json"]:
            self.stdout.write(json.dumps({**machine, "results": [result.as_dict() for result in results]}, indent=1))
        else:
            self.stdout.write(f"\n{machine['database']}, Python {machine['python']}, {options['runs']} runs\n")
            self.stdout.write(table(results))

    def _soak(self, options: dict[str, Any], url: str) -> None:
        with throwaway_database(url, durable=True) as database:
            report = soak(options["soak"], database, self.stderr.write)
            machine = self._describe()
        if options["json"]:
            self.stdout.write(json.dumps({**machine, **report.as_dict()}, indent=1))
        else:
            self.stdout.write(f"\n{machine['database']}, Python {machine['python']}\n\n{report.text()}")
        if report.faults:
            raise CommandError("The sum is not right.")

    def _crash(self, options: dict[str, Any], url: str) -> None:
        found: dict[str, crash.Sum] = {}
        with throwaway_database(url, durable=True) as database:
            for name, command, keeping in serving.servers(port := _free_port()):
                measures.empty()
                served = processes.extended(database, keeping)
                found[name] = crash.crash(
                    options["crash"], max(options["connections"]), port, command, served, self.stderr.write
                )
        if options["json"]:
            self.stdout.write(json.dumps({name: total.as_dict() for name, total in found.items()}, indent=1))
        else:
            self.stdout.write("\n".join(f"{name}: {total.text()}" for name, total in found.items()))
        if any(total.faults for total in found.values()):
            raise CommandError("The sum is not right.")

    def _flows(self, options: dict[str, Any], url: str) -> None:
        from benchmarks import flows  # its handlers belong to an app that not every site has

        with throwaway_database(url, durable=True) as database:
            found = flows.storm(options["flows"], database, self.stderr.write)
            machine = self._describe()
        text = json.dumps({**machine, **found.as_dict()}, indent=1) if options["json"] else found.text()
        self.stdout.write(text if options["json"] else f"\n{machine['database']}: {text}")
        if found.faults:
            raise CommandError("The sum is not right.")

    def _measure(self, options: dict[str, Any], database: str) -> Iterator[Result]:
        jobs, runs, only = options["jobs"], options["runs"], options["only"]

        def repeat(act: Callable[[], float]) -> list[float]:
            values = []
            for _ in range(runs):
                measures.empty()
                values.append(act())
            return values

        if "enqueue" in only:
            some = max(200, jobs // 10)
            plain = self._plainly(repeat, lambda: reference.insert(some, 1))
            yield Result("enqueue", repeat(lambda: measures.enqueue(some)), reference=plain)
        if "enqueue_bulk" in only:
            plain = self._plainly(repeat, lambda: reference.insert(jobs, measures.BULK))
            yield Result("enqueue_bulk", repeat(lambda: measures.enqueue_bulk(jobs)), reference=plain)
        if "drain" in only:
            yield from self._drains(options, database, repeat)
        if "latency" in only:
            measures.empty()
            pairs = [measures.latency(LATENCIES, database) for _ in range(runs)]
            yield Result("latency_p50", [p50 for p50, _ in pairs], "ms")
            yield Result("latency_p99", [p99 for _, p99 in pairs], "ms")
        if "weight" in only and weight.available():
            yield from self._weights(jobs, database, runs)
        if "http" in only:
            yield from self._http(options, database)
        if "grpc" in only and serving.GrpcServer.available():
            yield from self._grpc(options, database)
        yield from self._workloads(jobs, only, database, repeat)
        yield from self._large(options, database, repeat)

    def _large(self, options: dict[str, Any], database: str, repeat: Any) -> Iterator[Result]:
        jobs, crowd, only = options["jobs"], options["crowd"], options["only"]
        if CROWDS in only and reference.available():
            yield from self._crowds(jobs, crowd, database, repeat)
        if HISTORY in only and reference.available():
            yield from self._history(jobs, crowd, options["runs"], database, repeat)
        if DURABLE in only:
            yield from self._durable(jobs, database, repeat)
        if NEIGHBOURS in only:
            yield from self._neighbours(options, database)
        if SUBSCRIBERS in only and subscribers.available():
            yield from self._subscribers(options, database)

    def _drains(self, options: dict[str, Any], database: str, repeat: Any) -> Iterator[Result]:
        """Beside plain SQL, on PostgreSQL on lean tables and on SQLite on ours; both are shown."""
        jobs = options["jobs"]
        for workers in (1, 2):
            plain: dict[str, float] = {}
            for name, tables in reference.TABLES.items() if reference.available() else ():
                values = repeat(lambda t=tables, w=workers: reference.drain(jobs, w, t))
                yield (found := Result("plain_drain", values, facts={"processes": workers, "tables": name}))
                plain[name] = found.median
            beside = plain.get("lean" if connection.vendor == "postgresql" else "ours")
            for kind in options["kinds"]:
                values = repeat(lambda k=kind, w=workers: measures.drain(jobs, k, w, database))
                yield Result("drain", values, reference=beside, facts={"processes": workers, "handler": kind})

    def _weights(self, jobs: int, database: str, runs: int) -> Iterator[Result]:
        found = []
        for _ in range(runs):
            measures.empty()
            found.append(weight.weigh(jobs, database))
        for name, values in zip(weight.Weight._fields, zip(*found, strict=True), strict=True):
            yield Result(f"weight_{name}", list(values), "of updates" if name == "hot" else "bytes")

    def _workloads(self, jobs: int, only: Collection[str], database: str, repeat: Any) -> Iterator[Result]:
        """Each beside the same without what it is about, both through us."""
        beside = {"beside": "plain"}
        if not {"workflows", "unique", "limits"}.isdisjoint(only):
            drain = self._median(repeat, lambda: measures.drain(jobs, "inline", 1, database))
        if "workflows" in only:
            for name, act in (("group", workloads.group), ("chain", workloads.chain)):
                yield Result(name, repeat(lambda a=act: a(jobs, database)), reference=drain, facts=beside)
        if "unique" in only:
            some = max(200, jobs // 10)
            single = self._median(repeat, lambda: measures.enqueue(some))
            yield Result(
                "unique_enqueue", repeat(lambda: workloads.unique_enqueue(some)), reference=single, facts=beside
            )
            bulk = self._median(repeat, lambda: measures.enqueue_bulk(jobs))
            values = repeat(lambda: workloads.unique_enqueue_bulk(jobs))
            yield Result("unique_enqueue_bulk", values, reference=bulk, facts=beside)
            yield Result("unique", repeat(lambda: workloads.unique(jobs, database)), reference=drain, facts=beside)
        if "limits" in only:
            values = repeat(lambda: workloads.rate_limited(jobs, database))
            yield Result("rate_limited", values, reference=drain, facts=beside)

    def _crowds(self, jobs: int, crowd: int, database: str, repeat: Any) -> Iterator[Result]:
        """Each beside the same drain of a table that holds nothing else."""
        plain = self._median(repeat, lambda: measures.drain(jobs, "inline", 1, database))
        yield Result("snapshot", repeat(lambda: crowds.snapshot(jobs, database)), reference=plain)
        for act in (crowds.pruning, crowds.backlog):
            values = repeat(lambda a=act: a(jobs, crowd, database))
            yield Result(act.__name__, values, reference=plain, facts={"crowd": crowd})

    def _durable(self, jobs: int, database: str, repeat: Any) -> Iterator[Result]:
        """Steps beside plain SQL, and a drain beside jobs that sleep and wait, half as many as it has."""
        count, sleepers = max(100, jobs // 10), jobs // 2
        plain = self._median(repeat, lambda: durable.plain_steps(count))
        yield Result("steps", repeat(lambda: durable.steps(count, database)), "steps/s", plain)
        alone = self._median(repeat, lambda: durable.beside_nobody(jobs, database))
        values = repeat(lambda: durable.beside_sleepers(jobs, sleepers, database))
        yield Result("drain_beside_sleepers", values, reference=alone, facts={"sleepers": sleepers})

    def _history(self, jobs: int, crowd: int, runs: int, database: str, repeat: Any) -> Iterator[Result]:
        """Each beside the same on tables that hold nothing else. The history is made once: of ten million jobs it takes
        ten minutes and 15 GB."""
        alone = {}
        for name, act in crowds.BESIDE_HISTORY.items():
            alone[name] = self._median(repeat, functools.partial(act, jobs, database))
        measures.empty()
        with crowds.history(crowd) as forget:
            for name, act in crowds.BESIDE_HISTORY.items():
                values = []
                for _ in range(runs + 1):  # the first is for the caches
                    values.append(act(jobs, database))
                    forget()
                values.pop(0)
                yield Result(f"history_{name}", values, reference=alone[name], facts={"crowd": crowd})

    def _subscribers(self, options: dict[str, Any], database: str) -> Iterator[Result]:
        """One socket, a hundred that get everything, and many with one of a hundred queues each."""
        rate, seconds = options["rate"], options["seconds"]
        for sockets, filtered in ((1, False), (min(100, options["sockets"]), False), (options["sockets"], True)):
            measures.empty()
            shape: dict[str, Any] = {"sockets": sockets, "queues": 100, "filtered": filtered}
            # What every socket gets is sent to each: a hundred times a tenth of the rate is as much to send as many
            # filtered sockets get at the whole rate.
            share = rate if filtered or sockets == 1 else rate / 10
            heard = subscribers.run(database, _free_port(), **shape, rate=share, seconds=seconds)
            facts = {"sockets": sockets, "jobs/s": round(heard.jobs_per_second), "filtered": filtered}
            yield Result("event_latency_p50", [heard.p50], "ms", facts=facts)
            yield Result("event_latency_p99", [heard.p99], "ms", facts=facts)
            yield Result("events_lost", [heard.lost], f"of {heard.frames + heard.lost}", facts=facts)
            yield Result("backlog_at_the_end", [heard.backlog_seconds], "s", facts=facts)
            yield Result("server_memory", [heard.server_mb], "MB", facts=facts)
            yield Result("database_transactions", [heard.transactions], "a second, with the jobs' own", facts=facts)

    def _http(self, options: dict[str, Any], database: str) -> Iterator[Result]:
        """Each beside DRF answering a POST without a database, on the same server and as many connections.

        A job that is fetched and acknowledged takes two calls, so it stands beside half as many of those.
        """
        port, jobs = _free_port(), max(200, options["jobs"] // 10)
        for name, command, keeping in serving.servers(port):
            with processes.running(command, processes.extended(database, keeping)):
                server = serving.Server(port)
                server.wait()
                for connections in options["connections"]:
                    bare: float | None = None
                    for script in serving.SCRIPTS:
                        runs = [self._loaded(server, script, connections, jobs) for _ in range(options["runs"])]
                        facts = {"server": name, "connections": connections}
                        beside = bare / (2 if script == "fetch_ack" else 1) if bare else None
                        unit = "jobs/s" if script not in ("bare", "health") else "calls/s"
                        found = Result(
                            f"http_{script}", [run.rate for run in runs], unit, beside, facts,
                            [run.p50 for run in runs], [run.p99 for run in runs],
                        )  # fmt: skip
                        bare = bare or found.median
                        yield found

    def _neighbours(self, options: dict[str, Any], database: str) -> Iterator[Result]:
        """Eight clients that push, beside each neighbour that could keep them waiting."""
        port, jobs = _free_port(), max(200, options["jobs"] // 10)
        for name, command, keeping in serving.servers(port):
            with processes.running(command, processes.extended(database, keeping)):
                server = serving.Server(port)
                server.wait()
                for neighbour in neighbours.possible(name):
                    measures.empty()
                    runs = [neighbours.beside(server, neighbour, jobs) for _ in range(options["runs"])]
                    p50, p99 = [run.p50 for run in runs], [run.p99 for run in runs]
                    facts = {"server": name, "beside": neighbour}
                    yield Result("http_push", [run.rate for run in runs], "jobs/s", None, facts, p50, p99)

    def _grpc(self, options: dict[str, Any], database: str) -> Iterator[Result]:
        """Unary calls and streams of jobs; the rows of `http` stand beside them."""
        server, jobs = serving.GrpcServer(_free_port()), max(200, options["jobs"] // 10)
        with processes.running(server.command(), processes.extended(database, serving.kept())):
            server.wait()
            for connections in options["connections"]:
                for script in ("push", "fetch_ack", "stream"):
                    runs = [self._loaded(server, script, connections, jobs) for _ in range(options["runs"])]
                    facts = {"server": "ojs_grpc", "connections": connections}
                    p50, p99 = [run.p50 for run in runs], [run.p99 for run in runs]
                    yield Result(f"grpc_{script}", [run.rate for run in runs], "jobs/s", None, facts, p50, p99)

    def _loaded(self, server: serving.Server, script: str, connections: int, jobs: int) -> serving.Call:
        measures.empty()
        return server.load(script, connections, jobs)

    def _plainly(self, repeat: Any, act: Callable[[], float]) -> float | None:
        return self._median(repeat, act) if reference.available() else None

    def _median(self, repeat: Any, act: Callable[[], float]) -> float:
        return Result("reference", repeat(act)).median

    def _describe(self) -> dict[str, Any]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT sqlite_version()" if connection.vendor == "sqlite" else "SELECT version()")
            version = str(cursor.fetchone()[0]).split(" on ")[0]
        name = version if version.startswith(connection.display_name) else f"{connection.display_name} {version}"
        return {"database": name, "vendor": connection.vendor, "python": platform.python_version()}


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
