"""The target cluster of a mirror: its topics, and the effects of a transaction on it.

The verbs of the transaction are those of a pipeline's (``sinks.kafka``): a mirror is fenced, aborted and recovered like
a pipeline.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Final, TypeVar

from einmal.client.aio.consuming.offsets import LATEST
from einmal.client.errors import KafkaError, RequestRefused, UnknownTopic
from einmal.client.records import OffsetAndMetadata
from einmal.clusters.kafka_cluster import KafkaCluster, TopicSeen
from einmal.commit_protocol.commit_record import COMMIT_TOPIC, OFFSET_MAP_TOPIC, CommitRecord
from einmal.mirror_protocol.effects import (
    GroupPartitions,
    MapChange,
    MapKey,
    SavedMap,
    TargetGroupsRead,
    TargetOffsets,
    TargetTopic,
)
from einmal.mirroring.ends import offsets_each
from einmal.mirroring.faults import OF_A_GROUP, FaultyLeaders, RefusedGroups
from einmal.mirroring.groups import active_groups, committed_offsets
from einmal.mirroring.map_log import PARTITIONS, MapReader, encode, partition_of
from einmal.sinks.commit_point import SinkFailed
from einmal.sinks.kafka import commit_log
from einmal.sinks.kafka.batches import TransactionBatches
from einmal.sinks.kafka.commit_point import KafkaCommitPoint, KafkaOpening
from einmal.types import ErrorCode, ProducerIdAndEpoch, TopicPartition

_REFUSED_SETTINGS: Final = (ErrorCode.invalid_config, ErrorCode.policy_violation)
_RECORDS_MAX: Final = 500
"""Maximum number of records of one batch of the topic of maps."""
_T = TypeVar("_T")


class TargetWriter:
    """The runs of one flow, one after the other. Calls raise KafkaError, those of a transaction SinkError."""

    def __init__(self, client: Mapping[str, str], flow: str, transactional_id: str) -> None:
        """``client``: settings under Kafka's names."""
        self._client = dict(client)
        self._flow = flow
        self.cluster = KafkaCluster(client)
        self._opening = KafkaOpening(transactional_id=transactional_id, client=self._client, cluster=self.cluster)
        self.target = KafkaCommitPoint(self._opening)

    def end_run(self) -> None:
        """Abort what is open. The next run acquires the transactional.id anew."""
        self.target.abandon()
        self.target.close()
        self.target = KafkaCommitPoint(self._opening)

    def prepare(self) -> None:
        """Create the topics of commit records and of maps."""
        self.cluster.create_topic(COMMIT_TOPIC, commit_log.PARTITIONS, commit_log.TOPIC_CONFIG)
        self.cluster.create_topic(OFFSET_MAP_TOPIC, PARTITIONS, commit_log.TOPIC_CONFIG)

    def last_record(self) -> CommitRecord | None:
        """Return the last record that is known to be committed. None: there is none, or its topic does not exist."""
        try:
            self.cluster.partitions([COMMIT_TOPIC])
        except UnknownTopic:
            return None
        return self.target.look()

    # --- topics -----------------------------------------------------------------------------------------------------

    def look(self, names: Collection[str]) -> Mapping[str, TopicSeen]:
        """Those of the copies that exist."""
        listed = [name for name in self.cluster.topics(".*") if name in names]
        return self.cluster.look(listed, listed).topics

    def topics(self, existing: Mapping[str, TopicSeen], unasked: Collection[str]) -> dict[str, TargetTopic]:
        """The copies with their ends; without those where a partition has no leader, and of the ``unasked``. Raises
        FaultyLeaders with the names of copies."""
        asked = {name for name, topic in existing.items() if name not in unasked and not topic.leaderless}
        ends, reasons = offsets_each(
            self.cluster, (partition for name in asked for partition in existing[name].partitions), LATEST
        )
        if reasons:
            raise FaultyLeaders(reasons)
        return {
            name: TargetTopic(
                topic.topic_id,
                tuple(ends[partition] for partition in topic.partitions) if name in asked else (),
                tuple(sorted(partition.partition for partition in topic.leaderless)),
            )
            for name, topic in existing.items()
            if topic.topic_id is not None
        }

    def create_topic(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        """Without the settings if the target refuses one of them."""
        try:
            self.cluster.create_topic(name, partitions, config)
        except RequestRefused as error:
            if not config or error.code not in _REFUSED_SETTINGS:
                raise
            self.cluster.create_topic(name, partitions, {})

    def add_partitions(self, name: str, partitions: int) -> None:
        self.cluster.admin.create_partitions({name: partitions})

    # --- maps -------------------------------------------------------------------------------------------------------

    def read_maps(self) -> dict[MapKey, SavedMap]:
        """To be called after the transactional.id was acquired: all transactions of the flow have their markers then.
        Raises UnreadableMap."""
        partition = self._map_partition()
        reader = MapReader(self._flow)
        for batch in commit_log.batches_below(self.cluster, self.cluster.latest([partition], committed=False)):
            reader.take(batch)
        return reader.maps()

    def save_maps(self, identity: ProducerIdAndEpoch, changes: Mapping[MapKey, MapChange]) -> None:
        records = list(encode(self._flow, changes, time.time_ns() // 1_000_000))
        pieces = (records[start : start + _RECORDS_MAX] for start in range(0, len(records), _RECORDS_MAX))
        partition, batches = self._map_partition(), TransactionBatches(identity)
        self.target.append(identity, (batches.encode(partition, piece) for piece in pieces))

    def _map_partition(self) -> TopicPartition:
        return partition_of(self._flow, len(self.cluster.partitions([OFFSET_MAP_TOPIC])))

    # --- a transaction ----------------------------------------------------------------------------------------------

    def read_groups(self, groups: GroupPartitions) -> TargetGroupsRead:
        """Raises RefusedGroups, KafkaError."""
        active = active_groups(self.cluster, groups)
        idle = {group: partitions for group, partitions in groups.items() if group not in active}
        try:
            return TargetGroupsRead(active, committed_offsets(self.cluster, idle))
        except KafkaError as error:
            if error.code in OF_A_GROUP:
                self._find_refused(idle)
            raise

    def _find_refused(self, groups: GroupPartitions) -> None:
        """Raises RefusedGroups."""
        _for_each(groups, lambda group, partitions: committed_offsets(self.cluster, {group: partitions}))

    def commit_offsets(
        self,
        identity: ProducerIdAndEpoch,
        offsets: TargetOffsets,
        metadata: Mapping[str, Mapping[TopicPartition, str]],
    ) -> None:
        """Raises RefusedGroups, SinkError."""
        commits = {
            group: {
                partition: OffsetAndMetadata(offset, metadata=metadata.get(group, {}).get(partition, ""))
                for partition, offset in partitions.items()
            }
            for group, partitions in offsets.items()
        }
        _for_each(commits, lambda group, partitions: self.target.commit_offsets(identity, group, partitions))

    def close(self) -> None:
        self.target.close()
        self.cluster.close()


def _for_each(groups: Mapping[str, _T], act: Callable[[str, _T], object]) -> None:
    """Raises RefusedGroups with all that are refused: each attempt is a transaction."""
    refused: dict[str, str] = {}
    for group, partitions in groups.items():
        try:
            act(group, partitions)
        except (KafkaError, SinkFailed) as error:
            cause = error if isinstance(error, KafkaError) else error.__cause__
            if not isinstance(cause, KafkaError) or cause.code not in OF_A_GROUP:
                raise
            refused[group] = str(error)
    if refused:
        raise RefusedGroups(refused)
