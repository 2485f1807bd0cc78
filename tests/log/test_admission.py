from __future__ import annotations

import pytest
from google_crc32c import value as crc32c

from einmal.log.admission import error_of_invalid, place, refusal, validated_headers
from einmal.log.config import LogConfig
from einmal.log.producer_state import Origin
from einmal.types import ErrorCode, LeaderEpoch, Offset
from einmal.wire.compression import Compression
from einmal.wire.errors import WireError
from einmal.wire.record_batch import (
    ATTRIBUTES_POSITION,
    TRANSACTIONAL,
    decode_records,
)
from tests.log.making import START, batch, producer


def with_fields(data: bytearray, fields: dict[int, bytes]) -> bytearray:
    """The batch with bytes replaced at positions and the CRC made right again."""
    for position, value in fields.items():
        data[position : position + len(value)] = value
    data[17:21] = int(crc32c(bytes(data[21:]))).to_bytes(4, "big")
    return data


def refused(data: bytearray, config: LogConfig | None = None) -> ErrorCode:
    try:
        headers = validated_headers(data)
    except WireError:
        return error_of_invalid(data)
    return refusal(data, headers, Origin.CLIENT, config or LogConfig(), Offset(0), START)


@pytest.mark.parametrize("codec", list(Compression))
def test_every_codec_is_admitted(codec: Compression) -> None:
    assert refused(batch(20, compression=codec)) is ErrorCode.none


def test_a_codec_that_does_not_exist_is_refused() -> None:
    data = with_fields(batch(), {ATTRIBUTES_POSITION: b"\x00\x05"})
    assert refused(data) is ErrorCode.unsupported_compression_type


def test_a_transactional_batch_without_a_producer_is_refused() -> None:
    data = with_fields(batch(), {ATTRIBUTES_POSITION: TRANSACTIONAL.to_bytes(2, "big")})
    assert refused(data) is ErrorCode.invalid_record


def test_a_producer_id_without_an_epoch_is_refused() -> None:
    assert refused(batch(of=producer(5, -1), sequence=0)) is ErrorCode.invalid_record


def test_more_records_than_the_bytes_can_hold_are_refused() -> None:
    count = 2_000_000_000
    lying = {23: (count - 1).to_bytes(4, "big"), 57: count.to_bytes(4, "big")}
    assert refused(with_fields(batch(), lying)) is ErrorCode.corrupt_message
    compressed = batch(5, compression=Compression.GZIP)
    assert refused(with_fields(compressed, lying)) is ErrorCode.corrupt_message


def test_many_records_that_compress_well_are_admitted() -> None:
    assert refused(batch(20_000, value=b"", key=None, compression=Compression.ZSTD)) is ErrorCode.none


def test_a_compacted_topic_takes_no_records_that_cannot_be_read() -> None:
    data = bytearray(batch(compression=Compression.GZIP))
    with_fields(data, {70: b"\xff\xff\xff"})
    assert refused(data, LogConfig(cleanup_policy="compact")) is ErrorCode.corrupt_message


def test_places_follow_each_other_from_the_end_of_the_log() -> None:
    data = batch(2) + batch(3)
    places = place(data, validated_headers(data), Offset(10), LeaderEpoch(4), -1)
    assert [(each.base_offset, each.last_offset, each.leader_epoch) for each in places] == [(10, 11, 4), (12, 14, 4)]
    headers = validated_headers(data)
    assert [(each.base_offset, each.partition_leader_epoch) for each in headers] == [(10, 4), (12, 4)]


def test_the_append_time_becomes_that_of_every_record() -> None:
    data = batch(2, timestamp=5)
    [only] = place(data, validated_headers(data), Offset(0), LeaderEpoch(0), START)
    [header] = validated_headers(data)
    assert only.max_timestamp == header.max_timestamp == START
    assert {record.timestamp for record in decode_records(data, 0, header)} == {START}
