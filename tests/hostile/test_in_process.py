"""3,000 hostile requests, at night 10,000, through Django's whole handler: no 500, no HTML, no half-written row.

Each test is one seed on one of three sites, and 500 requests; in between time passes, and what is due
happens. The database is checked after every batch of fifty.
"""

from __future__ import annotations

import datetime as dt
import io
import logging
import random
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote_to_bytes

import pytest
from django.core.exceptions import SuspiciousOperation
from django.db import connection
from django.http import HttpResponse
from django.test.client import ClientHandler
from django.urls import include, path

from django_ojs import clock, keys
from django_ojs.cron.runs import tick
from django_ojs.jobs.timers import apply_due
from django_ojs.models import APIKey
from django_ojs.workerregistry.dead import rescue_dead_workers
from tests.hostile.answers import Answer, Ledger, check
from tests.hostile.calls import Attacker, Call, Known
from tests.hostile.invariants import violations
from tests.hostile.walking import FULL
from tests.hostile.zoo import populate

REQUESTS = 10_000 if FULL else 3_000
CHUNK = 500
BATCH = 50

pytestmark = pytest.mark.django_db(transaction=True)


def page_not_found(request: Any, exception: Any) -> HttpResponse:
    return HttpResponse("<html>Nothing here</html>", status=404)


def server_error(request: Any) -> HttpResponse:
    return HttpResponse("<html>Oh no</html>", status=500)


handler404, handler500 = page_not_found, server_error
urlpatterns = [path("", include("django_ojs.urls"))]


def plain_site(settings: Any, monkeypatch: Any, known: Known) -> None:
    settings.OJS = {"ALLOW_ANONYMOUS": True}


def strict_site(settings: Any, monkeypatch: Any, known: Known) -> None:
    """Everything that a site may have set against us, and small limits."""
    settings.OJS = {
        "ALLOW_ANONYMOUS": True, "DIALECT": "published", "STRICT_OWNERSHIP": True, "MAX_ENVELOPE_BYTES": 4096,
        "MAX_META_BYTES": 256, "MAX_RESULT_BYTES": 2048, "MAX_BATCH_SIZE": 5, "MAX_BATCH_BYTES": 20_000,
        "ERROR_HISTORY": 2, "POISON_LIMIT": 2,
    }  # fmt: skip
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.contrib.auth.middleware.LoginRequiredMiddleware"]
    # That one reads the session before any view does; on PostgreSQL a NUL in the cookie is a 500 of Django's own.
    settings.SESSION_ENGINE = "django.contrib.sessions.backends.signed_cookies"
    settings.ROOT_URLCONF = __name__
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 10
    settings.DATA_UPLOAD_MAX_NUMBER_FIELDS = 5
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)


def guarded_site(settings: Any, monkeypatch: Any, known: Known) -> None:
    """A site that wants keys; the client has all kinds of them."""
    settings.OJS = {"ALLOW_ANONYMOUS": False}
    admin = keys.create("admin", ["admin"])[1]
    limited = [
        keys.create("pusher", ["push"], queues=["mail"])[1],
        keys.create("worker", ["work", "read"], job_types=["mail.*"])[1],
        keys.create("all", ["push", "work", "read"], queues=["default", "mail"], job_types=["a.b"])[1],
        keys.create("over", ["admin"], expires_at=clock.now() + dt.timedelta(seconds=1))[1],
    ]
    clock.advance(seconds=2)
    known.keys[:] = [admin] * 8 + limited


SITES: tuple[Callable[[Any, Any, Known], None], ...] = (plain_site, strict_site, guarded_site)


class Unmade(Exception):
    """Django could not make a request of it, so that nobody was asked: a charset, and too many parameters."""


class Handler:
    """A WSGI server's side of a request, and Django's whole side of it, CSRF checks included."""

    def __init__(self, key: str = "") -> None:
        self._handler = ClientHandler(enforce_csrf_checks=True)
        self._key = key  # for calls that come without credentials

    def __call__(self, call: Call) -> Answer:
        target, _, query = call.target.partition("?")
        environ: dict[str, Any] = {
            "REQUEST_METHOD": call.method, "SCRIPT_NAME": "", "QUERY_STRING": query.encode().decode("latin-1"),
            "PATH_INFO": unquote_to_bytes(target).decode("latin-1"), "SERVER_NAME": "testserver", "SERVER_PORT": "80",
            "SERVER_PROTOCOL": "HTTP/1.1", "wsgi.url_scheme": "http", "wsgi.input": io.BytesIO(call.body),
            "REMOTE_ADDR": "127.0.0.1",
        }  # fmt: skip
        if self._key:
            environ["HTTP_AUTHORIZATION"] = f"Bearer {self._key}"
        for name, value in call.headers.items():
            key = name.upper().replace("-", "_")
            environ[key if key in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{key}"] = value
        try:
            response: Any = self._handler(environ)
        except (LookupError, UnicodeError, SuspiciousOperation) as error:  # what views raise does not come this far
            raise Unmade from error
        headers = {name.lower(): value for name, value in response.items()}
        return Answer(response.status_code, headers, response.content)


@pytest.mark.slow
@pytest.mark.sqlite_too
@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.wide) for seed in range(3, REQUESTS // CHUNK))]
)
def test_no_request_breaks_the_server_or_the_store(
    seed: int, settings: Any, monkeypatch: Any, frozen_clock: Any, caplog: Any
) -> None:
    caplog.set_level(logging.CRITICAL, "django")
    known, ledger, time = Known(), Ledger(), random.Random(seed)
    SITES[seed % len(SITES)](settings, monkeypatch, known)
    admin = APIKey.objects.filter(name="admin").exists()
    populate(Handler(known.keys[0] if admin else ""), known, ledger)
    handler, attacker, unmade = Handler(), Attacker(seed, known), 0
    for number in range(1, CHUNK + 1):
        call = attacker.call()
        try:
            answer = handler(call)
        except Unmade:
            unmade += 1
        else:
            ledger.note(call, answer, check(call, answer), known)
        if not connection.in_atomic_block and number % BATCH == 0:
            assert violations(ledger.accepted, ledger.deleted) == [], call
            frozen_clock.advance(seconds=time.choice([0.5, 20, 300]))
            apply_due()
            tick()
            rescue_dead_workers()
    assert not connection.in_atomic_block
    assert violations(ledger.accepted, ledger.deleted) == []
    assert unmade < CHUNK / 100
    assert {200, 201, 400, 404, 405, 409} <= set(ledger.statuses), ledger.statuses
