"""How a claimer sleeps: what happens between its look and its sleep wakes it, and so does what happens in its sleep.

The pauses after which it would look anyway are hours here, so a wake-up that is lost hangs the test.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import select
import sqlite3
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection, connections

from django_ojs.lifecycle.waking import CHANNEL, process_identity, wake_workers
from django_ojs.models import Worker
from django_ojs.worker import filewatch, wakers
from django_ojs.worker.filewatch import Gone, Inotify, watch
from django_ojs.worker.wakers import DescriptorWaker, Listener, ListeningWaker, PollingWaker, WatchingWaker
from django_ojs.workerregistry.heartbeat import Beat, beat
from tests import refusing
from tests.gathering import holding

HOURS = 3600.0
linux = pytest.mark.skipif(sys.platform != "linux", reason="needs inotify")


@pytest.fixture
def started() -> Iterator[Callable[[Any], Any]]:
    """Starts a waker, and ends it after the test."""
    made: list[Any] = []

    def start(waker: Any) -> Any:
        waker.start()
        made.append(waker)
        return waker

    yield start
    for waker in made:
        waker.close()
        assert waker.stop(60)


def asleep(waker: Any, monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Have `act` done once, when the waker has decided to sleep and does not yet."""
    real, todo = select.poll, [act]

    class Poll:
        def __init__(self) -> None:
            self._poll = real()
            self.register = self._poll.register

        def poll(self, milliseconds: float) -> Any:
            if todo:
                todo.pop()()
            return self._poll.poll(milliseconds)

    monkeypatch.setattr(wakers.select, "poll", Poll)


# A call of another thread


