"""Numbers that programs read (attributes, scripts, styles) are written as programs read them, whatever the language."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest
from django.contrib.admin.sites import site
from django.template import base
from django.test import Client
from django.urls import reverse
from django.utils import formats

from django_ojs.clock import now
from django_ojs.models import BulkAction, Job
from django_ojs.statistics import summary
from tests.dashboard.everything import fill, pages

pytestmark = [pytest.mark.once, pytest.mark.slow]
#: Attributes that people read: a number in them is written as their language does.
FOR_PEOPLE = {"title", "alt", "placeholder"}
#: Attributes of ours that are numbers or lists of them and nothing else.
NUMBERS = {"max", "min", "maxlength", "size", "rows", "cols", "x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "r", "rx",
           "width", "height", "data-actions-icnt", "colspan", "tabindex"}  # fmt: skip
MARK = "⟦"


class Programs(HTMLParser):
    """What programs read of a page: its attributes, and the text of scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str, str]] = []
        self._inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag if tag in ("script", "style") else ""
        for name, value in attrs:
            its_own = (tag, name) == ("button", "value") or str(value).startswith("fieldset-")  # of Django, and small
            if name not in FOR_PEOPLE and not name.startswith("aria-") and value is not None and not its_own:
                self.found.append((tag, name, value))

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.found.append((self._inside, "", data))


def read(page: str) -> list[tuple[str, str, str]]:
    programs = Programs()
    programs.feed(page)
    return programs.found


@pytest.fixture
def large(db: None, settings: Any) -> Iterator[None]:
    """Something on every page, with large numbers, for a viewer whose language groups digits."""
    fill()
    BulkAction.objects.create(
        pk=1_234_567, verb="retry", filter={"states": ["discarded"]}, expected=1_500_000, matched=1_500,
        per_minute=120_000, created_at=now(),
    )  # fmt: skip
    Job.objects.update(priority=-32_000)
    settings.OJS = {"OUTBOX": "default"}
    settings.LANGUAGE_CODE, settings.USE_THOUSAND_SEPARATOR = "de", True
    summary.forget()
    yield
    summary.forget()


def addresses() -> list[str]:
    workflows = [page for page in pages(site) if "/workflow/" in page and page.endswith("/change/")]
    ready = [f"{page}?view=time" for page in workflows]
    dead = reverse("admin:django_ojs_dead_letters")
    several = reverse("admin:django_ojs_dead_letters_all", args=["retry_dead_letters"])
    edits = [
        reverse("admin:django_ojs_job_edit", args=[pk])
        for pk in Job.objects.filter(state="discarded", dead_letter=True).values_list("pk", flat=True)[:1]
    ]
    tails = [reverse(f"admin:django_ojs_event_tail{more}") for more in ("", "_more")]
    return [*pages(site), *ready, dead, several, *edits, *tails, reverse("admin:django_ojs_overview")]


def test_no_attribute_script_or_style_has_a_number_as_people_write_it(
    admin_client: Client, large: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every number that a template writes is marked, small ones too."""

    def localize(value: Any, use_l10n: bool | None = None) -> Any:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return f"{MARK}{value}" if is_number and use_l10n is not False else formats.localize(value, use_l10n)

    monkeypatch.setattr(base, "localize", localize)
    wrong, seen = set(), 0
    for page in addresses():
        answer = admin_client.get(page)
        assert answer.status_code == 200, page
        body = answer.content.decode()
        seen += body.count(MARK)
        wrong |= {found for found in read(body) if MARK in found[2]}
    assert seen > 20, "else nothing is marked"
    assert sorted(wrong) == []


def test_an_attribute_that_is_a_number_can_be_read_as_one(admin_client: Client, large: None) -> None:
    wrong = set()
    for page in addresses():
        for tag, name, value in read(admin_client.get(page).content.decode()):
            if name in NUMBERS or (tag == "progress" and name == "value"):
                try:
                    float(value.removesuffix("%").removesuffix("rem"))
                except ValueError:
                    wrong.add((tag, name, value))
    assert sorted(wrong) == []
