"""System checks: each number is raised by what it is for, and a sound site raises none."""

from __future__ import annotations

import enum
import sys
from typing import Any

import django
import pytest
from django.conf import LazySettings
from django.core.checks import run_checks
from django.db import connection

from django_ojs import checks, job
from django_ojs.database import POOL_OPTIONS
from django_ojs.registry import Registry, registry


def ids(messages: list[Any]) -> list[str]:
    return [message.id for message in messages]


@pytest.mark.django_db
def test_a_sound_site_has_no_problems() -> None:
    found = run_checks(databases=["default"], include_deployment_checks=True)
    assert [message for message in found if str(message.id).startswith("django_ojs.")] == []


@pytest.mark.parametrize(
    "key,hint",
    [
        ("MAX_BATCH_SIZ", "'MAX_BATCH_SIZE'"),
        ("dialect", "'DIALECT'"),
        ("COLOUR_OF_THE_SKY", "There are ALERTS, ALLOW_ANONYMOUS"),
    ],
)
def test_e001_an_unknown_setting_gets_a_suggestion(settings: Any, key: str, hint: str) -> None:
    settings.OJS = {key: 5}
    (problem,) = checks.check_settings()
    assert problem.id == "django_ojs.E001"
    assert hint in problem.hint


@pytest.mark.parametrize(
    "key,value,hint",
    [
        ("DIALECT", "loose", "'spec' or 'published'"),
        ("MAX_BATCH_SIZE", "many", "a whole number"),
        ("MAX_BATCH_SIZE", True, "a whole number"),
        ("MAX_BATCH_SIZE", -1, "must not be negative"),
        ("HEARTBEAT_INTERVAL", None, "a number"),
        ("ALLOW_ANONYMOUS", "yes", "True or False or None"),
        ("SERVICE_NAME", 5, "a string"),
        ("ENQUEUE_MIDDLEWARE", "path.to.one", "a list of strings"),
        ("ENQUEUE_MIDDLEWARE", [1], "a list of strings"),
        ("PRIORITY_LEVELS", {"HIGH": "3"}, "a dict"),
        ("RETENTION", {"completed": "7d"}, "a dict"),
        ("JOB_LOG_LEVELS", {"shop": "LOUD"}, "a dict whose values are 'DEBUG' or 'INFO' or"),
    ],
)
def test_e002_a_mistyped_setting_is_told_its_type(settings: Any, key: str, value: Any, hint: str) -> None:
    settings.OJS = {key: value}
    (problem,) = checks.check_settings()
    assert problem.id == "django_ojs.E002"
    assert hint in problem.hint


def test_e002_a_member_that_no_retry_policy_has(settings: Any) -> None:
    settings.OJS = {"RETRY": {"max_retries": 5, "jitter": False}}
    (problem,) = checks.check_settings()
    assert (problem.id, problem.msg) == (
        "django_ojs.E002", "OJS['RETRY'].max_retries means nothing here; did you mean max_attempts?"
    )  # fmt: skip


@pytest.mark.parametrize(
    "value, said",
    [
        (
            {"RETENTION": {"complete": 5}},
            "There is no 'complete': there are completed, cancelled, discarded, dead_letter.",
        ),
        ({"RETENTION": {"completed": -1}}, "completed is -1, and must not be negative. None keeps jobs for ever."),
        ({"RETRY": {"max_attempts": "5"}}, "retry.max_attempts: must be an integer"),
        ({"RETRY": {"initial_interval": 2}}, "retry.initial_interval: must be a duration"),
    ],
)
def test_e002_a_member_that_nothing_can_go_by(settings: Any, value: dict[str, Any], said: str) -> None:
    settings.OJS = value
    (problem,) = checks.check_settings()
    assert problem.id == "django_ojs.E002"
    assert said in problem.msg


def test_e002_settings_that_are_no_dict(settings: Any) -> None:
    settings.OJS = ["DIALECT"]
    assert ids(checks.check_settings()) == ["django_ojs.E002"]


