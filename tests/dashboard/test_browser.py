"""The live pages in a real browser, under a Content-Security-Policy that allows nothing inline."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import Client

from django_ojs.admin import shared
from django_ojs.models import Job, Queue
from django_ojs.operations import workflow
from django_ojs.operations.ack import Ack, ack
from django_ojs.operations.fetch import fetch
from tests.admin.conftest import dead, pushed

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
sync_api = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install playwright")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(not CHROMIUM, reason="needs Chromium: install it, or name it in CHROMIUM"),
]

OVERVIEW, LETTERS = "/admin/django_ojs/job/overview/", "/admin/django_ojs/job/dead-letters/"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'"
)
#: Nothing here depends on how fast the machine is: what is awaited comes, or the test fails.
PATIENCE = 60_000


def strict(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Middleware: what a careful site sends."""

    def respond(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        response["Content-Security-Policy"] = POLICY
        return response

    return respond


@pytest.fixture
def browse(
    live_server: Any, admin_client: Client, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], Any]]:
    """Opens a page in a browser that is logged in; fails the test for whatever the policy had to stop."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")  # Playwright runs a loop of its own in this thread
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, f"{__name__}.strict"]
    complaints: list[str] = []
    sync_api.expect.set_options(timeout=PATIENCE)
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        context = browser.new_context()
        cookie = admin_client.cookies[settings.SESSION_COOKIE_NAME]
        context.add_cookies([{"name": cookie.key, "value": cookie.value, "url": live_server.url}])
        context.set_default_timeout(PATIENCE)
        context.add_init_script(
            "document.addEventListener('securitypolicyviolation', e => console.error('policy: ' + e.violatedDirective))"
        )

        def open_page(path: str) -> Any:
            page = context.new_page()
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("console", lambda line: complaints.append(line.text) if "policy" in line.text.lower() else None)
            page.goto(f"{live_server.url}{path}")
            page.evaluate("window.sameDocument = true")
            return page

        yield open_page
        for page in context.pages:
            assert page.evaluate("window.sameDocument") is True, "a page was loaded anew"
        browser.close()
    assert complaints == []


def expect(locator: Any) -> Any:
    return sync_api.expect(locator)


def test_a_failure_appears_is_retried_from_the_page_and_completes_without_a_reload(browse: Any) -> None:
    overview, letters = browse(OVERVIEW), browse(LETTERS)
    expect(overview.locator("[data-ojs-status]")).to_have_text("Live")
    expect(letters.get_by_text("No dead letters.")).to_be_visible()
    (job,) = dead()
    expect(overview.locator("#ojs-n-dead")).to_have_text("1")
    expect(overview.locator("#ojs-failing")).to_contain_text("no such template")
    expect(letters.locator("#ojs-newest")).to_contain_text("no such template")
    letters.get_by_role("button", name=f"Retry job {job.pk}").click()
    expect(letters.locator("[data-ojs-said]")).to_contain_text("1 job made available again.")
    expect(letters.get_by_text("No dead letters.")).to_be_visible()
    (row,) = fetch(["claims"], worker_id="w-1")
    ack([Ack(row["id"])])
    assert row["id"] == job.pk
    expect(overview.locator("#ojs-n-dead")).to_have_text("0")
    expect(overview.locator("#ojs-n-completed")).to_have_text("1")


def test_a_queue_is_paused_and_resumed_by_keyboard_and_the_focus_stays(browse: Any) -> None:
    pushed(queue="mail")
    page = browse(OVERVIEW)
    page.get_by_role("button", name="Pause mail").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Resume mail")).to_be_focused()
    expect(page.locator("[data-ojs-said]")).to_contain_text("1 queue paused.")
    assert Queue.objects.get(pk="mail").paused
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Pause mail")).to_be_focused()
    assert not Queue.objects.get(pk="mail").paused


def test_a_lost_connection_shows_and_so_does_its_return(browse: Any) -> None:
    page = browse(OVERVIEW)
    status = page.locator("[data-ojs-status]")
    page.context.set_offline(True)
    expect(status).to_contain_text("Connection lost")
    pushed(3)
    shared.forget()
    expect(page.locator("#ojs-n-available")).to_have_text("0")
    page.context.set_offline(False)
    expect(status).to_have_text("Live")
    expect(page.locator("#ojs-n-available")).to_have_text("3")


def test_a_hidden_tab_asks_for_nothing(browse: Any) -> None:
    page = browse(OVERVIEW)
    hide = "Object.defineProperty(document, 'hidden', {value: %s, configurable: true});"
    page.evaluate(f"{hide % 'true'} document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.locator("[data-ojs-status]")).to_contain_text("Paused")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.wait_for_timeout(2500)  # longer than the pause between two questions
    assert asked == []
    page.evaluate(f"{hide % 'false'} document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.locator("[data-ojs-status]")).to_have_text("Live")
    assert asked


def test_a_workflow_is_followed_as_it_goes(browse: Any) -> None:
    steps = [{"type": "mail.send", "args": []}, {"type": "report.daily", "args": []}]
    flow = workflow.create({"type": "chain", "steps": steps}).workflow
    page = browse(f"/admin/django_ojs/workflow/{flow.pk}/change/")
    expect(page.locator(".ojs-flow .ojs-box-available")).to_have_count(1)
    for ended in (1, 2):
        (row,) = fetch(["default"], worker_id="w-1")
        ack([Ack(row["id"])])
        expect(page.locator(".ojs-flow .ojs-box-completed")).to_have_count(ended)
    assert set(Job.objects.values_list("state", flat=True)) == {"completed"}


def test_a_job_cannot_put_markup_into_a_picture(browse: Any) -> None:
    evil = "</title><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"
    steps = [{"type": "mail.send", "args": [], "name": evil}]
    flow = workflow.create({"type": "chain", "name": evil[:200], "steps": steps}).workflow
    flow.steps.update(step_id=evil, type=evil)
    dead(error={"type": evil[:200], "message": evil, "retryable": False})
    for path in (f"/admin/django_ojs/workflow/{flow.pk}/change/", OVERVIEW, LETTERS):
        page = browse(path)
        page.wait_for_timeout(100)
        assert page.evaluate("window.hacked") is None


def test_the_pages_work_without_javascript(live_server: Any, admin_client: Client) -> None:
    """Buttons are forms: what the module does for them is only to stay on the page."""
    pushed(queue="mail")
    body = admin_client.get(OVERVIEW).content.decode()
    assert 'form="ojs-act"' in body
    assert '<form id="ojs-act" method="post"' in body
