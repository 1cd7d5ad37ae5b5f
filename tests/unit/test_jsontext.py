"""JSON text: nothing a client sent may change on its way through, and nothing it sends may crash us."""

from __future__ import annotations

import copy
import json
import math
import pickle
from decimal import Decimal
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_ojs import jsontext
from django_ojs.jsontext import BeyondBounds, Bounds, ExactNumber, JSONTextError, dumps, dumps_bytes, loads

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
        ("\ud800é", '"\\ud800é"'),
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


# What a text may cost

WIDE = Bounds(values=1000, numbers=10, arrays=("jobs",), elements=5)


@given(
    st.from_regex(r"\A-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,18})?[eE][+-]?[0-9]{1,3}\Z")
    | st.from_regex(r"\A-?(0|[1-9][0-9]{0,17})\.[0-9]{1,18}\Z")
)
def test_a_float_stands_for_a_number_only_where_it_is_that_number(literal: str) -> None:
    number, read = Decimal(literal), loads(literal)
    same = math.isfinite(float(literal)) and Decimal(repr(float(literal))) == number
    assert type(read) is (float if same else ExactNumber)
    assert Decimal(repr(read)) == number if same else read.literal == literal


@given(st.dictionaries(whole_text | st.just("jobs"), documents, max_size=4), st.sampled_from(["", " ", "\n\t\r "]))
def test_a_text_within_its_bounds_is_read_as_without_them(value: object, space: str) -> None:
    text = space + json.dumps(value, indent=1 if space else None, separators=(f"{space},{space}", f"{space}:{space}"))
    bounds = Bounds(10_000, 1000, ("jobs",), 10**6)
    with mock.patch.object(jsontext, "_AS_A_WHOLE", 0):  # so that the elements are counted one by one
        assert loads(text + space, bounds) == loads(text) == loads(text.encode(), bounds)


@pytest.mark.parametrize(
    "text",
    ["", "5", "[]", "{", '{"jobs"', '{"jobs":[', '{"jobs":[1', '{"jobs":[1,', '{"jobs":[1,]}', '{"jobs":[1}',
     '{"jobs":', '{"jobs":[1 2]}', '{"jobs":[1],}', '{"jobs":[1]}x',
     '{jobs:[1]}', '{"jobs" [1]}', '{"a\\q":1}',
     '{"jobs":[NaN]}', '{"jobs":[1]} {}', '{"a":1 "b":2}', '{"jobs":["\x01"]}'],
)  # fmt: skip
def test_what_is_no_json_is_told_as_without_bounds(text: str) -> None:
    said = []
    for bounds in (None, Bounds(arrays=("jobs",), elements=9)):
        with mock.patch.object(jsontext, "_AS_A_WHOLE", 0):
            try:
                said.append(loads(text, bounds))
            except JSONTextError as error:
                said.append(str(error))
    assert said[0] == said[1]


@pytest.mark.parametrize(
    "text, what, made",
    [
        ('{"jobs":[' + "1e5," * 100_000 + "1]}", "values", 0),
        ('{"jobs":[' + "1e5," * 900 + "1]}", "jobs", 5),
        ('{"jobs":[' + "{}," * 400 + "{}]}", "jobs", 0),
        ('{"jobs":[' + '"a,b,c",' * 900 + "1]}", "jobs", 0),
        ('{"args":[' + "1e400," * 900 + "1]}", "numbers", 11),
        ('{"args":[' + "0.123456789012345678," * 400 + "1]}", "numbers", 11),
        ('{"' + '":0,"'.join(map(str, range(500))) + '":0}', "values", 0),
        ("[" * 2000, "values", 0),
    ],
)
def test_what_is_beyond_the_bounds_is_known_before_it_is_made(
    text: str, what: str, made: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    plain = jsontext._plain
    monkeypatch.setattr(jsontext, "_plain", lambda literal: read.append(literal) or plain(literal))
    with pytest.raises(BeyondBounds) as beyond:
        loads(text, WIDE)
    assert beyond.value.what == what
    assert len(read) == made


def test_commas_in_strings_are_no_values() -> None:
    for text in ("a,b:[{" * 1000, '\\",' * 1000, "é\\," * 1000):
        value = {"args": [text]}
        assert loads(dumps(value), WIDE) == value
    assert loads('{"jobs":[' + '"a,b,c"' + "]}", WIDE)


def test_a_string_without_an_end_is_looked_at_once() -> None:
    """Where the search began again at each quote, this would take minutes."""
    with pytest.raises(JSONTextError):
        loads('{"a":"' + '\\",' * 300_000, WIDE)
