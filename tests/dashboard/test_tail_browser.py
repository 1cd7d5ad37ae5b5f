"""The live tail in a real browser, without a WebSocket server and under a policy that allows nothing inline."""

from __future__ import annotations

import os
import shutil
from typing import Any

import pytest
from django.db import connections
from django.http import HttpResponse
from django.test import Client

from django_ojs.jobs.cancel import cancel
from tests.admin.conftest import pushed

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
sync_api = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install playwright")
pytestmark = [
    pytest.mark.wide,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(not CHROMIUM, reason="needs Chromium: install it, or name it in CHROMIUM"),
]
POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'"
EVIL = "<img src=x onerror=window.pwned=1>"


def strict(get_response: Any) -> Any:
    """Middleware: what a careful site sends."""

    def respond(request: Any) -> HttpResponse:
        response: HttpResponse = get_response(request)
        response["Content-Security-Policy"] = POLICY
        return response

    return respond


def test_events_come_wait_while_it_is_paused_and_stay_text(
    live_server: Any, admin_client: Client, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")  # Playwright runs a loop of its own in this thread
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, f"{__name__}.strict"]
    expect, cookie = sync_api.expect, admin_client.cookies[settings.SESSION_COOKIE_NAME]
    expect.set_options(timeout=60_000)  # what is awaited comes, however slow the machine, or the test fails
    complaints: list[str] = []
    with sync_api.sync_playwright() as playwright:
        connections.close_all()  # that beside the loop of an earlier browser may have been cut since
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        context = browser.new_context()
        context.add_cookies([{"name": cookie.key, "value": cookie.value, "url": live_server.url}])
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(f"{live_server.url}/admin/django_ojs/event/tail/?types=job.*&order=bottom")
        state, rows = page.locator("[data-ojs-follow]"), page.locator("[data-ojs-tail] tbody tr")
        expect(state).to_have_text("Live, updated every two seconds")
        (job,) = pushed()
        expect(rows).to_have_count(1)
        page.get_by_role("button", name="Pause").click()
        cancel([job.pk], cancelled_by=EVIL, reason=EVIL)
        expect(state).to_have_text("Paused; new ones wait: 1")
        expect(rows).to_have_count(1)
        page.get_by_role("button", name="Go on").click()
        expect(rows).to_have_count(2)
        expect(rows.last).to_contain_text(EVIL)
        page.get_by_label("Detail").select_option("full")
        expect(rows.last.locator("pre")).to_contain_text(EVIL)
        context.set_offline(True)
        expect(state).to_contain_text("Connection lost")
        pushed()
        context.set_offline(False)
        expect(rows).to_have_count(3)
        assert page.evaluate("window.pwned") is None
        browser.close()
    assert complaints == []
