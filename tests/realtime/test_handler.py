"""Short requests of the binding on threads that last, under ASGI."""

from __future__ import annotations

import asyncio
import contextvars
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator
from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
from django.core import signals
from django.core.asgi import get_asgi_application
from django.http import HttpResponse, StreamingHttpResponse
from django.test import override_settings
from django.urls import include, path

from django_ojs.models import Job
from django_ojs.realtime import handler
from django_ojs.realtime.handler import StreamThreads, ThreadedHandler, on_threads
from tests.realtime.conftest import PATIENCE, do
from tests.waiting import eventually

MIDDLEWARE = [f"{__name__}.noting"]
#: The threads that the middleware and the signals ran on, by request.
seen: list[tuple[str, int]] = []
noted = threading.Condition()
told: contextvars.ContextVar[str] = contextvars.ContextVar("told", default="")


def note(where: str) -> None:
    with noted:
        seen.append((where, threading.get_ident()))
        noted.notify_all()


def noting(get_response: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def middleware(request: Any) -> Any:
        note("middleware")
        response = get_response(request)
        response["X-Site"] = told.get() or "here"
        return response

    return middleware


class OnLoop:
    sync_capable, async_capable = False, True


def broken(request: Any) -> HttpResponse:
    raise RuntimeError("oh no")


async def counting() -> AsyncIterator[bytes]:
    try:
        yield b"one"
        await asyncio.sleep(PATIENCE)
    finally:
        note("stream ended")


async def lines() -> AsyncIterator[bytes]:
    yield b"one"
    yield b"two"


urlpatterns = [
    path("", include("django_ojs.urls")),
    path("site", lambda request: HttpResponse("the site")),
    path("broken", broken),
    path("counting", lambda request: StreamingHttpResponse(counting())),
    path("lines", lambda request: StreamingHttpResponse(lines())),
]


class Below:
    urlpatterns = [path("api/jobs ü/", include("django_ojs.urls"))]


class Nowhere:
    urlpatterns: list[Any] = []


@pytest.fixture(autouse=True)
def signalled() -> Iterator[None]:
    def started(**kwargs: Any) -> None:
        note("started")

    def finished(**kwargs: Any) -> None:
        note("finished")

    seen.clear()
    signals.request_started.connect(started)
    signals.request_finished.connect(finished)
    yield
    signals.request_started.disconnect(started)
    signals.request_finished.disconnect(finished)


def scope_of(target: str, method: str = "GET", **headers: str) -> dict[str, Any]:
    where, _, query = target.partition("?")
    return {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": where,
        "query_string": query.encode(errors="surrogateescape"), "root_path": "", "scheme": "http",
        "server": ("testserver", 80),
        "headers": [(b"host", b"testserver"),
                    *((name.replace("_", "-").encode(), value.encode()) for name, value in headers.items())],
    }  # fmt: skip


async def ask(
    application: Any, target: str, method: str = "GET", body: bytes = b""
) -> tuple[int, dict[str, str], bytes]:
    """The answer of an ASGI application: status, headers and body."""
    sent: list[Any] = []
    messages = iter([{"type": "http.request", "body": body}])
    gone = asyncio.Event()

    async def receive() -> Any:
        if (message := next(messages, None)) is None:
            await gone.wait()
        return message

    async def send(message: Any) -> None:
        sent.append(message)

    await asyncio.wait_for(application(scope_of(target, method), receive, send), PATIENCE)
    await settled()
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], headers, b"".join(message.get("body", b"") for message in sent[1:])


def threaded(width: int = 2) -> ThreadedHandler:
    return ThreadedHandler(StreamThreads(width))


async def settled() -> None:
    """Every request has sent `request_finished`, which comes while the answer is being sent."""

    def is_over() -> bool:
        places = [where for where, _ in seen]
        return places.count("finished") >= places.count("started")

    def wait() -> bool:
        with noted:
            return noted.wait_for(is_over, PATIENCE)

    assert await asyncio.to_thread(wait)


