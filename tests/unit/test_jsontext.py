"""JSON text: nothing a client sent may change on its way through, and nothing it sends may crash us."""

from __future__ import annotations

import copy
import json
import math
import pickle
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_ojs import jsontext
from django_ojs.jsontext import ExactNumber, JSONTextError, dumps, dumps_bytes, loads

LITERALS = [
    "1e400",
    "-1e400",
    "1e-400",
    "0.1000000000000000055511151231257827",
    "3.14159265358979323846",
    "1E999999999",
]

whole_text = st.text(st.characters(exclude_categories=["Cs"]))
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | whole_text
documents = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(whole_text, inner), max_leaves=30)


@given(documents)
def test_every_value_survives_the_round_trip(value: object) -> None:
    text = dumps(value)
    assert loads(text) == value
    assert loads(dumps_bytes(value)) == value
    assert json.loads(text) == value


@given(st.from_regex(r"\A-?(0|[1-9][0-9]{0,30})\.[0-9]{1,30}([eE][+-]?[0-9]{1,3})?\Z"))
def test_no_number_changes_its_value(literal: str) -> None:
    assert Decimal(dumps(loads(literal))) == Decimal(literal)


@pytest.mark.parametrize("literal", LITERALS)
def test_a_number_beyond_a_float_keeps_its_literal(literal: str) -> None:
    number = loads(literal)
    assert isinstance(number, ExactNumber)
    assert number.literal == literal
    assert dumps([{"n": number}, "é", number]) == f'[{{"n":{literal}}},"é",{literal}]'
    assert dumps_bytes(number) == literal.encode()


@pytest.mark.parametrize("literal", ["1.5", "-0.0", "0.1", "1e100", "5e-324", "1.50", "1e2", "2.0"])
def test_ordinary_numbers_are_floats(literal: str) -> None:
    assert type(loads(literal)) is float
    assert loads(literal) == float(literal)


@pytest.mark.parametrize("number", [0, -1, 2**53 + 1, 10**4000])
def test_integers_of_any_size_are_integers(number: int) -> None:
    assert loads(dumps(number)) == number


@pytest.mark.parametrize("literal", ["NaN", "1_000", " 1", "01", "+1", "", "Infinity", "1.", "１"])
def test_an_exact_number_is_a_json_number(literal: str) -> None:
    with pytest.raises(ValueError, match="is not a JSON number"):
        ExactNumber(literal)


def test_an_exact_number_keeps_its_literal_in_copies() -> None:
    number = ExactNumber("1.000E+400")
    for twin in (copy.copy(number), copy.deepcopy(number), pickle.loads(pickle.dumps(number))):
        assert twin.literal == "1.000E+400"
    assert number * 2 > number


@pytest.mark.parametrize(
    "text, message",
    [
        (b"\xff", "not valid UTF-8"),
        (b'"\xed\xa0\x80"', "not valid UTF-8"),
        ("", "Expecting value at line 1, column 1"),
        ("{", "line 1"),
        ('{"a":1}x', "Extra data"),
        ("'a'", "Expecting value"),
        ('"\x00"', "control character"),
        ("\ufeff1", "Expecting value"),
        ("NaN", "NaN is not a JSON number"),
        ("[Infinity]", "Infinity is not"),
        ("[-Infinity]", "-Infinity is not"),
        ("9" * 5000, r"too long: it has more than 4,300 digits\.$"),
        ("1e99999999999999999999", "beyond what can be represented"),
        ("[" * 201 + "]" * 201, "deeper than 200"),
        ('{"a":' * 201 + "1" + "}" * 201, "deeper than 200"),
        ("[" * 200_000, "deeper than 200"),
    ],
)
def test_bad_text_says_what_is_wrong(text: str | bytes, message: str) -> None:
    with pytest.raises(JSONTextError, match=message):
        loads(text)


def test_nesting_up_to_the_limit_and_many_shallow_brackets_are_read() -> None:
    assert jsontext.is_deeper(loads("[" * 200 + "]" * 200), 199)
    assert loads("[" + ",".join(["[]"] * 500) + "]") == [[]] * 500


def test_the_last_of_duplicate_keys_wins() -> None:
    assert loads('{"a":1,"a":2}') == {"a": 2}


@pytest.mark.parametrize(
    "value, text",
    [
        ({"a": [1, 2.5, None, True]}, '{"a":[1,2.5,null,true]}'),
        ("héllo 😀", '"héllo 😀"'),
        ("\x00\x1f", '"\\u0000\\u001f"'),
        ("\ud800é", '"\\ud800\\u00e9"'),
        ((1, 2), "[1,2]"),
    ],
)
def test_text_is_compact_and_encodable(value: object, text: str) -> None:
    assert dumps(value) == text
    assert dumps_bytes(value) == text.encode()


def test_exact_numbers_and_lone_surrogates_meet() -> None:
    assert dumps(["\udfff", ExactNumber("1e400")]) == '["\\udfff",1e400]'
    assert loads(dumps_bytes({"\udfff": ExactNumber("1e400")})) == {"\udfff": ExactNumber("1e400")}


@pytest.mark.parametrize("value", [math.nan, math.inf, [-math.inf], [ExactNumber("1e400"), math.nan]])
def test_what_is_no_number_is_refused(value: object) -> None:
    with pytest.raises(JSONTextError):
        dumps(value)


@pytest.mark.parametrize("value", [object(), {1, 2}, b"x", Decimal(1), [ExactNumber("1e400"), object()], {(1,): 2}])
def test_what_json_does_not_know_is_a_type_error(value: object) -> None:
    with pytest.raises(TypeError):
        dumps(value)


class Loud(str):
    __slots__ = ()


@pytest.mark.parametrize(
    "value",
    ["ü\u2028", "\ud800", Loud("x"), 1.5, -0.0, 1e100, 10**30, True, None, [], {}, (), [[], {}, ()], {1: 2, None: True},
     {"a": [1, "b", {"c": None}], "ü": (1.0, 2)}],
)  # fmt: skip
@pytest.mark.parametrize("writer", [True, False])
def test_a_value_is_written_as_the_standard_library_does(
    value: object, writer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not writer:  # as where Python has no encoder in C
        monkeypatch.setattr(jsontext, "_write", None)
    surrogate = value == "\ud800"
    assert dumps(value) == json.dumps(value, ensure_ascii=surrogate, separators=(",", ":"))


def test_endless_and_circular_values_are_refused() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    circular: list[object] = []
    circular.append(circular)
    for value, said in ((deep, "too deeply"), (circular, "Circular reference")):
        with pytest.raises(JSONTextError, match=said):
            dumps(value)
    while deep:  # taken apart here, not by a recursive deallocation
        deep = deep.pop()  # type: ignore[assignment]


@pytest.mark.parametrize(
    "value, limit, deeper",
    [(1, 0, False), ([], 0, True), ([], 1, False), ([[]], 1, True), ({"a": {"b": []}}, 2, True), ({"a": ()}, 2, False)],
)
def test_depth(value: object, limit: int, deeper: bool) -> None:
    assert jsontext.is_deeper(value, limit) is deeper


@pytest.mark.parametrize(
    "value, integer",
    [
        (5, True),
        (5.0, True),
        (5.5, False),
        (True, False),
        ("5", False),
        (math.inf, False),
        (ExactNumber("1e400"), False),
    ],
)
def test_which_numbers_are_integers(value: object, integer: bool) -> None:
    assert jsontext.is_integer(value) is integer
