"""Batches against an independent implementation (aiokafka's), and against input that lies."""

from __future__ import annotations

import random
import struct

import google_crc32c
import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from einmal.types import SEQUENCE_MAX, Header, ProducerEpoch, ProducerId
from einmal.types import Sequence as BatchSequence
from einmal.wire.compression import Compression
from einmal.wire.errors import CorruptBatch, TooLarge, Truncated, WireError
from einmal.wire.record_batch import (
    HEADER_SIZE,
    NewRecord,
    decode_records,
    encode_batch,
    encode_varint,
    iter_headers,
    patch,
    read_header,
    read_varint,
    set_log_append_time,
    under_producer,
    validate,
)

_BYTES = st.none() | st.binary(max_size=200)
_HEADERS = st.lists(st.builds(Header, st.text(max_size=20), _BYTES), max_size=3).map(tuple)
_RECORDS = st.lists(
    st.builds(NewRecord, _BYTES, _BYTES, st.integers(min_value=0, max_value=2**62), _HEADERS), min_size=1, max_size=20
)


def _decode(batch: bytes) -> list[NewRecord]:
    header = read_header(batch)
    validate(batch, 0, header)
    records = decode_records(batch, 0, header)
    assert [record.offset for record in records] == list(range(header.base_offset, header.next_offset))
    return [NewRecord(record.key, record.value, record.timestamp, record.headers) for record in records]


@given(records=_RECORDS, compression=st.sampled_from(Compression))
@settings(max_examples=150)
def test_what_is_encoded_is_decoded(records: list[NewRecord], compression: Compression) -> None:
    batch = encode_batch(records, compression=compression, base_offset=7)
    assert _decode(batch) == records
    assert read_header(batch).max_timestamp == max(record.timestamp for record in records)


@given(records=_RECORDS, compression=st.sampled_from(Compression))
@settings(max_examples=100)
def test_another_implementation_reads_our_batches(records: list[NewRecord], compression: Compression) -> None:
    theirs = DefaultRecordBatch(encode_batch(records, compression=compression, producer_id=9, transactional=True))
    assert theirs.validate_crc()
    assert theirs.is_transactional and theirs.producer_id == 9
    read = [
        NewRecord(
            record.key, record.value, record.timestamp, tuple(Header(key, value) for key, value in record.headers)
        )
        for record in theirs
    ]
    assert read == records


@given(records=_RECORDS, compression=st.sampled_from(Compression))
@settings(max_examples=100)
def test_we_read_another_implementations_batches(records: list[NewRecord], compression: Compression) -> None:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=int(compression),
        is_transactional=1,
        producer_id=5,
        producer_epoch=3,
        base_sequence=11,
        batch_size=1 << 30,
    )
    for offset, record in enumerate(records):
        builder.append(
            offset,
            record.timestamp,
            record.key,
            record.value,
            [(header.key, header.value) for header in record.headers],
        )
    batch = bytes(builder.build())
    header = read_header(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 3, 11)
    assert header.is_transactional and not header.is_control
    assert _decode(batch) == records


def test_a_header_name_that_is_not_utf_8_is_read_as_java_s_client_reads_it() -> None:
    """librdkafka writes any bytes, and Apache Kafka stores them."""
    batch = bytearray(encode_batch([NewRecord(None, b"v", 5, (Header("name", b"x"), Header("two", None)))]))
    batch[batch.index(b"name") : batch.index(b"name") + 4] = b"na\xefe"
    (record,) = decode_records(bytes(batch), 0, read_header(bytes(batch)))
    assert record.headers == (Header("na\ufffde", b"x"), Header("two", None))


@given(st.integers(min_value=-(2**63), max_value=2**63 - 1))
def test_varints_of_all_sizes_survive(value: int) -> None:
    encoded = encode_varint(value)
    assert read_varint(encoded, 0) == (value, len(encoded))


def test_patching_offset_and_epoch_keeps_the_checksum() -> None:
    batch = bytearray(encode_batch([NewRecord(b"k", b"v", 1)]))
    patch(batch, 0, 1234, 56)  # type: ignore[arg-type]
    header = read_header(batch)
    assert (header.base_offset, header.partition_leader_epoch) == (1234, 56)
    validate(batch, 0, header)


