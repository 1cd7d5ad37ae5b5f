"""Serves the short requests of the binding under ASGI on threads that last, and keep their database connections.

Django's own handler makes a thread for each request, and with it a connection. Here a request below `/ojs` runs as
under WSGI: through the site's whole chain of middleware, in its synchronous form, on one of `OJS["ASGI_THREADS"]`
threads. What streams or waits holds none of these threads. Event streams, and `OJS-Block-Timeout` for a full queue, go
to Django's handler as before; `?wait=` for a result waits on the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import io
import queue
import re
import string
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any
from urllib.parse import quote, unquote

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
from django.core import signals
from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.db import close_old_connections, connections
from django.http import HttpResponseBase
from django.urls import NoReverseMatch, reverse, set_script_prefix
from django.utils.module_loading import import_string

from django_ojs.conf import ojs_settings
from django_ojs.guard import described, may_fail

ASGI = Callable[[Any, Any, Any], Awaitable[None]]

#: Seconds after which a thread without work closes its connections and ends.
IDLE = 30.0
#: Threads for the health check alone: it reports a database that is away while all other threads wait for that.
PROBES = 4
_STREAM = re.compile(r"/(?:stream|events)\Z")


def with_plain_query(scope: Any) -> Any:
    """The scope with a query that Django reads as under WSGI: one with bytes that are no UTF-8 it would refuse."""
    query: bytes = scope.get("query_string", b"")
    return scope if query.isascii() else {**scope, "query_string": quote(query, safe=string.punctuation).encode()}


def on_threads(http: ASGI) -> ASGI:
    """`http`, with the short requests of the binding on threads that last.

    Only where `http` is Django's own handler: what a site has wrapped around that would be passed by. Such a site wraps
    what `application()` returns instead. Nor where a middleware of the site has to have an event loop.
    """
    inner: Any = http.application if isinstance(http, ASGIStaticFilesHandler) else http
    if type(inner) is not ASGIHandler or ojs_settings.ASGI_THREADS < 1:
        return http
    if not all(getattr(import_string(path), "sync_capable", True) for path in settings.MIDDLEWARE):
        return http
    return _Door(http)


class _Door:
    """Decides which requests are short ones of the binding, and hands all others to `http`."""

    def __init__(self, http: ASGI) -> None:
        self.http = http
        self.short = ThreadedHandler(StreamThreads(ojs_settings.ASGI_THREADS))
        self.probes = ThreadedHandler(StreamThreads(PROBES))
        self.waits = WaitingHandler(self.short.threads)
        self._prefix = ""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        handler = self.handler_of(scope)
        await handler(with_plain_query(scope) if self._path(scope) else scope, receive, send)

    def _path(self, scope: Any) -> str:
        """The path of a request of the binding; '' for any other request."""
        path: str = scope["path"].removeprefix(get_script_prefix(scope)) if scope["type"] == "http" else ""
        return path if path.startswith(self.prefix) else ""

    def handler_of(self, scope: Any) -> ASGI:
        path = self._path(scope)
        if not path:
            return self.http
        if path == f"{self.prefix}v1/health":
            return self.probes
        streams = scope["method"] in ("GET", "HEAD") and _STREAM.search(path)
        if b"wait=" in scope.get("query_string", b""):
            return self.waits if scope["method"] == "GET" and path.endswith("/result") else self.http
        if streams or any(name.lower() == b"ojs-block-timeout" for name, _ in scope["headers"]):
            return self.http
        return self.short

    @property
    def prefix(self) -> str:
        """The path below which the site has put the binding, such as `/ojs/`."""
        if not self._prefix:
            set_script_prefix("/")
            try:
                self._prefix = unquote(reverse("ojs:manifest")).removesuffix("manifest")
            except NoReverseMatch:  # the site's root URLconf does not have it: a middleware may choose another one
                self._prefix = "/ojs/"
        return self._prefix


class ThreadedHandler(ASGIHandler):
    """Django's handler under ASGI, but all that is synchronous in a request runs on one of `threads`.

    `request_started`, the middleware, the view and `request_finished` share a thread, and so its database connections,
    which live as long as CONN_MAX_AGE says. A client that leaves changes nothing: its request is done to the end.
    """

    def __init__(self, threads: StreamThreads) -> None:
        self.threads = threads
        self.load_middleware(is_async=False)

    async def handle(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            body = await self.read_body(receive)
        except RequestAborted:
            return
        response: Any = await self.threads.run(self._respond, scope, body)
        if response.streaming:
            await self._stream(response, receive, send)
        else:
            with contextlib.suppress(OSError):  # the client has gone
                await self.send_response(response, send)

    def _respond(self, answer: Callable[[HttpResponseBase], None], scope: Any, body: Any) -> None:
        """Answer, and tidy up while the event loop sends the answer."""
        set_script_prefix(get_script_prefix(scope))
        signals.request_started.send(sender=self.__class__, scope=scope)
        with contextlib.closing(body):  # here, because a caller that is cancelled does not end the request
            request, refused = self.create_request(scope, body)
            response: Any = refused
            if request is not None:
                response = self.get_response(request)
                response._handler_class = self.__class__
        answer(response)
        if response.streaming:  # closed where it has been sent
            close_old_connections()
        else:
            response.close()

    async def _stream(self, response: Any, receive: Any, send: Any) -> None:
        """Send a streaming response until it ends or the client leaves."""
        sending = asyncio.create_task(self.send_response(response, send))
        leaving = asyncio.create_task(self.listen_for_disconnect(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            over = sending.done()
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)
            await sync_to_async(response.close)()
        if over:
            sending.result()


class WaitingHandler(ThreadedHandler):
    """For requests that wait for the end of a job: they hold no thread meanwhile (`http.waits`).

    A request is carried out once more behind the wait, with the middleware, as if its client had asked again. A client
    that leaves ends the wait.
    """

    async def handle(self, scope: Any, receive: Any, send: Any) -> None:
        from django_ojs.http import waits  # a site imports this module before Django has loaded its models

        waiting_request = waits.WaitingRequest()
        scope = {**scope, waits.SCOPE_KEY: waiting_request}
        try:
            body = await self.read_body(receive)
        except RequestAborted:
            return
        body.close()  # it means nothing to a GET
        response: Any = await self.threads.run(self._respond, scope, io.BytesIO())
        if waiting_request.wait is not None:
            if not await self._waited(waits.wait_on_loop(waiting_request), receive):
                return
            response = await self.threads.run(self._respond, scope, io.BytesIO())
        with contextlib.suppress(OSError):  # the client has gone
            await self.send_response(response, send)

    async def _waited(self, waiting_for_end: Coroutine[Any, Any, None], receive: Any) -> bool:
        """Wait as the view has asked; False where the client has left meanwhile."""
        waiting = asyncio.create_task(waiting_for_end)
        leaving = asyncio.create_task(self.listen_for_disconnect(receive))
        try:
            await asyncio.wait({waiting, leaving}, return_when=asyncio.FIRST_COMPLETED)
            return waiting.done()
        finally:
            for task in (waiting, leaving):
                task.cancel()
            await asyncio.gather(waiting, leaving, return_exceptions=True)


class StreamThreads:
    """A pool of at most `width` threads. The one that has worked last works next, so that few keep their connections.

    They are no thread pool of Python's, which gives work to all of its threads in turn and never ends one.
    """

    def __init__(self, width: int) -> None:
        self._width, self._count = width, 0
        self._lock = threading.Lock()
        self._idle: list[queue.SimpleQueue[Callable[[], None]]] = []
        self._waiting: deque[Callable[[], None]] = deque()

    async def run(self, act: Callable[..., None], *args: Any) -> Any:
        """What `act` gives to its first argument, a function; or what it raises before that.

        It runs in a copy of the caller's context. It runs to its end although the caller is cancelled.
        """
        loop = asyncio.get_running_loop()
        found: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def resolve(set_: Callable[[Any], None], value: Any) -> None:
            if not found.done():
                set_(value)

        def answer(value: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the server has not waited for the request
                loop.call_soon_threadsafe(resolve, found.set_result, value)

        def call() -> None:
            try:
                context.run(act, answer, *args)
            except BaseException as error:  # noqa: BLE001 - raised in the caller
                if isinstance(error, StopIteration):  # no future takes it
                    error = RuntimeError(f"A call raised {described(error)}.")
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(resolve, found.set_exception, error)

        self._give(call)
        return await found

    def _give(self, call: Callable[[], None]) -> None:
        box = None
        with self._lock:
            if self._idle:
                box = self._idle.pop()
            elif self._count < self._width:
                self._count += 1
            else:
                self._waiting.append(call)
                return
        if box is not None:
            box.put(call)
            return
        try:
            threading.Thread(target=self._work, args=(call,), name="ojs-asgi", daemon=True).start()
        except RuntimeError:  # the system has no more threads
            with self._lock:
                self._count -= 1
                if self._idle:
                    box = self._idle.pop()
                elif self._count:  # one of ours takes it
                    self._waiting.append(call)
                    return
            if box is None:
                raise
            box.put(call)

    def _work(self, call: Callable[[], None] | None) -> None:
        box: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        while call is not None:
            may_fail("A call of the server", call)  # an answer that cannot be given must not cost the thread
            call = self._next(box)
        connections.close_all()

    def _next(self, box: queue.SimpleQueue[Callable[[], None]]) -> Callable[[], None] | None:
        """The next call for this thread; None where it has to end."""
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._idle.append(box)
        try:
            return box.get(timeout=IDLE)
        except queue.Empty:
            with self._lock:
                if box in self._idle:
                    self._idle.remove(box)
                    self._count -= 1
                    return None
            return box.get()  # given to this thread just now
