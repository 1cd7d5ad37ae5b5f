"""The other words that clients may use, from the tables of `django_ojs/spellings.py`."""

from __future__ import annotations

from django_ojs.spellings import TABLES
from ojsdocs.markdown import code, table


def render() -> str:
    rows = [
        (kind.place, code(written), code(canonical), kind.doors)
        for kind in TABLES
        for written, canonical in kind.words.items()
    ]
    return table(("in", "a client may write", "for", "read over"), rows)
