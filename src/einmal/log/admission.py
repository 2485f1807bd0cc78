"""What may be appended, as far as the bytes and the topic's settings tell; producer state is judged elsewhere.

Pure. Nothing is decompressed or unpacked, but on compacted topics, where a record without a key has no meaning.
"""

from __future__ import annotations

from typing import Final

from einmal.log.config import LOG_APPEND_TIME, LogConfig
from einmal.log.producer_state import CLIENT, REPLICATION, Origin
from einmal.log.segment import BatchPlace
from einmal.types import ErrorCode, LeaderEpoch, Offset
from einmal.wire.compression import Compression
from einmal.wire.errors import WireError
from einmal.wire.record_batch import (
    CODEC_MASK,
    CONTROL,
    LENGTH_OVERHEAD,
    MAGIC,
    TRANSACTIONAL,
    BatchHeader,
    decode_records,
    patch,
    read_header,
    set_log_append_time,
    validate,
)

NONE: Final = ErrorCode.none
"""Looked up once: every append needs it."""
_MAGIC_POSITION: Final = 16
_NOT_PLAIN: Final = CONTROL | TRANSACTIONAL | CODEC_MASK


def validated_headers(batches: bytearray | memoryview) -> list[BatchHeader]:
    """The headers of whole, valid batches that fill the buffer. Raises WireError."""
    headers = []
    position, size = 0, len(batches)
    while True:
        header = read_header(batches, position)
        validate(batches, position, header)
        headers.append(header)
        position += header.batch_length + LENGTH_OVERHEAD
        if position >= size:
            return headers


def error_of_invalid(batches: bytearray | memoryview) -> ErrorCode:
    """The answer to bytes that are not valid batches."""
    is_other_magic = len(batches) > _MAGIC_POSITION and batches[_MAGIC_POSITION] != MAGIC
    return ErrorCode.invalid_record if is_other_magic else ErrorCode.corrupt_message


def refusal(
    batches: bytearray | memoryview,
    headers: list[BatchHeader],
    origin: Origin,
    config: LogConfig,
    log_end_offset: Offset,
    wall_ms: int,
) -> ErrorCode:
    """The error that refuses valid batches; ``none`` when they may be appended."""
    if origin is REPLICATION:
        return _refusal_of_replica(headers, log_end_offset)
    size = len(batches)
    if size > config.segment_bytes:
        return ErrorCode.record_list_too_large
    if origin is not CLIENT:
        return NONE
    header = headers[0]
    if size > config.max_message_bytes:
        return ErrorCode.message_too_large
    if len(headers) != 1 or header.base_offset != 0 or header.record_count != header.last_offset_delta + 1:
        return ErrorCode.invalid_record
    if header.attributes & _NOT_PLAIN:
        error = _refusal_of_special(batches, header)
        if error is not NONE:
            return error
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        return ErrorCode.invalid_record
    is_ahead = header.max_timestamp > wall_ms + config.message_timestamp_after_max_ms
    if is_ahead and config.timestamp_type != LOG_APPEND_TIME:
        return ErrorCode.invalid_timestamp
    return _refusal_of_compacted(batches, header) if config.is_compacted else NONE


def _refusal_of_replica(headers: list[BatchHeader], log_end_offset: Offset) -> ErrorCode:
    for header in headers:
        if header.base_offset < log_end_offset:
            return ErrorCode.offset_out_of_range
        log_end_offset = header.next_offset
    return NONE


def _refusal_of_special(batches: bytearray | memoryview, header: BatchHeader) -> ErrorCode:
    """The refusal of control batches, unknown codecs, and counts that no record stands behind."""
    if header.attributes & CONTROL or (header.attributes & TRANSACTIONAL and header.producer_id < 0):
        return ErrorCode.invalid_record
    codec = header.attributes & CODEC_MASK
    if codec > Compression.ZSTD:
        return ErrorCode.unsupported_compression_type
    # The count becomes offsets. Where it is too good to be true, it is held against the records.
    if codec and header.record_count > len(batches):
        try:
            decode_records(batches, 0, header)
        except WireError:
            return ErrorCode.corrupt_message
    return NONE


def _refusal_of_compacted(batches: bytearray | memoryview, header: BatchHeader) -> ErrorCode:
    try:
        records = decode_records(batches, 0, header)
    except WireError:
        return ErrorCode.corrupt_message
    return ErrorCode.invalid_record if any(record.key is None for record in records) else NONE


def place(
    batches: bytearray | memoryview,
    headers: list[BatchHeader],
    next_offset: Offset,
    leader_epoch: LeaderEpoch,
    append_time: int,
) -> list[BatchPlace]:
    """Write offsets, leader epoch and, unless -1, the append time into the batches; returns their places in the log."""
    position = 0
    places = []
    for header in headers:
        patch(batches, position, next_offset, leader_epoch)
        timestamp = header.max_timestamp
        if append_time >= 0:
            set_log_append_time(batches, position, append_time)
            timestamp = append_time
        size = header.batch_length + LENGTH_OVERHEAD
        last_offset = Offset(next_offset + header.last_offset_delta)
        places.append(BatchPlace(size, next_offset, last_offset, timestamp, leader_epoch))
        next_offset = Offset(last_offset + 1)
        position += size
    return places
