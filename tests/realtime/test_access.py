"""Who gets in, what he sees, and how long: rights before the upgrade, and looked at again (events 3.5)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.middleware.csrf import CsrfViewMiddleware
from django.test import Client
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed

from django_ojs import keys
from django_ojs.access import UNLIMITED, Limits
from django_ojs.models import APIKey, Ticket
from django_ojs.realtime import access, websocket
from tests.realtime.conftest import do, enqueue
from tests.realtime.sockets import APPLICATION, Refused, Socket, connected

pytestmark = pytest.mark.usefixtures("database")

ORIGIN = {"origin": "http://testserver"}


async def refused(path: str = "/ojs/v1/ws", answers: bool = True, **headers: str) -> Refused:
    with pytest.raises(Refused) as caught:
        async with connected(path, headers=headers, answers=answers):
            pytest.fail("connected")
    return caught.value


async def key(*scopes: str, **limits: Any) -> tuple[APIKey, dict[str, str]]:
    made, text = await do(keys.create, f"key {APIKey.__name__} {len(scopes)}", scopes or ["read"], **limits)
    return made, {"authorization": f"Bearer {text}"}


async def works(socket: Socket) -> None:
    assert (await socket.ask({"action": "subscribe", "channel": "events"}))["type"] == "subscribed"
    await enqueue("a.b")
    assert (await socket.take())["type"] == "job.enqueued"


def permitted(user: Any, *codenames: str) -> Any:
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    return user


def viewer(name: str) -> Any:
    return permitted(get_user_model().objects.create_user(name, password="pw"), "view_event")


class ByName(BaseAuthentication):
    """A class of a site, which goes by a header that a proxy has set."""

    def authenticate(self, request: Any) -> tuple[Any, None] | None:
        user = get_user_model().objects.filter(username=request.META.get("HTTP_X_NAME")).first()
        if user is not None and not user.is_active:
            raise AuthenticationFailed
        return None if user is None else (user, None)


@pytest.fixture
async def session() -> str:
    """The cookie of a user who may view everything."""

    def log_in() -> str:
        user = permitted(get_user_model().objects.create_user("ann", password="pw"), "view_event")
        client = Client()
        client.force_login(user)
        return f"sessionid={client.cookies['sessionid'].value}"

    return await do(log_in)  # type: ignore[no-any-return]


class TestBeforeTheUpgrade:
    async def test_without_credentials(self) -> None:
        error = await refused()
        assert (error.status, error.body["error"]["code"]) == (401, "unauthenticated")
        assert error.headers["www-authenticate"] == "Bearer"
        assert error.headers["ojs-version"] == "1.0", "as on every answer of the binding"
        assert error.headers["content-type"] == "application/openjobspec+json"
        assert error.headers["x-request-id"] == error.body["error"]["request_id"]
        for given, taken in (("mine-1", True), ("not one", False)):
            error = await refused(**{"x-request-id": given})
            assert error.headers["x-request-id"] == error.body["error"]["request_id"]
            assert (error.headers["x-request-id"] == given) is taken

    async def test_a_server_that_cannot_answer_the_handshake_closes_it(self) -> None:
        assert (await refused(answers=False)).status == 4401

    async def test_a_version_or_an_extension_that_the_server_lacks(self) -> None:
        _, headers = await key("read")
        for demand in ({"ojs-version": "2.0"}, {"ojs-requires-extension": "urn:ojs:ext:none"}):
            error = await refused(**demand)
            assert (error.status, error.body["error"]["code"]) == (422, "unsupported")
            assert (await refused(answers=False, **demand)).status == 1008
        async with connected(headers={**headers, "ojs-version": "1.0"}) as socket:
            await works(socket)

    async def test_a_query_of_bytes_that_are_no_text(self) -> None:
        assert (await refused("/ojs/v1/ws?ticket=\udcff")).status == 401

    async def test_anonymous_where_the_site_allows_it(self, settings: Any) -> None:
        settings.OJS = {"ALLOW_ANONYMOUS": True}
        async with connected() as socket:
            await works(socket)

    async def test_a_key(self) -> None:
        _, headers = await key("read")
        async with connected(headers=headers) as socket:
            await works(socket)

    async def test_a_key_without_the_scope(self) -> None:
        _, headers = await key("push")
        error = await refused(**headers)
        assert (error.status, error.body["error"]["code"]) == (403, "permission_denied")
        assert (await refused(answers=False, **headers)).status == 4403

    async def test_a_wrong_key(self) -> None:
        for header in ("Bearer ojs_wrong", "Bearer ", "Bearer \x7f", f"Bearer ojs_{'0' * 64}"):
            assert (await refused(authorization=header)).status == 401, header

    async def test_a_key_in_the_url_is_no_key(self) -> None:
        _, headers = await key("read")
        text = headers["authorization"].removeprefix("Bearer ")
        for name in ("token", "api_key", "key", "access_token", "ticket"):
            assert (await refused(f"/ojs/v1/ws?{name}={text}")).status == 401

    async def test_the_session_of_a_user_from_a_page_of_this_site(self, session: str) -> None:
        async with connected(headers={"cookie": session, **ORIGIN}) as socket:
            await works(socket)

    async def test_the_session_from_any_other_page(self, session: str) -> None:
        for origin in (
            "http://evil.example",
            "null",
            "http://testserver.evil.example",
            "x",
            "",
            "http://[",
            "//",
            None,
        ):
            headers = {"cookie": session} | ({} if origin is None else {"origin": origin})
            assert (await refused(**headers)).status == 403, origin

    @pytest.mark.parametrize(
        "origin",
        ["https://testserver", "http://testserver:8080", "http://testserver:80", "ws://testserver", "testserver"],
    )
    async def test_another_scheme_or_port_of_the_host_is_another_origin(self, session: str, origin: str) -> None:
        assert (await refused(cookie=session, origin=origin)).status == 403

    async def test_a_host_that_the_site_answers_to_is_another_origin_than_the_one_asked(
        self, session: str, settings: Any
    ) -> None:
        settings.ALLOWED_HOSTS = ["testserver", "other.example", ".example.org"]
        for origin in ("http://other.example", "http://a.example.org"):
            assert (await refused(cookie=session, origin=origin)).status == 403
        settings.CSRF_TRUSTED_ORIGINS = ["http://other.example"]
        async with connected(headers={"cookie": session, "origin": "http://other.example"}) as socket:
            await works(socket)

    async def test_a_page_of_another_site_cannot_use_an_open_server_either(self, settings: Any) -> None:
        settings.OJS = {"ALLOW_ANONYMOUS": True}
        settings.ALLOWED_HOSTS = ["*"]
        assert (await refused(origin="http://evil.example")).status == 403
        async with connected(headers=ORIGIN) as socket:
            await works(socket)
        settings.OJS = {"ALLOW_ANONYMOUS": True, "REALTIME_ALLOWED_ORIGINS": ["https://app.example"]}
        async with connected(headers={"origin": "https://app.example"}) as socket:
            await works(socket)

    async def test_a_session_that_is_none(self) -> None:
        for cookie in ("sessionid=nonsense", "sessionid=\x00", "sessionid=", "x", ";;="):
            assert (await refused(cookie=cookie, **ORIGIN)).status == 401, cookie

    async def test_a_site_without_sessions(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The cookie of another site on the same host is no reason to fail: the table is not there."""
        monkeypatch.setattr(access.apps, "is_installed", lambda name: False)
        monkeypatch.setattr(access, "import_module", lambda name: pytest.fail(f"asked {name}"))
        assert (await refused(cookie="sessionid=nonsense", **ORIGIN)).status == 401

    async def test_a_user_without_permissions(self) -> None:
        def log_in() -> str:
            client = Client()
            client.force_login(get_user_model().objects.create_user("bob", password="pw", is_staff=True))
            return f"sessionid={client.cookies['sessionid'].value}"

        assert (await refused(cookie=await do(log_in), **ORIGIN)).status == 403

    async def test_too_many_connections_of_one_client(self, settings: Any) -> None:
        settings.OJS = {"REALTIME_MAX_CONNECTIONS": 1, "ALLOW_ANONYMOUS": True}
        _, headers = await key("read")
        async with connected(headers=headers):
            error = await refused(**headers)
            assert (error.status, error.headers["retry-after"]) == (429, "5")
            async with connected():
                pass
        async with connected(headers=headers) as socket:
            await works(socket)


