"""Every parameter of every page of the dashboard, every field of its forms and every id in its addresses is hostile in
its turn: no 500, and what a form refuses changes nothing.

The pages come from the admin's own URLs, the parameters from what Django and the pages ask for, the fields from the
forms that the pages show.
"""

from __future__ import annotations

import html.parser
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from django.contrib.admin.views import main
from django.contrib.auth import get_user_model
from django.http import HttpResponse
from django.test import Client

from django_ojs.models import (
    Approval,
    CronSchedule,
    DurableEvent,
    Event,
    Job,
    JobCheckpoint,
    JobLog,
    JobStep,
    OutboxEntry,
    WebhookSubscription,
    Worker,
)
from tests.hostile.places import Asked, quoted
from tests.hostile.values import WORDS
from tests.hostile.walking import FULL, Writes, report, some
from tests.rights.conftest import closed, world
from tests.rights.test_pages import addresses, furnish
from tests.rights.world import World

__all__ = ["closed", "world"]
pytestmark = [pytest.mark.slow, pytest.mark.once, pytest.mark.django_db]
#: So many tests share the pages.
PARTS = 4
MANY = 8 if FULL else 1
HALF = "\ud800\0é\n"
#: What the lists and the popups of Django take, and lookups that nobody has allowed.
DJANGOS = (
    main.ORDER_VAR, main.PAGE_VAR, main.SEARCH_VAR, main.ALL_VAR, main.ERROR_FLAG, "_to_field", "_popup",
    "_changelist_filters", "id__in", "pk", "state__exact", "queue__regex", "created_at__gte", "no_such_field",
)  # fmt: skip
OF_LISTS = {"action": "", "select_across": "0", "index": "0", "_selected_action": "1"}
#: Forms of Django's own that stand on every page.
NOT_OURS = ("logout", "setlang", "i18n")


class Forms(html.parser.HTMLParser):
    """The forms of a page that post: where they lead, and their fields with what they hold."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self._open, self._select = False, ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        name = given.get("name", "")
        if tag == "form":
            self._open = given.get("method", "").lower() == "post"
            if self._open:
                self.found.append((given.get("action", ""), {}))
        elif self._open and tag == "option" and self._select and "selected" in given:
            self.found[-1][1][self._select] = given.get("value", "")
        elif self._open and name and tag in ("input", "textarea", "button", "select"):
            self.found[-1][1].setdefault(name, given.get("value", ""))
            self._select = name if tag == "select" else self._select

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._open = False
        elif tag == "select":
            self._select = ""


class Browser:
    """A superuser's browser."""

    def __init__(self) -> None:
        self.client = Client()
        self.client.force_login(get_user_model().objects.create_superuser("root", password="x"))
        self.writes = Writes()

    def get(self, label: str, to: str, query: Mapping[str, str]) -> Iterator[str]:
        text = "&".join(f"{name}={quoted(value)}" for name, value in query.items())
        return self._do(f"GET {label} {query!r:.200}", lambda: self.client.get(f"{to}?{text}" if text else to))

    def post(self, label: str, to: str, fields: Mapping[str, str]) -> Iterator[str]:
        data = {name: value.encode("utf-8", "replace").decode() for name, value in fields.items()}
        return self._do(f"POST {label} {fields!r:.200}", lambda: self.client.post(to, data))

    def _do(self, label: str, act: Any) -> Iterator[str]:
        def failed(answer: HttpResponse) -> bool:
            return answer.status_code >= 400

        try:
            response, changed = self.writes.during(act, failed)
        except Exception as error:
            raise AssertionError(f"{label}: {error!r}") from error
        if response.status_code not in (200, 302, 400, 403, 404, 405, 409):
            yield f"{label}: {response.status_code}"
        if changed:
            yield f"{label}: {response.status_code}, and half of a change"


def asked(browser: Browser, to: str) -> tuple[list[str], list[tuple[str, dict[str, str]]]]:
    """The parameters that a page asks its query for, and its forms."""
    with Asked() as noted:
        response: Any = browser.client.get(to)
    names = {place.names[0] for place in noted.places if place.kind == "query"}
    shown = (getattr(response, "context_data", None) or {}).get("cl")
    for spec in getattr(shown, "filter_specs", ()):
        names |= set(spec.expected_parameters())
    names |= set(DJANGOS) if shown is not None else set()
    forms = Forms(response.content.decode()).found if response.status_code == 200 else []
    forms = [(to if action in ("", ".") or action.startswith("?") else action, fields) for action, fields in forms]
    listed = {**OF_LISTS} if shown is not None else {}
    return sorted(names), [(action, {**listed, **fields}) for action, fields in forms
                           if not any(part in action for part in NOT_OURS)]  # fmt: skip


