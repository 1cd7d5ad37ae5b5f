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
