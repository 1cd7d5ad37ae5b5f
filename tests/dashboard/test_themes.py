"""Our pages are whole wherever Django's admin has other templates: in its own versions, and under themes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from django.contrib.admin.sites import site
from django.test import Client

from tests.dashboard.everything import fill, pages

ROOT = Path(__file__).resolve().parents[2]
VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}


class Outline(HTMLParser):
    """What is in what: for each element its path of `tag.class#id`."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.paths: list[list[str]] = []
        self._open: list[tuple[str, str]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        classes = "".join(f".{name}" for name in (given.get("class") or "").split())
        self._open.append((tag, f"{tag}{classes}#{given.get('id') or ''}"))
        self.paths.append([found for _tag, found in self._open])
        if tag in VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        while any(found == tag for found, _path in self._open):
            if self._open.pop()[0] == tag:
                break

    def within(self, name: str) -> list[list[str]]:
        """The paths to elements that have this class."""
        return [path for path in self.paths if f".{name}." in path[-1].replace("#", ".")]

    def place(self, name: str) -> int:
        """The place of the first element with this tag or class, -1 for none."""
        for number, path in enumerate(self.paths):
            if path[-1].startswith((f"{name}.", f"{name}#")) or f".{name}." in path[-1].replace("#", "."):
                return number
        return -1


def check_forms(page: str, outline: Outline) -> None:
    """A browser drops a form that is in another, and ends the outer one with it."""
    for path in outline.paths:
        assert sum(part.startswith(("form.", "form#")) for part in path) < 2, (page, path)


@pytest.mark.once
@pytest.mark.slow
@pytest.mark.django_db
def test_tabs_verbs_and_trail_stand_where_no_version_of_django_moves_them(admin_client: Client, settings: Any) -> None:
    settings.OJS = {"OUTBOX": "default"}
    fill()
    for page in pages(site):
        response = admin_client.get(page)
        assert response.status_code == 200, page
        html = response.content.decode()
        outline = Outline(html)
        check_forms(page, outline)
        assert 0 < outline.place("ojs-nav") < outline.place("h1"), page
        for name in ("ojs-nav", "ojs-verbs", "ojs-live"):
            for path in outline.within(name):
                assert not [part for part in path if "titles-and-tools" in part or "object-tools" in part], (page, path)
        ours = any(template.name == "django_ojs/admin/page.html" for template in response.templates)
        assert ('<ol class="breadcrumbs ojs-trail">' in html) == ours, page
        assert not ours or '<div class="breadcrumbs">' not in html, page


def under(theme: str, folder: Path) -> Iterable[dict[str, Any]]:
    file = folder / "pages.json"
    environment = {**os.environ, "OJS_TEST_DATABASE_URL": f"sqlite:///{folder / 'themed.sqlite3'}"}
    command = [sys.executable, "-m", "tests.dashboard.themed", theme, str(file)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found: list[dict[str, Any]] = json.loads(file.read_text())
    return found


@pytest.mark.wide
@pytest.mark.parametrize("theme", ["unfold", "jazzmin"])
def test_every_page_has_its_tabs_and_maintenance_mode_under_a_theme(theme: str, tmp_path: Path) -> None:
    if find_spec(theme) is None:
        pytest.skip(f"needs the theme: pip install django-{theme}")
    for found in under(theme, tmp_path):
        page, html = found["page"], found["html"]
        assert found["status"] == 200, page
        outline = Outline(html)
        check_forms(page, outline)
        assert outline.place("ojs-nav") > 0, page
        assert 'href="/admin/django_ojs/job/dead-letters/"' in html, page
        assert "django_ojs/admin.css" in html, page
        assert (outline.place("ojs-maintenance") > 0) == found["is_on"], page
        if page == "/admin/django_ojs/job/overview/":
            assert outline.within("ojs-tools"), page
            assert 'href="/admin/django_ojs/job/maintenance/"' in html, page
        if page.endswith("/change/") and "/job/" in page:
            assert outline.within("ojs-verbs"), page
