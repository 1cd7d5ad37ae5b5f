"""When something of ours or of the site breaks: the answer is the spec's error, the log has the rest."""

import logging
import subprocess
import sys
from typing import Any

import pytest
from django.conf import settings
from django.core.exceptions import PermissionDenied, SuspiciousOperation
from django.db import DataError, IntegrityError, InterfaceError, OperationalError, connection
from django.db.utils import ConnectionHandler
from django.http import Http404
from rest_framework import exceptions as drf

from django_ojs.database import POOL_OPTIONS, parse_url, url_of
from django_ojs.http import jobs, probes
from django_ojs.jobs import decisions, newrows
from django_ojs.models import Job
from django_ojs.store import store_of
from tests import refusing
from tests.http.conftest import Api, error_of
from tests.http.test_jobs import UNKNOWN


def breaking(exc: Exception) -> Any:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise exc

    return fail


@pytest.mark.parametrize("exc", [OperationalError("server at 10.0.0.5 is gone"), InterfaceError("closed")])
def test_a_lost_database_is_503_with_retry_after(api: Api, monkeypatch: Any, exc: Exception) -> None:
    monkeypatch.setattr(jobs, "push_one", breaking(exc))
    response = api.post("/jobs", {"type": "a.b", "args": []})
    error = error_of(response, 503, "backend_error")
    assert error["canonical_code"] == "BACKEND_UNAVAILABLE"
    assert error["retryable"] is True
    assert int(response["Retry-After"]) >= 1
    assert b"10.0.0.5" not in response.content