def test_a_call_before_the_sleep_and_one_just_before_it_begins_let_it_end(
    started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    waker = started(DescriptorWaker(HOURS))
    waker.wake()
    waker.wait_for_slot()
    asleep(waker, monkeypatch, waker.wake)
    waker.wait_for_slot()
    assert not waker._woken.is_set()


def test_many_calls_fill_no_pipe_and_a_stopped_waker_is_called_in_vain(started: Any) -> None:
    waker = started(DescriptorWaker(HOURS))
    waker._sleeping = True
    for _ in range(100_000):  # more than a pipe holds
        waker.wake()
    waker._sleeping = False
    waker.wait_for_slot()
    waker.stop()
    waker.wake()
    waker.wait_for_slot()


# The alarm


class Sleeping:
    """A waker whose sleeps take no time: they move a clock of its own."""

    LONGEST = 10.0

    def __init__(self, waker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waker, self.now, self.chance, self.sleeps = waker, 0.0, 0.0, 0
        waker.wait(found=False)  # the first one sleeps on no database
        waker._woken.clear()
        waker._longest = waker._interval = waker._nap = self.LONGEST
        monkeypatch.setattr(waker, "_await", self._sleep)
        monkeypatch.setattr(wakers, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(wakers, "random", SimpleNamespace(uniform=lambda least, most: self.chance * most))

    def _sleep(self, seconds: float, descriptor: int | None) -> None:
        self.sleeps += 1
        assert self.sleeps < 20_000, "it does not sleep"
        if not self.waker._woken.is_set():
            self.now += seconds + 1e-6  # no sleep ends too early

    def wait(self, alarm: float | None = None) -> float:
        """How long it sleeps with this alarm after a look in vain."""
        began = self.now
        if alarm is not None:
            self.waker.wake_in(alarm)
        self.waker.looked(found=False)
        self.waker.wait(found=False)
        return self.now - began

    def found(self) -> None:
        """It got a job and met a limit, and looks again at once."""
        self.waker.wake_in(HOURS)
        self.waker.looked(found=True)
        self.waker.wake()
        self.waker.wait(found=True)
        self.waker._woken.clear()
        self.waker._interval = self.LONGEST


def seconds(*values: float) -> Any:
    return pytest.approx(list(values), abs=0.001)


@pytest.fixture(
    params=[
        PollingWaker,
        lambda: DescriptorWaker(0.0),
        pytest.param(
            lambda: WatchingWaker(connection.alias), marks=[pytest.mark.sqlite, pytest.mark.django_db(transaction=True)]
        ),
        pytest.param("listening", marks=[pytest.mark.postgres, pytest.mark.django_db(transaction=True)]),
    ],
    ids=["polling", "descriptor", "watching", "listening"],
)
def sleeping(request: pytest.FixtureRequest, started: Any, monkeypatch: pytest.MonkeyPatch) -> Sleeping:
    kind = request.param
    return Sleeping(request.getfixturevalue(kind) if isinstance(kind, str) else started(kind()), monkeypatch)


def test_an_alarm_ends_the_sleep_once_and_the_first_of_several_counts(sleeping: Sleeping) -> None:
    for later in (HOURS, 2.0):
        sleeping.waker.wake_in(later)
    assert [sleeping.wait(3.0), sleeping.wait()] == seconds(2.0, sleeping.LONGEST)


def test_an_alarm_of_the_time_without_a_slot_is_over_with_it(sleeping: Sleeping) -> None:
    """It has led to no look, so the next one need not rest."""
    sleeping.waker.wake_in(0.01)
    began = sleeping.now
    sleeping.waker.wait_for_slot()
    assert sleeping.now - began > 0.01
    assert [sleeping.wait(2.0)] == seconds(2.0)


def test_alarms_for_nothing_ring_less_and_less_often_until_a_job_was_found_or_no_limit_was_met(
    sleeping: Sleeping,
) -> None:
    """Also an alarm that has passed when the sleep begins, as after a long round of claims."""
    sleeping.waker._longest = 0.3
    for _ in range(2):
        sleeping.found()
        assert [sleeping.wait(0.0) for _ in range(6)] == seconds(0.0, 0.05, 0.1, 0.2, 0.3, 0.3)
    sleeping.wait()
    assert [sleeping.wait(0.0) for _ in range(2)] == seconds(0.0, 0.05)


def test_many_that_wait_for_the_same_do_not_look_at_once(sleeping: Sleeping) -> None:
    sleeping.chance = 1.0
    assert [sleeping.wait(2.0) for _ in range(3)] == seconds(2.0, 2.025, 2.05)
    assert [sleeping.wait(0.0)] == seconds(0.3)
    sleeping.found()
    assert [sleeping.wait(2.0)] == seconds(2.0), "but for the one that got the last job"


def test_a_look_for_another_reason_is_none_in_vain(sleeping: Sleeping) -> None:
    for _ in range(3):
        sleeping.waker.wake()
        assert [sleeping.wait(1.0)] == seconds(0.0)
    assert [sleeping.wait()] == seconds(1.0)


# The files of an SQLite database


class FileWaker(WatchingWaker):
    """Watches a file of the test. Only a report lets it ask for the version before an hour has passed."""

    QUIET, RESTLESS = HOURS, HOURS

    def __init__(self, file: Path) -> None:
        super().__init__("default")
        self._longest = HOURS
        self.reader = sqlite3.connect(file, isolation_level=None, check_same_thread=False)

    def _version(self) -> int:
        return int(self.reader.execute("PRAGMA data_version").fetchone()[0])

    def _path(self) -> str:
        return str(self.reader.execute("PRAGMA database_list").fetchone()[2])

    def close(self) -> None:
        super().close()

    def stop(self, timeout: float | None = None) -> bool:
        self.reader.close()
        return super().stop(timeout)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    (tmp_path / "site").mkdir()
    connection = sqlite3.connect(tmp_path / "site" / "db.sqlite3", isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE job (id INTEGER)")
    yield connection
    connection.close()


@pytest.fixture
def waker(writer: sqlite3.Connection, tmp_path: Path, started: Any) -> FileWaker:
    made: FileWaker = started(FileWaker(tmp_path / "site" / "db.sqlite3"))
    made.wait(found=False)  # the first look at the version is always new
    return made


def commit(writer: sqlite3.Connection) -> None:
    writer.execute("INSERT INTO job VALUES (1)")


@linux
@pytest.mark.parametrize("mode", ["WAL", "DELETE", "TRUNCATE", "PERSIST"])
def test_a_commit_between_look_and_sleep_wakes(
    mode: str, writer: sqlite3.Connection, tmp_path: Path, started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert writer.execute(f"PRAGMA journal_mode={mode}").fetchone() == (mode.lower(),)
    waker = started(FileWaker(tmp_path / "site" / "db.sqlite3"))
    waker.wait(found=False)
    commit(writer)
    waker.wait(found=False)  # committed after the look: it does not even lie down
    asleep(waker, monkeypatch, lambda: commit(writer))
    waker.wait(found=False)
    assert waker._watch is not None


@linux
@pytest.mark.parametrize(
    "before",
    [
        "PRAGMA wal_checkpoint(TRUNCATE)",
        "PRAGMA wal_checkpoint(RESTART)",
        "PRAGMA synchronous=EXTRA",
        "PRAGMA cache_size=1",  # the log is written long before the commit
    ],
)
def test_a_log_that_was_reset_or_is_written_early_wakes(
    before: str, waker: FileWaker, writer: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(writer)
    writer.execute(before).fetchall()
    waker.wait(found=False)

    def many() -> None:
        writer.execute("BEGIN")
        writer.executemany("INSERT INTO job VALUES (?)", [(i,) for i in range(5000)])
        writer.execute("COMMIT")

    asleep(waker, monkeypatch, many)
    waker.wait(found=False)
    assert waker.reader.execute("SELECT count(*) FROM job").fetchone()[0] == 5001


@linux
def test_looks_in_vain_are_less_often_until_one_brings_jobs_or_all_is_quiet(
    waker: FileWaker, writer: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FileWaker, "FIRST_REST", HOURS)
    monkeypatch.setattr(FileWaker, "LONGEST_REST", HOURS)
    for _ in range(2):
        waker.wait(found=True)
        for _ in range(waker.PATIENT):
            commit(writer)
            waker.wait(found=False)
        commit(writer)
        asleep(waker, monkeypatch, waker.wake)
        waker.wait(found=False)
    monkeypatch.setattr(FileWaker, "LONGEST_REST", 0.0)
    asleep(waker, monkeypatch, lambda: commit(writer))
    waker.wait(found=False)
    assert waker._in_vain == 1


@linux
def test_the_report_may_come_before_the_commit_can_be_seen(
    waker: FileWaker, writer: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    real = waker._version

    def late() -> int:
        nonlocal looks
        looks += 1
        return seen if looks < 8 else real()

    seen = real()
    monkeypatch.setattr(waker, "_version", late)
    asleep(waker, monkeypatch, lambda: commit(writer))
    waker.wait(found=False)
    assert looks == 8


@linux
def test_a_log_that_is_made_anew_wakes(tmp_path: Path, started: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last connection to leave deletes the log: the next commit makes another one."""
    file = tmp_path / "db.sqlite3"

    def enqueue() -> None:
        with sqlite3.connect(file) as writer:
            writer.execute("PRAGMA journal_mode=WAL")
            writer.execute("CREATE TABLE IF NOT EXISTS job (id INTEGER)")
            commit(writer)
        writer.close()

    enqueue()
    watched = Inotify(str(file))
    try:
        assert not file.with_name("db.sqlite3-wal").exists()
        assert not watched.changed()
        enqueue()
        assert watched.changed()
        assert not watched.changed()
    finally:
        watched.close()


@linux
def test_other_files_in_the_folder_do_not_count(tmp_path: Path) -> None:
    watched = Inotify(str(tmp_path / "db.sqlite3"))
    try:
        (tmp_path / "debug.log").write_text("much")
        (tmp_path / "db.sqlite3.bak").write_text("much")
        assert not watched.changed()
        assert watched._concerns(struct.pack("iIII", 1, 0x4000, 0, 0)), "events that were too many to be kept"
        (tmp_path / "db.sqlite3-journal").write_text("")
        assert watched.changed()
    finally:
        watched.close()


@linux
def test_a_link_to_the_database_is_followed(tmp_path: Path, writer: sqlite3.Connection) -> None:
    link = tmp_path / "link.sqlite3"
    link.symlink_to(tmp_path / "site" / "db.sqlite3")
    watched = watch(str(link))
    assert watched is not None
    try:
        commit(writer)
        assert watched.changed()
    finally:
        watched.close()


@linux
def test_a_folder_that_moves_ends_the_watch_and_not_the_work(
    waker: FileWaker, writer: sqlite3.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    asleep(waker, monkeypatch, lambda: (tmp_path / "site").rename(tmp_path / "moved") and commit(writer))
    waker.wait(found=False)
    assert waker._watch is None
    assert "watched no longer (The folder of the database was moved or deleted.)" in caplog.text
    commit(writer)
    waker.wait(found=False)


@linux
def test_a_watch_that_does_not_tell_is_given_up(
    waker: FileWaker, writer: sqlite3.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """As where another machine writes the file."""
    real = waker._watch
    assert real is not None

    class Deaf:
        fileno = real.fileno
        close = real.close

        def changed(self) -> bool:
            real.changed()
            return False

    waker._watch = Deaf()
    for number in range(3):
        assert waker._watch is not None, number
        assert not caplog.records
        commit(writer)
        waker.wait(found=False)
    assert waker._watch is None
    assert "watched no longer (changes are not reported here): asking for changes every 5 ms instead" in caplog.text
    thread = threading.Timer(0.0, commit, [writer])
    thread.start()
    waker.wait(found=False)
    thread.join()


@linux
@pytest.mark.parametrize("call", ["inotify_init1", "inotify_add_watch"])
def test_where_the_system_has_no_watch_left_the_file_is_asked(
    call: str, tmp_path: Path, writer: sqlite3.Connection, started: Any, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    libc = filewatch._inotify()

    class Exhausted:
        inotify_init1, inotify_add_watch = libc.inotify_init1, libc.inotify_add_watch

    def refuse(*args: Any) -> int:
        ctypes.set_errno(errno.ENOSPC)
        return -1

    monkeypatch.setattr(Exhausted, call, staticmethod(refuse))
    monkeypatch.setattr(filewatch, "_inotify", Exhausted)
    waker = started(FileWaker(tmp_path / "site" / "db.sqlite3"))
    for _ in range(2):
        commit(writer)
        waker.wait(found=False)
    assert waker._watch is None
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "No space left on device" in record.getMessage()


def test_a_database_in_memory_has_no_file() -> None:
    assert watch("") is None


@pytest.mark.django_db(transaction=True)
@pytest.mark.sqlite
@pytest.mark.parametrize("codes", [refusing.BROKEN, refusing.SLOW, refusing.RACE])
def test_a_database_that_does_not_tell_its_version_leaves_the_rest_to_the_claim(started: Any, codes: Any) -> None:
    """Which waits as whatever else is asked of the database: the claimer does not end of it."""
    waker = started(WatchingWaker(connection.alias))
    with refusing.refusing(codes, lambda sql: "PRAGMA" in sql) as refused:
        assert waker.wait(found=False)
    assert refused.threads
    assert waker.wait(found=False), "there may be a job that came meanwhile"


@pytest.mark.django_db(transaction=True)
@pytest.mark.sqlite
def test_the_waker_finds_the_file_of_the_site(started: Any) -> None:
    waker = started(WatchingWaker(connection.alias))
    name = str(connection.settings_dict["NAME"])
    assert waker._path() == ("" if "memory" in name else str(Path(name).resolve()))
    assert isinstance(waker._version(), int)
    connections[connection.alias].close()


def test_gone_is_raised_for_what_became_of_the_folder() -> None:
    watched = object.__new__(Inotify)
    watched._names = frozenset()
    for mask in (0x400, 0x800, 0x2000, 0x8000):
        with pytest.raises(Gone):
            watched._concerns(struct.pack("iIII", 1, mask, 0, 0))


# The notifications of PostgreSQL


class FakeListener:
    """Has heard what the test says."""

    def __init__(self) -> None:
        self.listening = threading.Event()
        self.listening.set()
        self.answers: list[bool] = []

    def heard(self) -> bool:
        return self.answers.pop(0) if self.answers else False

    def fileno(self) -> None:
        return None

    def stop(self, timeout: float | None = None) -> bool:
        return True

    def start(self) -> None:
        return None


class Notified(ListeningWaker):
    """Records what it writes into its row, and how long it lies down."""

    PAUSE = HOURS

    def __init__(self) -> None:
        super().__init__("default", "w")
        self.said: list[bool] = []
        self.naps: list[float] = []
        self._listener: Any = FakeListener()

    def _say_asleep(self, asleep: bool) -> bool:
        if asleep != self._asleep:
            self.said.append(asleep)
        self._asleep = asleep
        return True

    def _await(self, seconds: float, descriptor: int | None) -> None:
        self.naps.append(round(seconds, 2))
        self._woken.set()


def test_a_worker_says_once_that_it_sleeps_while_jobs_come_one_by_one(started: Any) -> None:
    waker = started(Notified())
    waker.BUSY = HOURS
    waker.wait(found=False)  # says so, and looks again
    assert (waker.said, waker.naps) == ([True], [])
    for _ in range(5):
        waker.wait(found=True)
        waker.wait_for_slot()
    assert waker.said == [True]
    waker.BUSY = 0.0
    waker.wait(found=True)
    assert waker.said == [True, False]
    naps = len(waker.naps)
    waker.wait(found=True)  # looks again at once
    assert len(waker.naps) == naps
    waker.wait(found=False)
    assert waker.said == [True, False, True]


def test_a_worker_without_room_says_that_it_is_awake(started: Any) -> None:
    waker = started(Notified())
    waker.wait(found=False)
    waker.BUSY = 0.0
    waker.wait_for_slot()
    assert waker.said == [True, False]


def test_the_first_naps_are_short_for_pushes_that_began_before(started: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    waker = started(Notified())
    monkeypatch.setattr(waker, "_doze", lambda seconds, descriptor=None: None)
    time = [0.0]
    monkeypatch.setattr(wakers.time, "monotonic", lambda: time.append(time[-1] + 0.005) or time[-1])
    naps = []
    for _ in range(2):
        waker.wait(found=False)
        for _ in range(6):
            before = time[-1]
            waker.wait(found=False)
            naps.append(time[-1] - before)
        waker.BUSY = 0.0
        waker.wait(found=True)
    monkeypatch.undo()
    assert naps[0] < 0.05
    assert naps[1] < 0.12
    assert naps[4:6] == pytest.approx([1.0, 1.0], abs=0.02)
    assert naps[6] < 0.05, "it said anew that it sleeps"


@pytest.fixture
def listening(started: Any, transactional_db: None) -> ListeningWaker:
    beat(Beat("sleeps"))
    waker: ListeningWaker = started(ListeningWaker(connection.alias, lambda: ["sleeps"]))
    assert waker._listener.listening.wait(60)
    waker._nap = waker.FIRST_NAP = HOURS  # type: ignore[misc]
    return waker


def notify(payload: str = "another process") -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, %s)", [CHANNEL, payload])


@pytest.mark.postgres
def test_a_notification_between_look_and_sleep_wakes(
    listening: ListeningWaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    listening.wait(found=False)
    assert Worker.objects.get(pk="sleeps").asleep
    listening._woken.clear()  # the listener's, from its start
    notify()
    listening.wait(found=False)
    asleep(listening, monkeypatch, notify)
    listening.wait(found=False)


@pytest.mark.postgres
def test_a_row_that_somebody_holds_is_waited_for_by_nobody(
    listening: ListeningWaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claims of all others would wait with it. Meanwhile it sleeps as one that nobody wakes."""
    slept: list[float] = []
    monkeypatch.setattr(listening, "_await", lambda seconds, descriptor: slept.append(seconds))
    row = Worker.objects.filter(pk="sleeps")
    with holding(row):
        assert not listening.wait(found=False)
        assert (listening._asleep, len(slept)) == (False, 1)
    listening.wait(found=False)
    assert (row.get().asleep, len(slept)) == (True, 1)
    with holding(row):
        assert not listening.awake()
    assert row.get().asleep
    assert listening.awake()
    assert not row.get().asleep


@pytest.mark.postgres
def test_one_of_several_rows_is_enough_and_one_that_is_gone_needs_no_word(
    listening: ListeningWaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    beat(Beat("held"))
    listening._workers = lambda: ["held", "sleeps", "gone"]
    with holding(Worker.objects.filter(pk="held")):
        listening.wait(found=False)
    assert listening._asleep
    assert dict(Worker.objects.values_list("pk", "asleep")) == {"held": False, "sleeps": True}
    Worker.objects.filter(pk="sleeps").delete()
    assert listening.awake()


@pytest.mark.postgres
def test_a_server_that_takes_no_writes_any_more_is_left_by_one_that_only_reads(
    listening: ListeningWaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(listening, "_await", lambda seconds, descriptor: slept.append(seconds))
    connection.ensure_connection()
    with refusing.refusing(refusing.READ_ONLY):
        listening.wait(found=False)
    assert (connection.connection, len(slept)) == (None, 1)
    listening.wait(found=False)
    assert Worker.objects.get(pk="sleeps").asleep


@pytest.mark.postgres
def test_a_process_does_not_hear_itself(listening: ListeningWaker) -> None:
    Worker.objects.update(asleep=True)
    listener: Listener = listening._listener

    def heard() -> bool:
        assert select.select([listener.fileno()], [], [], 60)[0]
        return listener.heard()

    wake_workers(connection.alias)
    assert not heard()
    notify(f"not {process_identity()}")  # notifications come in the order of their commits
    assert heard()


@pytest.mark.postgres
def test_a_connection_that_is_cut_wakes_and_is_replaced(
    listening: ListeningWaker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    listening.wait(found=False)
    listening._woken.clear()
    before = listening._listener._connection.info.backend_pid

    def cut() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s)", [before])

    asleep(listening, monkeypatch, cut)
    listening.wait(found=False)
    assert listening._listener.listening.wait(60)
    while listening._listener._connection is None:
        listening._listener.listening.wait(60)
    assert listening._listener._connection.info.backend_pid != before
    assert "Listening for notifications failed, so the worker polls (" in caplog.text
    assert listening._woken.wait(60), "what was committed meanwhile is looked for"


@pytest.mark.postgres
def test_without_psycopg_3_a_worker_polls_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """psycopg2 cannot listen as we do: a thread that tried died, and its process lost what it led."""
    monkeypatch.setattr("django.db.backends.postgresql.psycopg_any.is_psycopg3", False)
    wakers._can_listen.cache_clear()
    try:
        with caplog.at_level(logging.INFO, "django_ojs.worker.wakers"):
            made = [wakers.waker_for(connection.alias, list) for _ in range(2)]
    finally:
        wakers._can_listen.cache_clear()
    assert [type(waker) for waker in made] == [PollingWaker, PollingWaker]
    assert [(record.levelname, record.message[:17]) for record in caplog.records] == [("INFO", "Without psycopg 3")]