@pytest.mark.parametrize(
    "value",
    [
        {"DIALECT": "published"}, {"HEARTBEAT_INTERVAL": 5}, {"RETENTION": {"completed": None, "cancelled": 5}},
        {"ENQUEUE_MIDDLEWARE": []}, {"ALLOW_ANONYMOUS": None}, {"PRIORITY_LEVELS": {"HIGH": 10}},
        {"RETRY": {"jitter": False}},
    ],
)  # fmt: skip
def test_right_settings_pass(settings: Any, value: dict[str, Any]) -> None:
    settings.OJS = value
    assert checks.check_settings() == []


async def slow(job: Any, next: Any) -> Any:
    return await next(job)


@pytest.mark.parametrize(
    "name,path",
    [
        ("ENQUEUE_MIDDLEWARE", "nowhere.at_all"),
        ("EXECUTION_MIDDLEWARE", "django_ojs.worker.middleware.NoSuch"),
        ("EXECUTION_MIDDLEWARE", "django_ojs.__version__"),
        ("ENQUEUE_MIDDLEWARE", f"{__name__}.slow"),
    ],
)
def test_e003_middleware_that_cannot_work_is_found_before_a_job_needs_it(settings: Any, name: str, path: str) -> None:
    settings.OJS = {name: [path]}
    (problem,) = checks.check_middleware()
    assert problem.id == "django_ojs.E003"
    assert path in problem.msg


def test_e004_two_handlers_of_one_type(monkeypatch: pytest.MonkeyPatch) -> None:
    def discover(name: str) -> None:
        job("email.send")(lambda: None)

        def other() -> None: ...

        job("email.send")(other)

    monkeypatch.setattr("django_ojs.registry.autodiscover_modules", discover)
    with registry.isolated() as isolated:
        isolated._discovered = False
        (problem,) = checks.check_handlers()
    assert problem.id == "django_ojs.E004"
    assert "two handlers" in problem.msg


def test_e004_sound_handlers_pass() -> None:
    with registry.isolated() as isolated:
        assert isinstance(isolated, Registry)
        assert checks.check_handlers() == []


@pytest.mark.parametrize(
    "engine,asgi,options,numbers",
    [
        ("postgresql", "site.asgi.application", {}, ["django_ojs.W006"]),
        ("postgresql", "site.asgi.application", {"pool": True}, []),
        ("postgresql", None, {}, []),
        ("sqlite3", "site.asgi.application", {}, []),
    ],
)
def test_w006_a_connection_for_each_request(
    settings: Any, monkeypatch: pytest.MonkeyPatch, engine: str, asgi: str | None, options: Any, numbers: list[str]
) -> None:
    settings.ASGI_APPLICATION = asgi
    config = {"ENGINE": f"django.db.backends.{engine}", "OPTIONS": options}
    monkeypatch.setitem(settings.DATABASES, "default", config)
    assert ids(checks.check_pool()) == numbers


@pytest.mark.parametrize("threads,seconds,numbers", [
    (16, 60, []), (16, None, []), (16, 0, ["django_ojs.W006"]), (0, 60, ["django_ojs.W006"]),
])  # fmt: skip
def test_w006_threads_that_last_keep_connections(
    settings: Any, monkeypatch: pytest.MonkeyPatch, threads: int, seconds: int | None, numbers: list[str]
) -> None:
    settings.ASGI_APPLICATION = "site.asgi.application"
    settings.OJS = {"ASGI_THREADS": threads}
    config = {"ENGINE": "django.db.backends.postgresql", "CONN_MAX_AGE": seconds}
    monkeypatch.setitem(settings.DATABASES, "default", config)
    assert ids(checks.check_pool()) == numbers


@pytest.mark.parametrize(
    "pool,numbers",
    [
        (True, ["django_ojs.W012"]),
        ({"max_size": 4, "timeout": 5}, ["django_ojs.W012"]),
        ({"timeout": 10, "reconnect_timeout": 10}, []),
        (POOL_OPTIONS, []),
        (None, []),
    ],
)
def test_w012_a_pool_that_lets_requests_stall(
    settings: Any, monkeypatch: pytest.MonkeyPatch, pool: Any, numbers: list[str]
) -> None:
    config = {"ENGINE": "django.db.backends.postgresql", "OPTIONS": {"pool": pool}}
    monkeypatch.setitem(settings.DATABASES, "default", config)
    found = checks.check_pool_patience()
    assert ids(found) == numbers
    for problem in found:
        assert "'reconnect_timeout': 2" in problem.hint


