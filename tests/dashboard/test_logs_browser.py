"""The lines of a job on its page in a real browser, under a policy that allows nothing inline."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from django.db import connections
from django.test import Client
from django.urls import reverse

from django_ojs.jobs import joblog
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, ack_one
from django_ojs.jobs.joblog import SentLine
from tests.admin.conftest import pushed

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
sync_api = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install playwright")
pytestmark = [
    pytest.mark.wide,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(not CHROMIUM, reason="needs Chromium: install it, or name it in CHROMIUM"),
]
EVIL = "<img src=x onerror=window.pwned=1>"
#: Where pictures of the page go, for a person to look at; without it none are made.
PICTURES = os.environ.get("OJS_TEST_PICTURES")


def test_lines_come_as_they_are_logged_and_can_be_chosen(
    live_server: Any, admin_client: Client, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")  # Playwright runs a loop of its own in this thread
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "tests.dashboard.test_tail_browser.strict"]
    expect, cookie = sync_api.expect, admin_client.cookies[settings.SESSION_COOKIE_NAME]
    expect.set_options(timeout=60_000)  # what is awaited comes, however slow the machine, or the test fails
    (job,) = pushed()
    fetch(Fetch([job.queue], worker_id="w"))
    complaints: list[str] = []
    with sync_api.sync_playwright() as playwright:
        connections.close_all()  # that beside the loop of an earlier browser may have been cut since
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        context = browser.new_context(viewport={"width": 1440, "height": 1000})
        context.add_cookies([{"name": cookie.key, "value": cookie.value, "url": live_server.url}])
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(f"{live_server.url}{reverse('admin:django_ojs_job_change', args=[job.pk])}")
        part = page.locator("[data-ojs-logs]")
        rows, messages = part.locator("tbody tr"), part.locator("tbody .ojs-message")
        expect(part).to_be_hidden()
        joblog.append(job.pk, [SentLine("first", logger="shop"), SentLine(EVIL, level=30, fields={"order": 17})])
        expect(messages).to_have_text(["first", EVIL])
        expect(rows.first).to_have_text("Attempt 1")
        trace = 'Traceback (most recent call last):\n  File "shop/jobs.py", line 7\nValueError: no such order'
        joblog.append(job.pk, [SentLine("it failed", level=40, logger="shop.orders", exception=trace)])
        expect(messages).to_have_text(["first", EVIL, "it failed"])
        expect(part.locator("[data-ojs-logs-state]")).to_have_text("Live")
        _photograph(page)
        part.get_by_label("Level").select_option("warning")
        expect(messages).to_have_text([EVIL, "it failed"])
        part.get_by_label("Text").fill("SUCH ORDER")
        expect(messages).to_have_text(["it failed"])
        part.get_by_label("Text").fill("nothing has this")
        expect(messages).to_have_count(0)
        expect(part.locator("[data-ojs-none]")).to_be_visible()
        part.get_by_label("Text").fill("")
        part.get_by_label("Level").select_option("")
        expect(messages).to_have_count(3)
        settings.OJS = {"JOB_LOG_LINES": 10}
        joblog.append(job.pk, [SentLine(f"line {number}") for number in range(4, 31)])
        expect(messages.last).to_have_text("line 30")
        expect(part.locator(".ojs-gap")).to_have_text("20 lines are not kept")
        box = part.locator(".ojs-log-lines")
        assert box.evaluate("box => box.scrollTop + box.clientHeight >= box.scrollHeight - 2"), "its end is in view"
        with page.expect_download() as download:
            part.get_by_role("link", name="Download").click()
        assert EVIL in Path(download.value.path()).read_text()
        ack_one(Ack(job.pk, worker_id="w"))
        expect(part.locator("[data-ojs-logs-state]")).to_have_text("")
        assert page.evaluate("window.pwned") is None
        browser.close()
    assert complaints == []


def _photograph(page: Any) -> None:
    if PICTURES:
        for width in (1440, 390):
            for scheme in ("light", "dark"):
                page.set_viewport_size({"width": width, "height": 1000})
                page.emulate_media(color_scheme=scheme)
                page.screenshot(path=f"{PICTURES}/logs-{width}-{scheme}.png", full_page=True)
        page.set_viewport_size({"width": 1440, "height": 1000})
