"""Invariants of a cluster, whatever happens to it: checked during the whole run, and at the end.

- A partition has one leader per leader epoch, the metadata quorum one per epoch.
- Records that have been below a replica's high watermark never change, and are the same on every replica.
- At the end the replicas' logs are the same, byte for byte, up to the high watermark; the nodes' metadata is the same;
  and another coordinator that reads a coordinator's log gets the same state.
- Where logs are compacted, each replica on its own, the same holds for the remaining records: an offset has the same
  record everywhere, and at the end every replica has the last value of each key.

Reads the internal state of each node, without requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from einmal.broker.coordinators.group_service import GroupRuntime
from einmal.broker.coordinators.transaction_service import TransactionRuntime
from einmal.broker.node import Node
from einmal.broker.replicas.partition import Partition
from einmal.simulation.coordinator_state import coordinator_difference
from einmal.types import Offset, TopicPartition
from einmal.wire.control_batch import COMMIT, control_type
from einmal.wire.record_batch import BatchHeader, decode_records, iter_headers

_READ_BYTES: Final = 1024 * 1024
Report = Callable[[str, str], None]


class Invariants:
    """``is_loss_allowed``: committed records may be lost after a restart, so there is nothing to compare with."""

    def __init__(self, report: Report, *, is_loss_allowed: bool) -> None:
        self._report = report
        self._is_loss_allowed = is_loss_allowed
        self._leaders: dict[tuple[TopicPartition, int], int] = {}
        self._committed: dict[tuple[TopicPartition, object], dict[int, Any]] = {}
        self._seen: dict[Partition, Offset] = {}
        self._reported: dict[tuple[str, object], None] = {}

    def _complain(self, kind: str, about: object, detail: str) -> None:
        """Report each problem once per subject."""
        if (kind, about) not in self._reported:
            self._reported[(kind, about)] = None
            self._report(kind, detail)

    # --- during the run --------------------------------------------------------------------------------------------

    def look_at(self, node: Node) -> None:
        """The leaders in this node's view."""
        for partition in replicas(node):
            if partition.is_leader:
                self._leads(node, partition.topic_partition, partition.leader_epoch)

    def _leads(self, node: Node, key: TopicPartition, epoch: int) -> None:
        known = self._leaders.setdefault((key, epoch), node.config.node_id)
        if known != node.config.node_id:
            detail = f"{key} is led by {known} and by {node.config.node_id} in epoch {epoch}"
            self._complain("two-leaders", (key, epoch), detail)

    def compare_committed(self, nodes: Iterable[Node]) -> None:
        """Compare records committed since the last check with those that any replica had committed at their offsets."""
        for node in nodes:
            self.look_at(node)
            if not self._is_loss_allowed:
                for partition in replicas(node):
                    self._follow(node, partition)

    def _follow(self, node: Node, partition: Partition) -> None:
        key = partition.topic_partition
        if partition.is_offline:
            return
        offset = max(self._seen.get(partition, Offset(0)), partition.log_start_offset)
        committed = self._committed.setdefault((key, partition.topic_id), {})
        end = partition.high_watermark
        while offset < end:
            batches = partition.read(offset, _READ_BYTES, below=end)
            if not batches:
                break
            for position, header in iter_headers(batches):
                offset = header.next_offset
                stored: Mapping[int, Any]
                if partition.config.is_compacted:
                    stored = _records(batches, position, header)
                else:
                    stored = {header.base_offset: (header.last_offset, header.crc, header.partition_leader_epoch)}
                for at, actual in stored.items():
                    known = committed.setdefault(at, actual)
                    if known != actual:
                        detail = f"{key} had {known} committed at {at}, node {node.config.node_id} has {actual}"
                        self._complain("committed-changed", key, detail)
        self._seen[partition] = offset

    # --- at the end ------------------------------------------------------------------------------------------------

    def compare_replicas(self, nodes: list[Node]) -> None:
        """The faults are over, and every node runs."""
        replicas_of: dict[TopicPartition, list[tuple[int, Partition]]] = {}
        for node in nodes:
            for partition in replicas(node):
                replicas_of.setdefault(partition.topic_partition, []).append((node.config.node_id, partition))
        for key, copies in replicas_of.items():
            self._compare_logs(key, copies)

    def _compare_logs(self, key: TopicPartition, copies: list[tuple[int, Partition]]) -> None:
        start = max(partition.log_start_offset for _, partition in copies)
        end = min(partition.high_watermark for _, partition in copies)
        first_id, first = copies[0]
        if first.config.is_compacted:
            self._compare_compacted(key, copies, end)
            return
        expected = content(first, start, end)
        for node_id, partition in copies[1:]:
            if content(partition, start, end) != expected:
                self._complain("replicas-differ", key, f"{key} on {node_id} is not what it is on {first_id}")

    def _compare_compacted(self, key: TopicPartition, copies: list[tuple[int, Partition]], end: Offset) -> None:
        """With each other, or with all records ever committed, if none may be lost."""
        first = copies[0][1]
        committed = self._committed.get((key, first.topic_id))
        written = records(first, Offset(0), end) if committed is None else committed
        expected = last_values({offset: record for offset, record in written.items() if offset < end})
        for node_id, partition in copies:
            if last_values(records(partition, Offset(0), end)) != expected:
                self._complain("replicas-differ", key, f"{key} on {node_id} has other last values than it should have")

    def compare_metadata(self, nodes: list[Node]) -> None:
        """Nodes with images of the same offset have equal images."""
        images: dict[int, tuple[int, Any]] = {}
        for node in nodes:
            at = node.metadata.next_offset
            image = sorted(map(repr, node.metadata.image.snapshot_records()))
            known_id, known = images.setdefault(at, (node.config.node_id, image))
            if known != image:
                detail = f"nodes {known_id} and {node.config.node_id} differ in what they know of the cluster at {at}"
                self._complain("metadata-differs", at, detail)

    def compare_coordinators(self, nodes: list[Node]) -> None:
        """Each coordinator's state with that of one that reads its log."""
        for node in nodes:
            runtimes: list[TransactionRuntime | GroupRuntime] = [*node.transactions.runtimes(), *node.groups.runtimes()]
            for runtime in runtimes:
                if runtime.is_loaded and (difference := coordinator_difference(runtime)):
                    key = runtime.partition.topic_partition
                    self._complain("coordinator-differs", key, f"{key}: {difference}")