def together(browser: Browser, name: str, to: str) -> Iterator[str]:
    """All parameters of a page at once, and all fields of each of its forms."""
    parameters, forms = asked(browser, to)
    for round_ in range(2):
        words = some(WORDS, len(WORDS), name, round_)
        yield from browser.get(name, to, dict(zip(parameters, words, strict=False)))
        for action, fields in forms:
            yield from browser.post(name, action, dict(zip(fields, words, strict=False)))


def each(browser: Browser, name: str, to: str, count: int) -> Iterator[str]:
    """Each of them by itself, the others being as they are on the page."""
    parameters, forms = asked(browser, to)
    for parameter in parameters:
        for word in some(WORDS, count, name, parameter):
            yield from browser.get(name, to, {parameter: word})
    for action, fields in forms:
        for field in fields:
            for word in {"9" * 5000, *some(WORDS, count, name, field, "form")}:
                yield from browser.post(name, action, {**fields, field: word})
    parts = to.strip("/").split("/")
    for place, part in enumerate(parts):
        if any(char.isdigit() for char in part):  # an id
            for word in some([word for word in WORDS if word], count, name, place):
                there = "/".join([*parts[:place], quoted(word), *parts[place + 1 :]])
                yield from browser.get(name, f"/{there}/", {})


@pytest.fixture
def pages(world: World, settings: Any) -> list[tuple[str, str]]:
    furnish(settings)
    return list(addresses(world))


@pytest.mark.parametrize("part", range(PARTS))
def test_no_page_breaks(part: int, pages: list[tuple[str, str]]) -> None:
    browser = Browser()
    wrong = [fault for name, to in pages[part::PARTS] for fault in together(browser, name, to)]
    assert not wrong, report(wrong)


@pytest.mark.wide
@pytest.mark.parametrize("part", range(PARTS))
def test_no_value_breaks_a_page(part: int, pages: list[tuple[str, str]]) -> None:
    browser = Browser()
    wrong = [fault for name, to in pages[part::PARTS] for fault in each(browser, name, to, MANY)]
    assert not wrong, report(wrong)


def spoilt(value: Any) -> Any:
    """A JSON value as a client may have made it: half of a surrogate pair, a NUL and a line in each text and name."""
    if isinstance(value, dict):
        return {spoilt(name): spoilt(one) for name, one in value.items()} | {HALF: [HALF]}
    return [*map(spoilt, value), HALF] if isinstance(value, list) else f"{value}{HALF}"


def spoilt_error(error: Any) -> Any:
    return {**error, "type": HALF, "message": HALF, "details": {HALF: HALF}, "backtrace": [HALF]}


def test_what_clients_have_stored_breaks_no_page(pages: list[tuple[str, str]]) -> None:
    columns: dict[Any, Sequence[str]] = {
        Job: ("args", "meta", "result"), JobStep: ("result", "error"), JobCheckpoint: ("state",), JobLog: ("fields",),
        DurableEvent: ("payload",), Approval: ("details", "data"), Worker: ("labels",), CronSchedule: (),
        WebhookSubscription: ("metadata",), OutboxEntry: ("document",),
    }  # fmt: skip
    for model, names in columns.items():
        for row in model.objects.all():
            for name in names:
                if getattr(row, name) is not None:
                    setattr(row, name, spoilt(getattr(row, name)))
            if isinstance(row, Job):
                row.errors = [spoilt_error(error) for error in row.errors or [{}]]
                row.extra = {**(row.extra or {}), "tags": [HALF], f"x_{HALF}": HALF}
            if isinstance(row, CronSchedule):
                row.template |= {"args": [HALF], "meta": {HALF: HALF}, "tags": [HALF]}
            row.save()
    for event in Event.objects.all():
        Event.objects.filter(pk=event.pk).update(data={**(event.data or {}), "reason": HALF, "error": spoilt_error({})})
    browser, wrong = Browser(), []
    for name, to in pages:
        try:
            browser.client.get(to)
        except Exception as error:  # noqa: BLE001 - all of them are told
            wrong.append(f"{name}: {error!r}")
    assert not wrong, report(wrong)


def test_a_rate_of_thousands_of_digits_is_refused_as_any_other(pages: list[tuple[str, str]]) -> None:
    browser = Browser()
    to = dict(pages)["dead_letters_all"]
    answer = browser.client.post(to, {"until": "2099-01-01T00:00:00Z", "per_minute": "9" * 5000}, follow=True)
    assert answer.status_code == 200
    assert "In a minute at most" in answer.content.decode()
