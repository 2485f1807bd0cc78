"""What the tests of compaction share: a round run to its end, and what readers see."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final

from einmal.log.cleaning import begin
from einmal.log.compaction import Cleaning
from einmal.log.partition_log import PartitionLog
from einmal.types import Header, Instant, ProducerIdAndEpoch
from einmal.wire.compression import Compression
from einmal.wire.record_batch import BatchHeader, NewRecord, Record, decode_records, encode_batch, iter_headers
from tests.log.making import NOW, START, batches_of, done

MAP_BYTES: Final = 1 << 20


def clean(
    log: PartitionLog,
    now: Instant = NOW,
    map_bytes: int = MAP_BYTES,
    run: Callable[[Coroutine[Any, Any, bool]], bool] = done,
) -> Cleaning:
    """One round, from beginning to end. A log on a real disk needs ``run=asyncio.run``."""
    cleaning = begin(log, now, map_bytes)
    for _ in cleaning.map_keys():
        pass
    for cleaned in cleaning.rewrite():
        if cleaned is not None:
            assert run(log.durability.swap(cleaning, cleaned))
    log.mark_clean(cleaning.end)
    return cleaning


def keyed(
    *records: tuple[bytes | None, bytes | None],
    of: ProducerIdAndEpoch | None = None,
    sequence: int = -1,
    transactional: bool = False,
    timestamp: int = START,
    compression: Compression = Compression.NONE,
) -> bytearray:
    """A batch of (key, value); a value of None is a tombstone."""
    producer_id, epoch = of or (-1, -1)
    return bytearray(
        encode_batch(
            [NewRecord(key, value, timestamp + at, (Header("h", b"x"),)) for at, (key, value) in enumerate(records)],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
            compression=compression,
        )
    )


def headers(log: PartitionLog) -> list[BatchHeader]:
    return [next(iter_headers(data))[1] for _, _, data in batches_of(log)]


def visible(log: PartitionLog, max_bytes: int = 500) -> list[Record]:
    """What a ``read_committed`` reader gets, who reads from the start in small steps."""
    found: list[Record] = []
    offset, end = log.log_start_offset, log.last_stable_offset
    while offset < end:
        data = log.read(offset, max_bytes, below=end)
        if not data:
            # Nothing is left before the end.
            break
        batches = list(iter_headers(data))
        last = batches[-1][1].next_offset
        aborted = sorted(
            (each.first_offset, each.producer_id) for each in log.segments.aborted_transactions(offset, last)
        )
        hidden: dict[int, None] = {}
        for position, header in batches:
            while aborted and aborted[0][0] <= header.last_offset:
                hidden[aborted.pop(0)[1]] = None
            if header.is_control:
                hidden.pop(header.producer_id, None)
            elif not (header.is_transactional and header.producer_id in hidden):
                found += decode_records(data, position, header)
        offset = last
    return found


def pairs(log: PartitionLog) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in visible(log)]
