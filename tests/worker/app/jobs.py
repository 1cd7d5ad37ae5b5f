"""Handlers for the worker processes that tests start. They leave their traces as files in OJS_TEST_TRACES.

The tests themselves know only the names of the types, so options belong where a test enqueues.
"""

import asyncio
import contextlib
import gc
import inspect
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group
from django.db import connection, transaction

from django_ojs import JobContext, job
from django_ojs.models import JobStep
from tests.worker.app.ends import DEATHS, ENDS


def trace(name: str) -> Path:
    return Path(os.environ["OJS_TEST_TRACES"]) / name


@job("site.say")
def say(text: str) -> str:
    """Writes where nobody may read it, and logs a line there."""
    print(text, flush=True)
    print(text, file=sys.stderr, flush=True)
    logging.getLogger("site").warning(text)
    return text


@job("site.add")
def add(a: int, b: int) -> int:
    return a + b


@job("site.aadd")
async def aadd(a: int, b: int) -> int:
    await asyncio.sleep(0)
    return a + b


@job("site.collector")
def collector() -> list[int]:
    """What the garbage collector of this process was told."""
    return [gc.get_threshold()[0], gc.get_freeze_count()]


@job("site.fail")
def fail(message: str) -> None:
    raise ValueError(message)


@job("site.once")
def once(name: str) -> None:
    """Fails if it is run twice: the file is made exclusively."""
    trace(name).touch(exist_ok=False)


@job("site.hold")
def hold(name: str) -> str:
    """Runs until the file `<name>.go` appears."""
    trace(f"{name}.started").touch()
    while not trace(f"{name}.go").exists():
        time.sleep(0.01)
    return name


@job("site.consult")
def consult(name: str) -> int:
    """Holds, with a connection of its thread open."""
    groups = Group.objects.count()
    hold(name)
    return groups


@job("site.ahold")
async def ahold(name: str) -> str:
    trace(f"{name}.started").touch()
    try:
        while not trace(f"{name}.go").exists():  # noqa: ASYNC110 - another process makes the file
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        trace(f"{name}.cancelled").touch()
        raise
    return name


@job("site.watch")
def watch(context: JobContext, name: str) -> str:
    """Runs until it is cancelled."""
    trace(f"{name}.started").touch()
    while not context.is_cancelled:
        time.sleep(0.01)
    trace(f"{name}.noticed").touch()
    return name


@job("site.spin")
def spin(name: str) -> None:
    """Never ends by itself."""
    trace(f"{name}.started").touch()
    try:
        while True:
            time.sleep(0.01)
    finally:
        trace(f"{name}.ended").touch()


@job("site.exit")
def leave() -> None:
    raise SystemExit("a handler must not end the worker")


@job("site.sum")
def total(context: JobContext) -> int:
    """Adds up what the jobs before it in its workflow returned."""
    return sum(context.parent_results.values())


@job("site.asum")
async def atotal(context: JobContext) -> int:
    return sum(context.parent_results.values())


@job("site.count_keys")
def count_keys(context: JobContext) -> int:
    return len(context.parent_results[0])


@job("site.echo_parents")
def echo_parents(context: JobContext) -> list[object]:
    return list(context.parent_results.values())


@job("site.pid")
def pid() -> int:
    return os.getpid()


# Handlers that end badly


@job("site.sleep")
def sleep(name: str) -> None:
    """One C call that no exception ends."""
    trace(f"{name}.started").touch()
    time.sleep(10**9)


@job("site.aspin")
async def aspin(name: str) -> None:
    """Never lets its loop run again."""
    trace(f"{name}.started").touch()
    try:
        while True:
            pass
    finally:
        trace(f"{name}.ended").touch()


@job("site.hog")
def hog(name: str) -> None:
    """Holds the interpreter: no other thread of the process runs any more."""
    trace(f"{name}.started").touch()
    re.match("(a+)+$", "a" * 64 + "b")


@job("site.die")
def die(name: str, how: str) -> None:
    """Ends its own process, at every attempt."""
    with trace(f"{name}.runs").open("a") as runs:
        runs.write("x")
    match how:
        case "exit":
            os._exit(0)
        case "abort":
            os.abort()
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)


@job("site.fork")
def fork(name: str, how: str) -> str:
    """Two processes come back from here, and one of them is no worker."""
    if os.fork():
        os.wait()
        return name
    trace(f"{name}.copy").touch()
    if how == "raise":
        raise RuntimeError("in the copy")
    if how == "exit":
        sys.exit(3)
    return name