@pytest.mark.parametrize("name", ["", "shop.", ".shop", "shop..orders", "shop.*", " shop"])
def test_w015_names_that_no_logger_has(settings: Any, name: str) -> None:
    settings.OJS = {"JOB_LOG_LEVELS": {"httpx": "WARNING", name: "OFF", "shop.orders": "ERROR"}}
    (problem,) = checks.check_logger_names()
    assert problem.id == "django_ojs.W015"
    assert repr(name) in problem.msg


@pytest.mark.parametrize("given", [{}, {"root": "ERROR", "shop.orders": "OFF", "a-b": "INFO"}, ["shop"]])
def test_w015_is_silent_about_names_of_loggers(settings: Any, given: Any) -> None:
    settings.OJS = {"JOB_LOG_LEVELS": given}
    assert checks.check_logger_names() == []


@pytest.mark.parametrize(
    "app,number",
    [("rest_framework", "django_ojs.E005"), ("channels", "django_ojs.W003")],
)
def test_apps_that_are_missing(monkeypatch: pytest.MonkeyPatch, app: str, number: str) -> None:
    monkeypatch.setattr(checks.apps, "is_installed", lambda name: name != app)
    (problem,) = checks.check_apps()
    assert problem.id == number
    assert app in problem.hint


def test_e006_time_zones(settings: Any) -> None:
    settings.USE_TZ = False
    assert ids(checks.check_apps()) == ["django_ojs.E006"]


@pytest.mark.parametrize(
    "zone, supported, found",
    [
        ("America/New_York", False, ["django_ojs.E013"]), ("America/New_York", True, []), ("UTC", False, []),
        (None, False, []),
    ],
)  # fmt: skip
def test_e013_a_database_that_keeps_times_in_a_zone_of_its_own(
    settings: Any, monkeypatch: pytest.MonkeyPatch, zone: str | None, supported: bool, found: list[str]
) -> None:
    monkeypatch.setitem(settings.DATABASES["default"], "TIME_ZONE", zone)
    monkeypatch.setattr(checks.connections["default"].features, "supports_timezones", supported)
    problems = checks.check_database_zone()
    assert ids(problems) == found
    assert all("America/New_York" in problem.msg for problem in problems)


@pytest.mark.parametrize("app", ["django.contrib.auth", "django.contrib.contenttypes"])
def test_e007_nobody_can_be_told_from_another(monkeypatch: pytest.MonkeyPatch, settings: Any, app: str) -> None:
    monkeypatch.setattr(checks.apps, "is_installed", lambda name: name != app)
    (problem,) = checks.check_urls()
    assert (problem.id, repr(app) in problem.hint) == ("django_ojs.E007", True)
    settings.ROOT_URLCONF = "tests.api.urls_without"  # Python alone takes no users
    assert ids(checks.check_urls()) == ["django_ojs.W002"]


def test_w001_anonymous_callers_outside_debug(settings: Any) -> None:
    settings.OJS = {"ALLOW_ANONYMOUS": True}
    assert ids(checks.check_anonymous()) == ["django_ojs.W001"]
    settings.DEBUG = True
    assert checks.check_anonymous() == []


@pytest.mark.parametrize(
    "urlconf,problems",
    [("tests.urls", []), ("tests.api.urls_without", ["django_ojs.W002"]), ("tests.api.urls_nested", [])],
)
def test_w002_urls(settings: Any, urlconf: str, problems: list[str]) -> None:
    settings.ROOT_URLCONF = urlconf
    assert ids(checks.check_urls()) == problems


@pytest.mark.postgres
def test_w017_psycopg2_wakes_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.check_driver() == []
    monkeypatch.setattr("django.db.backends.postgresql.psycopg_any.is_psycopg3", False)
    (problem,) = checks.check_driver()
    assert problem.id == "django_ojs.W017"
    assert "Install psycopg 3 beside it: pip install 'django-ojs[postgres]'." in problem.hint


def test_w017_other_databases_need_no_driver_of_postgresql(monkeypatch: pytest.MonkeyPatch) -> None:
    if connection.vendor != "postgresql":
        monkeypatch.setitem(sys.modules, "django.db.backends.postgresql.psycopg_any", None)
        assert checks.check_driver() == []