def replicas(node: Node) -> list[Partition]:
    """Return the replicas of a node, that of the metadata log too."""
    quorum = getattr(node.quorum, "partition", None)
    metadata_replicas = [] if quorum is None else [quorum]
    return [*metadata_replicas, *node.partitions]


def content(partition: Partition, start: Offset, end: Offset) -> bytes:
    """The batches between two offsets."""
    parts = []
    while start < end:
        batches = partition.read(start, _READ_BYTES, below=end)
        if not batches:
            break
        for _position, header in iter_headers(batches):
            start = header.next_offset
        parts.append(bytes(batches))
    return b"".join(parts)


class StoredRecord(NamedTuple):
    """A record as it must stay. ``control``: its type, -1: it is no control record."""

    key: bytes | None
    value: bytes | None
    producer_id: int
    producer_epoch: int
    leader_epoch: int
    is_transactional: bool
    control: int


def _records(batches: Any, position: int, header: BatchHeader) -> dict[int, StoredRecord]:
    return {
        record.offset: StoredRecord(
            record.key,
            record.value,
            header.producer_id,
            header.producer_epoch,
            header.partition_leader_epoch,
            header.is_transactional,
            control_type(record) if header.is_control else -1,
        )
        for record in decode_records(batches, position, header)
    }


def records(partition: Partition, start: Offset, end: Offset) -> dict[int, StoredRecord]:
    """Between two offsets."""
    stored: dict[int, StoredRecord] = {}
    while start < end:
        batches = partition.read(start, _READ_BYTES, below=end)
        if not batches:
            break
        for position, header in iter_headers(batches):
            start = header.next_offset
            stored.update(_records(batches, position, header))
    return stored


def last_values(written: Mapping[int, StoredRecord]) -> dict[bytes | None, bytes]:
    """The last value of each key, in the view of a ``read_committed`` reader."""
    last: dict[bytes | None, tuple[int, bytes | None]] = {}
    undecided: dict[int, dict[int, StoredRecord]] = {}
    for offset, record in sorted(written.items()):
        if record.control >= 0:
            decided = undecided.pop(record.producer_id, {})
            read = decided if record.control == COMMIT else {}
        elif record.is_transactional:
            undecided.setdefault(record.producer_id, {})[offset] = record
            read = {}
        else:
            read = {offset: record}
        for at, visible in read.items():
            last[visible.key] = max(last.get(visible.key, (-1, None)), (at, visible.value), key=lambda known: known[0])
    return {key: value for key, (_, value) in last.items() if value is not None}
