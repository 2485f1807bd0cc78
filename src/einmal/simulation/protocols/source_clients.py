"""The clients of a mirror's source cluster: producers, an application that reads, processes and writes, a plain group.

Each is a generator; at every ``yield`` anything else may happen first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from einmal.simulation.protocols.source_cluster import SourceCluster, SourceProducer, SourceRecord, SourceState
from einmal.simulation.protocols.spark_model import ModelWorld, Steps
from einmal.types import TopicPartition, TransactionVersion

INPUT: Final = "input"
OUTPUT: Final = "output"
OTHER: Final = "other"
"""The topic that loses records, grows, and is created again."""
APPLICATION: Final = "application"
AUDIT: Final = "audit"
_ROUNDS: Final = 12
"""Transactions or batches of one client."""


@dataclass(frozen=True, slots=True)
class Processed:
    """Result of the application for an input record, in one attempt."""

    value: object
    attempt: int


@dataclass(slots=True)
class SourceClients:
    """The cluster with its clients. ``history``: the offsets that the plain group has committed, by partition, each
    with its topic's id; None where its coordinator has deleted them."""

    world: ModelWorld
    cluster: SourceCluster
    busy: int = 0
    """Clients that have not ended."""
    history: dict[TopicPartition, list[tuple[str, int | None]]] = field(default_factory=dict)
    is_recorded: Callable[[str], bool] = field(default=lambda topic_id: False)
    """Whether the mirror has recorded a topic with this id."""
    was_recreated: bool = False
    offsets_are_deleted: bool = True

    @property
    def is_quiet(self) -> bool:
        """Nothing more will be written."""
        return not self.busy and all(producer.state is SourceState.AT_REST for producer in self.cluster.producers)

    def start(self) -> None:
        rng = self.world.rng
        clients = [self._writer() for _ in range(rng.randint(1, 3))]
        clients += [self._plain_writer(), self._application(), self._audit(), self._operator()]
        for client in clients:
            self.busy += 1
            self.world.running.append(self._counted(client))

    def _counted(self, client: Steps) -> Steps:
        yield from client
        self.busy -= 1

    def _partitions(self, *topics: str) -> list[TopicPartition]:
        return [TopicPartition(name, index) for name in topics for index in range(len(self.cluster.topics[name].logs))]

    def _new_producer(self) -> SourceProducer:
        rng = self.world.rng
        return self.cluster.new_producer(rng.choice((TransactionVersion.TV_1, TransactionVersion.TV_2)))

    # --- producers --------------------------------------------------------------------------------------------------

    def _writer(self) -> Steps:
        """Transactions over several partitions, committed, aborted, or left to the coordinator."""
        world, cluster = self.world, self.cluster
        rng, producer = world.rng, self._new_producer()
        for _ in range(_ROUNDS):
            for _ in range(rng.randint(1, 4)):
                yield from self._pause()
                partition = rng.choice(self._partitions(INPUT, OTHER))
                cluster.write(partition, self._values(), producer)
            yield from self._pause()
            yield from self._end(producer, committed=rng.random() < 0.75, is_fenced=rng.random() < 0.1)

    def _plain_writer(self) -> Steps:
        for _ in range(2 * _ROUNDS):
            yield from self._pause()
            self.cluster.write(self.world.rng.choice(self._partitions(INPUT, OTHER)), self._values())

    def _values(self) -> tuple[int, ...]:
        return tuple(self.cluster.new_value() for _ in range(self.world.rng.randint(1, 3)))

    def _pause(self) -> Steps:
        for _ in range(self.world.rng.choice((0, 0, 1, 3, 20, 100))):
            yield

    def _end(self, producer: SourceProducer, *, committed: bool, is_fenced: bool = False) -> Steps:
        self.cluster.prepare(producer, committed=committed and not is_fenced, is_fenced=is_fenced)
        self.world.running.append(self._write_markers(producer))
        while producer.state is not SourceState.AT_REST:
            yield

    def _write_markers(self, producer: SourceProducer) -> Steps:
        """A coordinator that fails, and its successor, which cannot know how far it came."""
        todo = list(producer.partitions)
        while todo:
            yield from self._pause()
            self.cluster.mark(producer, *todo.pop(self.world.rng.randrange(len(todo))))
            if self.world.fault(0.05):
                todo = list(producer.partitions)
        yield from self._pause()
        self.cluster.complete(producer)

    # --- groups -----------------------------------------------------------------------------------------------------

    def _application(self) -> Steps:
        """Reads input, writes output, and commits its offsets in the same transaction, until all input is processed."""
        cluster, rng, producer = self.cluster, self.world.rng, self._new_producer()
        offsets = dict.fromkeys(self._partitions(INPUT), 0)
        while True:
            yield from self._pause()
            partition = rng.choice(sorted(offsets))
            records = self._unprocessed(partition, offsets)[: rng.randint(1, 4)]
            if not records:
                if self.busy == 1 and not any(self._unprocessed(offset, offsets) for offset in offsets):
                    return
                continue
            end = records[-1].offset + 1
            for record in records:
                yield from self._pause()
                output = TopicPartition(OUTPUT, partition.partition)
                cluster.write(output, (Processed(record.value, cluster.new_value()),), producer)
            yield from self._pause()
            cluster.commit_offset(APPLICATION, partition, end, producer)
            yield from self._pause()
            committed = rng.random() < 0.8
            yield from self._end(producer, committed=committed)
            if committed:
                offsets[partition] = end

    def _unprocessed(self, partition: TopicPartition, offsets: dict[TopicPartition, int]) -> list[SourceRecord]:
        records = self.cluster.committed(partition, offsets[partition])
        assert records is not None
        return records

    def _audit(self) -> Steps:
        """Reads, and commits offsets outside of transactions, at times before what it has read."""
        rng = self.world.rng
        offsets: dict[tuple[str, TopicPartition], int] = {}
        for _ in range(2 * _ROUNDS):
            yield from self._pause()
            partition = rng.choice(self._partitions(INPUT, OTHER))
            topic_id = self.cluster.topics[partition.topic].topic_id
            log = self.cluster.known_log(partition)
            start = max(offsets.get((topic_id, partition), 0), log.start)
            if start > log.last_stable_offset:
                continue
            end = rng.randint(start, log.last_stable_offset)
            offsets[topic_id, partition] = end
            self.cluster.commit_offset(AUDIT, partition, end)
            self.history.setdefault(partition, []).append((topic_id, end))

    def _operator(self) -> Steps:
        """Removes records, adds partitions, creates topics again."""
        world, cluster = self.world, self.cluster
        rng = world.rng
        for _ in range(_ROUNDS):
            for _ in range(rng.randrange(300)):
                yield
            partition = rng.choice(self._partitions(INPUT, OTHER))
            log = cluster.known_log(partition)
            choice = rng.random()
            if choice < 0.3:
                records = [record for record, _ in log.records()]
                if records:
                    cluster.compact(partition, rng.choice(records))
            elif choice < 0.5 and partition.topic == OTHER:
                cluster.delete_before(partition, rng.randint(log.start, log.end))
            elif choice < 0.7:
                cluster.add_partition(OTHER)
            elif choice < 0.8 and self.offsets_are_deleted:
                self._recreate()

    def _recreate(self) -> None:
        """The coordinator of the plain group deletes its offsets, at times after the group has committed new ones.

        What it deletes late must be of a topic that the mirror knows, and only one topic may be so late: otherwise
        nothing distinguishes the offsets of the old topic.
        """
        is_late = not self.was_recreated and self.is_recorded(self.cluster.topics[OTHER].topic_id)
        if self.world.rng.random() < 0.5:
            is_late = False
        partitions = self._partitions(OTHER)
        self.offsets_are_deleted = False
        self.cluster.recreate(OTHER)
        self.was_recreated = True
        if is_late:
            self.busy += 1
            self.world.running.append(self._counted(self._delete_offsets(partitions, late=True)))
        else:
            for _ in self._delete_offsets(partitions, late=False):
                pass

    def _delete_offsets(self, partitions: list[TopicPartition], *, late: bool) -> Steps:
        for _ in range(self.world.rng.choice((10, 100, 500)) if late else 0):
            yield
        for partition in partitions:
            self.cluster.commit_offset(AUDIT, partition, None)
            self.history.setdefault(partition, []).append((self.cluster.topics[OTHER].topic_id, None))
        self.offsets_are_deleted = True
