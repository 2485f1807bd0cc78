"""Validation of appended batches by their bytes and the topic's settings; producer state is checked elsewhere.

Pure. A client's batch is checked for everything that Apache Kafka checks, down to the last header of the last record:
an unreadable record in the log would block its readers. Batches of replicas and coordinators were checked where they
were made.

A CRC proves only that the sender meant these bytes. More is refused than by Apache Kafka: offset deltas that do not
count up (it checks them in compressed batches only), bytes after a compressed frame (librdkafka cannot read them), and
batches that decompress to more than 64 MiB. ``tests/interop/test_malformed_batches.py`` has the list with reasons.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from einmal.compiled import is_compiled
from einmal.log.config import LOG_APPEND_TIME, LogConfig
from einmal.log.segment import BatchEntry
from einmal.types import ErrorCode, LeaderEpoch, Offset
from einmal.wire.compacted_batch import DELETE_HORIZON
from einmal.wire.compression import Compression
from einmal.wire.control_batch import ABORT, COMMIT, control_type, decode_marker
from einmal.wire.errors import CorruptBatch, InvalidRecord, TooLarge, TooLong, Truncated, WireError
from einmal.wire.record_batch import (
    CODEC_MASK,
    CONTROL,
    LENGTH_OVERHEAD,
    MAGIC,
    TRANSACTIONAL,
    BatchHeader,
    covered_bytes,
    decode_records,
    ensure_crc,
    patch,
    read_header,
    records_within,
    set_log_append_time,
    set_max_timestamp,
    validate,
)
from einmal.wire.record_batch import LOG_APPEND_TIME as APPEND_TIME_BIT
from einmal.wire.record_scan import ERRORS_MAX, Scanned, TimeBounds, scan_records

NONE: Final = ErrorCode.none
"""Looked up once, because every append needs it."""
SECTION_BYTES_MAX: Final = 64 * 1024 * 1024
"""Maximum decompressed size of a client's batch. Apache Kafka has no bound; librdkafka's is 100 MB."""
QUICK_RECORDS: Final = 10_000 if is_compiled() else 2_000
"""With librdkafka's defaults a batch has 10,000 records at most."""
QUICK_BYTES: Final = 256 * 1024
_QUICK_COMPRESSED_BYTES: Final = 64 * 1024
_QUICK_BLOCKS: Final = 64
"""To check a batch of this size takes a fraction of a millisecond, and so it does to hand one to another thread and to
get it back. Larger ones are better checked there: the loop serves others meanwhile, if there is a processor for it. The
limits of compressed bytes and blocks are for those that were made to take long."""
_MAGIC_POSITION: Final = 16
_NOT_PLAIN: Final = CONTROL | TRANSACTIONAL | APPEND_TIME_BIT | DELETE_HORIZON
_ANY_TIME: Final = TimeBounds()


