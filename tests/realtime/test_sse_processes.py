"""Event streams of a real server: killed amid it all, stopped, and read by a browser's own EventSource."""

from __future__ import annotations

import contextlib
import http.client
import shutil
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connections

from django_ojs.jobs.push import push
from tests.realtime.listening import Frame, parse
from tests.realtime.test_processes import FULL, LIFE, Server, server, work  # noqa: F401 - fixture

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("transactional_db")]

JOBS = 10_000 if FULL else 300
PATIENCE = 60.0
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def listen(port: int, path: str, **headers: str) -> Iterator[Frame]:
    """The frames of a stream until it ends or breaks, from a server that may still be starting."""
    deadline = time.monotonic() + PATIENCE
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        try:
            connection.request("GET", f"/ojs/v1{path}", headers={k.replace("_", "-"): v for k, v in headers.items()})
            answer = connection.getresponse()
            break
        except OSError:
            connection.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    lines: list[str] = []
    with contextlib.closing(connection), contextlib.closing(answer):
        assert (answer.status, answer.headers["Content-Type"]) == (200, "text/event-stream")
        with contextlib.suppress(OSError, http.client.HTTPException):
            while line := answer.readline():
                if line != b"\n":
                    lines.append(line.decode().removesuffix("\n"))
                elif lines:
                    yield parse("\n".join(lines))
                    lines = []


def enqueue(*names: str) -> None:
    for name in names:
        push([{"type": name, "args": []}])


@pytest.mark.wide
def test_a_server_that_is_killed_amid_it_all_costs_a_client_that_resumes_nothing(server: Server) -> None:  # noqa: F811
    """Every event at least once, and those of a job in their order."""
    kills = [JOBS // 2, JOBS, JOBS * 2]
    seen: dict[str, list[str]] = defaultdict(list)
    ids: set[str] = set()
    last = ""
    working = threading.Thread(target=work, args=[JOBS])
    deadline = time.monotonic() + 5 * PATIENCE
    while len(ids) < 3 * JOBS:
        assert time.monotonic() < deadline, f"It did not happen in time: {len(ids)} of {3 * JOBS} events"
        headers = {"Last_Event_ID": last} if last else {}
        for frame in listen(server.port, "/events/stream?types=job.*&job_types=a.b", **headers):
            last = frame.id or last
            if working.ident is None and frame.retry:
                working.start()  # the stream stands
            if frame.data is None:
                continue
            assert frame.event != "system.gap", frame.data
            if frame.id not in ids:
                ids.add(frame.id)
                seen[frame.data["job_id"]].append(frame.event)
            if kills and len(ids) >= kills[0]:
                kills.pop(0)
                server.kill()
                server.start()
                break
            if len(ids) == 3 * JOBS:
                break
    working.join()
    assert kills == []
    assert len(seen) == JOBS
    assert {tuple(types) for types in seen.values()} == {tuple(LIFE)}


def test_a_stopping_server_says_so_and_is_gone(server: Server) -> None:  # noqa: F811
    stream = listen(server.port, "/events/stream")
    assert next(stream).retry == 3000
    enqueue("a.b")
    assert next(frame for frame in stream if frame.data).event == "job.enqueued"
    assert server.process is not None
    server.process.send_signal(signal.SIGTERM)
    rest = [frame for frame in stream if frame.data and frame.event.startswith("server.")]
    assert [frame.event for frame in rest] == ["server.shutdown"]
    server.process.wait(PATIENCE)


PAGE = """<!doctype html><title>Events</title><ol id="events"></ol>
<script>
  const list = document.getElementById("events");
  window.opened = 0;
  const source = new EventSource("/ojs/v1/events/stream?types=job.*&channel=all");
  source.onopen = () => { window.opened += 1; };
  source.addEventListener("job.enqueued", event => {
    const item = document.createElement("li");
    item.textContent = JSON.parse(event.data).data.job_type;
    item.dataset.id = event.lastEventId;
    list.append(item);
  });
  window.seen = new Set();
  window.lives = {};
  for (const type of ["job.enqueued", "job.started", "job.completed"]) {
    source.addEventListener(type, event => {
      const { job_id: job, job_type: kind } = JSON.parse(event.data).data;
      if (kind !== "a.b" || window.seen.has(event.lastEventId)) return;
      window.seen.add(event.lastEventId);
      (window.lives[job] ??= []).push(type);
    });
  }
</script>"""


@pytest.fixture
def page(server: Server) -> Iterator[Any]:  # noqa: F811
    """A page of the server's origin in headless Chromium."""
    if CHROMIUM is None:
        pytest.skip("needs Chromium: install Debian's package chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install playwright")
    server.wait()
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        try:
            opened = browser.new_page()
            opened.set_default_timeout(PATIENCE * 1000)
            opened.goto(f"http://127.0.0.1:{server.port}/ojs/manifest")
            opened.set_content(PAGE)
            yield opened
        finally:
            browser.close()


@pytest.mark.wide
def test_a_browser_hears_every_event_and_comes_back_by_itself(server: Server, page: Any) -> None:  # noqa: F811
    def shown() -> list[str]:
        found: list[str] = page.eval_on_selector_all("li", "items => items.map(item => item.textContent)")
        return found

    def until(count: int) -> None:
        page.wait_for_function("count => document.querySelectorAll('li').length >= count", arg=count)

    page.wait_for_function("window.opened == 1")
    _in_thread(enqueue, "a.one", "a.two")
    until(2)
    assert shown() == ["a.one", "a.two"]
    server.kill()
    _in_thread(enqueue, "a.away")
    server.start()
    until(3)
    _in_thread(enqueue, "a.again")
    until(4)
    assert list(dict.fromkeys(shown())) == ["a.one", "a.two", "a.away", "a.again"]
    assert page.evaluate("window.opened") >= 2
    ids = page.eval_on_selector_all("li", "items => items.map(item => item.dataset.id)")
    assert all(each.startswith("evt_") for each in ids)


@pytest.mark.wide
def test_a_browser_misses_nothing_of_many_jobs_while_its_server_is_killed(server: Server, page: Any) -> None:  # noqa: F811
    page.wait_for_function("window.opened == 1")
    working = threading.Thread(target=work, args=[JOBS])
    working.start()
    page.wait_for_function("count => window.seen.size >= count", arg=JOBS)
    server.kill()
    server.start()
    page.wait_for_function("count => window.seen.size >= count", arg=3 * JOBS, timeout=5_000 * PATIENCE)
    working.join()
    lives = page.evaluate("Object.values(window.lives).map(life => life.join(' '))")
    assert (len(lives), set(lives)) == (JOBS, {" ".join(LIFE)})
    page.wait_for_function("window.opened >= 2")  # a fast server had sent everything before it was killed


def _in_thread(act: Any, *args: Any) -> None:
    """Playwright keeps an event loop in this thread, where Django refuses to be synchronous."""

    def run() -> None:
        try:
            act(*args)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(run).result()
