"""The requests about offsets: who may commit, what is read, what is dropped and when.

Decides on the members (``Group``) and the offsets (``Offsets``), and changes neither: everything goes through records.
A group without members and generations ("simple": the client assigns partitions itself) exists by its offsets alone.
KIP-447 fences transactional commits by generation, member and instance; KIP-211 says when offsets expire.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any, Final

from einmal.groups.config import GroupConfig
from einmal.groups.group import Group
from einmal.groups.offsets import Offsets
from einmal.groups.records import NO_TIMESTAMP, TEXT_BYTES_MAX, CommittedOffset, OffsetRecord
from einmal.groups.requests import OffsetCommit, OffsetFetchGroup, OffsetToCommit, Response, TxnOffsetCommit
from einmal.groups.states import GroupState
from einmal.groups.subscription import CONSUMER_PROTOCOL
from einmal.shard.decision import Decision
from einmal.types import ErrorCode, Instant, ProducerId, TopicPartition

NO_COMMITTED_OFFSET: Final = -1
_RECORD_OVERHEAD: Final = 60


class OffsetCommits:
    """Decisions over ``groups`` and ``offsets``, which the coordinator owns."""

    def __init__(self, config: GroupConfig, groups: Mapping[str, Group], offsets: Offsets) -> None:
        self._config = config
        self._groups = groups
        self._offsets = offsets

    def offset_commit(self, request: OffsetCommit, now: Instant) -> Decision[Response]:
        error = self._refusal(request, is_transactional=False)
        records, response = self._commit(request, error, now, request.retention_ms, None)
        return Decision(records=records, response=response)

    def txn_offset_commit(self, request: TxnOffsetCommit, now: Instant) -> Decision[Response]:
        """The records are one transactional batch of the producer: pending until its marker."""
        error = self._refusal(request, is_transactional=True)
        records, response = self._commit(request, error, now, None, request.producer.producer_id)
        return Decision(records=records, response=response, producer=request.producer if records else None)

    def is_from_member(self, request: OffsetCommit | TxnOffsetCommit) -> bool:
        """Whether a commit shows that a member of the present generation is alive."""
        group = self._groups.get(request.group_id)
        return (
            group is not None
            and request.generation_id == group.generation_id
            and group.check_member(request.member_id, request.group_instance_id) is ErrorCode.none
        )

    def offset_fetch(self, request: OffsetFetchGroup, *, require_stable: bool) -> Response:
        """One group's part of the answer. ``require_stable``: what an open transaction may still move is refused."""
        group_id = request.group_id
        partitions: Iterable[TopicPartition]
        if request.partitions is None:
            # Kafka leaves out what is only pending; but to whoever asks for stable offsets that is not "none".
            partitions = self._offsets.partitions_of(group_id, pending=require_stable)
        else:
            partitions = request.partitions
        fetched = (
            (partition, _fetched(None, ErrorCode.unstable_offset_commit))
            if require_stable and self._offsets.is_unstable(group_id, partition)
            else (partition, _fetched(self._offsets.committed(group_id, partition), ErrorCode.none))
            for partition in partitions
        )
        return {"group_id": group_id, "topics": _by_topic(fetched), "error_code": ErrorCode.none}

    def offset_delete(self, group_id: str, partitions: tuple[TopicPartition, ...]) -> Decision[Response]:
        """Drop single offsets. Those that a member may be subscribed to, or a transaction may move, are kept."""
        group = self._groups.get(group_id)
        if group is None and not self._offsets.has_any(group_id):
            return Decision(response={"error_code": ErrorCode.group_id_not_found, "topics": ()})
        if group is not None and group.members and group.protocol_type != CONSUMER_PROTOCOL:
            return Decision(response={"error_code": ErrorCode.non_empty_group, "topics": ()})
        records = []
        results = []
        for partition in partitions:
            error = ErrorCode.none
            if group is not None and group.wants(partition.topic):
                error = ErrorCode.group_subscribed_to_topic
            elif self._offsets.is_unstable(group_id, partition):
                error = ErrorCode.unstable_offset_commit
            elif self._offsets.committed(group_id, partition) is not None:
                records.append(OffsetRecord(group_id, partition.topic, partition.partition, None))
            results.append((partition, {"error_code": error}))
        return Decision(records=tuple(records), response={"error_code": ErrorCode.none, "topics": _by_topic(results)})

    def forget_other_topics(self, topics: Container[str]) -> tuple[OffsetRecord, ...]:
        """What takes all offsets of deleted topics away, pending ones too: a new topic of that name begins anew."""
        return tuple(
            OffsetRecord(group_id, partition.topic, partition.partition, None)
            for group_id in self._offsets.groups()
            for partition in self._offsets.partitions_of(group_id)
            if partition.topic not in topics
        )

    def tombstones(self, group_id: str) -> tuple[OffsetRecord, ...]:
        """What takes all committed offsets of a group away."""
        return tuple(
            OffsetRecord(group_id, partition.topic, partition.partition, None)
            for partition, _offset in self._offsets.committed_by(group_id)
        )

    def expired(self, group_id: str, empty_since: int | None, now: Instant) -> Iterator[OffsetRecord]:
        """Tombstones for what nobody has used for the retention.

        ``empty_since``: when the last member left (wall clock); None for a simple group, whose offsets age by
        themselves. Retention outlives restarts, so it goes by the wall clock.
        """
        group = self._groups.get(group_id)
        if group is not None and group.state is not GroupState.EMPTY:
            return
        for partition, offset in self._offsets.committed_by(group_id):
            if self._offsets.is_unstable(group_id, partition):
                continue
            expires = offset.expire_timestamp
            if expires == NO_TIMESTAMP:
                last_use = offset.commit_timestamp if empty_since is None else max(empty_since, offset.commit_timestamp)
                expires = last_use + self._config.offsets_retention_ms
            if expires <= now.wall_ms:
                yield OffsetRecord(group_id, partition.topic, partition.partition, None)

    # --- checks -------------------------------------------------------------------------------------------------

    def _refusal(self, request: OffsetCommit | TxnOffsetCommit, *, is_transactional: bool) -> ErrorCode:
        # The empty group of very old simple consumers may still commit, but not in a transaction (as in Kafka).
        if len(request.group_id.encode()) > TEXT_BYTES_MAX or (is_transactional and not request.group_id):
            return ErrorCode.invalid_group_id
        if self._bytes_of(request) > self._config.max_commit_bytes:
            return ErrorCode.invalid_commit_offset_size
        group = self._groups.get(request.group_id)
        says_member = request.generation_id >= 0 or request.member_id != "" or request.group_instance_id is not None
        if group is None:
            return request.unknown_group if request.generation_id >= 0 else ErrorCode.none
        if request.generation_id < 0 and group.state is GroupState.EMPTY:
            return ErrorCode.none
        if says_member:
            error = group.check_member(request.member_id, request.group_instance_id)
            if error is not ErrorCode.none:
                return error
            if request.generation_id != group.generation_id:
                return ErrorCode.illegal_generation
        elif not is_transactional:
            # Transactional clients from before KIP-447 cannot say who they are; others can.
            return ErrorCode.unknown_member_id
        if not is_transactional and group.state is GroupState.COMPLETING_REBALANCE:
            return ErrorCode.rebalance_in_progress
        return ErrorCode.none

    def _commit(
        self,
        request: OffsetCommit | TxnOffsetCommit,
        refusal: ErrorCode,
        now: Instant,
        retention_ms: int | None,
        producer_id: ProducerId | None,
    ) -> tuple[tuple[OffsetRecord, ...], Response]:
        records = []
        results = []
        for partition, offset in request.offsets.items():
            error = refusal
            if error is ErrorCode.none and self._is_too_large(offset):
                error = ErrorCode.offset_metadata_too_large
            if error is ErrorCode.none:
                value = offset.stamp(now.wall_ms, retention_ms)
                records.append(OffsetRecord(request.group_id, partition.topic, partition.partition, value, producer_id))
            results.append((partition, {"error_code": error}))
        return tuple(records), {"topics": _by_topic(results)}

    @staticmethod
    def _bytes_of(request: OffsetCommit | TxnOffsetCommit) -> int:
        """Of its records, which are one batch."""
        ours = len(request.group_id) + _RECORD_OVERHEAD
        return sum(
            ours + len(partition.topic) + len(offset.committed_metadata or "")
            for partition, offset in request.offsets.items()
        )

    def _is_too_large(self, offset: OffsetToCommit) -> bool:
        return len((offset.committed_metadata or "").encode()) > self._config.offset_metadata_max_bytes


def _fetched(offset: CommittedOffset | None, error: ErrorCode) -> dict[str, Any]:
    return {
        "committed_offset": NO_COMMITTED_OFFSET if offset is None else offset.offset,
        "committed_leader_epoch": -1 if offset is None else offset.leader_epoch,
        "metadata": "" if offset is None else offset.metadata,
        "error_code": error,
    }


def _by_topic(results: Iterable[tuple[TopicPartition, dict[str, Any]]]) -> tuple[Response, ...]:
    """Results of partitions under their topics, which keep their order."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for partition, result in results:
        topics.setdefault(partition.topic, []).append({"partition_index": partition.partition, **result})
    return tuple({"name": topic, "partitions": tuple(partitions)} for topic, partitions in topics.items())
