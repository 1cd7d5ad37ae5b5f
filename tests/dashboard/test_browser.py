"""The live pages in a real browser, under a Content-Security-Policy that allows nothing inline.

One server and one browser for all tests. Events are all that makes a page ask: the time after which it would by itself
is longer than any test.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.conf import settings as site
from django.contrib.auth import get_user_model
from django.db import connections
from django.http import HttpRequest, HttpResponse
from django.templatetags.static import static
from django.test import Client, override_settings

from django_ojs import JobContext, job
from django_ojs.admin import live
from django_ojs.cron import schedules
from django_ojs.events import ids
from django_ojs.jobs import approvalmail, approvals, joblog
from django_ojs.jobs.approvals import Decider
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack, fail_one
from django_ojs.jobs.joblog import SentLine
from django_ojs.jobs.progress import ProgressReport, report
from django_ojs.jobs.retry import retry
from django_ojs.models import Approval, AuditEntry, Job, Queue
from django_ojs.registry import registry
from django_ojs.statistics import summary
from django_ojs.testing import worker
from django_ojs.workflows import workflow
from tests.admin.conftest import FATAL, claimed, dead, pushed
from tests.rights import world

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
sync_api = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install playwright")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.sqlite_too,
    pytest.mark.django_db(transaction=True),
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume"),  # static files, which only tests serve so
    pytest.mark.skipif(not CHROMIUM, reason="needs Chromium: install it, or name it in CHROMIUM"),
]

ADMIN = "/admin/django_ojs"
OVERVIEW, LETTERS = f"{ADMIN}/job/overview/", f"{ADMIN}/job/dead-letters/"
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


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    from tests.dashboard.serving import Server

    with override_settings(MIDDLEWARE=[*site.MIDDLEWARE, f"{__name__}.strict"]):
        found = Server()
        found.start()
        yield found
        found.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch, sync_api.sync_playwright() as playwright:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")  # Playwright runs a loop of its own in this thread
        sync_api.expect.set_options(timeout=PATIENCE)
        found = playwright.chromium.launch(executable_path=CHROMIUM)
        yield found
        found.close()


@pytest.fixture(autouse=True)
def _new_connection(browser: Any) -> None:
    """Beside Playwright's loop Django has another connection in this thread. Other tests may have cut it."""
    connections.close_all()


@pytest.fixture
def browse(
    browser: Any, server: Any, admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Any]]:
    """Opens a page as the superuser, or another who is logged in; fails the test for whatever a page complains about.

    `stays`: whether it must be the same document to the end. What the browser itself may say of a request that fails,
    as the test means it to, is in `browse.expected`.
    """
    monkeypatch.setattr(live, "FOLLOWING", 3600.0)
    ids.forget()  # the log is a new one
    complaints: list[str] = []
    pages: list[Any] = []
    contexts: dict[Client, Any] = {}

    def context_of(client: Client) -> Any:
        context = browser.new_context()
        cookie = client.cookies[site.SESSION_COOKIE_NAME]
        context.add_cookies([{"name": cookie.key, "value": cookie.value, "url": server.url}])
        context.set_default_timeout(PATIENCE)
        context.add_init_script(
            "document.addEventListener('securitypolicyviolation', e => console.error('policy: ' + e.violatedDirective))"
        )
        return context

    def open_page(path: str, client: Client = admin_client, *, stays: bool = True) -> Any:
        if client not in contexts:
            contexts[client] = context_of(client)
        page = contexts[client].new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda line: complaints.append(line.text) if _is_complaint(line) else None)
        page.goto(f"{server.url}{path}")
        if stays:
            page.evaluate("window.sameDocument = true")
            pages.append(page)
        return page

    expected: list[str] = []
    open_page.expected = expected  # type: ignore[attr-defined]
    yield open_page
    try:
        reloaded = [page.url for page in pages if page.evaluate("window.sameDocument") is not True]
    finally:
        for context in contexts.values():
            context.close()
        server.settle()
    assert reloaded == []
    assert [line for line in complaints if not any(word in line for word in expected)] == []


def _is_complaint(line: Any) -> bool:
    return line.type == "error" and not line.location["url"].endswith("/favicon.ico")


def expect(locator: Any) -> Any:
    return sync_api.expect(locator)


def followed(page: Any) -> Any:
    """The page, once it hears of events."""
    expect(page.locator("[data-ojs-status][data-state=live]")).to_be_visible()
    return page


