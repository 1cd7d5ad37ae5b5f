"""Every page of the admin as axe sees it: light and dark, on a wide screen and on a phone, under a strict policy."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.admin.sites import site
from django.contrib.admin.utils import quote
from django.test import Client

from django_ojs import JobContext, audit, clock, job, keys
from django_ojs.cron.schedules import register as register_cron
from django_ojs.jobs import bulk
from django_ojs.jobs.fetch import Fetch, fetch
from django_ojs.jobs.finish import Ack, Failure, ack, fail
from django_ojs.models import (
    Alert,
    APIKey,
    Approval,
    BulkAction,
    Event,
    Job,
    JobStep,
    OutboxEntry,
    WebhookDelivery,
    WebhookSubscription,
    Workflow,
)
from django_ojs.queues import maintenance
from django_ojs.queues.configuration import configure, pause
from django_ojs.registry import registry
from django_ojs.rules import cron
from django_ojs.testing import worker
from django_ojs.webhooks import subscriptions
from django_ojs.workerregistry.registration import register
from django_ojs.workflows import workflow
from tests.admin.conftest import dead, one_in_each_state, pushed, url
from tests.dashboard.test_browser import CHROMIUM, LETTERS, OVERVIEW, PATIENCE, strict, sync_api

axe = pytest.importorskip(
    "axe_playwright_python.sync_playwright", reason="needs axe: pip install axe-playwright-python"
)
pytestmark = [
    pytest.mark.wide,
    pytest.mark.sqlite,  # pages look the same on every database
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(not CHROMIUM, reason="needs Chromium: install it, or name it in CHROMIUM"),
]

OURS = [model for model in site._registry if model._meta.app_label == "django_ojs"]
WIDE, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
#: Runs in the page: what axe found that is grave, a line each. `runOnly` empty: every rule that axe has.
RUN = """async ([runOnly, where]) => {
  document.getAnimations().forEach(one => one.cancel());  // colours that fade over from theme to theme
  const options = {resultTypes: ["violations"], ...(runOnly.length ? {runOnly} : {})};
  const found = (await axe.run(document, options)).violations;
  return found.filter(one => ["serious", "critical"].includes(one.impact)).flatMap(one => one.nodes.map(
    node => `${where}: ${one.impact}, ${one.id}, ${node.target}: ${node.html.slice(0, 200)} ${node.failureSummary}`));
}"""
#: What the theme decides; everything else is the same in light and dark.
COLOURS = ["color-contrast", "link-in-text-block"]
#: What a narrow screen may change beside them.
NARROW = ["scrollable-region-focusable", "link-name", "button-name", "label", "aria-hidden-focus", *COLOURS]
LOOKS = ((WIDE, "light", []), (WIDE, "dark", COLOURS), (PHONE, "light", NARROW), (PHONE, "dark", COLOURS))


@pytest.fixture
def full(settings: Any) -> None:
    """Something on every page: an object of each kind, and of jobs one in each state."""
    settings.OJS = {"OUTBOX": "default", "ALLOW_ANONYMOUS": True}
    with registry.isolated():
        long()
    one_in_each_state()
    dead(2, error={"type": "TimeoutError", "message": "no answer from mail.example within 30 seconds"})
    pushed(5, queue="mail", tags=["nightly"], meta={"tenant": "acme"})
    pause("mail", by="ann")
    maintenance.start(reason="new disks", lasting=dt.timedelta(hours=1), by="user:ann")
    register("w-1", {"queues": ["claims"], "hostname": "box", "labels": {"zone": "eu"}, "job_types": ["mail.send"]})
    keys.create("limited", ["push"], queues=["mail"], job_types=["mail.*"])
    steps: list[dict[str, Any]] = [{"type": "mail.send", "args": []}, {"type": "report.daily", "args": []}]
    workflow.create({"type": "chain", "name": "nightly", "steps": steps})
    now = clock.now()
    register_cron(cron.parse({"name": "tidy-up", "cron": "@daily", "job_template": {"type": "tidy.up"}}, now=now))
    audit.append([audit.Act("user:ann", "queue.pause", "mail", {"reason": "the printer is on fire"})], "default")
    OutboxEntry.objects.create(
        target_id=Job.objects.all()[0].pk, type="mail.send", document={"type": "mail.send", "args": ["a@example.com"]},
        created_at=now, aside=True, error="This queue is full.",
    )  # fmt: skip
    hook, _secret = subscriptions.create(
        subscriptions.read_definition(
            {"url": "https://example.com/hook", "events": ["job.*"], "secret": "a-secret-for-tests"}
        )
    )
    told: dict[str, Any] = {
        "filter": {"type": "mail.*"}, "override": {"queue": "mail"}, "errors": [{"job_id": "x", "error": "No room."}],
        "verb": "retry", "actor": "user:ann", "created_at": now, "expected": 1200, "matched": 500, "succeeded": 499,
    }  # fmt: skip
    for state in BulkAction.State:
        ended = None if state == BulkAction.State.RUNNING else now
        BulkAction.objects.create(state=state, finished_at=ended, **told)
    Event.objects.filter(pk__lt=Event.objects.order_by("-pk")[8].pk).delete()  # a list looks the same with few rows
    WebhookDelivery.objects.create(
        subscription=hook, event_id="evt_1", event_type="job.failed", subject="job:1", body="{}", max_attempts=5,
        attempt_count=1, attempts=[{"at": "2026-01-01T00:00:00Z"}], status="dead", response_status=500,
        response_body="Sorry", error="The receiver answered 500.", created_at=now - dt.timedelta(minutes=1),
    )  # fmt: skip


def long() -> None:
    """What is long where it stands: durable jobs with steps and logs (one waits for an event, one asks somebody, one
    has failed), a workflow with attempts, an alert, the purge of the history."""

    @job("warehouse.reserve_all_items", durable=True, retry={"max_attempts": 1})
    def reserve(context: JobContext, order: int) -> None:
        context.step("look up the order in the warehouse", lambda: {"order": order, "items": list(range(30))})
        context.log.warning("The order has a name without a blank: %s", "x" * 120)
        if order == 1:
            context.wait_for_event("parcel.arrived-in-the-warehouse", key="01a22517-39cf-7dec-8a09-7ec639d71d33")
        if order == 2:
            context.wait_for_approval("refund", title="Refund 10 € of " + "order" * 20, details={"order": "x" * 90})
        context.step("charge", lambda: 1 / 0)

    with worker() as jobs:
        for order in (1, 2, 3):
            reserve.enqueue(order)
        jobs.drain()
    steps = [{"type": f"warehouse.reserve_all_items{number}", "args": [], "queue": "flow"} for number in (1, 2)]
    workflow.create({"type": "group", "name": "a workflow with jobs that ran", "jobs": steps})
    first, second = fetch(Fetch(["flow"], count=2, worker_id="a-worker-with-a-long-name-on-host-17:4242"))
    ack([Ack(first["id"])])
    fail([Failure(second["id"], {"type": "ConnectionRefusedError", "message": "no answer " * 20})])
    configure("a-queue-with-a-name-that-is-long-and-has-no-blank" + "-x" * 30, {})
    now = clock.now()
    Alert.objects.create(
        key="a", kind="queue-paused", about="a-queue-with-a-long-name", says="It is paused. " * 9, mend="Resume it.",
        raised_at=now, seen_at=now,
    )  # fmt: skip
    BulkAction.objects.create(
        verb=bulk.PURGE_HISTORY, filter={"before": now.isoformat()}, actor="user:ann", created_at=now, expected=250_000,
        state=BulkAction.State.RUNNING, matched=100_000, succeeded=100_000,
    )  # fmt: skip


def pages(client: Client) -> list[str]:
    """Everything that the admin has of ours. A list that is registered tomorrow is among it."""
    everything = f"{LETTERS}all/retry_dead_letters/"
    found = [OVERVIEW, LETTERS, everything, "/admin/django_ojs/", f"{url('job')}maintenance/", f"{url('job')}doctor/"]
    for model in OURS:
        name = str(model._meta.model_name)
        found.append(url(name))
        if client.get(url(name, "add")).status_code == 200:
            found.append(url(name, "add"))
        if (first := model._default_manager.first()) is not None:
            found.append(url(name, "change", quote(first.pk)))
    letter = Job.objects.filter(state="discarded")[0]
    found += [url("job", "change", letter.pk), url("job", "verb", letter.pk, "delete_dead_letters")]
    found += [url("job", "edit", letter.pk), url("event", "tail"), f"{url('event', 'tail')}?detail=full"]
    found += [url("bulkaction", "change", action.pk) for action in BulkAction.objects.order_by("pk")[1:]]
    found += [url("queue", "verb", "default", "pause_queues"), url("queue", "change", "_default")]
    for step in JobStep.objects.filter(name__contains="$"):
        found.append(url("job", "change", step.job_id))
        if Approval.objects.filter(job_id=step.job_id).exists():
            continue
        found += [f"{url('job', page, step.job_id)}?step={step.name}" for page in ("give", "restart")]
    found += [url("job", "change", Job.objects.get(type="warehouse.reserve_all_items", state="discarded").pk)]
    asked = Approval.objects.get()
    found += [url("approval", "decide", asked.pk), url("approval", "history", asked.pk)]
    found += [url("workflow", "change", Workflow.objects.get(type="group").pk)]
    found += [f"{url('job')}?state={state}" for state in ("active", "retryable", "discarded", "dead_letter")]
    return [
        *found,
        f"{LETTERS}group/?type=mail.send&error=TimeoutError",
        f"{url('job')}?q=nonsense",
        url("queue", "history", "mail"),
        url("apikey", "delete", APIKey.objects.get().pk),
    ]


@pytest.fixture
def open_page(
    live_server: Any, admin_client: Client, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], Any]]:
    """Opens an address in the one tab of one browser, which is logged in."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")  # Playwright runs a loop of its own in this thread
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, f"{strict.__module__}.strict"]
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        context = browser.new_context()
        context.set_default_timeout(PATIENCE)
        # The live parts rest as they do in a hidden tab: what axe looks at stays.
        context.add_init_script(axe.Axe().axe_script)
        context.add_init_script("Object.defineProperty(document, 'hidden', {value: true})")
        cookie = admin_client.cookies[settings.SESSION_COOKIE_NAME]
        context.add_cookies([{"name": cookie.key, "value": cookie.value, "url": live_server.url}])
        page = context.new_page()

        def go(path: str) -> Any:
            answer = page.goto(f"{live_server.url}{path}")
            assert (answer.status, answer.request.redirected_from) == (200, None), path
            return page

        yield go
        browser.close()