@pytest.mark.usefixtures("database")
class TestRequests:
    @pytest.fixture(autouse=True)
    def site(self, settings: Any) -> None:
        settings.ROOT_URLCONF, settings.MIDDLEWARE = __name__, MIDDLEWARE
        settings.OJS = {"ALLOW_ANONYMOUS": True}

    async def test_a_push_runs_as_a_whole_on_one_thread(self) -> None:
        application = on_threads(get_asgi_application())
        body = json.dumps({"type": "a.b", "args": [1]}).encode()
        status, headers, content = await ask(application, "/ojs/v1/jobs", "POST", body)
        assert (status, headers["X-Site"]) == (201, "here")
        assert headers["Content-Length"] == str(len(content))
        assert await do(Job.objects.count) == 1
        assert [where for where, _ in seen] == ["started", "middleware", "finished"]
        assert len({thread for _, thread in seen}) == 1
        assert threading.get_ident() not in {thread for _, thread in seen}

    async def test_requests_one_after_the_other_share_a_thread(self) -> None:
        application = on_threads(get_asgi_application())
        for _ in range(5):
            assert (await ask(application, "/ojs/manifest"))[0] == 200
        assert len(seen) == 15
        assert len({thread for _, thread in seen}) == 1

    async def test_more_requests_than_threads_are_all_answered(self) -> None:
        application = threaded(2)
        found = await asyncio.gather(*(ask(application, "/site") for _ in range(40)))
        assert [content for _, _, content in found] == [b"the site"] * 40
        assert len({thread for _, thread in seen}) <= 2

    async def test_each_request_has_the_context_of_its_server(self) -> None:
        application = threaded()

        async def told_by(word: str) -> str:
            told.set(word)
            return (await ask(application, "/site"))[1]["X-Site"]

        assert await asyncio.gather(*map(told_by, "abcdef")) == list("abcdef")

    async def test_a_view_that_fails_is_answered_as_by_django(self) -> None:
        status, _, _ = await ask(threaded(), "/broken")
        assert status == 500

    @override_settings(DEBUG_PROPAGATE_EXCEPTIONS=True)
    async def test_what_is_not_answered_is_raised_to_the_server(self) -> None:
        application = threaded(1)
        with pytest.raises(RuntimeError, match="oh no"):
            await ask(application, "/broken")
        seen.clear()
        assert (await ask(application, "/site"))[0] == 200

    async def test_a_client_that_leaves_in_the_middle_of_its_body_is_not_answered(self) -> None:
        asked = ApplicationCommunicator(threaded(), scope_of("/site", "POST"))
        await asked.send_input({"type": "http.request", "body": b"{", "more_body": True})
        await asked.send_input({"type": "http.disconnect"})
        await asked.wait(PATIENCE)
        assert seen == []

    async def test_a_client_that_leaves_before_the_answer_changes_nothing(self) -> None:
        async def receive() -> Any:
            return {"type": "http.request", "body": json.dumps({"type": "a.b", "args": []}).encode()}

        async def send(message: Any) -> None:
            raise OSError("the connection is closed")

        await threaded()(scope_of("/ojs/v1/jobs", "POST"), receive, send)
        await settled()
        assert await do(Job.objects.count) == 1

    async def test_a_response_in_pieces_is_sent_in_pieces(self) -> None:
        assert (await ask(threaded(), "/lines"))[2] == b"onetwo"

    async def test_a_stream_ends_when_its_client_leaves(self) -> None:
        asked = ApplicationCommunicator(threaded(), scope_of("/counting"))
        await asked.send_input({"type": "http.request", "body": b"", "more_body": False})
        assert (await asked.receive_output(PATIENCE))["status"] == 200
        assert (await asked.receive_output(PATIENCE))["body"] == b"one"
        await asked.send_input({"type": "http.disconnect"})
        await asked.wait(PATIENCE)
        assert [where for where, _ in seen] == ["started", "middleware", "stream ended", "finished"]