def complete(queue: str = "claims") -> Any:
    (row,) = fetch(Fetch([queue], worker_id="w-1"))
    ack([Ack(row["id"])])
    return row["id"]


def test_a_failure_appears_is_retried_from_the_page_and_completes_without_a_reload(browse: Any) -> None:
    overview, letters = followed(browse(OVERVIEW)), followed(browse(LETTERS))
    expect(letters.get_by_text("No dead letters.")).to_be_visible()
    (job,) = dead()
    summary.forget()
    expect(overview.locator("#ojs-n-dead")).to_have_text("1")
    expect(overview.locator("#ojs-failing")).to_contain_text("no such template")
    expect(letters.locator("#ojs-newest")).to_contain_text("no such template")
    letters.get_by_role("button", name=f"Retry job {job.pk}").click()
    expect(letters.locator("[data-ojs-said]")).to_contain_text("1 job made available again.")
    expect(letters.get_by_text("No dead letters.")).to_be_visible()
    assert complete() == job.pk
    summary.forget()
    expect(overview.locator("#ojs-n-dead")).to_have_text("0")
    expect(overview.locator("#ojs-n-completed")).to_have_text("1")
    expect(overview.locator("[data-ojs-status]")).to_have_text("Live")


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


@pytest.mark.wide
def test_a_reason_for_a_pause_is_kept_while_the_page_changes_and_is_for_one_pause(browse: Any) -> None:
    pushed(queue="mail")
    page = followed(browse(OVERVIEW))
    page.get_by_label("Reason for the next pause").fill("the printer is on fire")
    pushed(queue="other")
    expect(page.get_by_role("button", name="Pause other")).to_be_visible()  # the page was changed in between
    expect(page.get_by_label("Reason for the next pause")).to_have_value("the printer is on fire")
    page.get_by_role("button", name="Pause mail").click()
    expect(page.get_by_role("button", name="Resume mail")).to_be_visible()
    expect(page.get_by_label("Reason for the next pause")).to_have_value("")
    page.get_by_role("button", name="Pause other").click()
    expect(page.get_by_role("button", name="Resume other")).to_be_visible()
    entries = AuditEntry.objects.filter(action="queue.pause").order_by("id")
    told = [(entry.target, entry.detail.get("reason")) for entry in entries]
    assert told == [("mail", "the printer is on fire"), ("other", None)]


def test_enter_in_the_reason_of_a_pause_pauses_no_queue(browse: Any) -> None:
    pushed(2, queue="mail")
    pushed(queue="other")
    page = browse(OVERVIEW)
    page.get_by_label("Reason for the next pause").fill("the printer is on fire")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Pause other").click()
    expect(page.get_by_role("button", name="Resume other")).to_be_visible()
    (entry,) = AuditEntry.objects.filter(action="queue.pause")
    assert (entry.target, entry.detail["reason"]) == ("other", "the printer is on fire")


def test_enter_in_the_form_of_a_decision_approves_nothing(browse: Any, ask: Callable[[str], Approval]) -> None:
    get_user_model().objects.create_user("ben")
    page = browse(f"{ADMIN}/approval/{ask('Refund order 1?').pk}/decide/", stays=False)
    page.get_by_label("Delegate to").fill("user:ben")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Delegate").click()
    expect(page.get_by_text("Delegated.")).to_be_visible()
    found = Approval.objects.get()
    assert (found.state, approvals.names(found)) == ("open", ["user:ben"])


#: A page whose session ends before its WebSocket is open is refused that, and the browser says so.
_REFUSED_SOCKET = ["WebSocket", "401"]


@pytest.mark.wide
def test_a_button_leads_to_the_login_where_the_session_has_ended(browse: Any, admin_client: Client) -> None:
    browse.expected += _REFUSED_SOCKET
    pushed(queue="mail")
    page = browse(OVERVIEW, stays=False)
    admin_client.logout()
    page.get_by_role("button", name="Pause mail").click()
    page.wait_for_url(f"**/admin/login/?next={ADMIN}/queue/mail/do/pause_queues/")


@pytest.mark.wide
def test_a_button_acts_after_a_login_in_another_tab(browse: Any, admin_user: Any) -> None:
    browse.expected += ["403", *_REFUSED_SOCKET]
    pushed(queue="mail")
    page = browse(OVERVIEW)
    tab = browse("/admin/", stays=False)
    page.context.clear_cookies()
    tab.reload()
    tab.get_by_label("Username").fill("admin")
    tab.get_by_label("Password").fill("password")
    tab.get_by_role("button", name="Log in").click()
    tab.wait_for_url("**/admin/")
    page.get_by_role("button", name="Pause mail").click()
    expect(page.locator("[data-ojs-said]")).to_contain_text("1 queue paused.")


