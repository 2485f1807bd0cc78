"""Claims about the registry's wire format."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einmal.schemas.errors import MalformedValue
from einmal.schemas.wire_format import framed, message_indexes, unframed


@given(st.integers(0, 2**31 - 1), st.binary())
def test_what_is_framed_is_unframed(schema_id: int, payload: bytes) -> None:
    assert unframed(framed(schema_id, payload)) == (schema_id, payload)


@pytest.mark.parametrize("raw", [b"", b"\x00\x00\x00\x01", b"\x01\x00\x00\x00\x01x", b"\x00\xff\xff\xff\xff"])
def test_bytes_without_the_prefix_are_malformed(raw: bytes) -> None:
    with pytest.raises(MalformedValue):
        unframed(raw)


@pytest.mark.parametrize(
    ("payload", "indexes"), [(b"\x00rest", (0,)), (b"\x02\x00rest", (0,)), (b"\x04\x02\x04rest", (1, 2))]
)
def test_message_indexes_are_zigzag_varints_and_the_first_message_is_one_byte(
    payload: bytes, indexes: tuple[int, ...]
) -> None:
    assert message_indexes(payload) == (indexes, b"rest")


@given(st.binary(max_size=40))
def test_all_bytes_have_indexes_or_are_malformed(payload: bytes) -> None:
    try:
        indexes, rest = message_indexes(payload)
    except MalformedValue:
        return
    assert payload.endswith(rest) and len(indexes) <= 32