def test_w005_heartbeats_that_are_too_rare(settings: Any) -> None:
    settings.OJS = {"HEARTBEAT_INTERVAL": 15}
    assert checks.check_heartbeats() == []
    settings.OJS = {"HEARTBEAT_INTERVAL": 20}
    (problem,) = checks.check_heartbeats()
    assert problem.id == "django_ojs.W005"
    assert "HEARTBEAT_TIMEOUT" in problem.msg
    settings.OJS = {"HEARTBEAT_INTERVAL": 30}
    assert ids(checks.check_heartbeats()) == ["django_ojs.W005", "django_ojs.W005"]


# The database


class FakeCursor:
    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers, self.answer = answers, None

    def __enter__(self) -> FakeCursor:
        return self

    def __exit__(self, *args: object) -> None: ...

    def execute(self, sql: str) -> FakeCursor:
        self.answer = next(value for key, value in self.answers.items() if key in sql)
        return self

    def fetchone(self) -> tuple[Any]:
        return (self.answer,)


class FakeConnection:
    mysql_is_mariadb = True

    def __init__(
        self, answers: dict[str, Any], transaction_mode: str | None = "IMMEDIATE", skip_locked: bool = True
    ) -> None:
        self.answers, self.transaction_mode = answers, transaction_mode
        self.features = type("Features", (), {"has_select_for_update_skip_locked": skip_locked})
        self.settings_dict: dict[str, Any] = {"OPTIONS": {}}

    def cursor(self) -> FakeCursor:
        return FakeCursor(self.answers)


@pytest.mark.parametrize(
    "journal,patience,mode,problems",
    [
        ("wal", 20_000, "IMMEDIATE", []),
        ("memory", 20_000, "EXCLUSIVE", []),
        ("delete", 20_000, "IMMEDIATE", ["django_ojs.W101"]),
        ("wal", 20_000, None, ["django_ojs.W102"]),
        ("wal", 5_000, "immediate", ["django_ojs.W103"]),
        ("delete", 0, "DEFERRED", ["django_ojs.W101", "django_ojs.W102", "django_ojs.W103"]),
    ],
)
def test_sqlite(journal: str, patience: int, mode: str | None, problems: list[str]) -> None:
    fake = FakeConnection({"journal_mode": journal, "busy_timeout": patience}, mode)
    found = list(checks._check_sqlite("default", fake))
    assert ids(found) == problems
    for problem in found:
        assert problem.hint is not None
        assert "\"transaction_mode\": 'IMMEDIATE'" in problem.hint, "the hint has the exact options"


@pytest.mark.parametrize("level,problems", [("read committed", []), ("serializable", ["django_ojs.W104"])])
def test_postgresql(level: str, problems: list[str]) -> None:
    fake: Any = FakeConnection({"isolation": level, "encoding": "UTF8"})
    assert ids(list(checks._check_postgresql("default", fake))) == problems
    fake.settings_dict["OPTIONS"]["isolation_level"] = 1
    fake.isolation_level = enum.Enum("IsolationLevel", ["READ_COMMITTED", "SERIALIZABLE"])["SERIALIZABLE"]
    assert ids(list(checks._check_postgresql("default", fake))) == ["django_ojs.W104"]


@pytest.mark.parametrize(
    "level,skip_locked,problems",
    [
        ("READ-COMMITTED", True, []), ("REPEATABLE-READ", True, ["django_ojs.W105"]),
        ("READ-COMMITTED", False, ["django_ojs.W106"]),
    ],
)  # fmt: skip
def test_mariadb(level: str, skip_locked: bool, problems: list[str]) -> None:
    fake = FakeConnection({"isolation": level, "character_set": "utf8mb4"}, None, skip_locked)
    assert ids(list(checks._check_mysql("default", fake))) == problems


def test_w107_a_database_that_lacks_characters() -> None:
    postgresql = FakeConnection({"isolation": "read committed", "encoding": "LATIN1"})
    mariadb = FakeConnection({"isolation": "READ-COMMITTED", "character_set": "utf8mb3"})
    for found, name in (
        (checks._check_postgresql("default", postgresql), "LATIN1"),
        (checks._check_mysql("default", mariadb), "utf8mb3"),
    ):
        (problem,) = found
        assert (problem.id, name in problem.msg) == ("django_ojs.W107", True)