@pytest.mark.wide
@pytest.mark.parametrize("path", ["job/overview", "event/tail", "job/%s/change"])
def test_a_page_says_when_its_reader_may_see_it_no_more_and_goes_on_when_they_may(
    browse: Any, server: Any, operator: Callable[..., Client], path: str
) -> None:
    """Whether the right is gone or the session has ended: it asks nothing more until the reader comes back to it."""
    browse.expected += ["403", *_REFUSED_SOCKET]
    (job,) = claimed()
    joblog.append(job.pk, [SentLine("first")])
    client = operator("view_job", "view_event")
    user = get_user_model().objects.get(pk=client.session["_auth_user_id"])
    rights = list(user.user_permissions.all())
    page = browse(f"{ADMIN}/{path.replace('%s', str(job.pk))}/", client, stays=False)
    page.clock.install()
    page.reload()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("websocket", lambda socket: asked.append(socket.url))
    signs = page.locator("[data-ojs-status], [data-ojs-follow], [data-ojs-logs-state]").all()
    assert len(signs) == 1 + ("%s" in path)  # the lines that a job logs have one of their own
    for ended in ("right", "session"):
        for sign in signs:
            expect(sign).to_contain_text("Live")
        if ended == "right":
            user.user_permissions.clear()
        else:
            client.logout()
        page.evaluate("window.dispatchEvent(new Event('online'))")
        page.clock.fast_forward("00:30")
        for sign in signs:
            expect(sign).to_contain_text("You are logged out, or may not see this any more")
        asked.clear()
        page.clock.fast_forward("03:00:00")
        assert asked == []
        user.user_permissions.set(rights)
        client.force_login(user)
        cookie = client.cookies[site.SESSION_COOKIE_NAME]
        page.context.add_cookies([{"name": cookie.key, "value": cookie.value, "url": server.url}])
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    for sign in signs:
        expect(sign).to_contain_text("Live")


@pytest.mark.wide
def test_the_rest_of_the_pages_is_reached_by_keyboard_on_a_phone(browse: Any) -> None:
    page = browse(OVERVIEW, stays=False)
    page.set_viewport_size({"width": 390, "height": 844})
    page.get_by_role("link", name="Approvals").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # folds it out
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Events", exact=True)).to_be_focused()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("Live events")
    expect(page.locator(".ojs-nav [aria-current]")).to_have_text("Live events")
    expect(page.locator(".ojs-nav [aria-current]")).to_be_visible()


def test_a_server_that_is_gone_shows_and_so_does_its_return(browse: Any, server: Any) -> None:
    browse.expected += ["net::ERR_", "WebSocket"]
    page = followed(browse(OVERVIEW))
    status = page.locator("[data-ojs-status]")
    server.stop()
    try:
        expect(status).to_contain_text("Connection lost")
        pushed(3)
        summary.forget()
    finally:
        server.start()
    expect(status).to_have_text("Live again")
    expect(page.locator("#ojs-n-available")).to_have_text("3")
    followed(page)
    pushed(1)
    summary.forget()
    expect(page.locator("#ojs-n-available")).to_have_text("4")


