"""RFC 8785: its rules and its own examples, so that every implementation makes the same key."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_ojs import jsontext
from django_ojs.rules.unique import canonical

# RFC 8785, appendix B: IEEE 754 bits and their text.
NUMBERS = [
    ("0000000000000000", "0"), ("8000000000000000", "0"), ("0000000000000001", "5e-324"),
    ("8000000000000001", "-5e-324"), ("7fefffffffffffff", "1.7976931348623157e+308"),
    ("ffefffffffffffff", "-1.7976931348623157e+308"), ("4340000000000000", "9007199254740992"),
    ("c340000000000000", "-9007199254740992"), ("4430000000000000", "295147905179352830000"),
    ("44b52d02c7e14af5", "9.999999999999997e+22"), ("44b52d02c7e14af6", "1e+23"),
    ("44b52d02c7e14af7", "1.0000000000000001e+23"), ("444b1ae4d6e2ef4e", "999999999999999700000"),
    ("444b1ae4d6e2ef4f", "999999999999999900000"), ("444b1ae4d6e2ef50", "1e+21"),
    ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"), ("3eb0c6f7a0b5ed8d", "0.000001"),
    ("41b3de4355555553", "333333333.3333332"), ("41b3de4355555554", "333333333.33333325"),
    ("41b3de4355555555", "333333333.3333333"), ("41b3de4355555556", "333333333.3333334"),
    ("41b3de4355555557", "333333333.33333343"), ("becbf647612f3696", "-0.0000033333333333333333"),
    ("43143ff3c1cb0959", "1424953923781206.2"),
]  # fmt: skip


@pytest.mark.parametrize("bits, text", NUMBERS)
def test_the_numbers_of_the_rfc(bits: str, text: str) -> None:
    assert canonical(struct.unpack(">d", bytes.fromhex(bits))[0]) == text


def test_the_example_of_the_rfc() -> None:
    source = r"""{
      "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
      "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
      "literals": [null, true, false]
    }"""
    assert canonical(jsontext.loads(source)) == (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )


def test_names_are_sorted_by_utf_16_code_units_at_every_depth() -> None:
    names = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\x80", "\u00f6"]
    expected = ["\r", "1", "\x80", "\u00f6", "\u20ac", "\U0001f600", "\u05d3\u05bc"]  # NFC takes U+FB33 apart
    assert list(json.loads(canonical({"x": dict.fromkeys(names, 1)}))["x"]) == [
        *expected[:4], "\u05d3\u05bc", *expected[4:6],
    ]  # fmt: skip


@pytest.mark.parametrize(
    "one, other",
    [
        ("1", "1.0"), ("0", "-0.0"), ("100", "1e2"), ('"\\u00e9"', '"e\\u0301"'), ('{"e\\u0301":1}', '{"\\u00e9":1}'),
        ('{"a":1,"b":2}', ' {"b" : 2.0, "a":1}'), ("1e21", "1000000000000000000000"),
    ],
)  # fmt: skip
def test_the_same_value_has_one_text(one: str, other: str) -> None:
    assert canonical(jsontext.loads(one)) == canonical(jsontext.loads(other))


@pytest.mark.parametrize(
    "one, other",
    [
        ("9007199254740993", "9007199254740992"), ("1", '"1"'), ("[]", "{}"), ("null", "false"), ("0", "false"),
        ("123456789012345678901234567890", "123456789012345678901234567891"), ("1e400", "1e401"), ('"\\ud800"', '"?"'),
    ],
)  # fmt: skip
def test_different_values_have_different_texts(one: str, other: str) -> None:
    assert canonical(jsontext.loads(one)) != canonical(jsontext.loads(other))


def test_lone_surrogates_and_control_characters_can_be_hashed() -> None:
    text = canonical(["\ud800", "\x00", "\x1f", "\x7f", "\u2028"])
    assert text == '["\\ud800","\\u0000","\\u001f","\x7f","\u2028"]'
    hashlib.sha256(text.encode())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="NaN"):
        canonical(value)


@pytest.mark.parametrize("value", [{1: 2}, {"a": b""}, [object()]])
def test_what_is_no_json_is_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        canonical(value)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_double_survives(value: float) -> None:
    text = canonical(value)
    assert float(text) == value
    assert canonical(jsontext.loads(text)) == text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_the_text_is_json_and_its_own_canonical_form(value: Any) -> None:
    text = canonical(value)
    assert canonical(jsontext.loads(text)) == text
