"""What every test gets: no network beyond this machine, a clock to hold, settings that start fresh.

Tests marked for a service are skipped, with the variable to set, where that service is not at hand.
"""

from __future__ import annotations

import datetime as dt
import gc
import ipaddress
import logging
import os
import re
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import hypothesis
import pytest
from django.conf import settings
from django.db import connection
from django.test import SimpleTestCase
from hypothesis import HealthCheck

from django_ojs import backoff, clock, jsontext, keys, packets
from django_ojs.conf import ojs_settings
from django_ojs.database import forget as forget_read_only
from django_ojs.database import url_of
from django_ojs.events import catalogue, ids
from django_ojs.events.catalogue import Record
from django_ojs.jobs import schemas
from django_ojs.queues import configuration
from django_ojs.scheduler.service import outage
from django_ojs.store import store_of
from django_ojs.testing import database
from django_ojs.workerregistry import ownership
from tests import flushing
from tests.reporting import Reports

#: marker: (the vendor it wants, what to set)
VENDORS = {
    "sqlite": ("sqlite", "leave OJS_TEST_DATABASE_URL unset or set it to sqlite:///…"),
    "postgres": ("postgresql", "set OJS_TEST_DATABASE_URL=postgres://user@host/name"),
    "mariadb": ("mysql", "set OJS_TEST_DATABASE_URL=mysql://user@host/name"),
}
#: What the test database is named after.
REAL_DATABASE = connection.settings_dict["NAME"]


def pytest_configure(config: pytest.Config) -> None:
    # Taken from the environment, so that workers of xdist, and runs that tests start, write no report.
    file, only = (os.environ.pop(name, "") for name in ("OJS_TEST_REPORT", "OJS_TEST_ONLY"))
    if file or only:
        config.pluginmanager.register(Reports(file, only))
    settings.SCRATCH.mkdir(exist_ok=True)
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
        # Images for containers set it: each process of a test, and of xdist, would compile the package and the suite.
        os.environ["PYTHONPYCACHEPREFIX"] = str(settings.SCRATCH / "bytecode")
    # How fast a busy machine draws examples, or runs one, decides nothing.
    examples = 100 if os.environ.get("OJS_TEST_FULL") else 10
    fixed: dict[str, Any] = {"derandomize": True, "database": None} if os.environ.get("OJS_TEST_DETERMINISTIC") else {}
    hypothesis.settings.register_profile(
        "ojs", deadline=None, max_examples=examples, suppress_health_check=[HealthCheck.too_slow], **fixed
    )
    hypothesis.settings.load_profile("ojs")


