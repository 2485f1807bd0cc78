"""A writing task: claims partitions, makes record batches of sections, sends them, reports what was acknowledged.

Runs in Spark's Python worker on an executor, or in the driver's process. Sequences of a partition begin at 0 in every
transaction, because every transaction has an epoch of its own. Where tasks share partitions they take turns: each
writes a piece of its sections to the partitions that are free, waits for the acknowledgements, and reports. A task that
may not write fails: its batch is written again as a whole. A worker outlives its killed executor and may continue to
write and to report; its batch is aborted all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from google_crc32c import extend as crc32c_extend

from einmal.client import PartitionWriter
from einmal.commit_protocol.claims import Output
from einmal.sinks.kafka.claim_client import Claimant
from einmal.sinks.kafka.claim_messages import Claim
from einmal.sinks.kafka.open_transaction import WriteAs
from einmal.types import NO_SEQUENCE, Sequence, next_sequence
from einmal.wire.compression import Compression
from einmal.wire.record_batch import HEADER_SIZE, seal_batch

_SECTION: Final = ("number", "section", "count", "first_timestamp", "max_timestamp")
_PARTS: Final = 4
"""Tasks that share partitions claim about this part of them at a time."""
_SMALL_BYTES: Final = 256 * 1024
"""Below this size a task claims all its partitions at once: a round trip per claim would take longer."""


@dataclass(frozen=True, slots=True)
class WriteTask:
    """The input of every task of one transaction. ``is_shared``: other tasks write to the same partitions at the same
    time."""

    write_as: WriteAs
    compression: Compression
    is_shared: bool


@dataclass(slots=True)
class _Claimed:
    """A partition, and what this task has sent to it under this claim."""

    claim: Claim
    count: int = 0
    crc: int = 0


@dataclass(frozen=True, slots=True)
class _Section:
    data: memoryview
    records: int
    first_timestamp: int
    max_timestamp: int


def write_sections(
    task: WriteTask, number: int, claims: Claimant, writer: PartitionWriter, batches: Iterator[Any]
) -> list[Output]:
    """Write the sections (``encoding.SECTION_NAMES``) of one task; one output for each claim. ``number``: of the task.
    ``writer``: has begun, under the identity of ``task``. Raises KafkaError, ClaimRefused."""
    writing = _Writing(task, number, claims, writer)
    for batch in batches:
        writing.write(_by_number(batch))
    writing.report()
    return writing.outputs


def _by_number(batch: Any) -> dict[int, list[_Section]]:
    """The sections for every partition, in their order."""
    sections: dict[int, list[_Section]] = {}
    for number, *section in zip(*(_values(batch, name) for name in _SECTION), strict=True):
        sections.setdefault(number, []).append(_Section(*section))
    return sections


def _values(batch: Any, name: str) -> Any:
    column = batch.column(name)
    # Large values are looked at, not copied.
    return (memoryview(scalar.as_buffer()) for scalar in column) if name == "section" else column.to_pylist()


class _Writing:
    """Output of one task."""

    def __init__(self, task: WriteTask, number: int, claims: Claimant, writer: PartitionWriter) -> None:
        self.outputs: list[Output] = []
        self._task = task
        self._number = number
        self._claims = claims
        self._writer = writer
        self._claimed: dict[int, _Claimed] = {}

    def write(self, sections: dict[int, list[_Section]]) -> None:
        """Partitions that nobody else writes are kept until the task ends."""
        waiting = self._in_order(sections)
        size = sum(len(section.data) for partition_sections in sections.values() for section in partition_sections)
        most = len(waiting) if not self._task.is_shared or size < _SMALL_BYTES else -(-len(waiting) // _PARTS)
        while waiting:
            free = [number for number in waiting if number in self._claimed]
            if not free:
                claims = self._claims.claim(waiting, most)
                self._claimed |= {claim.number: _Claimed(claim) for claim in claims}
                free = [claim.number for claim in claims]
            for number in free:
                claimed = self._claimed[number]
                batches = [self._sealed(claimed, section) for section in sections[number]]
                self._writer.append_all((claimed.claim.partition, batch) for batch in batches)
            written = set(free)
            waiting = [number for number in waiting if number not in written]
            if self._task.is_shared:
                self.report()

    def _in_order(self, sections: dict[int, list[_Section]]) -> list[int]:
        """Tasks that share partitions begin at different ones, so that they do not wait for each other."""
        numbers = list(sections)
        if not self._task.is_shared:
            return numbers
        first = self._number * max(1, len(numbers) // _PARTS) % len(numbers) if numbers else 0
        return numbers[first:] + numbers[:first]

    def _sealed(self, claimed: _Claimed, section: _Section) -> bytes:
        identity = self._task.write_as.identity
        batch = seal_batch(
            section.data,
            section.records,
            section.first_timestamp,
            section.max_timestamp,
            producer_id=-1 if identity is None else identity.producer_id,
            producer_epoch=-1 if identity is None else identity.producer_epoch,
            base_sequence=NO_SEQUENCE
            if identity is None
            else next_sequence(Sequence(claimed.claim.sequence), claimed.count),
            transactional=identity is not None,
            compression=self._task.compression,
        )
        claimed.crc = crc32c_extend(claimed.crc, batch[HEADER_SIZE:])
        claimed.count += section.records
        return batch

    def report(self) -> None:
        """Wait for the acknowledgements, and leave the partitions to others. Raises KafkaError, ClaimRefused."""
        written = self._writer.flush()
        outputs = []
        for claimed in self._claimed.values():
            partition = claimed.claim.partition
            taken = written[partition]
            outputs.append(Output(*partition, taken.first_offset, taken.last_offset, claimed.count, claimed.crc))
        self._claims.report(outputs)
        self.outputs += outputs
        self._claimed.clear()
