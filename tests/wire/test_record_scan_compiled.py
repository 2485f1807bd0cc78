"""The compiled scan of records does what its source does, on records of any shape and on hostile bytes."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from einmal.compiled import is_compiled
from einmal.wire import record_scan
from einmal.wire.errors import CorruptBatch, InvalidRecord, TooLong
from einmal.wire.record_batch import encode_varint
from tests.suite.interpreted import interpreted

pytestmark = pytest.mark.skipif(not is_compiled(), reason="this process runs no compiled modules (make setup)")

_SOURCE: Final = interpreted(record_scan)
_MIN, _MAX = -(1 << 63), (1 << 63) - 1
INT64: Final = st.one_of(st.integers(_MIN, _MAX), st.sampled_from([_MIN, _MIN + 1, -1, 0, 1, _MAX - 1, _MAX]))
_BROKEN: Final = st.one_of(
    st.binary(max_size=12),
    st.builds(lambda size, last: b"\xff" * size + bytes([last]), st.integers(0, 12), st.integers(0, 0x7F)),
    INT64.map(encode_varint),
)
"""Varints that are too long or too large, cut off or padded, and other bytes."""
SMALL: Final = st.one_of(st.none(), st.binary(max_size=4), st.sampled_from([b"x" * 63, b"x" * 64, b"x" * 9_000]))


def sized(data: bytes | None) -> bytes:
    return b"\x01" if data is None else encode_varint(len(data)) + data


@st.composite
def sections(draw: st.DrawFn) -> tuple[bytes, int]:
    """Records, each with at most one broken part, and how many of them the header claims."""
    records = []
    for index in range(draw(st.integers(0, 30))):
        headers = draw(st.lists(st.tuples(st.sampled_from([b"", b"k", b"\xc3\xbc", b"\xff"]), SMALL), max_size=2))
        parts = [
            b"\x00",
            encode_varint(draw(st.one_of(st.integers(-100, 9_000), INT64))),
            encode_varint(index),
            sized(draw(SMALL)),
            sized(draw(SMALL)),
            encode_varint(len(headers)),
            *(sized(key) + sized(value) for key, value in headers),
        ]
        if draw(st.integers(0, 15)) == 0:
            parts[draw(st.integers(0, len(parts) - 1))] = draw(_BROKEN)
        body = b"".join(parts)
        records.append((draw(_BROKEN) if draw(st.integers(0, 30)) == 0 else encode_varint(len(body))) + body)
    return b"".join(records), max(0, len(records) + draw(st.sampled_from([0, 0, 0, 0, -1, 1])))


def outcome(module: ModuleType, section: bytes, count: int, *arguments: Any, **settings: Any) -> object:
    try:
        return tuple(module.scan_records(section, count, *arguments, **settings))
    except InvalidRecord as error:
        return error.index, str(error)
    except TooLong:
        return "too long"


def times(module: ModuleType, section: bytes, count: int) -> object:
    found = []
    try:
        found += module.record_times(section, count)
    except CorruptBatch as error:
        return str(error)
    return found


@settings(max_examples=150)
@given(
    st.one_of(sections(), st.tuples(st.binary(max_size=80), st.integers(0, 50))),
    INT64,
    st.tuples(INT64, INT64),
    st.booleans(),
    st.sampled_from([None, None, 0, 5]),
    st.sampled_from([0, 0, 0, 1, 7]),
)
def test_compiled_and_interpreted_scans_agree(
    batch: tuple[bytes, int], base: int, limits: tuple[int, int], needs_keys: bool, headers_max: int | None, begin: int
) -> None:
    section, count = batch
    found = [
        outcome(module, section, count, base, module.TimeBounds(*limits), begin=begin, needs_keys=needs_keys,
                headers_max=headers_max)
        for module in (record_scan, _SOURCE)
    ]  # fmt: skip
    assert found[0] == found[1]
    assert times(record_scan, section, count) == times(_SOURCE, section, count)