def looked_at(page: Any, name: str) -> list[str]:
    """What is wrong with the page on either screen and in either theme: for axe, or because it has to be panned."""
    found = []
    for viewport, scheme, rules in LOOKS:
        page.set_viewport_size(viewport)
        page.emulate_media(color_scheme=scheme)
        found += page.evaluate(RUN, [rules, f"{name} at {viewport['width']} in {scheme}"])
        if (width := page.evaluate("document.documentElement.scrollWidth")) > viewport["width"]:
            found.append(f"{name} is {width} wide at {viewport['width']}")
    return found


#: Runs in the page: what makes it, or a table on it, wider than the room it has. Pictures may be.
TOO_WIDE = """() => [document.scrollingElement,
                  ...document.querySelectorAll(".results, .ojs-wide:not(.ojs-canvas)")].flatMap(
  one => one.scrollWidth > one.clientWidth ? [`${one.id || one.ariaLabel || one.className || one.localName}: `
    + `${one.scrollWidth} in ${one.clientWidth}`] : [])"""


#: Runs in the page: the words in headings of columns that do not stand on one line.
BROKEN = """() => [...document.querySelectorAll("thead th")].flatMap(heading => {
  const texts = document.createTreeWalker(heading, NodeFilter.SHOW_TEXT), range = document.createRange(), found = [];
  for (let text; (text = texts.nextNode());)
    for (const word of text.data.matchAll(/[^\\s-]+/g)) {
      range.setStart(text, word.index);
      range.setEnd(text, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map(box => Math.round(box.top))).size > 1) found.push(word[0]);
    }
  return found;
})"""


