"""Claims about business keys: what is no key, and which numbers are one key."""

from __future__ import annotations

import json

import pytest

from einmal.ingest import Deduplicate
from einmal.ingest.deduplication.business_key import key_of

KEY = key_of(Deduplicate("value.id", window_ms=1))


def key(literal: str) -> bytes | None:
    return KEY(None, b'{"other":NaN,"id":' + literal.encode() + b"}", ())


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "null", "[1]", '{"a":1}'])
def test_what_identifies_nothing_is_no_key(literal: str) -> None:
    assert key(literal) is None


@pytest.mark.parametrize(
    "value", [b"", b"id", b'{"id":1', b"[1]", b'{"ID":1}', b"\xff", b'{"id":""}', b'{"id":nan}', b"[" * 100_000]
)
def test_a_value_that_is_no_object_with_the_field_has_no_key(value: bytes) -> None:
    assert KEY(None, value, ()) is None


NUMBERS = [
    *("1e400", "2e400", "-1e400", "1e401", "1e-400", "2e-400"),
    *("20240101000000.00011", "20240101000000.00012", "20240101000000.000110000001"),
    *("9007199254740992", "9007199254740993", "9007199254740993.0", "9007199254740992.0"),
    *("0.1", "0.10000000000000000001", "1", "10", "1.0", "-1", "-1.0", "0", "0.0", "1" * 5_000, "1" * 5_000 + "2"),
    *("true", "false", '"1"', '"true"', '"1e400"', '"NaN"', '"10e399"'),
]


def test_different_values_are_different_keys() -> None:
    found = [key(each) for each in NUMBERS]
    assert None not in found
    assert len(set(found)) == len(NUMBERS)


@pytest.mark.parametrize(
    "same",
    [("1.50", "1.5", "15e-1", "0.15E1"), ("1e2", "100.0", "1.0e+2"), ("0.0", "-0.0", "0e9"), ("0", "-0")],
)
def test_one_number_has_one_key_however_it_is_written(same: tuple[str, ...]) -> None:
    assert len({key(each) for each in same}) == 1


def test_text_is_compared_by_its_characters() -> None:
    assert key(json.dumps("ä")) == key(json.dumps("ä", ensure_ascii=False)) != key(json.dumps("a"))