class Admission:
    """The validation of a client's batch. ``headers``: its one header, empty where there is none.

    ``max_timestamp``: the latest of its records, -1 where they have none. ``record_errors``: (index in batch, text).
    """

    __slots__ = ("_batches", "_config", "_wall_ms", "error", "headers", "is_decided", "max_timestamp", "message",
                 "record_errors")  # fmt: skip

    def __init__(self, batches: bytearray | memoryview, config: LogConfig, wall_ms: int) -> None:
        self._batches = batches
        self._config = config
        self._wall_ms = wall_ms
        self.headers: list[BatchHeader] = []
        self.error = NONE
        self.message: str | None = None
        self.record_errors: Sequence[tuple[int, str]] = ()
        self.max_timestamp = -1
        self.is_decided = False
        """False: ``decide`` has to check the records, which would block an event loop for too long."""
        covered = self._check_batch()
        if covered is not None:
            self._decide_quickly(covered)

    def _check_batch(self) -> bytes | None:
        """Check all but the records; returns the bytes covered by the CRC, or None if the batch is refused."""
        batches = self._batches
        size = len(batches)
        if size > _MAGIC_POSITION and batches[_MAGIC_POSITION] != MAGIC:
            self._refuse(ErrorCode.invalid_record, f"expected magic {MAGIC}, found {batches[_MAGIC_POSITION]}")
            return None
        try:
            header = read_header(batches)
            covered = ensure_crc(batches, 0, header)
        except Truncated:
            self._refuse(ErrorCode.invalid_record, f"{size} bytes hold no whole record batch")
            return None
        except CorruptBatch as error:
            self._refuse(ErrorCode.corrupt_message, str(error))
            return None
        self.headers.append(header)
        self._check_header(header, size)
        return None if self.is_decided else covered

    def _check_header(self, header: BatchHeader, size: int) -> None:
        config = self._config
        if size > config.segment_bytes:
            return self._refuse(ErrorCode.record_list_too_large, f"{size} bytes, segment.bytes={config.segment_bytes}")
        if size > config.max_message_bytes:
            limit = f"max.message.bytes={config.max_message_bytes}"
            return self._refuse(ErrorCode.message_too_large, f"a batch of {size} bytes; {limit}")
        problem = _problem_of(header, size)
        if problem is not None:
            return self._refuse(ErrorCode.invalid_record, problem)
        attributes = header.attributes
        if attributes & CODEC_MASK > Compression.ZSTD:
            return self._refuse(ErrorCode.unsupported_compression_type, f"codec {attributes & CODEC_MASK}")
        if attributes & APPEND_TIME_BIT:
            return self._refuse(ErrorCode.invalid_timestamp, "a producer may not set the timestamp type LogAppendTime")
        return None

    def _decide_quickly(self, covered: bytes) -> None:
        header = self.headers[0]
        if header.record_count > QUICK_RECORDS:
            return
        # Uncompressed records take as long as there are elements, whatever their size.
        max_bytes = SECTION_BYTES_MAX
        if header.attributes & CODEC_MASK:
            if header.size > _QUICK_COMPRESSED_BYTES:
                return
            max_bytes = QUICK_BYTES
        try:
            self._check_records(covered, max_bytes, QUICK_RECORDS, _QUICK_BLOCKS)
        except (TooLarge, TooLong):
            # Only a longer check can decide.
            return

    def decide(self, max_bytes: int = SECTION_BYTES_MAX, max_elements: int | None = None) -> bool:
        """Check the records, however long it takes; may run in another thread.

        False: more than ``max_bytes`` once decompressed, or more than ``max_elements`` records, headers or compressed
        blocks. At ``SECTION_BYTES_MAX`` and None there is always a decision.
        """
        if max_elements is not None and self.headers[0].record_count > max_elements:
            return False
        # Copied again: many batches may wait for this, and the copies would take as much memory as they do.
        covered = covered_bytes(self._batches, 0, self.headers[0].size)
        try:
            self._check_records(covered, max_bytes, max_elements, max_elements)
        except TooLong:
            return False
        except TooLarge:
            if max_bytes < SECTION_BYTES_MAX:
                return False
            self._refuse(ErrorCode.message_too_large, f"the records decompress to more than {max_bytes} bytes")
        return True

    def _check_records(self, covered: bytes, max_bytes: int, elements_max: int | None, blocks_max: int | None) -> None:
        """Raises TooLarge or TooLong: nothing is decided."""
        header, config = self.headers[0], self._config
        try:
            records, begin = records_within(covered, header, max_bytes, blocks_max)
            bounds = _ANY_TIME if config.timestamp_type == LOG_APPEND_TIME else self._time_bounds()
            scanned = scan_records(
                records,
                header.record_count,
                header.base_timestamp,
                bounds,
                begin=begin,
                needs_keys=config.is_compacted,
                headers_max=elements_max,
            )
        except TooLarge:
            raise
        except InvalidRecord as error:
            self._refuse(ErrorCode.invalid_record, str(error), [(error.index, str(error))])
        except CorruptBatch as error:
            self._refuse(ErrorCode.invalid_record, str(error))
        else:
            self._judge(scanned)

    def _time_bounds(self) -> TimeBounds:
        config = self._config
        return TimeBounds(
            self._wall_ms - config.message_timestamp_before_max_ms,
            self._wall_ms + config.message_timestamp_after_max_ms,
        )

    def _judge(self, scanned: Scanned) -> None:
        self.max_timestamp, keyless, untimely = scanned
        self.is_decided = True
        if not keyless and not untimely:
            return
        errors = [(index, "a compacted topic accepts no record without a key") for index in keyless]
        if untimely:
            low, high = self._time_bounds()
            limits = "message.timestamp.before.max.ms and message.timestamp.after.max.ms"
            errors += [
                (index, f"timestamp {time} is not between {low} and {high}; see {limits}") for index, time in untimely
            ]
        errors = sorted(errors)[:ERRORS_MAX]
        number, reason = errors[0]
        self._refuse(
            ErrorCode.invalid_timestamp if untimely else ErrorCode.invalid_record,
            f"{len(errors)} records refused, the first is record {number}: {reason}",
            errors,
        )

    def correct(self) -> None:
        """Set the maximum timestamp in an admitted batch's header, in case its producer has set a wrong one."""
        header = self.headers[0]
        if header.max_timestamp != self.max_timestamp and self._config.timestamp_type != LOG_APPEND_TIME:
            set_max_timestamp(self._batches, 0, self.max_timestamp)
            self.headers = [read_header(self._batches)]

    def _refuse(self, error: ErrorCode, message: str, record_errors: Sequence[tuple[int, str]] = ()) -> None:
        self.error, self.message, self.record_errors = error, message, record_errors
        self.is_decided = True