def pytest_unconfigure() -> None:
    if settings.BEGAN_RUN:
        shutil.rmtree(settings.SCRATCH, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Thousands of tests stay to the end: no collection of garbage need look at them again, nor at each 700 objects."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 10, 10)
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A run of slow tests alone need not import the files that have none, which are most."""
    if not re.match(r"slow( and |$)", config.option.markexpr) or not collection_path.match("test_*.py"):
        return None
    return None if _may_be_slow(collection_path) else True


@cache
def _may_be_slow(file: Path) -> bool:
    """Whether it names one of the markers, or takes those of another file."""
    return re.search(r"\b(slow|wide)\b|\.pytestmark\b", file.read_text()) is not None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Any:
    """What a test logged may have half a character in it, which the workers of pytest-xdist cannot send: it would end
    the whole run."""
    report: Any = yield
    report.sections = [(name, text.encode(errors="replace").decode()) for name, text in report.sections]
    return report


@pytest.hookimpl(tryfirst=True)  # before pytest reads `-m`, which may name `database`
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = {
        marker: f"needs the database {vendor}: {remedy}"
        for marker, (vendor, remedy) in VENDORS.items()
        if connection.vendor != vendor
    }
    if not settings.REDIS_URL:
        missing["redis"] = "needs Redis: set OJS_TEST_REDIS_URL=redis://host:6379/15"
    if not os.environ.get("OJS_CONFORMANCE_DIR"):
        missing["conformance"] = "needs the published cases: set OJS_CONFORMANCE_DIR to their directory"
    for item in items:
        if item.get_closest_marker("wide"):
            item.add_marker("slow")
        if item.get_closest_marker("slow") and not _may_be_slow(item.path):
            raise pytest.UsageError(f"{item.nodeid} is slow, and a run of slow tests alone leaves out its file.")
        if _uses_database(item):
            item.add_marker("database")
            if isinstance(item, pytest.Function) and _counts_statements(item):
                item.fixturenames.append("long_memory")
        for marker, reason in missing.items():
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


def _uses_database(item: pytest.Item) -> bool:
    """Whether the test may end otherwise on another database, in processes of its own too."""
    fixtures = {"db", "transactional_db", "child_environment"} & set(getattr(item, "fixturenames", ()))
    case = getattr(item, "cls", None)
    unittest = isinstance(case, type) and issubclass(case, SimpleTestCase)
    return (
        bool(fixtures) or unittest or any(item.iter_markers("django_db")) or any(map(item.get_closest_marker, VENDORS))
    )


def _counts_statements(item: pytest.Function) -> bool:
    """Whether the test may count statements. What its process remembers for seconds must then not end in between."""
    return hasattr(item.module, "CaptureQueriesContext") or any(
        name.startswith("django_assert_") for name in item.fixturenames
    )


# Network


class NetworkForbidden(RuntimeError):
    """A test tried to leave this machine. Not an OSError: no retry or error handler may swallow it."""


#: Services named by the environment may live elsewhere, as they do beside a CI container.
ALLOWED_NAMES = {"localhost", *filter(None, [urlsplit(settings.REDIS_URL).hostname])}


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback or address.is_unspecified


@pytest.fixture(scope="session", autouse=True)
def _no_network() -> Iterator[None]:
    """Guard Python's own sockets. Database drivers bring theirs, and they go where the URL says."""
    allowed = set(ALLOWED_NAMES)
    resolve = socket.getaddrinfo

    def check(host: str, deed: str) -> None:
        if host not in allowed and not _is_loopback(host):
            raise NetworkForbidden(f"Tests stay on this machine, but this one tried to {deed} {host!r}.")

    def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if name and name.endswith(".invalid"):  # RFC 6761: exists nowhere, so nobody need be asked
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        if name:
            check(name, "resolve")
        found = resolve(host, *args, **kwargs)
        if name in ALLOWED_NAMES:
            allowed.update(entry[4][0] for entry in found)
        return found

    def guarded(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: socket.socket, *args: Any) -> Any:
            address = args[-1]  # connect(address), sendto(data[, flags], address)
            if self.family in (socket.AF_INET, socket.AF_INET6):
                check(address[0], "reach")
            return method(self, *args)

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", getaddrinfo)
        for name in ("connect", "connect_ex", "sendto"):
            patch.setattr(socket.socket, name, guarded(getattr(socket.socket, name)))
        yield


# Time and settings


class FrozenClock:
    """The clock of `django_ojs`, stopped. `now` is its instant; only `advance` and `move_to` change it."""

    START = dt.datetime(2026, 1, 15, 12, 0, tzinfo=dt.UTC)

    def __init__(self) -> None:
        self.move_to(self.START)

    @property
    def now(self) -> dt.datetime:
        return clock.now()

    def advance(self, **delta: float) -> dt.datetime:
        """`advance(seconds=5)`, or any argument of `timedelta`; returns the new instant."""
        return clock.advance(**delta)

    def move_to(self, instant: dt.datetime) -> None:
        clock.freeze(instant)


@pytest.fixture
def frozen_clock() -> FrozenClock:
    """Time stands still until the test moves it; `_fresh_state` lets it run again."""
    return FrozenClock()


@pytest.fixture
def long_memory(monkeypatch: pytest.MonkeyPatch, db: None) -> None:
    """For tests that count statements: what a process asks once it has asked, and it knows that to the end, on the
    slowest machine."""
    if connection.vendor == "mysql":
        packets.room(connection.alias)
    for module, name in (
        (clock, "_RESYNC_SECONDS"), (clock, "_FRESH_SECONDS"), (configuration, "_TTL_SECONDS"),
        (schemas, "_TTL_SECONDS"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, 3600.0)
    if pages := sys.modules.get("django_ojs.admin.base"):
        monkeypatch.setattr(pages._asked, "_seconds", 3600.0)


@pytest.fixture(scope="session")
def _deviations() -> Iterator[list[str]]:
    """Where events that are written differ from the description of their type, of which the reference is made."""
    found: list[str] = []
    store = type(store_of(connection.alias))
    insert = store.insert_events

    def check(self: Any, records: Sequence[Record]) -> None:
        for record in records:
            found.extend(catalogue.deviations(record.type, jsontext.loads(record.data) if record.data else {}))
        insert(self, records)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "insert_events", check)
        yield found


@pytest.fixture(autouse=True)
def _described_events(_deviations: list[str]) -> Iterator[None]:
    _deviations.clear()
    yield
    assert _deviations == []


@pytest.fixture
def made_up_events(_deviations: list[str]) -> Iterator[None]:
    """The test writes events that nothing in the package would write."""
    yield
    _deviations.clear()


def _our_loggers() -> list[logging.Logger]:
    known = [name for name in logging.root.manager.loggerDict if name.startswith("django_ojs.")]
    return [logging.getLogger(name) for name in ("django_ojs", *known)]


@pytest.fixture(autouse=True)
def _fresh_state() -> Iterator[None]:
    """Thaw the clock and forget the settings after each test, whoever froze or changed them, and let our loggers be as
    they were: what they let through decides what handlers of pytest get."""
    before = {logger: (logger.level, logger.handlers[:]) for logger in _our_loggers()}
    yield
    for logger in _our_loggers():
        level, logger.handlers = before.get(logger, (logging.NOTSET, []))
        if logger.level != level:
            logger.setLevel(level)
    clock.freeze(None)
    clock._last_stamp = dt.datetime.min.replace(tzinfo=dt.UTC)
    database.forget()
    keys.forget()
    for name in ("audit", "limits.claim", "workerregistry.dead"):
        if module := sys.modules.get(f"django_ojs.{name}"):
            module.forget()
    ownership.forget()
    if summary := sys.modules.get("django_ojs.statistics.summary"):
        summary.forget()
    ids.forget()
    if relay := sys.modules.get("django_ojs.webhooks.relay"):
        relay.forget()
    if exceptions := sys.modules.get("django_ojs.http.exceptions"):
        exceptions.forget()
    if access := sys.modules.get("django_ojs.realtime.access"):
        access._renewals.forget()
    backoff.forget()
    outage.forget()
    forget_read_only()
    ojs_settings.reset()  # type: ignore[attr-defined]


# The database


@pytest.fixture(scope="session", autouse=True)
def _quick_database(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Tests that commit neither wait for the disk, in processes of their own either, nor for Django's flush."""
    with pytest.MonkeyPatch.context() as patch:
        name = connection.settings_dict["NAME"]
        if name != REAL_DATABASE:  # there is none where no test uses it
            with django_db_blocker.unblock(), connection.cursor() as cursor:
                if connection.vendor == "postgresql":
                    quoted = connection.ops.quote_name(name)
                    cursor.execute(f"ALTER DATABASE {quoted} SET synchronous_commit = off")  # of sessions from now on
                flushing.install(patch, connection.alias)
        yield


# Processes


@pytest.fixture
def child_environment(transactional_db: None) -> dict[str, str]:
    """The environment for a process that works on this test's database: `manage.py ojs_worker` and such."""
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "OJS_TEST_DATABASE_URL": url_of(connection.settings_dict),
        "OJS_TEST_ADMIN": "",  # its pages would take a third of the start
        "PYTHONPATH": os.pathsep.join(filter(None, [str(settings.BASE_DIR), os.environ.get("PYTHONPATH", "")])),
    }


@pytest.fixture(scope="session", autouse=True)
def _last_connections(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """PostgreSQL drops no database that a session is left in: that of a process killed a moment ago, or of a thread."""
    yield
    if connection.vendor != "postgresql":
        return
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
