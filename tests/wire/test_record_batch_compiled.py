"""Compiled batches are encoded and decoded as by their source, on records of any shape and on hostile bytes."""

from __future__ import annotations

from types import ModuleType
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from einmal.compiled import is_compiled
from einmal.types import Header
from einmal.wire import record_batch
from einmal.wire.errors import CorruptBatch
from einmal.wire.record_batch import NewRecord, read_header, seal_batch
from tests.suite.interpreted import interpreted
from tests.wire.test_record_scan_compiled import INT64, SMALL, sections

pytestmark = pytest.mark.skipif(not is_compiled(), reason="this process runs no compiled modules (make setup)")

_SOURCE: Final = interpreted(record_batch)
_HEADERS: Final = st.lists(st.builds(Header, st.text(max_size=3), SMALL), max_size=2).map(tuple)
_TIME: Final = st.integers(0, 1 << 42)


def decoded(module: ModuleType, data: bytes, base_timestamp: int) -> object:
    header = read_header(data)._replace(base_timestamp=base_timestamp)
    try:
        return [tuple(record) for record in module.decode_records(data, 0, header)]
    except CorruptBatch as error:
        return str(error)


@settings(max_examples=100)
@given(sections(), INT64)
def test_compiled_and_interpreted_batches_are_decoded_alike(batch: tuple[bytes, int], base_timestamp: int) -> None:
    section, count = batch
    data = seal_batch(section, count, 0, 0)
    assert decoded(record_batch, data, base_timestamp) == decoded(_SOURCE, data, base_timestamp)


@settings(max_examples=100)
@given(st.lists(st.builds(NewRecord, SMALL, SMALL, _TIME, _HEADERS), min_size=1, max_size=20))
def test_compiled_and_interpreted_records_are_encoded_alike(records: list[NewRecord]) -> None:
    data = record_batch.encode_batch(records)
    assert data == _SOURCE.encode_batch(records)
    assert [tuple(record)[2:4] for record in record_batch.decode_records(data, 0, read_header(data))] == [
        record[:2] for record in records
    ]