class TestTickets:
    async def _ticket(self, headers: dict[str, str]) -> str:
        given = {"HTTP_AUTHORIZATION": headers["authorization"]} if headers else {}
        response = await do(Client().post, "/ojs/v1/events/ticket", **given)
        assert response.status_code == 201, response.content
        assert response.json()["expires_in"] == 30
        return str(response.json()["ticket"])

    async def test_one_use_and_no_more(self) -> None:
        _, headers = await key("read")
        ticket = await self._ticket(headers)
        assert ticket not in str(await do(list, Ticket.objects.values()))
        async with connected(f"/ojs/v1/ws?ticket={ticket}", headers=ORIGIN) as socket:
            await works(socket)
        assert (await refused(f"/ojs/v1/ws?ticket={ticket}")).status == 401

    async def test_it_expires(self, frozen_clock: Any) -> None:
        _, headers = await key("read")
        ticket = await self._ticket(headers)
        frozen_clock.advance(seconds=31)
        assert (await refused(f"/ojs/v1/ws?ticket={ticket}")).status == 401

    async def test_it_carries_the_limits_of_its_key(self) -> None:
        _, headers = await key("read", queues=["q1"])
        ticket = await self._ticket(headers)
        async with connected(f"/ojs/v1/ws?ticket={ticket}") as socket:
            answer = await socket.ask({"action": "subscribe", "filter": {"queues": ["q2"]}})
            assert answer["code"] == "permission_denied"

    async def test_a_key_that_was_revoked_in_between(self) -> None:
        made, headers = await key("read")
        ticket = await self._ticket(headers)
        await do(keys.revoke, made)
        assert (await refused(f"/ojs/v1/ws?ticket={ticket}")).status == 401

    async def test_who_may_ask_for_one(self, session: str) -> None:
        _, headers = await key("push")
        client = Client()
        assert (await do(client.post, "/ojs/v1/events/ticket")).status_code == 401
        given = headers["authorization"]
        assert (await do(client.post, "/ojs/v1/events/ticket", HTTP_AUTHORIZATION=given)).status_code == 403

    async def test_a_ticket_of_a_user(self, session: str) -> None:
        def ask() -> Any:
            client = Client()
            client.cookies["sessionid"] = session.removeprefix("sessionid=")
            return client.post("/ojs/v1/events/ticket", content_type="application/json")

        ticket = (await do(ask)).json()["ticket"]
        async with connected(f"/ojs/v1/ws?ticket={ticket}") as socket:
            await works(socket)

    async def test_a_ticket_of_a_user_whose_session_this_server_cannot_read(self, settings: Any) -> None:
        """A server with another store of sessions refuses it, since the user may have logged out, and says why."""
        user, client = await do(viewer, "ann"), Client()

        def ask() -> str:
            client.force_login(user)
            return str(client.post("/ojs/v1/events/ticket", content_type="application/json").json()["ticket"])

        ticket = await do(ask)
        settings.SESSION_ENGINE = "django.contrib.sessions.backends.cache"
        answer = await refused(f"/ojs/v1/ws?ticket={ticket}")
        assert answer.status == 401
        assert "SESSION_ENGINE" in answer.body["error"]["hint"]


