"""The source cluster of a mirror: lists, ends and transactions. Reads only; ``reading`` has the records.

One client asks and one reads, for as long as the mirror's process lives.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping

from einmal.client import RangeReader
from einmal.client.aio.consuming.offsets import EARLIEST, LATEST
from einmal.client.errors import NotAuthorized
from einmal.clusters.kafka_cluster import KafkaCluster
from einmal.mirror_protocol.effects import Extent, Reached, SourceTopic
from einmal.mirror_protocol.progress import OFFSETS_TOPIC
from einmal.mirroring.ends import epoch_ends_each, offsets_each, positions_each
from einmal.mirroring.faults import FaultyLeaders, Leaderless
from einmal.mirroring.transaction_states import TransactionStates
from einmal.types import IsolationLevel, TopicPartition


class SourceReader:
    """Calls raise KafkaError, or WireError for records that no broker writes."""

    def __init__(self, client: Mapping[str, str]) -> None:
        """``client``: settings under Kafka's names."""
        self.cluster = KafkaCluster(client)
        self.reader = RangeReader({**client, "isolation.level": "read_uncommitted"})
        self.transactions = TransactionStates(self.cluster, self.reader)

    def topics(self) -> dict[str, SourceTopic]:
        """All topics with an id, ``__consumer_offsets`` among them if it can be read."""
        names = self.cluster.topics(".*")
        topics = dict(self.cluster.look(names, names).topics)
        with contextlib.suppress(NotAuthorized):
            topics |= self.cluster.look([OFFSETS_TOPIC], [OFFSETS_TOPIC]).topics
        return {
            name: SourceTopic(
                topic.topic_id,
                len(topic.partitions),
                tuple(sorted(partition.partition for partition in topic.leaderless)),
            )
            for name, topic in topics.items()
            if topic.topic_id is not None
        }

    def extents(
        self, partitions: Iterable[TopicPartition], reached: Mapping[TopicPartition, Reached]
    ) -> dict[TopicPartition, Extent]:
        """``reached``: see ``TakeEnds``. Raises FaultyLeaders; Leaderless at once, instead of waiting for the leader of
        one while all others are waiting, too."""
        wanted = list(partitions)
        names = dict.fromkeys(partition.topic for partition in wanted)
        leaderless = {
            partition for topic in self.cluster.look(names, names).topics.values() for partition in topic.leaderless
        }
        if lacking := [partition for partition in wanted if partition in leaderless]:
            raise Leaderless(
                {partition.topic: f"partition {partition} has no leader at the source." for partition in lacking}
            )
        ends, unknown = positions_each(self.cluster, wanted, LATEST)
        starts, without_start = offsets_each(self.cluster, ends, EARLIEST)
        epochs = {
            partition: epoch.epoch
            for partition, (position, epoch) in reached.items()
            if epoch is not None and partition in ends
            if ends[partition].leader_epoch != epoch.epoch or ends[partition].offset < max(position, epoch.end)
        }
        epoch_ends, without_epoch = epoch_ends_each(self.cluster, epochs)
        if unknown or without_start or without_epoch:
            raise FaultyLeaders({**without_epoch, **without_start, **unknown})
        return {
            partition: Extent(starts[partition], end.offset, end.leader_epoch, epoch_ends.get(partition))
            for partition, end in ends.items()
        }

    def hidden(self, names: Iterable[str]) -> dict[str, str]:
        """Those of the topics that may exist, and that the source does not show, with the reasons."""
        reasons: dict[str, str] = {}
        for name in sorted(names):
            try:
                self.cluster.look([name], [name])
            except NotAuthorized as error:
                reasons[name] = f"The source does not show it: {error}."
        return reasons

    def stable_ends(self, partitions: Iterable[TopicPartition]) -> tuple[dict[TopicPartition, int], dict[str, str]]:
        """Last stable offsets of those that still exist and have a leader, and why there are none, by topic."""
        wanted = list(partitions)
        names = {partition.topic for partition in wanted}
        topics = self.cluster.look(names, names).topics
        existing = [
            partition
            for partition in wanted
            if (topic := topics.get(partition.topic)) is not None
            and partition in topic.partitions
            and partition not in topic.leaderless
        ]
        return offsets_each(self.cluster, existing, LATEST, IsolationLevel.READ_COMMITTED)

    def close(self) -> None:
        self.reader.close()
        self.cluster.close()