@given(records=_RECORDS, compression=st.sampled_from(Compression))
@settings(max_examples=100)
def test_batch_under_another_producer_is_what_that_producer_would_have_encoded(
    records: list[NewRecord], compression: Compression
) -> None:
    batch = bytearray(encode_batch(records, compression=compression, base_offset=1234))
    patch(batch, 0, 1234, 56)  # type: ignore[arg-type]
    # Fetched batches are slices.
    fetched = memoryview(b"before" + bytes(batch) + b"after")[6 : 6 + len(batch)]
    written = under_producer(fetched, read_header(batch), ProducerId(9), ProducerEpoch(2), BatchSequence(7))
    assert written == encode_batch(
        records, compression=compression, producer_id=9, producer_epoch=2, base_sequence=7, transactional=True
    )


def test_log_append_time_is_the_time_of_every_record() -> None:
    batch = bytearray(encode_batch([NewRecord(b"k", b"v", 1), NewRecord(b"k", b"w", 2)]))
    set_log_append_time(batch, 0, 99)
    header = read_header(batch)
    validate(batch, 0, header)
    assert header.timestamp_type == 1
    assert [record.timestamp for record in decode_records(batch, 0, header)] == [99, 99]


def test_sequences_wrap_to_zero_inside_a_batch() -> None:
    batch = encode_batch(
        [NewRecord(None, b"v", 1)] * 3, producer_id=1, producer_epoch=0, base_sequence=SEQUENCE_MAX - 1
    )
    assert read_header(batch).last_sequence == 0
    assert read_header(encode_batch([NewRecord(None, b"v", 1)])).last_sequence == -1


def test_whole_batches_are_iterated_and_a_torn_one_left_out() -> None:
    one = encode_batch([NewRecord(None, b"v", 1)])
    found = list(iter_headers(one + one + one[:-1]))
    assert [position for position, _ in found] == [0, len(one)]


def test_every_flipped_bit_of_what_the_checksum_covers_is_found() -> None:
    batch = encode_batch([NewRecord(b"key", b"value", 1)])
    for bit in range(21 * 8, len(batch) * 8):
        broken = bytearray(batch)
        broken[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptBatch):
            validate(broken, 0, read_header(broken))


def test_lying_lengths_magics_and_counts_are_refused() -> None:
    batch = encode_batch([NewRecord(b"key", b"value", 1)])

    def changed(position: int, layout: str, value: int) -> bytearray:
        broken = bytearray(batch)
        struct.pack_into(layout, broken, position, value)
        struct.pack_into(">I", broken, 17, google_crc32c.value(bytes(broken[21:])))
        return broken

    for length in (-1, 0, 48, -(2**31)):
        with pytest.raises(CorruptBatch):
            read_header(changed(8, ">i", length))
    with pytest.raises(Truncated):
        read_header(changed(8, ">i", 2**31 - 1))
    with pytest.raises(Truncated):
        read_header(batch[: HEADER_SIZE - 1])
    for magic in (0, 1, 3):
        with pytest.raises(CorruptBatch):
            read_header(changed(16, ">b", magic))
    for position, count in ((57, 2), (57, -1), (57, 2**31 - 1), (23, -1)):
        broken = changed(position, ">i", count)
        with pytest.raises(CorruptBatch):
            validate(broken, 0, read_header(broken))
    many = changed(57, ">i", 2**31 - 1)
    with pytest.raises(CorruptBatch):
        decode_records(many, 0, read_header(many))
    with pytest.raises(CorruptBatch):
        decode_records(changed(21, ">h", 7), 0, read_header(changed(21, ">h", 7)))


def test_records_that_decompress_to_more_than_allowed_are_too_large() -> None:
    for codec in list(Compression)[1:]:
        batch = encode_batch([NewRecord(None, bytes(1_000_000), 1)], compression=codec)
        with pytest.raises(TooLarge):
            decode_records(batch, 0, read_header(batch), max_bytes=999_999)


def test_broken_sections_never_do_more_than_raise() -> None:
    source = random.Random(20260401)
    records = [NewRecord(b"k%d" % i, b"v" * i, i, (Header("h", None), Header("i", b"x"))) for i in range(12)]
    for codec in Compression:
        batch = encode_batch(records, compression=codec)
        for _ in range(1500):
            broken = bytearray(batch)
            for _ in range(source.randint(1, 4)):
                broken[source.randrange(len(broken))] = source.randrange(256)
            if source.random() < 0.3:
                del broken[source.randrange(len(broken)) :]
            try:
                header = read_header(broken)
                decode_records(broken, 0, header)
                validate(broken, 0, header)
            except WireError:
                continue