class TestLimits:
    async def test_a_key_limited_to_queues_sees_only_those(self) -> None:
        _, headers = await key("read", queues=["q1"])
        (other,) = await enqueue("a.other", queue="q2")
        async with connected(headers=headers) as socket:
            channels = [{"channel": channel} for channel in ("queue:q2", "queue:never", f"job:{other}")]
            for message in ({"filter": {"queues": ["q1", "q2"]}}, *channels):
                answer = await socket.ask({"action": "subscribe", **message})
                assert answer["code"] == "permission_denied", message
            await socket.ask({"action": "subscribe", "channel": "events"})
            await socket.ask({"action": "subscribe", "channel": "all", "event_types": ["job.enqueued"]})
            await enqueue("a.no", queue="q2")
            await enqueue("a.yes", queue="q1")
            frames = [await socket.take(), await socket.take()]
            assert {frame["data"]["job_type"] for frame in frames} == {"a.yes"}
            await socket.nothing()

    async def test_a_key_limited_to_job_types_sees_only_those(self) -> None:
        _, headers = await key("read", job_types=["mail.*"])
        async with connected(headers=headers) as socket:
            answer = await socket.ask({"action": "subscribe", "filter": {"job_types": ["report.make"]}})
            assert answer["code"] == "permission_denied"
            await socket.ask({"action": "subscribe", "channel": "events"})
            await enqueue("report.make", "mail.send")
            assert (await socket.take())["data"]["job_type"] == "mail.send"
            await socket.nothing()


