"""The page of the admin lists each filter by hand; docs/reference/filters.md is made from the declaration."""

from __future__ import annotations

import re

from django.conf import settings

from django_ojs.jobs.filterfields import PAGE
from django_ojs.jobs.selection import shown_in

_SPAN = re.compile(r"`([^`]+)`")


def paragraph(page: str, words: str) -> str:
    """The paragraph of a page that has these words."""
    text = (settings.BASE_DIR / "docs" / page).read_text(encoding="utf-8")
    (found,) = (part for part in text.split("\n\n") if words in part)
    return found


def test_the_page_of_the_admin_has_every_filter_of_its_list() -> None:
    table = paragraph("dashboard.md", "| parameter | finds |")
    told = {name for row in table.splitlines()[2:] for name in _SPAN.findall(row.split("|")[1])}
    assert told == set(shown_in(PAGE))