@pytest.mark.wide
def test_a_hidden_tab_asks_for_nothing(browse: Any) -> None:
    page = browse(OVERVIEW)
    page.clock.install()
    page.reload()
    page.evaluate("window.sameDocument = true")
    followed(page)
    hide = "Object.defineProperty(document, 'hidden', {value: %s, configurable: true});"
    page.evaluate(f"{hide % 'true'} document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.locator("[data-ojs-status]")).to_contain_text("Paused")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("websocket", lambda socket: asked.append(socket.url))
    page.clock.fast_forward("03:00:00")
    assert asked == []
    page.evaluate(f"{hide % 'false'} document.dispatchEvent(new Event('visibilitychange'))")
    followed(page)
    assert len(asked) >= 2  # the page and the socket


@pytest.mark.wide
def test_the_list_says_what_is_true_and_its_rows_stay_under_the_pointer(browse: Any) -> None:
    jobs = pushed(3)
    page = followed(browse(f"{ADMIN}/job/"))
    row = page.locator("#result_list tbody tr", has_text=str(jobs[0].pk)[-6:])
    row.locator("input[type=checkbox]").check()
    before = page.locator("#result_list tbody tr th").all_inner_texts()
    where = row.bounding_box()["y"]
    complete("default")
    expect(row.locator(".ojs-completed")).to_be_visible()
    expect(row.locator("input[type=checkbox]")).to_be_checked()
    pushed(2)
    link = page.get_by_role("link", name="Show 2 other jobs")
    expect(link).to_be_visible()
    assert page.locator("#result_list tbody tr th").all_inner_texts() == before
    assert abs(row.bounding_box()["y"] - where) < 40, "only the line that says so is new"
    page.evaluate("window.sameDocument = true")
    assert page.evaluate("document.querySelectorAll('#result_list tbody tr').length") == 3


@pytest.mark.wide
def test_a_workflow_is_followed_until_it_is_green(browse: Any) -> None:
    steps = [{"type": "mail.send", "args": []}, {"type": "report.daily", "args": []}]
    flow = workflow.create({"type": "chain", "steps": steps}).workflow
    page = followed(browse(f"{ADMIN}/workflow/{flow.pk}/change/"))
    expect(page.locator("#ojs-graph .ojs-box-available")).to_have_count(1)
    for ended in (1, 2):
        complete("default")
        expect(page.locator("#ojs-graph .ojs-box-completed")).to_have_count(ended)
        expect(page.locator(".field-members .ojs-completed")).to_have_count(ended)
        expect(page.locator(".field-members_done")).to_contain_text(f"{ended} of 2 completed")
    expect(page.locator(".field-state_label .ojs-good")).to_be_visible()
    expect(page.get_by_role("button", name="Cancel…")).to_have_count(0)
    assert set(Job.objects.values_list("state", flat=True)) == {"completed"}


#: Of each collapsed box: its sides, and the sides and the fill of each part of its bar; and the fill of the box itself.
SHARES = """() => [...document.querySelectorAll(".ojs-flow .ojs-collapsed")].map(group => {
  const side = one => (at => [at.left, at.right, at.top, at.bottom])(one.getBoundingClientRect());
  const box = group.querySelector("rect"), bar = [...group.parentNode.children].filter(one => one.localName === "rect");
  return {box: side(box), own: getComputedStyle(box).fill,
          parts: bar.map(one => [...side(one), getComputedStyle(one).fill])};
})"""


@pytest.mark.wide
def test_the_bar_of_a_collapsed_box_stays_in_it_and_has_the_colours_of_the_states(browse: Any) -> None:
    jobs = [{"type": "a.b", "args": [], "queue": "g", "retry": {"max_attempts": 1}} for _ in range(120)]
    flow = workflow.create({"type": "group", "jobs": jobs}).workflow
    rows = fetch(Fetch(["g"], count=80, worker_id="w1"))
    ack([Ack(row["id"], "w1", 1, None) for row in rows[:40]])
    page = browse(f"{ADMIN}/workflow/{flow.pk}/change/")
    for width, height in ((1440, 900), (390, 844)):
        page.set_viewport_size({"width": width, "height": height})
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            found = page.evaluate(SHARES)
            assert found
            for one in found:
                left, right, top, bottom = one["box"]
                fills = [part[4] for part in one["parts"]]
                assert len(set(fills)) == len(fills) > 1, (width, scheme, fills)
                assert one["own"] not in fills
                for part in one["parts"]:
                    assert left <= part[0] < part[1] <= right + 0.5, (width, scheme, one)
                    assert top <= part[2] < part[3] <= bottom, (width, scheme, one)


@pytest.mark.wide
def test_a_job_is_followed_with_its_progress_and_what_is_folded_out_stays(browse: Any) -> None:
    browse.expected.append("404")
    (job,) = claimed()
    page = followed(browse(f"{ADMIN}/job/{job.pk}/change/"))
    page.locator("summary", has_text="events").click()
    report([ProgressReport(job.pk, 40.0, "two of five")])
    expect(page.locator(".ojs-strip progress")).to_have_attribute("value", "0.4")
    expect(page.locator(".ojs-strip .ojs-progress")).to_contain_text("40 %, two of five")
    expect(page.get_by_role("button", name="Cancel…")).to_be_visible()
    ack([Ack(job.pk)])
    expect(page.locator(".ojs-strip .ojs-state .ojs-completed")).to_be_visible()
    expect(page.locator("[data-ojs-part=breadcrumbs]")).to_contain_text("(completed)")
    expect(page.get_by_role("button", name="Cancel…")).to_have_count(0)
    expect(page.locator("[data-ojs-part=history]")).to_contain_text("job.completed")
    expect(page.locator("[data-ojs-part=history] td", has_text="job.completed")).to_be_visible()
    Job.objects.all().delete()
    page.evaluate("document.querySelector('[data-ojs-live]').dispatchEvent(new Event('ojs:changed'))")
    expect(page.locator("[data-ojs-status]")).to_contain_text("no longer exists")


@pytest.mark.wide
def test_the_usual_job_fits_one_screen(browse: Any) -> None:
    (job,) = dead(meta={"tenant": "acme"}, retry={"max_attempts": 3})
    page = followed(browse(f"{ADMIN}/job/{job.pk}/change/"))
    page.set_viewport_size({"width": 1440, "height": 960})
    assert page.evaluate("document.documentElement.scrollHeight") <= 960
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    named = page.locator(".ojs-carded td[data-label='Error']").evaluate(
        "cell => getComputedStyle(cell, '::before').content"
    )
    assert named == "none"  # an error names itself, and that of JavaScript would be "Error: Error: ..."


def test_lists_of_jobs_and_schedules_need_no_sideways_scrolling_at_1300(browse: Any) -> None:
    dead(2, type="warehouse.reserve_all_items", error={**FATAL, "message": "a long message of an error " * 5})
    pushed(type="warehouse.reserve_all_items", queue="a-long-name-of-queues")
    document = {
        "name": "reserve-items-at-night", "cron": "30 2 * * mon-fri", "timezone": "America/Argentina/Buenos_Aires",
        "type": "warehouse.reserve_all_items", "queue": "a-long-name-of-queues", "args": [],
    }  # fmt: skip
    schedules.register(document)
    schedules.register({**document, "name": "every-ten-seconds", "cron": "@every 10s"})
    for path in ("job/", "job/?state=dead_letter", "job/?state=available", "cronschedule/"):
        page = browse(f"{ADMIN}/{path}")
        page.set_viewport_size({"width": 1300, "height": 900})
        list_width, room = page.evaluate(
            "(list => [list.scrollWidth, list.clientWidth])(document.querySelector('#changelist .results'))"
        )
        assert list_width <= room, f"{path} is {list_width} wide in {room}"


@pytest.mark.wide
def test_five_hundred_dead_letters_are_retried_by_a_filter(browse: Any) -> None:
    dead(500)
    (other,) = dead(type="report.daily")
    page = browse(f"{LETTERS}?type=mail.*", stays=False)
    page.get_by_role("link", name="Retry all that fit").click()
    expect(page.locator("#content")).to_contain_text("500")
    page.locator("#content form[method=post] [type=submit]").click()
    page.wait_for_url(lambda url: "/all/" not in url)
    letters = followed(browse(LETTERS))
    expect(letters.locator("#ojs-newest tbody tr")).to_have_count(1)
    assert list(Job.objects.filter(state="discarded")) == [other]
    assert Job.objects.filter(state="available").count() == 500


@pytest.mark.wide
def test_the_banner_of_maintenance_mode_comes_and_goes_while_somebody_looks(browse: Any) -> None:
    (job,) = claimed()
    pages = [followed(browse(path)) for path in (OVERVIEW, LETTERS, f"{ADMIN}/job/{job.pk}/change/")]
    switch = browse(OVERVIEW, stays=False)
    switch.get_by_role("link", name="Maintenance mode…").click()
    switch.fill("#id_reason", "new disks")
    switch.fill("#id_lasting", "45m")
    switch.get_by_role("button", name="Switch it on").click()
    expect(switch.locator(".ojs-maintenance")).to_contain_text("It will take until about")
    fail_one(Failure(job.pk, FATAL))  # the next event brings it: the mode has none of its own
    for page in pages:
        expect(page.locator(".ojs-maintenance")).to_contain_text("new disks")
    pages[0].get_by_role("link", name="Change or end it").focus()
    switch.get_by_role("button", name="End maintenance mode").click()
    expect(switch.locator("ul.messagelist")).to_contain_text("jobs are delivered again")
    retry([job.pk])
    for page in pages:
        expect(page.locator(".ojs-maintenance")).to_have_count(0)


@pytest.mark.wide
def test_a_schedule_runs_now(browse: Any) -> None:
    schedules.register({"name": "nightly", "cron": "30 2 * * *", "type": "report.daily", "args": []})
    overview = followed(browse(OVERVIEW))
    page = browse(f"{ADMIN}/cronschedule/nightly/change/", stays=False)
    page.get_by_role("button", name="Run now").click()
    expect(page.locator(".messagelist")).to_contain_text("run")
    expect(overview.locator("#ojs-n-available")).to_have_text("1")
    assert Job.objects.get().type == "report.daily"


@pytest.mark.wide
@pytest.mark.parametrize(
    "status, says",
    [(403, "may not do this. Nothing was done."), (404, "does not exist any more"), (503, "See whether this was done")],
)
def test_a_button_that_the_server_refuses_says_so_in_words(browse: Any, status: int, says: str) -> None:
    browse.expected.append(str(status))
    (job,) = dead()
    page = browse(LETTERS)
    page.route("**/do/retry_dead_letters/", lambda route: route.fulfill(status=status))
    page.get_by_role("button", name=f"Retry job {job.pk}").click()
    expect(page.locator("[data-ojs-said] .error")).to_contain_text(says)
    page.unroute("**/do/retry_dead_letters/")
    page.get_by_role("button", name=f"Retry job {job.pk}").click()
    expect(page.locator("[data-ojs-said]")).to_have_text("1 job made available again.")


def test_a_double_click_is_one_act(browse: Any) -> None:
    schedules.register({"name": "nightly", "cron": "30 2 * * *", "type": "report.make", "args": []})
    page = browse(f"{ADMIN}/cronschedule/nightly/change/", stays=False)
    posts: list[str] = []
    page.on("request", lambda request: posts.append(request.url) if request.method == "POST" else None)
    page.get_by_role("button", name="Run now").hover()
    for count in (1, 2):
        page.mouse.down(click_count=count)
        page.mouse.up(click_count=count)
    expect(page.get_by_text("1 schedule run.")).to_be_visible()
    assert len(posts) == 1


@pytest.mark.wide
def test_a_button_pressed_again_while_the_server_takes_its_time_is_one_act(browse: Any) -> None:
    """As is a key that is held down, on a page that stays, too, where the next button stands in the same place."""
    schedules.register({"name": "nightly", "cron": "30 2 * * *", "type": "report.make", "args": []})
    page = browse(f"{ADMIN}/cronschedule/nightly/change/", stays=False)
    posts: list[Any] = []

    def hold(route: Any) -> None:
        posts.append(route)  # it is answered when the test says so

    page.route("**/do/run_schedules/", hold)
    button = page.get_by_role("button", name="Run now")
    place = button.bounding_box()
    page.evaluate("() => { let now = 0; performance.now = () => (now += 60000) }")  # a minute between two looks
    button.focus()
    for _ in range(3):
        page.keyboard.down("Enter")
    page.keyboard.up("Enter")
    page.mouse.click(place["x"] + 5, place["y"] + 5)
    while not posts:
        page.wait_for_timeout(10)  # Playwright calls `hold` from here
    posts[0].continue_()
    expect(page.get_by_text("1 schedule run.")).to_be_visible()
    assert len(posts) == 1
    assert Job.objects.count() == 1
    overview = browse(OVERVIEW)
    overview.on("request", lambda request: posts.append(request.url) if request.method == "POST" else None)
    overview.get_by_role("button", name="Pause default").focus()
    for _ in range(3):
        overview.keyboard.down("Enter")
        expect(overview.get_by_role("button", name="Resume default")).to_be_visible()
    assert len(posts) == 2


@pytest.mark.wide
def test_who_may_only_look_sees_what_another_does_and_has_no_button(browse: Any, operator: Any) -> None:
    browse.expected.append("403")
    jobs = dead(2)
    boss, looker = browse(LETTERS), followed(browse(LETTERS, operator("view_job")))
    expect(looker.locator("#ojs-newest tbody tr")).to_have_count(2)
    expect(looker.locator("#ojs-newest button")).to_have_count(0)
    expect(looker.get_by_role("link", name="Retry all")).to_have_count(0)
    boss.get_by_role("button", name=f"Retry job {jobs[0].pk}").click()
    expect(looker.locator("#ojs-newest tbody tr")).to_have_count(1)
    nobody = Client()
    nobody.force_login(get_user_model().objects.create_user("eve", is_staff=True))
    expect(browse(LETTERS, nobody).locator("h1")).to_have_text("403 Forbidden")


def test_without_a_websocket_a_page_polls_and_nothing_complains(browse: Any, settings: Any) -> None:
    settings.OJS = {"REALTIME_URL": ""}
    page = browse(OVERVIEW)
    expect(page.locator("[data-ojs-status]")).to_contain_text("every few seconds")
    pushed(2)
    expect(page.locator("#ojs-n-available")).to_have_text("2")


@pytest.mark.wide
def test_a_websocket_that_is_not_served_is_given_up_for_polling(browse: Any, settings: Any) -> None:
    settings.OJS = {"REALTIME_URL": "/nowhere"}
    browse.expected.append("/nowhere")
    page = browse(OVERVIEW)
    expect(page.locator("[data-ojs-status]")).to_contain_text("every few seconds")
    pushed(2)
    expect(page.locator("#ojs-n-available")).to_have_text("2")


@pytest.mark.wide
def test_live_events_are_asked_for_where_the_websocket_is_forbidden(browse: Any, settings: Any) -> None:
    settings.OJS = {"REALTIME_URL": "wss://events.example/ws"}
    browse.expected += ["policy", "WebSocket", "violates"]
    page = browse(f"{ADMIN}/event/tail/", stays=False)
    page.add_init_script("WebSocket = class { constructor(url) { self.asked = String(url); throw Error('no'); } }")
    page.reload()
    expect(page.locator("[data-ojs-follow]")).to_have_text("Live, updated every two seconds")
    pushed()
    expect(page.locator("[data-ojs-tail] tbody tr")).to_have_count(1)
    assert page.evaluate("self.asked") == "wss://events.example/ws"


def test_a_job_cannot_put_markup_into_a_picture(browse: Any) -> None:
    evil = "</title><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"
    steps = [{"type": "mail.send", "args": [], "name": evil}]
    flow = workflow.create({"type": "chain", "name": evil[:200], "steps": steps}).workflow
    flow.steps.update(step_id=evil, type=evil)
    dead(error={"type": evil[:200], "message": evil, "retryable": False})
    for path in (f"{ADMIN}/workflow/{flow.pk}/change/", OVERVIEW, LETTERS):
        page = followed(browse(path))
        assert page.evaluate("window.hacked") is None


def test_the_pages_work_without_javascript(admin_client: Client) -> None:
    """Buttons are forms: what the module does for them is only to stay on the page."""
    pushed(queue="mail")
    body = admin_client.get(OVERVIEW).content.decode()
    assert 'form="ojs-act"' in body
    assert '<form id="ojs-act" method="post"' in body


@pytest.mark.wide
def test_the_last_word_of_a_search_is_completed(browse: Any) -> None:
    page = browse(f"{ADMIN}/job/")
    words = "[...document.querySelector('#searchbar').list.options].map(option => option.value)"
    assert "state:retryable" in page.evaluate(words)
    page.locator("#searchbar").press_sequentially("state:retryable since:")
    assert "state:retryable since:1h" in page.evaluate(words)
    page.locator("#searchbar").fill("")
    assert "since:1h" in page.evaluate(words)


def test_a_part_within_a_part_follows_that_one(browser: Any, server: Any) -> None:
    """A row comes before another: the node of the other is that of the new row, and is not written over."""

    def table(*names: str) -> str:
        rows = "".join(f'<tr><td><i data-ojs-part="{name}-cell">{name}</i></td></tr>' for name in names)
        return f'<table data-ojs-part="list"><tbody>{rows}</tbody></table>'

    address = static("django_ojs/live.js")
    script = f'<script type="module" src="{address}"></script>'
    page = browser.new_context().new_page()
    page.set_default_timeout(PATIENCE)
    follow = '<div data-ojs-live="/again/" data-ojs-every="3600000"></div>'
    bodies = {"/page/": script + follow + table("first"), "/again/": table("second", "first")}
    for path in bodies:
        page.route(f"{server.url}{path}", lambda route: route.fulfill(
            content_type="text/html", body=bodies[route.request.url.removeprefix(server.url)]
        ))  # fmt: skip
    page.goto(f"{server.url}/page/")
    page.evaluate("document.querySelector('[data-ojs-live]').dispatchEvent(new Event('ojs:changed'))")
    expect(page.locator("td")).to_have_count(2)
    assert page.locator("td").all_inner_texts() == ["second", "first"]
    page.context.close()


def test_the_link_of_a_mail_decides_and_no_request_names_it(browse: Any, browser: Any, server: Any) -> None:
    """For somebody who is not logged in; a second link opens in the same window, and works without the script, too."""
    with override_settings(OJS={"APPROVAL_MAIL": {"site": server.url, "links": "7d"}}):
        user = get_user_model().objects.create_user("anna", password="x")
        first, second = (asked(f"Day {day}?", user) for day in (1, 2))
        requests: list[str] = []
        page = browser.new_context().new_page()
        page.set_default_timeout(PATIENCE)
        page.on("request", lambda request: requests.append(f"{request.url} {request.headers.get('referer', '')}"))
        for approval, title in ((first, "Day 1?"), (second, "Day 2?")):
            page.goto(f"{server.url}{ADMIN}/approval/approve/#{approvalmail.token(approval, user)}")
            expect(page.get_by_role("heading", name=title)).to_be_visible()
            assert page.url.endswith("/approve/")
        page.get_by_role("button", name="Approve").click()
        expect(page.get_by_text("Approved.")).to_be_visible()
        assert not [one for one in requests if approvalmail.token(first, user)[:50] in one or "#" in one]
        page.context.close()
        plain = browser.new_context(java_script_enabled=False).new_page()
        plain.goto(f"{server.url}{ADMIN}/approval/approve/")
        plain.get_by_label("The link of your mail").fill(
            f"{server.url}{ADMIN}/approval/approve/#{approvalmail.token(first, user)}"
        )
        plain.get_by_role("button", name="Continue").click()
        plain.get_by_role("button", name="Reject").click()
        expect(plain.get_by_text("Rejected.")).to_be_visible()
        plain.context.close()
    states = {one.title: one.state for one in Approval.objects.all()}
    assert states == {"Day 1?": "rejected", "Day 2?": "approved"}


@pytest.fixture
def ask() -> Iterator[Callable[[str], Approval]]:
    """Runs a durable job that asks the superuser this."""

    with registry.isolated(), worker() as jobs:

        @job("order.refund", durable=True)
        def refund(context: JobContext, title: str) -> None:
            context.wait_for_approval("refund", title=title, assignees=["user:admin"])

        def asks(title: str) -> Approval:
            refund.enqueue(title)
            jobs.drain()
            return Approval.objects.get(title=title)

        yield asks


def test_the_inbox_and_the_count_at_the_top_follow_what_is_asked_and_decided_elsewhere(
    browse: Any, ask: Callable[[str], Approval]
) -> None:
    """On the inbox, a page about no single object, a list whose rows stay, and the list of all approvals."""
    user = get_user_model().objects.get(username="admin")
    paths = (f"{ADMIN}/approval/?asks=me&state=open", OVERVIEW, f"{ADMIN}/job/", f"{ADMIN}/approval/")
    inbox, *others = (followed(browse(path)) for path in paths)
    counts = [page.locator(".ojs-nav a", has_text="Approvals").locator(".ojs-count") for page in (inbox, *others)]
    first = ask("Refund order 1?")
    for count in counts:
        expect(count).to_have_text("1")
    row = inbox.get_by_role("link", name="Refund order 1?")
    expect(row).to_be_visible()
    assert "asks%3Dme" in row.get_attribute("href"), "its page leads back to the list as it is filtered"
    expect(inbox.locator(".ojs-pages")).to_contain_text("1 approval")
    second = ask("Refund order 2?")
    expect(inbox.get_by_role("link", name="Refund order 2?")).to_be_visible()
    approvals.decide(first.pk, True, Decider.of(user))
    expect(row).to_have_count(0)
    for count in counts:
        expect(count).to_have_text("1")
    approvals.decide(second.pk, False, Decider.of(user))
    expect(inbox.locator("#result_list")).to_have_count(0)
    for count in counts:
        expect(count).to_have_count(0)
    expect(others[-1].locator("#result_list .ojs-discarded")).to_have_text("rejected")


def test_without_a_websocket_the_inbox_asks_every_few_seconds(
    browse: Any, ask: Callable[[str], Approval], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.OJS = {"REALTIME_URL": ""}
    monkeypatch.setattr(live, "PAGE_POLLING", 0.2)
    page = browse(f"{ADMIN}/approval/?asks=me&state=open")
    expect(page.locator("[data-ojs-status][data-state=polling]")).to_be_visible()
    approval = ask("Refund order 1?")
    row = page.get_by_role("link", name="Refund order 1?")
    expect(row).to_be_visible()
    expect(page.locator(".ojs-nav .ojs-count")).to_have_text("1")
    approvals.decide(approval.pk, True, Decider.of(get_user_model().objects.get(username="admin")))
    expect(row).to_have_count(0)
    expect(page.locator(".ojs-nav .ojs-count")).to_have_count(0)


def asked(title: str, user: Any) -> Approval:
    """An approval that asks this user."""
    pk = world.asked(str(pushed()[0].pk), "default", "mail.send", title)
    found = Approval.objects.get(pk=pk)
    found.assignees.create(kind="user", key=str(user.pk), name=user.get_username())
    return found
