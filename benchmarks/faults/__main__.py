"""Let a worker, a scheduler and the servers live through every fault of a database, and add up what became of it.

They run on a database that is made for them on the given server, or in an SQLite file, and is gone afterwards. Clients
push, read and stream all the while. For each code of `django_ojs.faults` what the processes ask of the database fails
for some seconds, below the driver. Then it is checked that all is back by itself, that each job whose push was answered
has run once, that health was told as it was, that no process has ended, and that the log has less than a hundred lines.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.faults.injection import CLOSED, Fault, turn

if TYPE_CHECKING:
    from benchmarks.faults.record import Row
    from benchmarks.faults.site import Site

SECONDS = 60.0
BACK = 30.0  #: seconds within which everything has to work again
LINES = 100  #: lines of log of a process for one fault
NOTICED = 6.0  #: seconds after which health has to say that nothing can be stored
ROLES = ("worker", "scheduler", "server", "gRPC")
#: PostgreSQL: an SQLSTATE for each class of which the table has no more than the name.
CLASSES = {
    "08": ["08006"], "21": ["21000"], "22": ["22001"], "23": ["23514"], "25": ["25P02"], "28": ["28P01"],
    "42": ["42601"], "44": ["44000"], "53": ["53100", "53200"], "54": ["54000"], "57": ["57000"], "58": ["58030"],
    "F0": ["F0001"], "XX": ["XX000"],
}  # fmt: skip
#: While these last nothing can be stored, and the probes say so. Of the others they may say either.
UNWELL = {"AWAY", "READ_ONLY", "BROKEN"}
#: These meet only pushes that carry what makes them fail.
OF_STATEMENTS = {"STATEMENT", "TOO_LARGE"}


def table(vendor: str) -> Iterator[Fault]:
    """Each fault of a database with each of its codes."""
    from django_ojs.faults import CODES

    for fault, codes in CODES[vendor].items():
        for code in codes.split():
            members = CLASSES.get(code, [code]) if vendor == "postgresql" else [code]
            yield from (Fault(fault.name, each) for each in members)
    if vendor == "sqlite":
        yield Fault("AWAY", CLOSED)


def try_out(site: Site, fault: Fault, seconds: float) -> Row:
    """Let all meet this fault for so many seconds, and wait until they are back."""
    from benchmarks.faults.record import Row

    record, row = site.record, Row(fault.name, fault.code)
    before, family = site.lines(), site.pids()
    site.looks.clear()
    record.begin()
    site.pushes = True
    began = time.monotonic()
    turn(site.switch, fault)
    time.sleep(seconds)
    ending = time.monotonic()
    turn(site.switch, None)
    ended = time.monotonic()
    missing = _until_back(site, ended)
    row.back = time.monotonic() - ended
    row.wrong += [f"{what} was not back after {BACK:g} s" for what in missing]
    site.pushes = False
    record.settle(row)
    row.wrong += _of_answers(record.statuses, fault)
    row.wrong += _of_health(site, fault, began, ending)
    after = site.lines()
    lines = {name: after[name] - before[name] for name in after}
    if fault.name in OF_STATEMENTS:  # each that is at fault for itself is logged with its traceback
        lines = {name: number for name, number in lines.items() if name not in ("server", "gRPC")}
    row.lines = max(lines.values())
    row.wrong += [f"the {name} logged {number} lines" for name, number in lines.items() if number >= LINES]
    for name, pids in site.pids().items():
        if gone := family.get(name, set()) - pids:
            row.wrong.append(f"{len(gone)} processes of the {name} ended")
    row.wrong += site.replaced
    site.replaced.clear()
    return row


def _until_back(site: Site, ended: float) -> list[str]:
    """Wait until everything works again; what does not."""
    deadline = time.monotonic() + BACK
    while time.monotonic() < deadline:
        time.sleep(0.1)
        looks = site.looks[-1:]
        missing = [] if site.record.last_answer > ended else ["a push"]
        missing += [] if site.record.last_stream > ended + 0.5 else ["the stream"]
        missing += [name for look in looks for name, well in look.healthy.items() if not well or look.began < ended]
        if looks and not missing:
            return []
    return missing


def _of_answers(statuses: dict[str, int], fault: Fault) -> list[str]:
    """Which answers should not have been: while it lasts, a call is answered or refused for now."""
    fine = ("200", "201", "503", "gRPC OK", "gRPC UNAVAILABLE", "GET 200", "GET 503", "stream 200", "stream 503")
    own: tuple[str, ...] = ()
    if fault.name in OF_STATEMENTS:
        own = ("413", "500", "gRPC INTERNAL", "gRPC RESOURCE_EXHAUSTED")
    wrong = {status: number for status, number in statuses.items() if status not in (*fine, *own)}
    return [f"{number} answers {status}" for status, number in wrong.items()]


def _of_health(site: Site, fault: Fault, began: float, ended: float) -> list[str]:
    """Whether the probes of the servers said that nothing can be stored, where that was so."""
    if fault.name not in UNWELL:
        return []
    during = [look for look in list(site.looks) if began + NOTICED < look.began and look.ended < ended]
    well = {name: sum(look.healthy[name] for look in during) for name in ("server", "gRPC") if name in site.pids()}
    return [f"the {name} said {number} of {len(during)} times to be ready" for name, number in well.items() if number]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=str(__doc__).split("\n\n")[0])
    parser.add_argument(
        "--database", default="", metavar="URL", help="a server to make the database on; without: SQLite"
    )
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long each fault lasts")
    parser.add_argument("--only", nargs="*", default=[], metavar="FAULT|CODE", help="these faults or codes only")
    parser.add_argument("--one-of-each", action="store_true", help="the first code of each fault only")
    parser.add_argument("--where", nargs="*", choices=ROLES, default=[], help="these processes only meet it")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the logs there")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and end the processes
    options = parser.parse_args(arguments)
    _set_up(options.database)

    from django.db import connection

    from benchmarks.faults.record import Record, Row
    from benchmarks.faults.site import Site
    from django_ojs.testing.server import throwaway_database

    wrong = 0
    with throwaway_database(options.database) as database, tempfile.TemporaryDirectory(prefix="ojs-faults-") as made:
        folder = options.keep or Path(made)
        folder.mkdir(exist_ok=True, parents=True)
        site = Site(database, folder, Record(folder / "notes"))
        try:
            site.start()
            _say(Row.HEAD, "|---|---|--:|--:|--:|--:|--:|--:|--:|")
            for fault in _chosen(table(connection.vendor), options.only, options.one_of_each):
                row = try_out(site, fault._replace(roles=tuple(options.where)), options.seconds)
                _say(row.text())
                wrong += bool(row.wrong)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
            ended = site.stop()
            _say(*(f"WRONG: {each}" for each in ended))
    return min(1, wrong + len(ended))


def _chosen(faults: Iterator[Fault], only: Sequence[str], one_of_each: bool) -> Iterator[Fault]:
    seen: set[str] = set()
    for fault in faults:
        if (only and not {fault.name, fault.code} & set(only)) or (one_of_each and fault.name in seen):
            continue
        seen.add(fault.name)
        yield fault


def _say(*lines: str) -> None:
    for line in lines:
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _set_up(url: str) -> None:
    os.environ |= {"DJANGO_SETTINGS_MODULE": "benchmarks.settings"}
    os.environ.setdefault("OJS_BENCH_DATABASE", url or "sqlite:///faults.sqlite3")
    import django

    django.setup()


if __name__ == "__main__":
    sys.exit(main())