def _problem_of(header: BatchHeader, size: int) -> str | None:
    """Why a client may not send this batch; None: it may."""
    count = header.record_count
    if header.size != size:
        return f"{size - header.size} bytes after the record batch: a partition takes one batch in a request"
    if header.base_offset != 0:
        return f"base offset {header.base_offset}, not 0"
    if count <= 0 or count != header.last_offset_delta + 1:
        return f"{count} records, last offset delta {header.last_offset_delta}"
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        return f"producer id {header.producer_id}, epoch {header.producer_epoch}, sequence {header.base_sequence}"
    return _problem_of_attributes(header) if header.attributes & _NOT_PLAIN else None


def _problem_of_attributes(header: BatchHeader) -> str | None:
    if header.attributes & CONTROL:
        return "a client may not write control records"
    if header.attributes & DELETE_HORIZON:
        return "a client may not set a delete horizon"
    if header.attributes & TRANSACTIONAL and header.producer_id < 0:
        return "a transactional batch without a producer id"
    return None


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


def trusted_headers(
    batches: bytearray | memoryview, *, next_offset: Offset | None, segment_bytes: int
) -> list[BatchHeader] | ErrorCode:
    """The headers of a coordinator's or, with ``next_offset``, a leader's batches; or why they cannot be appended."""
    try:
        headers = validated_headers(batches)
        _check_markers(batches, headers)
    except WireError:
        return ErrorCode.corrupt_message
    if next_offset is None:
        return ErrorCode.record_list_too_large if len(batches) > segment_bytes else headers
    error = _refusal_of_replica(headers, next_offset)
    return headers if error is NONE else error


def _check_markers(batches: bytearray | memoryview, headers: list[BatchHeader]) -> None:
    """The log acts on markers: they are read before they are written. Raises WireError."""
    position = 0
    for header in headers:
        if header.attributes & CONTROL:
            for record in decode_records(batches, position, header):
                if control_type(record) in (ABORT, COMMIT):
                    decode_marker(record)
        position += header.size


def _refusal_of_replica(headers: list[BatchHeader], log_end_offset: Offset) -> ErrorCode:
    for header in headers:
        if header.base_offset < log_end_offset:
            return ErrorCode.offset_out_of_range
        log_end_offset = header.next_offset
    return NONE


def assign_offsets(
    batches: bytearray | memoryview,
    headers: list[BatchHeader],
    next_offset: Offset,
    leader_epoch: LeaderEpoch,
    append_time: int,
) -> list[BatchEntry]:
    """Write offsets, leader epoch and, unless -1, the append time into the batches; returns their index entries."""
    position = 0
    entries = []
    for header in headers:
        patch(batches, position, next_offset, leader_epoch)
        timestamp = header.max_timestamp
        if append_time >= 0:
            set_log_append_time(batches, position, append_time)
            timestamp = append_time
        size = header.batch_length + LENGTH_OVERHEAD
        last_offset = Offset(next_offset + header.last_offset_delta)
        entries.append(BatchEntry(size, next_offset, last_offset, timestamp, leader_epoch))
        next_offset = Offset(last_offset + 1)
        position += size
    return entries
