"""JSON in Value and Struct: nothing changes on the way, and what the wire cannot carry is a tag."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

pytest.importorskip("google.protobuf")

from django_ojs import jsontext
from django_ojs.errors import InvalidPayload
from django_ojs.grpc import values
from django_ojs.grpc.definition import MESSAGES, Duration, ListValue, Struct, Timestamp, Value
from django_ojs.grpc.values import TAG, UnreadableMessage

texts = st.text(st.characters(), max_size=8)  # lone surrogates and NUL among them
numbers = st.one_of(
    st.integers(),
    st.integers(-(10**40), 10**40),
    st.floats(allow_nan=False, allow_infinity=False),
    st.decimals(allow_nan=False, allow_infinity=False).map(lambda number: jsontext.loads(f"{number:e}")),
).map(lambda number: number or 0)  # -0.0 is read as 0: see the table of doubles below
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts | st.just(TAG), inner, max_size=4),
    max_leaves=12,
)


def meaning(value: Any) -> Any:
    """A value with its numbers as numbers of one kind: `1`, `1.0` and `1e0` are the same value, `true` is not."""
    if isinstance(value, dict):
        return {name: meaning(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [meaning(inner) for inner in value]
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return value
    exact = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    return ("number", exact)


def sent(value: Any) -> Any:
    """A Value of it, as it comes out of the wire."""
    message = Value()
    values.write_value(message, value)
    return Value.FromString(message.SerializeToString())


def one_member(name: str, value: Any) -> Any:
    return Value(struct_value=Struct(fields={name: value}))


@given(json_values)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    assert meaning(values.read_value(sent(value))) == meaning(value)


@given(json_values)
def test_the_second_way_changes_nothing(value: Any) -> None:
    """gRPC, HTTP and gRPC again: the same message."""
    once = sent(value)
    text = jsontext.dumps(values.read_value(once))
    assert sent(jsontext.loads(text)) == once


@given(json_values)
def test_a_result_may_be_anything(value: Any) -> None:
    struct = Struct()
    values.write_result(struct, value)
    back = Struct.FromString(struct.SerializeToString())
    assert meaning(values.read_result(back)) == meaning(value)
    if isinstance(value, dict) and value and TAG not in value and "\ud800" not in str(value):
        assert TAG in back.fields or back.fields.keys() == value.keys()


@given(st.dictionaries(texts | st.just(TAG), json_values, max_size=5))
def test_attributes_come_back(value: dict[str, Any]) -> None:
    job = MESSAGES["Job"]()
    values.write_attributes(job.attributes, value)
    back = MESSAGES["Job"].FromString(job.SerializeToString())
    assert meaning(values.read_attributes(back.attributes)) == meaning(value)


@given(st.dictionaries(texts | st.just(TAG), json_values, max_size=5))
def test_an_object_keeps_what_it_can_name(value: dict[str, Any]) -> None:
    struct = Struct()
    rest = values.write_object(struct, value)
    back = values.read_object(Struct.FromString(struct.SerializeToString()))
    assert meaning(back | rest) == meaning(value)
    for name in rest:
        with pytest.raises(UnicodeEncodeError):
            name.encode()


@pytest.mark.parametrize(
    "text, is_number",
    [
        ("42", True), ("0.1", True), ("-0.0", True), ("1e300", True), ("9007199254740992", True), ("1e22", True),
        ("1e23", True), ("1152921504606847000", True), ("100000000000000000000", True),
        ("9007199254740993", False), ("-9007199254740993", False), ("1e400", False), ("1152921504606846976", False),
        ("3.14159265358979323846", False), ("0.10000000000000000001", False), ("1e-400", False),
    ],
)  # fmt: skip
def test_a_number_is_a_double_where_that_is_the_number(text: str, is_number: bool) -> None:
    message = sent(jsontext.loads(text))
    assert message.WhichOneof("kind") == ("number_value" if is_number else "struct_value")
    if is_number:
        assert message.number_value == float(text)
    else:
        assert json.loads(message.struct_value.fields[TAG].string_value) == json.loads(text)
    assert Decimal(jsontext.dumps(values.read_value(message))) == Decimal(text)


@pytest.mark.parametrize(
    "number, text",
    [
        (42.0, "42"), (-42.0, "-42"), (-0.0, "0"), (0.1, "0.1"), (2.0**60, "1152921504606847000"),
        (1e20, "100000000000000000000"), (1e21, "1e+21"), (5e-324, "5e-324"), (123456789012345680000.0,
        "123456789012345680000"),
    ],
)  # fmt: skip
def test_a_double_is_read_as_ecmascript_prints_it(number: float, text: str) -> None:
    assert jsontext.dumps(values.read_value(Value(number_value=number))) == text


@pytest.mark.parametrize(
    "value",
    [{TAG: "5"}, {TAG: 5}, {TAG: {TAG: "x"}}, "\ud800", ["\udc00"], {"\ud800": 1}, {"a": {"\ud800": 1, "b": 2}}],
)
def test_what_looks_like_a_tag_or_has_no_utf8_is_tagged(value: Any) -> None:
    assert TAG in str(sent(value))
    assert values.read_value(sent(value)) == value


def test_an_object_with_more_keys_than_the_tag_is_no_tag() -> None:
    value = {TAG: "5", "other": 1}
    assert sent(value).struct_value.fields[TAG].string_value == "5"
    assert values.read_value(sent(value)) == value


@pytest.mark.parametrize("kind", ["list", "object"])
@pytest.mark.parametrize("levels", [1, 23, 24, 25, 26, 33, 199])
def test_what_nests_deeper_than_24_levels_is_tagged_from_there(kind: str, levels: int) -> None:
    value: Any = 1
    for _ in range(levels):
        value = [value] if kind == "list" else {"a": value}
    message = sent(value)
    assert values.read_value(message) == value
    plain, inner = 0, message
    while inner.WhichOneof("kind") == "list_value" or (
        inner.WhichOneof("kind") == "struct_value" and TAG not in inner.struct_value.fields
    ):
        inner = inner.list_value.values[0] if kind == "list" else inner.struct_value.fields["a"]
        plain += 1
    assert plain == min(levels, 24)


@pytest.mark.parametrize(
    "message, path",
    [
        (Value(), ""),
        (Value(number_value=math.nan), ""),
        (Value(number_value=-math.inf), ""),
        (Value(list_value=ListValue(values=[Value(bool_value=True), Value()])), "[1]"),
        (one_member("a", Value(list_value=ListValue(values=[Value(number_value=math.inf)]))), ".a[0]"),
        (one_member(TAG, Value(number_value=5)), f".{TAG}"),
        (one_member(TAG, Value(string_value="{")), f".{TAG}"),
        (one_member(TAG, Value(string_value="NaN")), f".{TAG}"),
        (one_member(TAG, Value(string_value="[" * 201 + "]" * 201)), f".{TAG}"),
    ],
)  # fmt: skip
def test_what_is_no_json_is_refused_with_its_path(message: Any, path: str) -> None:
    with pytest.raises(UnreadableMessage) as raised:
        values.read_value(message)
    error = raised.value.inside(0).inside("args").error()
    assert isinstance(error, InvalidPayload)
    assert error.details["field"] == f"args[0]{path}"
    assert error.message.startswith(f"args[0]{path}: must ")


@pytest.mark.parametrize("value", [math.nan, math.inf, [1, -math.inf], object(), {"a": b"x"}, {1, 2}, 1j])
def test_what_json_does_not_know_is_not_written(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        values.write_value(Value(), value)


def test_subclasses_are_written_as_what_they_are() -> None:
    class Word(str):
        __slots__ = ()

    assert values.read_value(sent({"a": Word("b"), "c": (1, 2)})) == {"a": "b", "c": [1, 2]}


def test_keys_are_read_in_one_order() -> None:
    """So that a repeated call with the same message is the same call for an idempotency key."""
    first, second = (sent(dict.fromkeys(names, 1)) for names in ("abcdefgh", "hgfedcba"))
    assert [*values.read_value(first)] == [*values.read_value(second)] == [*"abcdefgh"]


# Times

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
#: Of most of the years 1020 to 9890.
instants = st.integers(-30_000_000_000, 250_000_000_000).map(lambda seconds: EPOCH + dt.timedelta(seconds=seconds))


@given(instants, st.integers(0, 999_999_999))
def test_an_instant_comes_back_to_the_nanosecond(when: dt.datetime, nanos: int) -> None:
    text = f"{when.isoformat()[:19]}.{nanos:09d}Z"
    assume(nanos or when != EPOCH)
    stamp = Timestamp()
    values.write_instant(stamp, text)
    back = values.read_instant(Timestamp.FromString(stamp.SerializeToString()))
    assert back is not None
    assert len(back) in (20, 24, 27, 30)
    assert back == f"{text[:19]}Z" if not nanos else back[:-1].ljust(29, "0") == text[:-1]


@pytest.mark.parametrize(
    "text, back",
    [
        ("2026-11-23T10:00:00Z", "2026-11-23T10:00:00Z"),
        ("2026-11-23T10:00:00.000Z", "2026-11-23T10:00:00Z"),
        ("2026-11-23T10:00:00.120Z", "2026-11-23T10:00:00.120Z"),
        ("2026-11-23T12:00:00.123456+02:00", "2026-11-23T10:00:00.123456Z"),
        ("2026-11-23T10:00:00.1234567Z", "2026-11-23T10:00:00.123456700Z"),
        ("1969-12-31T23:59:59.5Z", "1969-12-31T23:59:59.500Z"),
    ],
)
def test_instants_are_in_utc_with_0_3_6_or_9_digits(text: str, back: str) -> None:
    stamp = Timestamp()
    values.write_instant(stamp, text)
    assert values.read_instant(stamp) == back


@pytest.mark.parametrize(
    "text", ["+5m", "2026-13-01T00:00:00.000Z", "2026-11-23T10:00:00.000", "", "now", "0001-01-01T00:00:00Z"]
)
def test_a_text_that_is_no_instant_is_not_written(text: str) -> None:
    with pytest.raises(ValueError, match=r"timestamp|instant"):
        values.write_instant(Timestamp(), text)


def test_an_instant_of_zero_is_absent() -> None:
    assert values.read_instant(Timestamp()) is None
    with pytest.raises(ValueError, match="absent"):
        values.write_instant(Timestamp(), "1970-01-01T00:00:00Z")


@pytest.mark.parametrize(
    "seconds, nanos",
    [(-62_135_596_801, 0), (253_402_300_800, 0), (1, -1), (1, 1_000_000_000), (2**63 - 1, 0), (-(2**63), 0)],
)
def test_an_instant_out_of_range_is_refused(seconds: int, nanos: int) -> None:
    with pytest.raises(UnreadableMessage, match="must be an instant in the years 1 to 9999"):
        values.read_instant(Timestamp(seconds=seconds, nanos=nanos))


@pytest.mark.parametrize("edge", [-62_135_596_800, 253_402_300_799])
def test_the_first_and_the_last_second_are_read(edge: int) -> None:
    assert values.read_instant(Timestamp(seconds=edge)) in ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z")


@given(st.integers(0, 3_153_600_000_000))
def test_a_duration_comes_back(ms: int) -> None:
    duration = Duration()
    values.write_milliseconds(duration, ms)
    back = Duration.FromString(duration.SerializeToString())
    assert values.read_milliseconds(back) == ms
    again = Duration()
    values.write_duration(again, values.read_duration(back))
    assert again == duration


@pytest.mark.parametrize("nanos, ms", [(1, 1), (999_999, 1), (1_000_000, 1), (1_000_001, 2), (999_999_999, 1000)])
def test_parts_of_a_millisecond_are_rounded_up(nanos: int, ms: int) -> None:
    assert values.read_milliseconds(Duration(seconds=2, nanos=nanos)) == 2000 + ms


@pytest.mark.parametrize("seconds, nanos", [(-1, 0), (0, -1), (1, -1), (-1, 1), (315_576_000_001, 0), (0, 10**9)])
def test_a_negative_or_mixed_duration_is_refused(seconds: int, nanos: int) -> None:
    with pytest.raises(UnreadableMessage, match="must be a duration of 0 s or more"):
        values.read_duration(Duration(seconds=seconds, nanos=nanos))


@pytest.mark.parametrize("text", ["1m", "PT60S", "5", "", "P1Y", "PT0.0001S"])
def test_another_spelling_of_a_duration_is_left_to_attributes(text: str) -> None:
    with pytest.raises(ValueError, match=r"another spelling|must be a duration"):
        values.write_duration(Duration(), text)


@pytest.mark.parametrize(
    "texts, what",
    [
        (["[0,0,0,0,0,0,0,0,0,0]"], "values"),
        (['[{"a":0}]', "[0,0,0]"], "values"),
        (["[1e400,1e400]"], "numbers"),
        (["1e400", "1e400"], "numbers"),
    ],
)
def test_what_tags_hold_counts_as_what_a_message_holds(texts: list[str], what: str) -> None:
    message = ListValue(values=[one_member(TAG, Value(string_value=text)) for text in texts])
    with values.bounded(20, 2):
        assert len(values.read_values(message.values)) == len(texts)
    with pytest.raises(values.TooMany, match=what), values.bounded(8, 1):
        values.read_values(message.values)
