"""Disabled defences, from outside: a broker that had forgotten one of them.

The product has no switch for any of this. Each is a set of replaced functions, put back afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

import pytest

from einmal.broker.coordinators.marker_sender import MarkerSender
from einmal.broker.coordinators.shard_runtime import ShardRuntime
from einmal.broker.node import Node
from einmal.broker.replicas.high_watermarks import HighWatermarks
from einmal.broker.replicas.partition_folders import PartitionFolders
from einmal.client.aio import Consumer
from einmal.client.records import GroupMetadata
from einmal.log import checkpoint, recovery
from einmal.log.disk import Disk
from einmal.log.durability import Durability
from einmal.log.errors import LogCorruption
from einmal.log.partition_log import PartitionLog
from einmal.log.producer_state import ProducerEntry, ProducerStates
from einmal.log.segments import Segments
from einmal.metadata.image import CLUSTER_METADATA
from einmal.transactions import coordinator, fencing
from einmal.types import ErrorCode, Offset, TopicPartition

Mutant = Callable[[pytest.MonkeyPatch], None]


def without_the_sequence_check(patch: pytest.MonkeyPatch) -> None:
    """Duplicates are not detected, and gaps are not rejected."""
    patch.setattr(ProducerEntry, "find", lambda self, header: None)
    patch.setattr(ProducerStates, "_is_in_sequence", staticmethod(lambda entry, header, pending: True))


def without_fencing(patch: pytest.MonkeyPatch) -> None:
    """Neither the coordinator nor the partitions compare epochs."""
    check = ProducerStates.check

    def unfenced(self: ProducerStates, header: Any, origin: Any, verification: Any = None) -> Any:
        entry = self.entry(header.producer_id)
        if entry is not None and header.producer_epoch < entry.producer_epoch:
            return ErrorCode.none
        return check(self, header, origin, verification)

    patch.setattr(ProducerStates, "check", unfenced)
    for module in (fencing, coordinator):
        patch.setattr(module, "relation", lambda transaction, producer: fencing.Relation.CURRENT)
    patch.setattr(coordinator, "producer_error", lambda transaction, producer: ErrorCode.none)


def without_the_aborted_index(patch: pytest.MonkeyPatch) -> None:
    """Fetch responses do not list aborted transactions."""
    patch.setattr(Segments, "aborted_transactions", lambda self, first, end: [])


def without_the_last_stable_offset(patch: pytest.MonkeyPatch) -> None:
    """Readers see records of open transactions."""
    patch.setattr(PartitionLog, "last_stable_offset", property(lambda self: self.high_watermark))


def without_flushing(patch: pytest.MonkeyPatch) -> None:
    """Flushes do not reach the disk. (Except the metadata log's: without them a broker refuses to start.)"""
    flush = Durability.flush_now

    def flush_metadata_only(self: Durability) -> None:
        if self._state.topic_partition.topic == CLUSTER_METADATA:
            flush(self)

    patch.setattr(Durability, "flush_now", flush_metadata_only)


def without_waiting_for_the_commit(patch: pytest.MonkeyPatch) -> None:
    """Coordinators respond and act before their decision is committed."""

    def release(self: ShardRuntime[Any, Any, Any]) -> None:
        while self._parked:
            _, settle, actions = self._parked.popleft()
            if settle is not None:
                settle(ErrorCode.none)
            for action in actions:
                self._perform(action)

    patch.setattr(ShardRuntime, "_release", release)


def without_markers(patch: pytest.MonkeyPatch) -> None:
    """No partition receives a transaction marker."""
    patch.setattr(MarkerSender, "send", lambda self, action, coordinator_epoch, written: None)


def without_generation_fencing(patch: pytest.MonkeyPatch) -> None:
    """Offsets in a transaction lack their sender's generation, as from clients before KIP-447."""
    patch.setattr(Consumer, "group_metadata", lambda self: GroupMetadata(self.settings.group_id))


def without_timeouts(patch: pytest.MonkeyPatch) -> None:
    """A transaction whose owner never returns stays open."""
    patch.setattr(coordinator.TransactionCoordinator, "next_deadline", lambda self: None)


def without_resending_markers(patch: pytest.MonkeyPatch) -> None:
    """A coordinator that restarts forgets which decided transactions still need markers."""
    patch.setattr(coordinator.TransactionCoordinator, "loaded", lambda self, now: ())


def without_producer_state_after_a_restart(patch: pytest.MonkeyPatch) -> None:
    """Recovery restores the records, but not the producer state."""
    recover = PartitionLog.__init__

    def forget(self: PartitionLog, *args: Any, **more: Any) -> None:
        recover(self, *args, **more)
        self.producers = ProducerStates()

    patch.setattr(PartitionLog, "__init__", forget)


def _without_marks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HighWatermarks, "mark_of", lambda self, topic_id, topic_partition: Offset(0))


def without_distinguishing_offline_logs(patch: pytest.MonkeyPatch) -> None:
    """A log that a failed flush took offline gets a checkpoint like any other."""
    due, begin = vars(Durability)["checkpoint_due"].fget, Durability._begin
    assert due is not None

    def as_if_online(durability: Durability, work: Callable[..., Any]) -> Any:
        was_offline, durability.is_offline = durability.is_offline, False
        try:
            return work(durability)
        finally:
            durability.is_offline = was_offline

    patch.setattr(Durability, "checkpoint_due", property(lambda durability: as_if_online(durability, due)))
    patch.setattr(Durability, "_begin", lambda durability: as_if_online(durability, begin))


def without_what_checkpoints_promise(patch: pytest.MonkeyPatch) -> None:
    """A log that has less than its checkpoint promises is recovered as if there were no checkpoint."""
    load, check = checkpoint.load, recovery._check_promises

    def forgiving(disk: Disk, directory: PurePosixPath) -> checkpoint.Summary | None:
        summary = load(disk, directory)
        try:
            if summary is not None:
                check(disk, directory, summary)
        except LogCorruption:
            return None
        return summary

    patch.setattr(checkpoint, "load", forgiving)
    _without_marks(patch)


def without_distinguishing_damage_from_torn_tails(patch: pytest.MonkeyPatch) -> None:
    """Every invalid byte after the last checkpoint is truncated, although no power has failed."""
    patch.setattr(Node, "_look_for_power_cut", lambda self: None)
    _without_marks(patch)


def without_checksums_of_identities(patch: pytest.MonkeyPatch) -> None:
    """A directory whose `partition.metadata` does not name its topic is taken for an earlier topic's."""

    def claim(self: PartitionFolders, topic_partition: TopicPartition, topic_id: UUID, **more: Any) -> None:
        named = self.topic_id_of(topic_partition)
        if self._disk.exists(self.path(topic_partition)) and named != topic_id:
            self.move_aside(topic_partition, named, "a mutant")

    patch.setattr(PartitionFolders, "claim", claim)
    _without_marks(patch)