def test_a_bug_is_500_and_logged_under_the_id_the_client_has(api: Api, monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setattr(jobs, "info", breaking(DataError("secret: hunter2")))
    with caplog.at_level(logging.ERROR, "django_ojs.http"):
        response = api.get(f"/jobs/{UNKNOWN}", **{"X-Request-Id": "trace-me"})
    error_of(response, 500, "backend_error")
    assert b"hunter2" not in response.content
    (record,) = [record for record in caplog.records if record.name == "django_ojs.http"]
    assert "trace-me" in record.getMessage()
    assert record.request_id == "trace-me"
    assert record.exc_info
    assert "hunter2" in str(record.exc_info[1])


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", ["read-only", "full", "broken"])
def test_an_outage_fills_no_log(api: Api, caplog: Any, kind: str) -> None:
    """Neither ours nor Django's has a line for each request, whoever made it, and both have the others."""
    with refusing.refusing(refusing.PASSING[kind]):
        for _ in range(20):
            assert api.post("/jobs", {"type": "a.b", "args": []}).status_code == 503
    records = [record for record in caplog.records if record.name in ("django_ojs.http", "django.request")]
    assert [record.getMessage().partition(", as POST '/ojs/v1/jobs' (request ")[0] for record in records] == [
        "The database refuses requests"
    ]
    assert api.post("/jobs", {"type": "a.b", "args": []}).status_code == 201


@pytest.mark.usefixtures("echoed")  # of statuses that this path has only because a view of the test raises
@pytest.mark.parametrize(
    "exc, status, code",
    [
        (Http404("x"), 404, "not_found"),
        (PermissionDenied("x"), 403, "permission_denied"),
        (SuspiciousOperation("x"), 400, "invalid_request"),
        (drf.NotAuthenticated(), 401, "unauthenticated"),
        (drf.AuthenticationFailed("No."), 401, "unauthenticated"),
        (drf.PermissionDenied(), 403, "permission_denied"),
        (drf.NotFound(), 404, "not_found"),
        (drf.ParseError(), 400, "invalid_request"),
        (drf.ValidationError({"a": ["b"]}), 400, "invalid_request"),
        (drf.UnsupportedMediaType("x"), 400, "invalid_request"),
        (drf.Throttled(wait=7), 429, "rate_limited"),
        (drf.APIException("x"), 500, "backend_error"),
        (RecursionError(), 500, "backend_error"),
        (MemoryError(), 500, "backend_error"),
        (ValueError("A string literal cannot contain NUL (0x00) characters."), 500, "backend_error"),
    ],
)
def test_exceptions_of_django_and_drf_become_errors_of_the_spec(
    api: Api, monkeypatch: Any, exc: Exception, status: int, code: str
) -> None:
    monkeypatch.setattr(jobs, "info", breaking(exc))
    response = api.get(f"/jobs/{UNKNOWN}")
    expected = 400 if isinstance(exc, drf.UnsupportedMediaType) else status
    error_of(response, expected, code)
    assert response.has_header("WWW-Authenticate") == (status == 401)
    if status == 429:
        assert response["Retry-After"] == "7"


def test_an_answer_that_cannot_be_written_is_a_500_too(api: Api, monkeypatch: Any) -> None:
    monkeypatch.setattr(jobs, "info", lambda job_id: {})
    monkeypatch.setattr(jobs.envelope, "render", lambda row: {"a": float("nan"), "b": object()})
    response = api.get(f"/jobs/{UNKNOWN}")
    error_of(response, 500, "backend_error")


def test_an_authentication_class_that_breaks_is_a_500(api: Api, settings: Any) -> None:
    settings.OJS = {**settings.OJS, "AUTHENTICATION_CLASSES": [f"{__name__}.Broken"]}
    error_of(api.get("/queues"), 500, "backend_error")


def test_the_sites_own_authentication_class_is_heard(api: Api, settings: Any) -> None:
    settings.OJS = {"ALLOW_ANONYMOUS": False, "AUTHENTICATION_CLASSES": [f"{__name__}.Refusing"]}
    response = api.get("/queues")
    assert error_of(response, 401, "unauthenticated")["message"] == "Wrong number."
    assert response["WWW-Authenticate"] == "Phone"


class Broken:
    def authenticate(self, request: Any) -> None:
        raise KeyError("x")

    def authenticate_header(self, request: Any) -> str:
        return "Phone"


class Refusing(Broken):
    def authenticate(self, request: Any) -> None:
        raise drf.AuthenticationFailed("Wrong number.")


def test_too_many_parameters_are_a_bad_request(api: Api) -> None:
    response = api.client.get("/ojs/v1/queues?" + "&".join(f"a{i}=1" for i in range(2000)))
    error_of(response, 400, "invalid_request")


@pytest.mark.parametrize(
    "query", ["%FF", "limit=%FF", "limit=%00", "a=%ED%A0%80&limit=%C3", "=&=&&", "limit", "%u1234"]
)
def test_odd_queries_never_break(api: Api, query: str) -> None:
    for path in ("queues", "dead-letter", "events"):
        assert api.client.get(f"/ojs/v1/{path}?{query}").status_code in (200, 400)


@pytest.mark.parametrize(
    "name",
    [
        "OJS-Version",
        "Accept",
        "Content-Encoding",
        "OJS-Requires-Extension",
        "Idempotency-Key",
        "Authorization",
        "X-Request-Id",
        "Cookie",
    ],
)
@pytest.mark.parametrize("value", ["\x00", "é", "x" * 50_000, "\x7f", ";;;,,,", "\xff\xfe"])
def test_odd_headers_never_break(api: Api, name: str, value: str) -> None:
    response = api.post("/jobs", {"type": "a.b", "args": []}, **{name: value})
    assert response.status_code < 500
    assert response.json()


ODD = [None, True, -1, 10**400, 1.5, 1e308, "", "\x00", "\ud800", "x" * 5000, [], [[]], {}, {"a": {}}, "٣", "1e5"]


@pytest.mark.parametrize("value", ODD)
def test_odd_values_in_any_field_never_break(api: Api, value: Any) -> None:
    job = api.push()
    calls = {
        "/jobs": ["type", "args", "id", "queue", "meta", "priority", "options", "retry", "unique", "timeout",
                  "scheduled_at", "expires_at", "schema", "tags", "pending", "visibility_timeout",
                  "specversion", "version", "unknown"],
        "/jobs/batch": ["jobs"],
        "/workers/fetch": ["queues", "count", "max_jobs", "worker_id", "visibility_timeout_ms"],
        "/workers/ack": ["job_id", "worker_id", "attempt", "result"],
        "/workers/nack": ["job_id", "error", "worker_id", "requeue", "attempt"],
        "/workers/heartbeat": ["worker_id", "active_jobs", "active_job_ids", "job_id", "state", "shutdown", "pid",
                               "hostname", "visibility_timeout_ms", "concurrency", "labels", "started_at",
                               "memory_mb", "job_types"],
        "/workers/register": ["worker_id", "queues", "concurrency"],
        "/workers/deregister": ["worker_id", "reason"],
        f"/jobs/{job['id']}/cancel": ["reason"],
    }  # fmt: skip
    fine = {
        "type": "a.b",
        "args": [],
        "queues": ["nowhere"],
        "job_id": UNKNOWN,
        "worker_id": "w",
        "error": {"message": "x"},
    }
    for path, fields in calls.items():
        for field in fields:
            response = api.post(path, {**fine, field: value})
            assert response.status_code < 500, (path, field, response.content)
            assert response.json()


def test_an_unhealthy_store_shows_in_health_and_readiness(api: Api, monkeypatch: Any, settings: Any) -> None:
    monkeypatch.setattr(probes, "_backend", breaking(OperationalError("no route to 10.0.0.5")))
    response = api.get("/health")
    assert response.status_code == 503
    assert response["Retry-After"]
    body = response.json()
    assert (body["status"], body["backend"]["status"]) == ("unhealthy", "unhealthy")
    assert body["backend"]["error"]
    assert b"10.0.0.5" not in response.content
    settings.ROOT_URLCONF = "tests.http.test_site"
    assert api.client.get("/ready").status_code == 503
    assert api.client.get("/healthz").status_code == 200


_CUT = """
import os, threading, django
django.setup()
import psycopg
from django.conf import settings
from django.db import connection
settings.OJS = {"ALLOW_ANONYMOUS": True}
from tests.http.conftest import Api

def request():
    answers.append(Api().get("/queues").status_code)
    connection.close()

def hold(barrier):
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    barrier.wait(30)
    connection.close()

def in_threads(*acts):
    threads = [threading.Thread(target=act[0], args=act[1:]) for act in acts]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]

answers, size = [], connection.settings_dict["OPTIONS"]["pool"]["max_size"]
barrier = threading.Barrier(size)
in_threads(*[(hold, barrier)] * size)  # so many connections are idle in the pool now
config = connection.settings_dict
with psycopg.connect(host=config["HOST"], port=config["PORT"] or 5432, user=config["USER"],
                     password=config["PASSWORD"], dbname=config["NAME"], autocommit=True) as other:
    other.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pooled'")
for _ in range(4):
    in_threads((request,))
    [thread.join() for thread in threading.enumerate() if thread.name == "ojs-pool"]
connection.close_pool()
print(*answers)
"""


@pytest.mark.wide
@pytest.mark.postgres
def test_a_pool_whose_connections_were_all_cut_fails_one_request_at_most(child_environment: dict[str, str]) -> None:
    """Psycopg's pool finds cut connections one by one, and waits twice as long after each."""
    url = child_environment["OJS_TEST_DATABASE_URL"] + "&pool=true&application_name=pooled"
    environment = {**child_environment, "OJS_TEST_DATABASE_URL": url}
    done = subprocess.run(
        [sys.executable, "-c", _CUT],
        env=environment,
        cwd=settings.BASE_DIR,
        check=True,
        capture_output=True,
        timeout=200,
    )
    answers = done.stdout.decode().split()
    assert answers in (["200"] * 4, ["503", "200", "200", "200"])


def test_a_url_asks_for_a_pool_that_does_not_let_requests_stall() -> None:
    config = parse_url("postgres://me@here/name?pool=true", settings.BASE_DIR)
    assert config["OPTIONS"]["pool"] == POOL_OPTIONS
    assert parse_url(url_of(config), settings.BASE_DIR) == config


@pytest.mark.parametrize(
    "url, entry",
    [
        ("postgres://u@h1:5432,h2:5433/db?target_session_attrs=read-write",
         {"HOST": "h1,h2", "PORT": "5432,5433", "NAME": "db", "USER": "u",
          "OPTIONS": {"target_session_attrs": "read-write"}}),
        ("postgresql://u:p%40ss@h1,[::1]:5433/db", {"HOST": "h1,::1", "PORT": ",5433", "PASSWORD": "p@ss"}),
        ("postgres://h1,h2/db", {"HOST": "h1,h2", "PORT": "", "NAME": "db"}),
        ("postgres://?service=shop", {"HOST": "", "PORT": "", "NAME": "", "OPTIONS": {"service": "shop"}}),
    ],
)  # fmt: skip
def test_a_url_names_several_hosts_or_a_service_as_libpq_takes_them(url: str, entry: dict[str, Any]) -> None:
    config = parse_url(url, settings.BASE_DIR)
    assert {name: config[name] for name in entry} == entry
    assert parse_url(url_of(config), settings.BASE_DIR) == config


@pytest.mark.parametrize(
    "url",
    [
        "mysql://u:secret@a,b/c",
        "postgres://u:secret@a:x,b/c",
        "postgres://u:secret@a",
        "postgres://u:secret@a\u2100b/c",  # which is a slash to urlsplit: it names all that stands before it
        "postgres://u:secret@[a/c",
    ],
)
def test_a_url_that_no_driver_takes_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ValueError, match=r"A database URL|Only a database URL") as refused:
        parse_url(url, settings.BASE_DIR)
    assert "secret" not in str(refused.value)


