"""Links between pages lead somewhere, on a forge and in the built documentation."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.docs.pages import DOCS, FILES, PAGES, PICTURES, ROOT, anchors, links, name

pytestmark = pytest.mark.sqlite  # no database is asked


def broken(page: Path, link: str) -> str:
    """What is wrong with a link, "" if nothing is."""
    if link.startswith(PICTURES):
        path = link.removeprefix(PICTURES)
        return "" if (ROOT / path).is_file() else f"{path} is not there"
    if link.startswith(FILES):
        page, link = ROOT / "README.md", link.removeprefix(FILES)
    if link.startswith(("http://", "https://", "mailto:")):
        return ""
    path, _, anchor = unquote(link).partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.exists():
        return f"{path} is not there"
    if DOCS in page.parents and DOCS not in target.parents:
        if target.suffix == ".md":
            return f"{path} is a page, but not of the documentation: Sphinx cannot link it"
        if not target.is_file():
            return f"{path} is no file: Sphinx cannot link it"
    if anchor and anchor not in anchors(target.read_text(encoding="utf-8")):
        return f"{path or 'the page'} has no heading #{anchor}"
    return ""


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    assert [(link, problem) for link in links(page) if (problem := broken(page, link))] == []


def test_links_of_the_readme_are_found_from_elsewhere() -> None:
    """PyPI shows the README without the files beside it."""
    found = links(ROOT / "README.md")
    pictures = [link for link in found if link.endswith(".png")]
    assert len(pictures) >= 5
    assert [link for link in pictures if not link.startswith(PICTURES)] == []
    assert [link for link in found if not link.startswith("https://")] == []
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    defined = set(re.findall(r"^\[([^\]]+)\]: ", text, re.MULTILINE))
    assert set(re.findall(r"\]\[([^\]]+)\]", text)) <= defined
    assert broken(ROOT / "README.md", f"{PICTURES}docs/screenshots/nothing-of-the-kind.png")
    assert broken(ROOT / "README.md", f"{FILES}docs/nothing-of-the-kind.md")
    assert broken(ROOT / "README.md", f"{FILES}docs/cron.md#nothing-of-the-kind")
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    assert urls["Documentation"].startswith(FILES)


def test_what_is_broken_is_found() -> None:
    page = DOCS / "index.md"
    assert broken(page, "nowhere.md")
    assert broken(page, "cron.md#nothing-of-the-kind")
    assert broken(page, "../README.md")
    assert broken(page, "../tests")
    assert not broken(page, "cron.md#over-http")
    assert not broken(page, "reference/settings.md#retention-1")
    assert not broken(page, "../LICENSE")
    assert anchors("# A `b_c`: d\n## Two\n```\n# none\n```\n## Two\n") == {"a-b_c-d", "two", "two-1"}