class TestThreads:
    async def test_a_caller_that_is_cancelled_leaves_its_thread_to_others(self) -> None:
        threads, begun, go = StreamThreads(1), asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def slow(answer: Callable[[Any], None]) -> None:
            loop.call_soon_threadsafe(begun.set)
            assert go.wait(PATIENCE)
            answer(1)

        first = asyncio.create_task(threads.run(slow))
        await begun.wait()
        second = asyncio.create_task(threads.run(lambda answer: answer(2)))
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        go.set()
        assert await asyncio.wait_for(second, PATIENCE) == 2

    async def test_a_thread_without_work_ends(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(handler, "IDLE", 0.01)
        threads = StreamThreads(1)
        used = [await threads.run(lambda answer: answer(threading.current_thread())) for _ in range(2)]
        used[-1].join(PATIENCE)
        assert not used[-1].is_alive()
        assert (await threads.run(lambda answer: answer(threading.current_thread()))).is_alive()

    async def test_a_thread_that_cannot_be_started_is_not_counted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        threads = StreamThreads(1)

        def full(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", full)
            with pytest.raises(RuntimeError):
                await threads.run(lambda answer: answer(1))
        assert await asyncio.wait_for(threads.run(lambda answer: answer(2)), PATIENCE) == 2

    async def test_the_thread_that_worked_last_works_next(self) -> None:
        threads = StreamThreads(3)
        both = threading.Barrier(3)

        def meet(answer: Callable[[Any], None]) -> None:
            both.wait(PATIENCE)
            answer(threading.get_ident())

        assert len(set(await asyncio.gather(*(threads.run(meet) for _ in range(3))))) == 3
        used = set()
        for _ in range(5):  # a thread answers a moment before it is free
            await asyncio.to_thread(eventually, lambda: len(threads._idle) == 3)
            used.add(await threads.run(lambda answer: answer(threading.get_ident())))
        assert len(used) == 1


class TestDoor:
    def door(self) -> Any:
        return on_threads(get_asgi_application())

    @pytest.mark.parametrize(
        "target, method, headers, place",
        [
            ("/ojs/v1/jobs", "POST", {}, "short"),
            ("/ojs/v1/workers/fetch", "POST", {}, "short"),
            ("/ojs/v1/jobs/1/result", "GET", {}, "short"),
            ("/ojs/v1/nowhere", "GET", {}, "short"),
            ("/ojs/v1/health", "GET", {}, "probes"),
            ("/ojs/v1/workers/a/health", "GET", {}, "short"),
            ("/ojs/v1/queues/health", "GET", {}, "short"),
            ("/ojs/v1/jobs/1/result?wait=true&timeout=30", "GET", {}, "waits"),
            ("/ojs/v1/jobs", "POST", {"ojs_block_timeout": "5"}, "http"),
            ("/ojs/v1/events", "GET", {"accept": "text/event-stream"}, "http"),
            ("/ojs/v1/events/stream", "GET", {}, "http"),
            ("/ojs/v1/queues/a/events", "GET", {}, "http"),
            ("/ojs/v1/jobs/1/result/stream", "GET", {}, "http"),
            ("/admin/", "GET", {}, "http"),
            ("/ojsx", "GET", {}, "http"),
        ],
    )
    def test_what_streams_or_waits_or_is_the_sites_goes_to_django(
        self, target: str, method: str, headers: dict[str, str], place: str
    ) -> None:
        door = self.door()
        assert door.handler_of(scope_of(target, method, **headers)) is getattr(door, place)

    @override_settings(ROOT_URLCONF=Below)
    def test_a_site_may_put_it_below_a_prefix(self) -> None:
        door = self.door()
        assert door.handler_of(scope_of("/api/jobs ü/ojs/v1/jobs")) is door.short
        assert door.handler_of(scope_of("/ojs/v1/jobs")) is door.http
        assert door.handler_of({**scope_of("/sub/api/jobs ü/ojs/v1/jobs"), "root_path": "/sub"}) is door.short

    @override_settings(ROOT_URLCONF=Nowhere)
    def test_a_site_whose_middleware_chooses_the_urls_keeps_ours_below_ojs(self) -> None:
        door = self.door()
        assert door.handler_of(scope_of("/ojs/v1/jobs")) is door.short

    @pytest.mark.usefixtures("database")
    @pytest.mark.parametrize("target", ["/ojs/v1/jobs?limit=\udcff", "/ojs/v1/events/stream?channel=\udcff"])
    async def test_a_query_of_bytes_that_are_no_text_is_refused_by_the_view(self, target: str, settings: Any) -> None:
        settings.OJS = {"ALLOW_ANONYMOUS": True}
        status, headers, body = await ask(self.door(), target)
        assert (status, headers["OJS-Version"]) == (400, "1.0")
        assert json.loads(body)["error"]["code"] == "invalid_request"

    def test_the_handler_of_static_files_is_djangos_too(self) -> None:
        assert on_threads(ASGIStaticFilesHandler(get_asgi_application())).short  # type: ignore[attr-defined]

    def test_what_a_site_has_wrapped_is_left_alone(self, settings: Any) -> None:
        async def wrapped(scope: Any, receive: Any, send: Any) -> None: ...

        assert on_threads(wrapped) is wrapped
        django = get_asgi_application()
        settings.MIDDLEWARE = [f"{__name__}.OnLoop"]
        assert on_threads(django) is django
        settings.MIDDLEWARE = []
        settings.OJS = {"ASGI_THREADS": 0}
        assert on_threads(django) is django