@pytest.mark.postgres
@pytest.mark.django_db
def test_of_several_hosts_the_one_that_answers_is_taken() -> None:
    here = connection.settings_dict
    hosts = {"HOST": f"127.0.0.1,{here['HOST']}", "PORT": f"1,{here['PORT'] or 5432}"}  # nobody listens on port 1
    url = url_of({**here, **hosts, "OPTIONS": {"target_session_attrs": "read-write"}})
    found = ConnectionHandler({"default": parse_url(url, settings.BASE_DIR)})["default"]
    with found.cursor() as cursor:
        cursor.execute("SELECT current_database()")
        assert cursor.fetchone() == (here["NAME"],)
    found.close()


@pytest.mark.parametrize("body", [{}, {"unique": {"keys": ["type"]}}], ids=["plain", "unique"])
@pytest.mark.parametrize("path", ["/jobs", "/jobs/batch"])
def test_an_insert_that_another_constraint_refuses_is_not_told_as_an_id_that_is_taken(
    api: Api, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    """As of a column that a newer release has added. What is there is still told."""
    refuse = breaking(IntegrityError("NOT NULL constraint failed"))
    monkeypatch.setattr(newrows, "insert", refuse)
    monkeypatch.setattr(decisions, "insert", refuse)
    monkeypatch.setattr(type(store_of("default")), "push_if_free", refuse)
    job = {"id": UNKNOWN, "type": "a.b", "args": [], **body}
    error_of(api.post(path, {"jobs": [job]} if path == "/jobs/batch" else job), 500, "backend_error")
    assert not Job.objects.exists()
