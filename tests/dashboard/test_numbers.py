"""Numbers that programs read (attributes, scripts, styles) are written as programs read them, whatever the language,
and those of things that people read have separators of thousands."""

from __future__ import annotations

import ast
import re
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
from django_ojs.models import BulkAction, CronSchedule, Job, ReplayRule, Worker
from django_ojs.statistics import summary
from tests.admin.conftest import url
from tests.dashboard.everything import fill, pages
from tests.sources import PACKAGE, nodes, trees

pytestmark = pytest.mark.once
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


@pytest.mark.wide
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


@pytest.mark.wide
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


# What people read

_PLURAL = re.compile(r"{%\s*blocktranslate\s([^%]*?)%}(.*?){%\s*endblocktranslate", re.DOTALL)


def test_every_number_of_things_in_a_template_has_separators() -> None:
    """A text with a plural shows what the filter made of its number, and never the number itself."""
    seen, wrong = 0, []
    for file in (PACKAGE / "templates").rglob("*.html"):
        for head, body in _PLURAL.findall(file.read_text()):
            for name in re.findall(r"\bcount\s+(\w+)=", head):
                seen += 1
                if re.search(rf"{{{{\s*{name}\s*}}}}", body):
                    wrong.append(f"{file.name}: {body[:80]}")
    assert seen > 10
    assert wrong == []


def test_every_number_of_things_in_a_message_has_separators() -> None:
    """`ngettext(one, many, number) % {"number": f"{number:,}"}`: never the number as it is."""
    seen, wrong = 0, []
    for path in trees():
        for node in nodes(path):
            if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and isinstance(node.right, ast.Dict)):
                continue
            plural = [ast.unparse(each) for each in getattr(node.left, "args", ())][2:]
            seen += len(plural)
            values = [ast.unparse(value) for value in node.right.values]
            wrong += [f"{path}:{node.lineno} {value}" for value in values if value in plural]
    assert seen > 5
    assert wrong == []


@pytest.mark.wide
def test_large_counts_of_lists_and_pages_have_separators(admin_client: Client, db: None) -> None:
    fill()
    number = 1_234_567
    Worker.objects.update(jobs_completed=number, concurrency=number)
    CronSchedule.objects.update(run_count=number)
    rule: dict[str, Any] = {"filter": {}, "delay_ms": 1, "max_replays": number, "per_minute": number}
    ReplayRule.objects.create(name="nightly", created_at=now(), updated_at=now(), **rule)
    for page in (
        url("worker"), url("worker", "change", "w-1"), url("cronschedule"), url("cronschedule", "change", "nightly"),
        url("replayrule"), reverse("admin:django_ojs_overview"),
    ):  # fmt: skip
        read_by_people = re.sub(r"<[^>]*>", " ", admin_client.get(page).content.decode())
        assert "1,234,567" in read_by_people, page
        assert str(number) not in read_by_people, page
