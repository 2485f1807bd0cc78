from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from einmal.log.admission import QUICK_RECORDS, SECTION_BYTES_MAX, Admission, assign_offsets, validated_headers
from einmal.log.config import LogConfig
from einmal.types import ErrorCode, Header, LeaderEpoch, Offset
from einmal.wire.compression import Compression
from einmal.wire.record_batch import NewRecord, decode_records, encode_batch, encode_records, read_header
from einmal.wire.record_scan import ERRORS_MAX
from tests.log.making import START, batch, producer
from tests.log.malformed import MALFORMED, MAX_TIME, Malformed, mutated, records, resealed, sealed
from tests.suite.cases import each_case
from tests.wire.compressed import in_blocks

_FIELDS = {
    "cleanup.policy": "cleanup_policy",
    "max.message.bytes": "max_message_bytes",
    "message.timestamp.before.max.ms": "message_timestamp_before_max_ms",
    "message.timestamp.type": "timestamp_type",
}


def admitted(data: bytes | bytearray, config: LogConfig | None = None) -> Admission:
    admission = Admission(bytearray(data), config or LogConfig(), START)
    if not admission.is_decided:
        assert admission.decide()
    return admission


def refused(data: bytes | bytearray, config: LogConfig | None = None) -> ErrorCode:
    return admitted(data, config).error


@each_case("malformed", MALFORMED)
def test_a_malformed_batch_has_its_verdict_and_a_reason(malformed: Malformed) -> None:
    config = LogConfig()
    for key, value in malformed.configs.items():
        fields: dict[str, Any] = {_FIELDS[key]: int(value) if value.isdigit() else value}
        config = replace(config, **fields)
    admission = admitted(malformed.make(START), config)
    assert admission.error is malformed.verdict
    assert (admission.message is None) == (malformed.verdict is ErrorCode.none)


def test_what_is_admitted_can_be_decoded() -> None:
    accepted = 0
    for data in mutated(3, 3_000, START):
        if admitted(data).error is ErrorCode.none:
            accepted += 1
            header = read_header(data)
            assert [record.offset for record in decode_records(data, 0, header)] == list(range(header.record_count))
    assert accepted > 100


def test_noise_in_a_batch_never_raises() -> None:
    source = random.Random(5)
    for size in range(400):
        admitted(resealed(batch()[:61] + source.randbytes(size), {8: 49 + size}))


@pytest.mark.parametrize("codec", list(Compression))
def test_every_codec_is_admitted(codec: Compression) -> None:
    assert refused(batch(20, compression=codec)) is ErrorCode.none


def test_many_records_that_compress_well_are_admitted() -> None:
    assert refused(batch(20_000, value=b"", key=None, compression=Compression.ZSTD)) is ErrorCode.none


@pytest.mark.parametrize("codec", list(Compression))
def test_a_batch_is_decided_at_once_unless_it_is_long(codec: Compression) -> None:
    assert Admission(batch(100, compression=codec), LogConfig(), START).is_decided
    assert not Admission(batch(QUICK_RECORDS + 1, compression=codec), LogConfig(), START).is_decided


@pytest.mark.parametrize("codec", list(Compression)[1:])
def test_a_batch_is_decided_at_once_unless_it_is_large_once_decompressed(codec: Compression) -> None:
    small, large = (batch(10, value=bytes(size), compression=codec) for size in (10_000, 500_000))
    assert Admission(small, LogConfig(), START).is_decided
    admission = Admission(large, LogConfig(), START)
    assert not admission.is_decided
    assert admission.decide() and admission.error is ErrorCode.none


@pytest.mark.parametrize("codec", [Compression.SNAPPY, Compression.LZ4])
def test_a_batch_in_very_many_compressed_blocks_is_not_decided_at_once(codec: Compression) -> None:
    """Each takes its time, however little it holds."""
    section = encode_records(records(1, START, bytes(200)))
    data = sealed(in_blocks(codec, (section[at : at + 1] for at in range(len(section)))), 1, START, codec)
    admission = Admission(bytearray(data), LogConfig(), START)
    assert not admission.is_decided
    assert not admission.decide(max_elements=199)
    assert admission.decide() and admission.error is ErrorCode.none


def test_a_record_with_very_many_headers_is_not_decided_at_once() -> None:
    headers = (Header("k", b""),) * (QUICK_RECORDS + 1)
    data = bytearray(encode_batch([NewRecord(None, b"", START, headers)]))
    admission = Admission(data, LogConfig(), START)
    assert not admission.is_decided
    assert admission.decide() and admission.error is ErrorCode.none


def test_a_batch_too_large_for_one_look_is_left_to_the_next() -> None:
    admission = Admission(batch(100_000, compression=Compression.ZSTD), LogConfig(), START)
    assert not admission.decide(100_000) and not admission.is_decided
    assert admission.decide(SECTION_BYTES_MAX) and admission.error is ErrorCode.none


def test_the_records_at_fault_are_named() -> None:
    late = START + 7_200_000
    records = [NewRecord(None if number % 2 else b"k", b"v", late if number == 2 else START) for number in range(4)]
    admission = admitted(encode_batch(records), LogConfig(cleanup_policy="compact"))
    assert admission.error is ErrorCode.invalid_timestamp
    assert [number for number, _reason in admission.record_errors] == [1, 2, 3]
    assert str(late) in admission.record_errors[1][1]
    assert admission.message is not None and "record 1" in admission.message


def test_no_more_than_a_hundred_records_are_named() -> None:
    data = encode_batch([NewRecord(None, b"v", START)] * 1_000)
    assert len(admitted(data, LogConfig(cleanup_policy="compact")).record_errors) == ERRORS_MAX


def test_the_header_of_an_admitted_batch_gets_its_max_timestamp() -> None:
    admission = admitted(resealed(batch(3), {MAX_TIME: 5}))
    data = admission._batches
    admission.correct()
    (header,) = validated_headers(data)
    assert header.max_timestamp == START + 2
    assert admission.headers == [header]


def test_a_producer_id_without_an_epoch_is_refused() -> None:
    assert refused(batch(of=producer(5, -1), sequence=0)) is ErrorCode.invalid_record


def test_locations_are_consecutive_from_the_end_of_the_log() -> None:
    data = batch(2) + batch(3)
    entries = assign_offsets(data, validated_headers(data), Offset(10), LeaderEpoch(4), -1)
    assert [(each.base_offset, each.last_offset, each.leader_epoch) for each in entries] == [(10, 11, 4), (12, 14, 4)]
    headers = validated_headers(data)
    assert [(each.base_offset, each.partition_leader_epoch) for each in headers] == [(10, 4), (12, 4)]


def test_the_append_time_becomes_that_of_every_record() -> None:
    data = batch(2, timestamp=5)
    [only] = assign_offsets(data, validated_headers(data), Offset(0), LeaderEpoch(0), START)
    [header] = validated_headers(data)
    assert only.max_timestamp == header.max_timestamp == START
    assert {record.timestamp for record in decode_records(data, 0, header)} == {START}
