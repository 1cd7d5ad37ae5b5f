"""Links lead to where the caller found the server, whatever a proxy or a server has done to the path."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from asgiref.sync import async_to_sync
from asgiref.testing import ApplicationCommunicator
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.db import connections
from django.test import override_settings
from django.urls import get_script_prefix, include, path, set_script_prefix

from django_ojs.realtime.asgi import application as with_events

JOB = {"type": "a.b", "args": []}
#: The paths that make something, and what they are sent.
MAKERS: list[tuple[str, dict[str, Any]]] = [
    ("/ojs/v1/jobs", JOB),
    ("/ojs/v1/workflows", {"name": "w", "steps": [JOB | {"id": "a"}]}),
    ("/ojs/v1/cron", {"name": "c1", "expression": "@every 1h"} | JOB),
    ("/ojs/v1/crons", {"name": "c2", "expression": "@every 1h"} | JOB),
    ("/ojs/v1/admin/cron", {"name": "c3", "expression": "@every 1h"} | JOB),
    ("/ojs/v1/queues", {"name": "mail"}),
    ("/ojs/v1/webhooks/subscriptions", {"url": "https://example.com/hook", "events": ["job.completed"]}),
    ("/ojs/v1/admin/jobs/bulk/retry", {"filter": {"queue": "mail"}, "confirm": True, "background": True}),
]
Found = tuple[int, dict[str, str], Any]
#: Asks a server for a path, as the caller knows it: method, path, body.
Ask = Callable[[str, str, Any], Found]

urlpatterns = [path("in site/", include("django_ojs.urls"))]


@pytest.fixture(autouse=True)
def _prefix_of_others() -> Iterator[None]:
    """The prefix of a request stays with its thread."""
    before = get_script_prefix()
    yield
    set_script_prefix(before)


def wsgi(method: str, path_info: str, script_name: str, body: bytes) -> Found:
    said: list[Any] = []
    environ = {
        "REQUEST_METHOD": method, "SCRIPT_NAME": script_name, "PATH_INFO": path_info, "QUERY_STRING": "",
        "SERVER_NAME": "testserver", "SERVER_PORT": "80", "SERVER_PROTOCOL": "HTTP/1.1", "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(body), "wsgi.errors": io.StringIO(), "CONTENT_LENGTH": str(len(body)),
        "CONTENT_TYPE": "application/json", "HTTP_HOST": "testserver",
    }  # fmt: skip
    parts = get_wsgi_application()(environ, lambda status, headers: said.append((status, headers)))  # type: ignore[arg-type,return-value]
    status, headers = said[0]
    return int(status[:3]), dict(headers), json.loads(b"".join(parts))


def asgi(method: str, path: str, root_path: str, body: bytes) -> Found:
    async def ask() -> Found:
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": path, "raw_path": path.encode(), "root_path": root_path, "query_string": b"",
            "headers": [(b"host", b"testserver"), (b"content-type", b"application/json"),
                        (b"content-length", str(len(body)).encode())],
            "client": ("127.0.0.1", 5), "server": ("testserver", 80),
        }  # fmt: skip
        call = ApplicationCommunicator(with_events(get_asgi_application()), scope)
        await call.send_input({"type": "http.request", "body": body})
        start = await call.receive_output(60)
        parts = []
        while True:
            part = await call.receive_output(60)
            parts.append(part.get("body", b""))
            if not part.get("more_body"):
                break
        await call.wait(60)
        headers = {name.decode().title(): value.decode() for name, value in start["headers"]}
        return start["status"], headers, json.loads(b"".join(parts))

    return async_to_sync(ask)()


def behind(prefix: str, ask: Callable[[str, str, bytes], Found]) -> Ask:
    """Asks as a caller does who knows the path with this prefix; `ask` is given the path behind it."""

    def asked(method: str, path: str, body: Any = None) -> Found:
        assert path.startswith(f"{prefix}/ojs"), path
        return ask(method, path.removeprefix(prefix), b"" if body is None else json.dumps(body).encode())

    return asked


def _served(server: str) -> tuple[str, Ask]:
    """The prefix that the caller writes, and how the request arrives."""
    match server:
        case "wsgi":
            return "", behind("", lambda method, path, body: wsgi(method, path, "", body))
        case "wsgi script name":
            return "/shop", behind("/shop", lambda method, path, body: wsgi(method, path, "/shop", body))
        case "wsgi forced":  # a proxy strips the prefix
            return "/forced", behind("/forced", lambda method, path, body: wsgi(method, path, "", body))
        case "asgi":
            return "", behind("", lambda method, path, body: asgi(method, path, "", body))
        case "asgi root path":  # the path has it, as the specification of ASGI says
            return "/shop", behind("/shop", lambda method, path, body: asgi(method, f"/shop{path}", "/shop", body))
        case "asgi root path stripped":
            return "/shop", behind("/shop", lambda method, path, body: asgi(method, path, "/shop", body))
        case "asgi forced":
            return "/forced", behind("/forced", lambda method, path, body: asgi(method, f"/forced{path}", "", body))
        case "asgi forced stripped":
            return "/forced", behind("/forced", lambda method, path, body: asgi(method, path, "", body))
    raise AssertionError(server)


SERVERS = ("wsgi", "wsgi script name", "wsgi forced", "asgi", "asgi root path", "asgi root path stripped",
           "asgi forced", "asgi forced stripped")  # fmt: skip


@pytest.mark.parametrize("server", SERVERS)
def test_links_have_the_prefix_that_the_caller_needs(server: str, transactional_db: None, settings: Any) -> None:
    settings.OJS = {"ALLOW_ANONYMOUS": True, "WEBHOOK_ALLOWED_HOSTS": ["example.com"]}
    prefix, ask = _served(server)
    with override_settings(FORCE_SCRIPT_NAME="/forced" if "forced" in server else None):
        _, _, manifest = ask("GET", f"{prefix}/ojs/manifest", None)
        endpoints = manifest["endpoints"]
        assert endpoints["base_url"] == f"http://testserver{prefix}/ojs/v1"
        for name in {"manifest", "health", "events", "websocket"} & endpoints.keys():
            assert urlsplit(endpoints[name]).path.startswith(f"{prefix}/ojs/"), name
        assert ask("GET", endpoints["health"], None)[0] == 200
        for maker, body in MAKERS:
            status, headers, answer = ask("POST", prefix + maker, body)
            assert status in (201, 202), answer
            assert headers["Location"].startswith(f"{prefix}/ojs/v1/"), maker
            assert ask("GET", headers["Location"], None)[0] == 200, maker
        status, _, document = ask("GET", f"{prefix}/ojs/v1/openapi.json", None)
        assert status == 404 or document["servers"] == [{"url": prefix or "/"}]
    connections.close_all()


def test_links_lead_below_the_path_and_the_namespace_that_a_site_chose(transactional_db: None, settings: Any) -> None:
    settings.OJS = {"ALLOW_ANONYMOUS": True}
    with override_settings(ROOT_URLCONF=__name__, FORCE_SCRIPT_NAME="/forced"):
        status, headers, _ = wsgi("POST", "/in site/ojs/v1/jobs", "", json.dumps(JOB).encode())
        assert (status, headers["Location"].rpartition("/")[0]) == (201, "/forced/in%20site/ojs/v1/jobs")
        _, _, manifest = wsgi("GET", "/in site/ojs/manifest", "", b"")
        assert manifest["endpoints"]["base_url"] == "http://testserver/forced/in%20site/ojs/v1"
    connections.close_all()
