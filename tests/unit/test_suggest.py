"""Names are compared in one place, which bounds what that costs: a client decides how many it sends."""

from __future__ import annotations

import ast
import difflib
from typing import Any

import pytest

from django_ojs import clock
from django_ojs.errors import OJSError
from django_ojs.rules import envelope, problems, suggest
from tests.test_layers import imports, modules, walked


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often one name was compared with another, and the longest name that was."""
    counted = [0, 0]

    class Counting(difflib.SequenceMatcher):  # type: ignore[type-arg]
        def set_seq1(self, a: Any) -> None:
            counted[0] += bool(a)
            super().set_seq1(a)

        def set_seq2(self, b: Any) -> None:
            counted[1] = max(counted[1], len(b))
            super().set_seq2(b)

    suggest._known_answers.clear()
    monkeypatch.setattr(difflib, "SequenceMatcher", Counting)
    return counted


def test_one_module_compares_names() -> None:
    using = {
        module
        for module in modules()
        for node in walked(module)
        if (isinstance(node, ast.Import) and any(alias.name == "difflib" for alias in node.names))
        or (isinstance(node, ast.ImportFrom) and node.module == "difflib")
    }
    assert using == {"rules.suggest"}
    assert any(name == "rules.suggest" for name, _ in imports("rules.problems"))


def test_a_slip_is_found_whatever_its_case() -> None:
    known = frozenset({"max_attempts", "Backoff", "on_exhaustion"})
    assert suggest.nearest("max_attemps", known) == "max_attempts"
    assert suggest.nearest("BACKOF", known) == "Backoff"
    assert suggest.nearest("colour", known) == ""
    assert suggest.nearest("max_attempts" + "x" * 60, known) == ""
    assert suggest.nearest("", known) == ""


def test_within_a_limit_comparisons_end_and_known_answers_do_not(compared: list[int]) -> None:
    known = frozenset({"max_attempts", "backoff"})
    with suggest.BoundedComparisons():
        assert suggest.nearest("max_attemps", known) == "max_attempts"
        for number in range(100_000):
            suggest.nearest(f"max_attemp{number}", known)
        assert suggest.nearest("backof", known) == ""
    assert compared[0] <= suggest.MAX_COMPARISONS
    with suggest.BoundedComparisons():
        assert suggest.nearest("backof", known) == "backoff"


def test_a_name_is_compared_with_so_many_others_only(compared: list[int]) -> None:
    assert suggest.nearest("mail", {f"queue-{number}" for number in range(5000)}) == ""
    assert compared[0] == suggest.MAX_KNOWN


UNKNOWN = {f"priorit{number}": 0 for number in range(20_000)}
LONG = {f"{'priority' * 5000}{number}": 0 for number in range(20)}


@pytest.mark.parametrize(
    "document",
    [
        UNKNOWN,
        {"retry": UNKNOWN},
        {"unique": {"keys": ["type"], **UNKNOWN}},
        {"rate_limit": {"key": "a", "limit": 1, **UNKNOWN}},
        {"options": UNKNOWN},
        {"options": {"retry": UNKNOWN}},
        LONG,
        {"options": LONG},
        {"retry": LONG},
    ],
    ids=["top", "retry", "unique", "rate", "options", "inside", "long", "long-options", "long-retry"],
)
def test_a_job_with_very_many_unknown_names_is_refused_or_read_within_the_limit(
    document: dict[str, Any], compared: list[int]
) -> None:
    warned, refused = 0, 0
    with suggest.BoundedComparisons():
        try:
            warned = len(envelope.parse({"type": "a.b", "args": [], **document}, now=clock.now()).warnings)
        except OJSError as error:
            refused = error.status
    assert refused in (0, 400)
    assert warned <= problems.MAX_WARNINGS
    assert not (refused and compared[0])
    assert compared[0] <= suggest.MAX_COMPARISONS
    assert compared[1] <= suggest.MAX_LENGTH


def test_a_document_that_is_too_large_says_so_although_it_has_too_many_members() -> None:
    with pytest.raises(OJSError) as refused:
        envelope.parse({"type": "a.b", "args": [], **{f"{n:060}": 0 for n in range(40_000)}}, now=clock.now())
    assert refused.value.status == 413