@job("site.orphan")
def orphan() -> int:
    """Leaves a process that nobody waits for: what started it is gone. Returns its id."""
    reader, writer = os.pipe()
    if not (between := os.fork()):
        if pid := os.fork():
            os.write(writer, b"%d" % pid)
        os._exit(0)
    os.waitpid(between, 0)
    return int(os.read(reader, 20))


@job("site.child")
def child(name: str) -> int:
    """A process of its own that ends by SIGTERM, as one of multiprocessing does."""
    process = os.fork()
    if not process:
        time.sleep(60)
        os._exit(0)
    os.kill(process, signal.SIGTERM)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


@job("site.grow")
def grow(megabytes: int) -> int:
    hoard.append(b"x" * megabytes * 2**20)
    return os.getpid()


hoard: list[bytes] = []


@job("site.run")
def run(command: str) -> int:
    return subprocess.run(["/bin/sh", "-c", command], check=False).returncode


@job("site.linger")
def linger(context: JobContext, name: str) -> str:
    """Takes its time to end after it was told to, the first time."""
    log = trace(f"{name}.log").open("a", buffering=1)
    log.write(f"begin-{context.attempt}\n")
    try:
        while context.attempt == 1:
            time.sleep(0.01)
    finally:
        if context.attempt == 1:
            time.sleep(2)
        log.write(f"end-{context.attempt}\n")
        log.close()
    return "second"


@job("site.leave")
def leave_open(how: str) -> str:
    """Leaves the connection of its thread as no handler should."""
    match how:
        case "close":
            connection.close()
        case "raw-close":
            connection.ensure_connection()
            connection.connection.close()
        case "atomic":
            transaction.atomic().__enter__()
            Group.objects.create(name=how)
        case "autocommit":
            transaction.set_autocommit(False)
            Group.objects.create(name=how)
        case "savepoint":
            transaction.set_autocommit(False)
            Group.objects.create(name=how)
            transaction.savepoint()
        case "raw-begin":
            with connection.cursor() as cursor:
                cursor.execute("BEGIN")
            Group.objects.create(name=how)
    return how


@job("site.groups")
def groups() -> int:
    return Group.objects.count()


@job("site.thread")
def thread() -> None:
    """Leaves a thread behind that would keep the interpreter from ending."""
    threading.Thread(target=time.sleep, args=(600,)).start()


@job("site.transfer", transactional=True)
def transfer(context: JobContext, name: str) -> None:
    """Is killed twice: at its last line, and just before the commit, after the ACK."""
    with trace(name).open("a") as runs:
        runs.write("run\n")
    Group.objects.create(name=name)
    seen = len(trace(name).read_text().split())
    if seen == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if seen == 2:
        # A commit is the only thing that comes after the ACK.
        connection._commit = lambda: os.kill(os.getpid(), signal.SIGKILL)


