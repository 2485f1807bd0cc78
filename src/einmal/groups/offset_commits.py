"""The requests about offsets: permission to commit, reads, and expiry.

Decides on the groups (``Group``) and the offsets (``Offsets``), and changes neither: everything goes through records.
A group without members and generations ("simple": the client assigns partitions itself) consists of its offsets alone.
Groups decide who may commit (KIP-447); KIP-211 defines when offsets expire.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Set
from typing import Final

from einmal.groups.config import GroupConfig
from einmal.groups.group import Group
from einmal.groups.offsets import Offsets
from einmal.groups.records import NO_TIMESTAMP, TEXT_BYTES_MAX, CommittedOffset, OffsetRecord, text_bytes
from einmal.groups.requests import GroupDecision, OffsetCommit, OffsetFetchGroup, OffsetToCommit, TxnOffsetCommit
from einmal.shard.decision import Decision
from einmal.types import ErrorCode, Instant, ProducerId, TopicPartition
from einmal.wire.api.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from einmal.wire.api.offset_delete import (
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from einmal.wire.api.offset_fetch import (
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)

NO_COMMITTED_OFFSET: Final = -1
_RECORD_OVERHEAD: Final = 60


class OffsetCommits:
    """Decisions over ``groups`` and ``offsets``, which the coordinator owns."""

    def __init__(self, config: GroupConfig, groups: Mapping[str, Group], offsets: Offsets) -> None:
        self._config = config
        self._groups = groups
        self._offsets = offsets

    def offset_commit(self, request: OffsetCommit, now: Instant) -> GroupDecision[OffsetCommitResponse]:
        error = self._refusal(request, is_transactional=False)
        records, response = self._commit(request, error, now, request.retention_ms, None)
        return Decision(records=records, response=response, is_pure=True)

    def txn_offset_commit(self, request: TxnOffsetCommit, now: Instant) -> GroupDecision[OffsetCommitResponse]:
        """The records are one transactional batch of the producer: pending until its marker."""
        error = self._refusal(request, is_transactional=True)
        records, response = self._commit(request, error, now, None, request.producer.producer_id)
        producer = request.producer if records else None
        return Decision(records=records, response=response, producer=producer, is_pure=True)

    def offset_fetch(self, request: OffsetFetchGroup, *, require_stable: bool) -> OffsetFetchResponseGroup:
        """One group's part of the answer. ``require_stable``: offsets that an open transaction may still change are
        refused."""
        group_id = request.group_id
        partitions: Iterable[TopicPartition]
        if request.partitions is None:
            # Kafka leaves out offsets that are only pending; but a request for stable offsets must not get "none".
            partitions = self._offsets.partitions_of(group_id, pending=require_stable)
        else:
            partitions = request.partitions
        topics: dict[str, list[OffsetFetchResponsePartitions]] = {}
        for topic, index in partitions:
            if require_stable and self._offsets.is_unstable(group_id, TopicPartition(topic, index)):
                fetched = _fetched(index, None, ErrorCode.unstable_offset_commit)
            else:
                committed = self._offsets.committed(group_id, TopicPartition(topic, index))
                fetched = _fetched(index, committed, ErrorCode.none)
            topics.setdefault(topic, []).append(fetched)
        return OffsetFetchResponseGroup(
            group_id=group_id,
            topics=tuple(
                OffsetFetchResponseTopics(name=name, partitions=tuple(responses)) for name, responses in topics.items()
            ),
        )

    def offset_delete(
        self, group_id: str, partitions: tuple[TopicPartition, ...]
    ) -> GroupDecision[OffsetDeleteResponse]:
        """Drop single offsets. Those of a topic that a member may subscribe to, or that a transaction may change, are
        kept."""
        group = self._groups.get(group_id)
        if group is None and not self._offsets.has_any(group_id):
            return Decision(response=OffsetDeleteResponse(error_code=ErrorCode.group_id_not_found))
        if group is not None and not group.has_known_subscriptions:
            return Decision(response=OffsetDeleteResponse(error_code=ErrorCode.non_empty_group))
        records = []
        topics: dict[str, list[OffsetDeleteResponsePartition]] = {}
        wanted: Set[str] = frozenset() if group is None else group.wanted({partition.topic for partition in partitions})
        for partition in partitions:
            error = ErrorCode.none
            if partition.topic in wanted:
                error = ErrorCode.group_subscribed_to_topic
            elif self._offsets.is_unstable(group_id, partition):
                error = ErrorCode.unstable_offset_commit
            elif self._offsets.committed(group_id, partition) is not None:
                records.append(OffsetRecord(group_id, partition.topic, partition.partition, None))
            topics.setdefault(partition.topic, []).append(OffsetDeleteResponsePartition(partition.partition, error))
        response = OffsetDeleteResponse(
            topics=tuple(OffsetDeleteResponseTopic(name, tuple(results)) for name, results in topics.items())
        )
        return Decision(records=tuple(records), response=response, is_atomic=False, is_pure=True)

    def forget_other_topics(self, topics: Container[str], deleted: Collection[str]) -> tuple[OffsetRecord, ...]:
        """Tombstones for all offsets of deleted topics, also pending ones: a new topic of that name has none.

        ``topics``: those that exist. ``deleted``: topics that were deleted, also where a new one has the name.
        """
        return tuple(
            OffsetRecord(group_id, partition.topic, partition.partition, None)
            for group_id in self._offsets.groups()
            for partition in self._offsets.partitions_of(group_id)
            if partition.topic not in topics or partition.topic in deleted
        )

    def tombstones(self, group_id: str) -> tuple[OffsetRecord, ...]:
        """Tombstones for all committed offsets of a group."""
        return tuple(
            OffsetRecord(group_id, partition.topic, partition.partition, None)
            for partition, _offset in self._offsets.committed_by(group_id)
        )

    def expired(self, group_id: str, empty_since: int | None, now: Instant) -> Iterator[OffsetRecord]:
        """Tombstones for offsets that were unused for the retention time. Of a group with members only those of topics
        that no member is subscribed to.

        ``empty_since``: when the last member left (wall clock); None for a simple group, whose offsets age by
        themselves. Retention outlives restarts, so it uses the wall clock.
        """
        group = self._groups.get(group_id)
        living = None if group is None or group.is_empty else group
        if living is not None:
            empty_since = None
        old = [
            partition
            for partition, offset in self._offsets.committed_by(group_id)
            if not self._offsets.is_unstable(group_id, partition)
            and self._expires_at(offset, empty_since) <= now.wall_ms
        ]
        topics = {partition.topic for partition in old}
        if topics and living is not None:
            topics -= living.kept(topics)
        for topic, index in old:
            if topic in topics:
                yield OffsetRecord(group_id, topic, index, None)

    def _expires_at(self, offset: CommittedOffset, empty_since: int | None) -> int:
        if offset.expire_timestamp != NO_TIMESTAMP:
            return offset.expire_timestamp
        last_use = offset.commit_timestamp if empty_since is None else max(empty_since, offset.commit_timestamp)
        return last_use + self._config.offsets_retention_ms

    # --- checks -------------------------------------------------------------------------------------------------

    def _refusal(self, request: OffsetCommit | TxnOffsetCommit, *, is_transactional: bool) -> ErrorCode:
        # The empty group of very old simple consumers may still commit, but not in a transaction (as in Kafka).
        if len(request.group_id.encode()) > TEXT_BYTES_MAX or (is_transactional and not request.group_id):
            return ErrorCode.invalid_group_id
        if self._bytes_of(request) > self._config.max_commit_bytes:
            return ErrorCode.invalid_commit_offset_size
        group = self._groups.get(request.group_id)
        if group is None:
            if request.generation_id < 0:
                return ErrorCode.none
            # With offsets it is a group without members, whose consumers join again; they give up where there is none.
            is_known = self._offsets.has_any(request.group_id)
            return ErrorCode.unknown_member_id if is_known else request.unknown_group
        return group.commit_refusal(request, is_transactional=is_transactional)

    def _commit(
        self,
        request: OffsetCommit | TxnOffsetCommit,
        refusal: ErrorCode,
        now: Instant,
        retention_ms: int | None,
        producer_id: ProducerId | None,
    ) -> tuple[tuple[OffsetRecord, ...], OffsetCommitResponse]:
        records = []
        topics: dict[str, list[OffsetCommitResponsePartition]] = {}
        for partition, offset in request.offsets.items():
            error = refusal
            if error is ErrorCode.none and self._is_too_large(offset):
                error = ErrorCode.offset_metadata_too_large
            if error is ErrorCode.none:
                value = offset.stamp(now.wall_ms, retention_ms)
                records.append(OffsetRecord(request.group_id, partition.topic, partition.partition, value, producer_id))
            topics.setdefault(partition.topic, []).append(OffsetCommitResponsePartition(partition.partition, error))
        return tuple(records), OffsetCommitResponse(
            topics=tuple(
                OffsetCommitResponseTopic(name=name, partitions=tuple(results)) for name, results in topics.items()
            )
        )

    @staticmethod
    def _bytes_of(request: OffsetCommit | TxnOffsetCommit) -> int:
        """The size of its records, which are one batch."""
        ours = text_bytes(request.group_id) + _RECORD_OVERHEAD
        return sum(
            ours + text_bytes(partition.topic) + text_bytes(offset.committed_metadata)
            for partition, offset in request.offsets.items()
        )

    def _is_too_large(self, offset: OffsetToCommit) -> bool:
        # Apache Kafka counts the characters of a Java string, which are 16 bits each, whatever the setting is called.
        return len((offset.committed_metadata or "").encode("utf-16-le")) // 2 > self._config.offset_metadata_max_bytes


def _fetched(index: int, offset: CommittedOffset | None, error: ErrorCode) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=NO_COMMITTED_OFFSET if offset is None else offset.offset,
        committed_leader_epoch=-1 if offset is None else offset.leader_epoch,
        metadata="" if offset is None else offset.metadata,
        error_code=error,
    )
