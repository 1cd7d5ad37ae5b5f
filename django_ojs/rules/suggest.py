"""Find the name that was probably meant by one that does not exist: no other code compares names.

A comparison costs as much as reading a hundred bytes, and a client decides how many names it sends. So names are
compared up to a length, and within `BoundedComparisons`, as in each request, up to a number.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection
from contextvars import ContextVar, Token
from functools import lru_cache
from itertools import islice

MAX_LENGTH = 64  #: characters of a name; a longer one is like none of ours
MAX_KNOWN = 1000  #: names that one is compared with
MAX_COMPARISONS = 10_000  #: of one name with another, within `BoundedComparisons`
_EACH = 10  #: comparisons that a name costs besides

_left: ContextVar[list[int] | None] = ContextVar("comparisons_left", default=None)
#: Answers, by what was asked for: most slips come again.
_known_answers: dict[tuple[str, Collection[str], float], str] = {}
_MOST_ANSWERS = 1024


class BoundedComparisons:
    """A block in which `nearest` suggests nothing more after `MAX_COMPARISONS`."""

    __slots__ = ("_token",)
    _token: Token[list[int] | None]

    def __enter__(self) -> None:
        self._token = _left.set([MAX_COMPARISONS])

    def __exit__(self, *exc: object) -> None:
        _left.reset(self._token)


def nearest(name: str, known: Collection[str], alike: float = 0.6) -> str:
    """The name in `known` that is most like `name`, whatever the case; '' where none is like it.

    Args:
        alike: from which likeness on, between 0 and 1.
    """
    if len(name) > MAX_LENGTH:
        return ""
    if not isinstance(known, frozenset):
        return _compared(name, frozenset(known), alike) or ""
    asked = (name, known, alike)
    answer = _known_answers.get(asked)
    if answer is None and (answer := _compared(name, known, alike)) is not None:
        if len(_known_answers) >= _MOST_ANSWERS:
            _known_answers.clear()
        _known_answers[asked] = answer
    return answer or ""


def _compared(name: str, known: frozenset[str], alike: float) -> str | None:
    """None where there was no comparison left."""
    folded = _folded(known)
    left = _left.get()
    if left is not None:
        left[0] -= len(folded) + _EACH
        if left[0] < 0:
            return None
    near = difflib.get_close_matches(name.casefold(), folded, 1, alike)
    return folded[near[0]] if near else ""


@lru_cache(maxsize=64)
def _folded(known: frozenset[str]) -> dict[str, str]:
    return {name.casefold(): name for name in islice(sorted(known), MAX_KNOWN)}