@job("site.tick")
def tick(number: int) -> None:
    """50 ms of work, noted in a file that many processes append to."""
    time.sleep(0.05)
    line = os.open(trace("ticks"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(line, b"%d\n" % number)
    os.close(line)


@job("site.note")
def note(number: int) -> None:
    """Says that it ran, in a file that many processes append to."""
    time.sleep(0.002)
    line = os.open(trace("notes"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(line, b"%d\n" % number)
    os.close(line)


@job("site.query", retry={"max_attempts": 1})
def query(number: int) -> None:
    """Is in a query of its own for most of its time, and says when it is over."""
    Group.objects.count()
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(0.01)")
    note(number)


@job("site.query_later", retry={"max_attempts": 1})
async def query_later(number: int) -> None:
    """The same in a coroutine."""
    await sync_to_async(query)(number)


@job("site.query_inline", retry={"max_attempts": 1}, inline=True)
def query_inline(number: int) -> None:
    query(number)


@job("site.write", retry={"max_attempts": 1}, transactional=True)
def write(number: int, name: str = "group") -> None:
    """Writes in the transaction of its completion: once, however often it runs."""
    Group.objects.create(name=f"{name} {number}")
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(0.01)")


@job("site.write_inline", retry={"max_attempts": 1}, transactional=True, inline=True)
def write_inline(number: int) -> None:
    write(number, "inline group")


# Two releases of the site, told apart by the environment


RELEASE = os.environ.get("OJS_TEST_RELEASE", "")


@job("site.release")
def release(context: JobContext, number: int) -> str:
    """Says which release ran it, in a file that all of them append to."""
    time.sleep(0.005)
    line = os.open(trace("releases"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(line, f"{RELEASE} {context.id}\n".encode())
    os.close(line)
    return RELEASE


if RELEASE == "new":
    job("site.novelty")(release.handler)


@job("site.shy")
def shy(context: JobContext, name: str) -> str:
    """Fails once, in the first process that lets it come so far."""
    hold(name)
    if not trace(f"{name}.failed").exists():
        trace(f"{name}.failed").touch()
        raise ValueError("the first time")
    return name


@job("site.kill")
def kill(name: str, how: str) -> None:
    """Ends its own process as soon as it may, at every attempt."""
    while not trace(f"{name}.go").exists():
        time.sleep(0.01)
    die.handler(name, how)


@job("site.akill")
async def akill(name: str, how: str) -> None:
    while not trace(f"{name}.go").exists():  # noqa: ASYNC110 - another process makes the file
        await asyncio.sleep(0.01)
    die.handler(name, how)


@job("site.ikill", inline=True)
def ikill(name: str, how: str) -> None:
    kill.handler(name, how)


@job("site.signal")
def send_signal(number: int) -> int:
    os.kill(os.getpid(), number)
    time.sleep(0.3)
    return os.getpid()


def _keeps(name: str) -> None:
    """Keeps every exception by which it is to end."""
    trace(f"{name}.started").touch()
    while True:
        with contextlib.suppress(BaseException):
            while True:
                time.sleep(0.01)


@job("site.keeps.sync")
def keeps(name: str) -> None:
    _keeps(name)


@job("site.keeps.inline", inline=True)
def ikeeps(name: str) -> None:
    _keeps(name)


@job("site.keeps.async")
async def akeeps(name: str) -> None:
    trace(f"{name}.started").touch()
    while True:
        with contextlib.suppress(BaseException):
            await asyncio.Event().wait()


@job("site.mute")
def mute(how: str) -> str:
    """Takes its process the places to write to."""
    match how:
        case "streams":
            sys.stdout.close()
            sys.stderr.close()
        case "descriptors":
            os.close(1)
            os.close(2)
        case "none":
            sys.stdout = sys.stderr = None
        case "full":
            for number in (1, 2):
                os.dup2(os.open("/dev/full", os.O_WRONLY), number)
    return how


# A durable flow: ten steps into the database, into a file and through a sleep


@job("flow.ten", durable=True, retry={"max_attempts": 1})
def flow_ten(context: JobContext, flow: int) -> str:
    def write(name: str) -> str:
        _refuse_recorded(context, name)
        with trace("calls").open("a") as file:
            file.write(f"{flow}:{name}\n")
        return f"{flow}:{name}"

    def book(name: str) -> str:
        return Group.objects.create(name=f"{flow}:{name}:{uuid.uuid4()}").name

    key = context.uuid()
    done = [context.step_transaction(f"book-{number}", book, str(number)) for number in range(4)]
    context.sleep(0.2)
    done += [context.step(f"write-{number}", write, f"write-{number}") for number in range(4)]
    assert len(done) == 8
    return str(key)


def _refuse_recorded(context: JobContext, name: str) -> None:
    """A step that is recorded must not be called again."""
    if JobStep.objects.filter(job_id=context.id, name=name).exists():
        raise AssertionError(f"{name} is recorded, and is called again")


# Every way to end, in every kind of handler: the table is in `ends`


@job("end.sync")
def end_sync(name: str) -> object:
    return ENDS[name].act()


@job("end.inline", inline=True)
def end_inline(name: str) -> object:
    return ENDS[name].act()


@job("end.transactional", transactional=True)
def end_transactional(name: str) -> object:
    return ENDS[name].act()


@job("end.async")
async def end_async(name: str) -> object:
    found = ENDS[name].act()
    return await found if inspect.iscoroutine(found) else found


@job("end.dies")
def end_dies(name: str) -> object:
    trace(f"{name}.began").touch()
    return DEATHS[name][0]()


@job("site.log")
def log_lines(context: JobContext, name: str, lines: int, how: str = "") -> None:
    """Logs so many lines, and then returns, kills its process, or waits until it is let go."""
    logger = logging.getLogger("site.jobs")
    for number in range(1, lines + 1):
        logger.info("line %d of %s", number, name)
    context.log("said at the end", level="warning", number=lines)
    trace(f"{name}.logged").touch()
    while how == "hold" and not trace(f"{name}.go").exists():
        time.sleep(0.01)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)


@job("flow.member")
def flow_member(number: int) -> int:
    time.sleep(0.05)
    return number


@job("flow.family", durable=True, retry={"max_attempts": 1})
def flow_family(context: JobContext, family: int) -> list[int]:
    """Runs jobs twice, so that a kill meets each part: what is not recorded, what waits, what goes on."""
    first = context.run_all([flow_member.s(4 * family + number) for number in range(4)], limit=2)
    return [*first, context.run(flow_member.s(family))]