@pytest.mark.parametrize("language", ["en", "de", "ja"])
def test_no_page_or_list_has_to_be_panned(
    full: None, admin_client: Client, open_page: Any, settings: Any, language: str
) -> None:
    """Neither on a phone nor beside the navigation and the filters of a small screen."""
    settings.LANGUAGE_CODE = language
    found = []
    for path in pages(admin_client):
        page = open_page(path)
        for width in (320, 390, 1300, 1440):  # 320: a screen of 1280 at 400 %
            page.set_viewport_size({"width": width, "height": 844})
            found += [f"{path} at {width}: {one}" for one in page.evaluate(TOO_WIDE)]
        if language != "ja":  # which has no spaces
            found += [f"{path} at 1440: {one} is broken" for one in page.evaluate(BROKEN)]
    assert not found, "\n".join(found)


def test_axe_finds_nothing_serious_on_any_page(full: None, admin_client: Client, open_page: Any) -> None:
    found: list[str] = []
    for path in pages(admin_client):
        found += looked_at(open_page(path), path)
    page = open_page(url("apikey", "add"))
    page.fill("#id_name", "new")
    page.check("#id_scopes input[value=read]")
    page.click("[name=_save]")
    page.locator(".ojs-secret").wait_for()
    found += looked_at(page, "the page that shows a new key")
    page = open_page(url("webhooksubscription", "verb", WebhookSubscription.objects.get().pk, "rotate_secret"))
    page.click("#content [type=submit]")
    page.locator(".ojs-secret").wait_for()
    found += looked_at(page, "the page that shows a new secret")
    page = open_page(OVERVIEW)
    page.locator(".ojs-nav summary").click()
    found += looked_at(page, "the navigation folded out")
    maintenance.stop()
    page = open_page(f"{url('job')}maintenance/")
    page.fill("#id_lasting", "soon")
    page.click(".submit-row [type=submit]")
    page.locator(".errornote").wait_for()
    found += looked_at(page, "the switch of maintenance mode with an error")
    assert not found, "\n".join(found)
