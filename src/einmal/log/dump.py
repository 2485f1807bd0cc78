"""The content of a partition's files as plain values, for people and tests.

Trusts nothing: an invalid batch is listed as far as it can be read, and ends the list. Keys and values stay bytes.
Knows no recovery: it changes nothing on disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from einmal.log.aborted_index import AbortedIndex
from einmal.log.disk import Disk
from einmal.log.offset_index import ENTRY_SIZE as OFFSET_ENTRY_SIZE
from einmal.log.offset_index import OffsetIndex
from einmal.log.producer_state import ProducerStates
from einmal.log.segment_files import ABORTED_INDEX, LOG, OFFSET_INDEX, SNAPSHOT, TIME_INDEX
from einmal.log.time_index import ENTRY_SIZE as TIME_ENTRY_SIZE
from einmal.log.time_index import TimeIndex
from einmal.types import Instant, Offset
from einmal.wire.control_batch import ABORT, COMMIT, control_type, decode_marker
from einmal.wire.errors import WireError
from einmal.wire.record_batch import (
    HEADER_SIZE,
    BatchHeader,
    Record,
    decode_records,
    peek_header,
    validate,
)

_FOR_EVER_MS = 1 << 62


def dump(disk: Disk, path: PurePosixPath) -> Iterator[dict[str, Any]]:
    """The entries of a ``.log``, ``.index``, ``.timeindex``, ``.txnindex`` or ``.snapshot`` file.

    Raises OSError; ValueError for a file of another kind, or an incomplete index or snapshot.
    """
    if path.suffix not in (LOG, OFFSET_INDEX, TIME_INDEX, ABORTED_INDEX, SNAPSHOT):
        raise ValueError(f"{path.name} is no file of a log")
    if path.suffix == LOG:
        return dump_batches(disk, path)
    data = disk.read_file(path)
    base_offset = Offset(int(path.stem))
    if path.suffix == OFFSET_INDEX:
        entries = OffsetIndex.decode(base_offset, _written(data, OFFSET_ENTRY_SIZE))
        return ({"offset": offset, "position": position} for offset, position in entries)
    if path.suffix == TIME_INDEX:
        times = TimeIndex.decode(base_offset, _written(data, TIME_ENTRY_SIZE))
        return ({"timestamp": time, "offset": offset} for time, offset in times)
    if path.suffix == ABORTED_INDEX:
        return (entry._asdict() for entry in AbortedIndex.decode(data))
    states = ProducerStates.decode_snapshot(data, Instant(0, 0), _FOR_EVER_MS)
    return (producer._asdict() for producer in states.describe())


def _written(data: bytes, entry_size: int) -> bytes:
    """Without the zeros at the end: Apache Kafka makes the index of an active segment as large as it may become.

    An entry of zeros can only be the first one: the base offset, at the segment's beginning.
    """
    if len(data) <= entry_size or len(data) % entry_size:
        return data
    return data[: -(-len(data.rstrip(b"\0")) // entry_size) * entry_size]


def dump_batches(disk: Disk, path: PurePosixPath) -> Iterator[dict[str, Any]]:
    """The batches of a segment with their records; ``error`` describes a broken one. Raises OSError."""
    file = disk.open(path)
    try:
        position, size = 0, file.size()
        while position < size:
            try:
                header = peek_header(file.read(position, HEADER_SIZE))
            except WireError as error:
                yield {"position": position, "error": str(error), "records": []}
                return
            batch = {"position": position, **_fields(header), "error": None, "records": []}
            try:
                data = file.read(position, min(header.size, size - position))
                if len(data) < header.size:
                    raise WireError(f"{header.size - len(data)} bytes are missing")
                validate(data, 0, header)
                batch["records"] = [_record(header, record) for record in decode_records(data, 0, header)]
            except WireError as error:
                batch["error"] = str(error)
            yield batch
            if batch["error"]:
                return
            position += header.size
    finally:
        file.close()


def _fields(header: BatchHeader) -> dict[str, Any]:
    return {
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "count": header.record_count,
        "base_sequence": header.base_sequence,
        "last_sequence": header.last_sequence,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "partition_leader_epoch": header.partition_leader_epoch,
        "is_transactional": header.is_transactional,
        "is_control": header.is_control,
        "timestamp_type": "LogAppendTime" if header.has_log_append_time else "CreateTime",
        "max_timestamp": header.max_timestamp,
        "size": header.size,
        "magic": header.magic,
        "compression": header.attributes & 0x07,
        "crc": header.crc,
    }


def _record(header: BatchHeader, record: Record) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": record.key,
        "value": record.value,
        "headers": [(record_header.key, record_header.value) for record_header in record.headers],
    }
    if header.is_control and control_type(record) in (ABORT, COMMIT):
        marker = decode_marker(record)
        fields["marker"] = "COMMIT" if marker.committed else "ABORT"
        fields["coordinator_epoch"] = marker.coordinator_epoch
    return fields