class TestRightsThatEnd:
    @pytest.fixture(autouse=True)
    def _soon(self, settings: Any) -> Iterator[None]:
        settings.OJS = {"REALTIME_RECHECK_INTERVAL": 0.05}
        yield
        access._renewals._known.clear()

    async def test_a_key_that_is_revoked(self) -> None:
        made, headers = await key("read")
        async with connected(headers=headers) as socket:
            await works(socket)
            await do(keys.revoke, made)
            assert (await socket.take())["code"] == "permission_denied"
            assert await socket.end() == 4401

    async def test_a_ticket_of_a_user_who_has_another_password(self) -> None:
        user = await do(viewer, "ann")
        old, _ = await do(keys.issue_ticket, None, user)

        def change() -> None:
            user.set_password("other")
            user.save()

        async with connected(f"/ojs/v1/ws?ticket={old}") as socket:
            await works(socket)
            await do(change)
            new, _ = await do(keys.issue_ticket, None, user)
            async with connected(f"/ojs/v1/ws?ticket={new}") as other:
                assert (await socket.take())["code"] == "permission_denied"
                assert await socket.end() == 4401
                await works(other)

    async def test_a_ticket_of_a_user_who_logs_out(self) -> None:
        user = await do(viewer, "ann")
        browsers = [Client(), Client()]

        def ask(client: Client) -> str:
            client.force_login(user)
            return str(client.post("/ojs/v1/events/ticket", content_type="application/json").json()["ticket"])

        one, other = [await do(ask, client) for client in browsers]
        kept = await do(list, Ticket.objects.values_list("session", flat=True))
        assert browsers[0].session.session_key not in kept
        async with connected(f"/ojs/v1/ws?ticket={one}") as left, connected(f"/ojs/v1/ws?ticket={other}") as stays:
            await works(left)
            await do(browsers[0].logout)
            assert (await left.take())["code"] == "permission_denied"
            assert await left.end() == 4401
            await works(stays)

    @pytest.mark.parametrize("cookie", [{}, {**ORIGIN, "cookie": "lb=1"}])
    async def test_a_user_of_a_class_of_the_site(self, settings: Any, cookie: dict[str, str]) -> None:
        """Whom a class of the site recognises by a header of its own. A program has no origin."""
        settings.OJS |= {"AUTHENTICATION_CLASSES": [f"{__name__}.{ByName.__name__}"]}
        user = await do(viewer, "ann")
        async with connected(headers={"x-name": "ann", **cookie}) as socket:
            await works(socket)
            await do(get_user_model().objects.filter(pk=user.pk).update, is_active=False)
            assert (await socket.take())["code"] == "permission_denied"
            assert await socket.end() == 4401

    async def test_a_user_whom_a_middleware_of_the_site_names(self, settings: Any) -> None:
        user = await do(viewer, "ann")

        async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
            await APPLICATION({**scope, "user": user}, receive, send)

        async with connected(headers=ORIGIN, application=application) as socket:
            await works(socket)
            await do(get_user_model().objects.filter(pk=user.pk).update, is_active=False)
            assert (await socket.take())["code"] == "permission_denied"
            assert await socket.end() == 4401

    async def test_users_of_a_class_of_the_site_share_no_look(self, settings: Any) -> None:
        """The cookie of a load balancer is the same for all, and says nothing of who they are."""
        settings.OJS = {
            "AUTHENTICATION_CLASSES": [f"{__name__}.{ByName.__name__}"], "REALTIME_RECHECK_INTERVAL": 3600.0,
        }  # fmt: skip
        callers = []
        for name in ("ann", "bob"):
            await do(viewer, name)
            given = {"host": "testserver", "origin": "http://testserver", "cookie": "lb=1", "x-name": name}
            headers = [(header.encode(), value.encode()) for header, value in given.items()]
            scope = {"type": "websocket", "path": "/", "query_string": b"", "headers": headers}
            callers.append(await access.Caller.of(scope))
        for caller in callers:
            await caller.renew()
        assert [caller.name for caller in callers] == ["user:ann", "user:bob"]

    async def test_they_stay_while_the_rights_cannot_be_looked_at_which_is_logged_once(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(access._looks, "_told", set())  # of what other tests have seen
        made, headers = await key("read")
        await enqueue("a.b", queue="q2")
        async with connected(headers=headers) as first, connected(headers=headers) as second:
            await works(first)
            await second.ask({"action": "subscribe", "channel": "queue:q2"})
            asked = asyncio.Semaphore(0)

            async def away(self: Any, *args: Any) -> Any:
                asked.release()
                raise RuntimeError("the site's own authentication is away")

            with monkeypatch.context() as patch:
                patch.setattr(access._Renewals, "renew", away)
                for _ in range(6):
                    await asyncio.wait_for(asked.acquire(), 60)
            with monkeypatch.context() as patch:  # the new limits are known, and cannot be applied yet
                patch.setattr(access.Caller, "permit", away)
                await do(APIKey.objects.filter(pk=made.pk).update, queues=["q1"])
                await asyncio.wait_for(asked.acquire(), 60)
            lost = await second.take()
            assert (lost["code"], lost["channel"]) == ("permission_denied", "queue:q2")
        assert caplog.text.count("Looking at the rights of connected clients failed (") == 1

    async def test_limits_that_change_while_a_subscription_is_made(
        self, settings: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings.OJS = {"REALTIME_RECHECK_INTERVAL": 3600.0}
        made, headers = await key("read")
        start = websocket.Connection._start

        async def changed(connection: Any, after: str | None) -> Any:
            await do(APIKey.objects.filter(pk=made.pk).update, queues=["q1"])
            keys.forget()
            assert await connection._caller.renew()
            await connection._narrow()
            return await start(connection, after)

        monkeypatch.setattr(websocket.Connection, "_start", changed)
        async with connected(headers=headers) as socket:
            await socket.ask({"action": "subscribe", "channel": "all", "event_types": ["job.enqueued"]})
            await enqueue("a.no", queue="q2")
            await enqueue("a.yes", queue="q1")
            assert (await socket.take())["data"]["job_type"] == "a.yes"
            await socket.nothing()

    async def test_a_key_that_loses_its_scope(self) -> None:
        made, headers = await key("read")
        async with connected(headers=headers) as socket:
            await works(socket)
            await do(APIKey.objects.filter(pk=made.pk).update, scopes=["push"])
            assert (await socket.take())["code"] == "permission_denied"
            assert await socket.end() == 4403

    async def test_a_session_that_is_logged_out(self, session: str) -> None:
        async with connected(headers={"cookie": session, **ORIGIN}) as socket:
            await works(socket)

            def log_out() -> None:
                client = Client()
                client.cookies["sessionid"] = session.removeprefix("sessionid=")
                client.logout()

            await do(log_out)
            assert (await socket.take())["code"] == "permission_denied"
            assert await socket.end() == 4401

    async def test_a_key_that_is_limited_loses_the_subscription_and_keeps_the_connection(self) -> None:
        made, headers = await key("read")
        await enqueue("a.b", queue="q2")
        async with connected(headers=headers) as socket:
            await socket.ask({"action": "subscribe", "channel": "queue:q2"})
            await socket.ask({"action": "subscribe", "channel": "events", "filter": {"event_types": ["job.enqueued"]}})
            await do(APIKey.objects.filter(pk=made.pk).update, queues=["q1"])
            lost = await socket.take()
            assert (lost["code"], lost["channel"]) == ("permission_denied", "queue:q2")
            await enqueue("a.no", queue="q2")
            await enqueue("a.yes", queue="q1")
            assert (await socket.take())["data"]["job_type"] == "a.yes"
            await socket.nothing()

    async def test_a_key_and_a_user_with_the_same_number_do_not(self, settings: Any) -> None:
        settings.OJS = {"REALTIME_RECHECK_INTERVAL": 3600.0}

        def tickets_of_both() -> list[str]:
            made, _ = keys.create("ci", ["read"], queues=["q1"])
            user = permitted(get_user_model().objects.create_user("ann", password="pw", pk=made.pk), "view_event")
            return [
                keys.issue_ticket(made, None)[0],
                keys.issue_ticket(None, user)[0],
                keys.issue_ticket(None, None)[0],
            ]

        def opened(ticket: str) -> dict[str, Any]:
            query = f"ticket={ticket}".encode()
            return {"type": "websocket", "path": "/", "query_string": query, "headers": [(b"host", b"testserver")]}

        of_key, of_user, of_nobody = await do(tickets_of_both)
        callers = [await access.Caller.of(opened(ticket)) for ticket in (of_key, of_user)]
        for caller in callers:
            assert await caller.renew() is False
        assert [caller.name for caller in callers] == ["key:ci", "user:ann"]
        assert [caller.limits for caller in callers] == [Limits(queues=("q1",)), UNLIMITED]
        settings.OJS = {"REALTIME_RECHECK_INTERVAL": 3600.0, "ALLOW_ANONYMOUS": True}
        assert (await access.Caller.of(opened(of_nobody))).credentials == "", "a stranger has none to lose"

    async def test_connections_with_the_same_credentials_share_a_look(
        self, settings: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings.OJS = {"REALTIME_RECHECK_INTERVAL": 3600.0}
        _, headers = await key("read")
        shown = [(b"host", b"testserver"), (b"authorization", headers["authorization"].encode())]
        scope = {"type": "websocket", "path": "/", "query_string": b"", "headers": shown}
        callers = [await access.Caller.of(scope) for _ in range(5)]
        looks = []
        reauthenticate = access.Caller.reauthenticate
        monkeypatch.setattr(access.Caller, "reauthenticate", lambda self: looks.append(1) or reauthenticate(self))  # type: ignore[func-returns-value]
        for caller in callers:
            assert await caller.renew() is False
        assert len(looks) == 1


TRUSTED = ["https://app.example", "https://*.wild.example", "http://*.port.example:8080", "https://*"]
ORIGINS = [
    f"{scheme}://{host}{port}"
    for scheme in ("http", "https", "ws", "")
    for host in ("testserver", "TESTSERVER", "evil.testserver", "app.example", "a.app.example", "wild.example",
                 "a.wild.example", "a.b.wild.example", "awild.example", "a.port.example", "proxied.example", "[::1]",
                 "*", "*.wild.example", "user@testserver", "testserver@evil.example", "testserver.evil.example", "")
    for port in ("", ":80", ":443", ":8080", ":x")
] + ["null", "", "http://[", "//", "https://*.wild.example"]  # fmt: skip


@pytest.mark.parametrize(
    "headers, proxied",
    [
        ({"host": "testserver"}, False),
        ({"host": "testserver:8080"}, False),
        ({"host": "testserver", "x-forwarded-proto": "https"}, False),
        ({"host": "testserver", "x-forwarded-proto": "https"}, True),
        ({"host": "inner:8000", "x-forwarded-host": "testserver", "x-forwarded-proto": "https"}, True),
        ({"host": "not-allowed.example"}, False),
    ],
)
@pytest.mark.parametrize("scheme", ["ws", "wss"])
@pytest.mark.django_db
def test_an_origin_may_open_a_socket_where_its_posts_would_pass(
    settings: Any, headers: dict[str, str], scheme: str, proxied: bool
) -> None:
    """The same as Django's own check, for every origin."""
    settings.ALLOWED_HOSTS = ["testserver"]
    settings.CSRF_TRUSTED_ORIGINS = TRUSTED
    if proxied:
        settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
        settings.USE_X_FORWARDED_HOST = True
    scope = {
        "type": "websocket", "path": "/ojs/v1/ws", "query_string": b"", "scheme": scheme,
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }  # fmt: skip
    check: Any = CsrfViewMiddleware(lambda request: None)  # type: ignore[arg-type,return-value]
    allowed = set()
    for origin in ORIGINS:
        request = access._request(scope)._request
        request.META["HTTP_ORIGIN"] = origin
        assert access.is_allowed_origin(origin, request) == check._origin_verified(request), origin
        allowed |= {origin} if access.is_allowed_origin(origin, request) else set()
    assert {"https://app.example", "https://a.wild.example", "http://a.port.example:8080"} <= allowed
    settings.CSRF_TRUSTED_ORIGINS = []
    settings.OJS = {"REALTIME_ALLOWED_ORIGINS": TRUSTED}
    assert {
        origin for origin in ORIGINS if access.is_allowed_origin(origin, access._request(scope)._request)
    } == allowed