@pytest.mark.django_db
def test_databases_are_asked_only_when_django_allows_it() -> None:
    assert checks.check_databases(databases=None) == []
    assert checks.check_databases(databases=["other"]) == []
    assert checks.check_databases(databases=["default"]) == [] or connection.vendor == "mysql"


@pytest.mark.parametrize("given,numbers", [
    ({}, []),
    ({"GRPC_TLS_CERTIFICATE": "c", "GRPC_TLS_KEY": "k", "GRPC_TLS_CLIENT_CA": "a"}, []),
    ({"GRPC_TLS_CERTIFICATE": "c"}, ["django_ojs.E011"]),
    ({"GRPC_TLS_KEY": "k"}, ["django_ojs.E011"]),
    ({"GRPC_TLS_CLIENT_CA": "a"}, ["django_ojs.E011"]),
])  # fmt: skip
def test_e011_half_of_a_tls_setup(settings: Any, given: dict[str, Any], numbers: list[str]) -> None:
    settings.OJS = given
    assert ids(checks.check_grpc()) == numbers


@pytest.mark.parametrize("given,urls,numbers", [
    ({"site": "https://shop.example.com", "links": "7d"}, "django_ojs.urls", ["django_ojs.E014"]),
    ({"site": "https://shop.example.com"}, "tests.urls", []),
    (None, "django_ojs.urls", []),
    ({"site": ""}, "django_ojs.urls", []),  # E002 says so
])  # fmt: skip
def test_e014_mails_about_approvals_that_lead_nowhere(settings: Any, given: Any, urls: str, numbers: list[str]) -> None:
    settings.OJS, settings.ROOT_URLCONF = {"APPROVAL_MAIL": given}, urls
    assert ids(checks.check_approval_pages()) == numbers


@pytest.mark.database  # Django's version decides
@pytest.mark.parametrize("given,sender,backend,numbers", [
    ({"site": "https://shop.example.com", "links": "7d"}, "webmaster@localhost", "smtp", ["django_ojs.E014"]),
    ({"site": "https://shop.example.com"}, "webmaster@localhost", "smtp", ["django_ojs.E014"]),
    ({"site": "https://shop.example.com"}, "shop@example.com", "smtp", []),
    ({"site": "https://shop.example.com"}, "webmaster@localhost", "console", []),
    (None, "webmaster@localhost", "smtp", []),
])  # fmt: skip
def test_e014_mails_about_approvals_that_come_from_nobody(
    settings: Any, given: Any, sender: str, backend: str, numbers: list[str]
) -> None:
    settings.OJS, settings.DEFAULT_FROM_EMAIL = {"APPROVAL_MAIL": given}, sender
    place = f"django.core.mail.backends.{backend}.EmailBackend"
    if django.VERSION >= (6, 1):
        settings.MAILERS = {"default": {"BACKEND": place}}
    else:
        settings.EMAIL_BACKEND = place
    assert ids(checks.check_approval_sender()) == numbers


@pytest.mark.database
def test_a_site_that_says_nothing_of_mail_is_asked_for_no_setting_that_django_gives_up(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.OJS = {"APPROVAL_MAIL": {"site": "https://shop.example.com"}}
    bare = LazySettings()
    bare.configure()
    monkeypatch.setattr(checks, "settings", bare)
    assert ids(checks.check_approval_sender()) == ["django_ojs.E014"]


@pytest.mark.parametrize("offered,missing,numbers", [
    (True, ("grpcio",), ["django_ojs.W013"]), (False, ("grpcio",), []), (True, (), []),
])  # fmt: skip
def test_w013_grpc_that_cannot_be_served(
    settings: Any, monkeypatch: pytest.MonkeyPatch, offered: bool, missing: tuple[str, ...], numbers: list[str]
) -> None:
    settings.OJS = {"GRPC": offered}
    monkeypatch.setattr("django_ojs.grpc.missing", lambda: missing)
    assert ids(checks.check_grpc()) == numbers
