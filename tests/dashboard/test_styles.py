"""The style sheet of the admin: a class belongs to one component."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from django.conf import settings

CSS = settings.BASE_DIR / "django_ojs" / "static" / "django_ojs" / "admin.css"


def rules(css: str) -> Iterator[str]:
    """The selectors of the rules that hold on every screen."""
    inside: list[str] = []
    for text, brace in re.findall(r"([^{};]*)([{};])", re.sub(r"/\*.*?\*/", "", css, flags=re.DOTALL)):
        if brace == "{":
            if not inside and not text.strip().startswith("@"):
                yield text.strip()
            inside.append(text)
        elif brace == "}":
            inside.pop()


def test_no_class_is_defined_twice() -> None:
    """A class that is defined in two places is two things of one name, and each spoils the other."""
    found = Counter(selector for selector in rules(CSS.read_text()) if re.fullmatch(r"\.[\w-]+", selector))
    assert len(found) > 50, "else nothing is read"
    assert [name for name, number in found.items() if number > 1] == []


def test_every_table_with_many_columns_is_cards_on_a_phone() -> None:
    """Otherwise it has to be panned there. That of the latencies has three short columns."""
    templates = settings.BASE_DIR / "django_ojs" / "templates"
    found = [
        (aria, inside)
        for file in sorted(templates.rglob("*.html"))
        for aria, inside in re.findall(
            r'<div class="ojs-wide"[^>]*aria-label="(.*?)">\s*({%[^%]*%}|<\w+)', file.read_text()
        )
    ]
    assert len(found) > 10, "else nothing is read"
    assert [aria for aria, inside in found if inside != "{% filter ojs_cards %}"] == ["{% translate 'Latency' %}"]


def test_nothing_is_on_the_left_or_right_but_what_is_never_mirrored() -> None:
    """In a language that is written from right to left the pages are mirrored, as Django's own are."""
    css = re.sub(r"/\*.*?\*/", "", CSS.read_text(), flags=re.DOTALL)
    found = re.findall(r"[{;]\s*((?:[\w-]*-)?(?:left|right)[\w-]*:|[\w-]+: [^;}]*\b(?:left|right)\b)", css)
    assert found == ["text-align: left"]
    assert re.findall(r"(?:margin|padding|border-radius): \w+ (\w+) \w+ (?!\1\b)\w+;", css) == []
