"""Brokers, leaders and operators do anything in any order; what must always hold of the cluster's metadata, holds."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

import pytest

from einmal.metadata.client_quotas import QuotaChange
from einmal.metadata.configs import SET, ConfigChange
from einmal.metadata.features import SAFE_DOWNGRADE, UPGRADE, FeatureUpdate
from einmal.metadata.image import ClusterImage, PartitionImage, TopicImage
from einmal.metadata.partitions import PREFERRED, UNCLEAN, IsrRequest
from einmal.metadata.plan import LedAtRisk, MetadataDecision
from einmal.metadata.reassignment import Reassignment
from einmal.metadata.records import NO_LEADER, RECOVERED, MetadataRecord, RegisterBrokerRecord, decode, encode
from einmal.metadata.topics import NewPartitions, NewTopic
from einmal.types import BrokerId, ErrorCode, TopicPartition
from tests.metadata.cluster import DEFAULTS, Cluster

_BROKERS = 5
_STEPS = 250
_CARRIED_OUT = (ErrorCode.none, ErrorCode.new_leader_elected)


class _Holders:
    """Who has all that is committed in a partition, whatever the controller believes."""

    def __init__(self, partition: PartitionImage) -> None:
        self.brokers = dict.fromkeys(partition.isr)
        self.leader_epoch = partition.leader_epoch

    def crash(self, brokers: list[BrokerId]) -> None:
        for broker in brokers:
            self.brokers.pop(broker, None)

    def follow(self, partition: PartitionImage, min_isr: int, is_flagged: bool) -> None:
        if partition.leader_epoch > self.leader_epoch and partition.leader != NO_LEADER:
            if is_flagged:
                self.brokers = {partition.leader: None}
            assert partition.leader in self.brokers, "a leader that lacks what is committed, and nobody is told"
        self.leader_epoch = partition.leader_epoch
        if len(partition.isr) >= min(min_isr, len(partition.replicas)):
            # From now on what is committed is in the ISR, and need not be anywhere else.
            self.brokers = dict.fromkeys(partition.isr)
        else:
            self.brokers.update(dict.fromkeys(partition.isr))


@dataclass
class _Walk:
    """``image``: what a broker makes of the records, batch by batch."""

    seed: int
    cluster: Cluster = field(default_factory=lambda: Cluster(_BROKERS, replace(DEFAULTS, replication_factor=3)))
    image: ClusterImage = field(default_factory=ClusterImage)
    seen: int = 0
    """Decisions that were checked."""
    is_unclean: bool = False
    """Whether whoever registers may have lost the end of its log."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.holders: dict[tuple[UUID, int], _Holders] = {}
        self.requests: list[tuple[TopicImage, PartitionImage, IsrRequest]] = []
        self.steps: list[tuple[int, Callable[[], object]]] = [
            (8, self.someone_beats),
            (4, self.time_passes),
            (3, self.someone_is_lost),
            (6, self.someone_restarts),
            (2, self.someone_shuts_down),
            (10, self.a_leader_asks),
            (3, self.a_request_arrives),
            (2, self.a_topic_is_made),
            (1, self.a_topic_goes),
            (1, self.partitions_are_added),
            (2, self.replicas_move),
            (1, self.moving_is_taken_back),
            (2, self.leaders_are_elected),
            (1, self.settings_change),
            (1, self.features_change),
            (1, self.someone_is_unregistered),
            (1, self.quotas_change),
            (1, self.cluster.take_over),
        ]

    # --- what may happen -----------------------------------------------------------------------------------------

    def broker(self) -> int:
        return self.random.randint(1, _BROKERS)

    def registered(self) -> int | None:
        known = [broker for broker in self.cluster.image.brokers if broker in self.cluster.epochs]
        return self.random.choice(known) if known else None

    def someone_beats(self) -> None:
        number = self.registered()
        if number is not None:
            self.cluster.beat(number, wants_fence=self.random.random() < 0.05)

    def time_passes(self) -> None:
        alive = [number for number in self.cluster.image.brokers if self.random.random() < 0.8]
        self.cluster.pass_time(self.random.choice([50, 500, 2_999]), alive=alive)

    def someone_is_lost(self) -> None:
        number = self.registered()
        if number is not None:
            self.cluster.done(
                self.cluster.controller.broker_lost(BrokerId(number), self.cluster.epochs[number], self.cluster.now)
            )

    def someone_restarts(self) -> None:
        number = self.broker()
        log_dirs = (UUID(int=self.random.choice([1, 1, 1, 1, 1, 2])),)
        self.is_unclean = self.random.random() < 0.5
        registered = self.cluster.register(number, clean=not self.is_unclean, log_dirs=log_dirs)
        self.check()
        if registered.error is ErrorCode.none:
            self.cluster.beat(number, seen=self.random.choice([0, self.cluster.end]))

    def someone_shuts_down(self) -> None:
        number = self.registered()
        if number is not None:
            self.cluster.beat(number, wants_shutdown=True)

    def topic(self) -> TopicImage | None:
        topics = list(self.cluster.image.topics.values())
        return self.random.choice(topics) if topics else None

    def a_leader_asks(self) -> None:
        """Now, or as it was before whatever happens meanwhile."""
        topic = self.topic()
        if topic is None:
            return
        partition_id = self.random.randrange(len(topic.partitions))
        partition = topic.partitions[partition_id]
        isr = [broker for broker in partition.replicas if self.random.random() < 0.7 or broker == partition.leader]
        self.random.shuffle(isr)
        request = IsrRequest(
            partition_id=partition_id,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            isr=tuple((broker, self.cluster.epochs.get(broker, -1)) for broker in isr),
        )
        self.requests.append((topic, partition, request))
        if self.random.random() < 0.7:
            self.a_request_arrives()

    def a_request_arrives(self) -> None:
        if not self.requests:
            return
        topic, partition, request = self.random.choice(self.requests[-5:])
        sender = partition.leader if partition.leader != NO_LEADER else BrokerId(self.broker())
        now = self.cluster.image.topics.get(topic.name)
        is_as_it_was = now is not None and partition == now.partitions[: request.partition_id + 1][-1]
        results = self.cluster.done(
            self.cluster.controller.alter_partition(
                sender, self.cluster.epochs.get(sender, -1), [(topic.topic_id, [request, request])]
            )
        )
        if not isinstance(results, ErrorCode) and results[0][1][0].error in _CARRIED_OUT and is_as_it_was:
            # Whom a leader wants has all that is committed, as long as the ISR is the one that the leader knows.
            members = [broker for broker, _epoch in request.isr]
            self.holders[topic.topic_id, request.partition_id].brokers.update(dict.fromkeys(members))

    def a_topic_is_made(self) -> None:
        topic = NewTopic(
            name=f"t{self.random.randrange(6)}",
            topic_id=UUID(int=10_000 + self.cluster.end),
            partitions=self.random.randint(1, 3),
            replication_factor=self.random.randint(1, 4),
            configs={"unclean.leader.election.enable": "true"} if self.random.random() < 0.2 else {},
        )
        self.cluster.done(self.cluster.controller.create_topics([topic]))

    def a_topic_goes(self) -> None:
        topic = self.topic()
        if topic is not None:
            self.cluster.done(self.cluster.controller.delete_topics([(topic.name, topic.topic_id)]))

    def partitions_are_added(self) -> None:
        topic = self.topic()
        if topic is not None:
            wanted = NewPartitions(name=topic.name, count=len(topic.partitions) + 1)
            self.cluster.done(self.cluster.controller.create_partitions([wanted]))

    def replicas_move(self) -> None:
        topic = self.topic()
        if topic is not None:
            replicas = self.random.sample(range(1, _BROKERS + 1), self.random.randint(1, 4))
            item = Reassignment(TopicPartition(topic.name, 0), tuple(map(BrokerId, replicas)))
            self.cluster.done(self.cluster.controller.reassign_partitions([item]))

    def moving_is_taken_back(self) -> None:
        topic = self.topic()
        if topic is not None:
            item = Reassignment(TopicPartition(topic.name, 0), None)
            self.cluster.done(self.cluster.controller.reassign_partitions([item]))

    def leaders_are_elected(self) -> None:
        kind = UNCLEAN if self.random.random() < 0.1 else PREFERRED
        self.cluster.done(self.cluster.controller.elect_leaders(kind, None))

    def settings_change(self) -> None:
        topic = self.topic()
        if topic is not None:
            value = str(self.random.randint(1, 3))
            change = ConfigChange(name="min.insync.replicas", operation=SET, value=value)
            self.cluster.done(self.cluster.controller.alter_topic_configs([(topic.name, [change])]))

    def features_change(self) -> None:
        kind = self.random.choice([UPGRADE, SAFE_DOWNGRADE])
        update = FeatureUpdate("transaction.version", self.random.randint(0, 2), kind)
        self.cluster.done(self.cluster.controller.update_features([update]))

    def someone_is_unregistered(self) -> None:
        self.cluster.done(self.cluster.controller.unregister_broker(BrokerId(self.broker())))

    def quotas_change(self) -> None:
        names = [("user", self.random.choice(["a", "b", None])), ("client-id", self.random.choice(["a", None]))]
        entity = self.random.choice([names, names[::-1], names[:1], names[1:]])
        values = {"producer_byte_rate": self.random.choice([1.0, 2.0, None]), "request_percentage": 0.5}
        self.cluster.done(self.cluster.controller.alter_client_quotas([QuotaChange(entity, values)]))

    # --- what must hold ------------------------------------------------------------------------------------------

    def run(self) -> None:
        weights, steps = zip(*self.steps, strict=True)
        self.check()
        for _ in range(_STEPS):
            self.random.choices(steps, weights)[0]()
            self.check()
        whole = ClusterImage()
        whole.apply(through_bytes(self.cluster))
        assert whole == self.cluster.image
        again = ClusterImage()
        again.apply(self.cluster.image.snapshot_records())
        assert again == self.cluster.image

    def check(self) -> None:
        for decision in self.cluster.decisions[self.seen :]:
            self.check_decision(decision)
        self.seen = len(self.cluster.decisions)
        assert self.image == self.cluster.image

    def check_decision(self, decision: MetadataDecision[Any]) -> None:
        before = self.image.copy()
        delta = self.image.apply(decision.records)
        flagged = [(item.topic, item.partition_id) for item in decision.actions if isinstance(item, LedAtRisk)]
        crashed = [record.broker_id for record in decision.records if isinstance(record, RegisterBrokerRecord)]
        for topic in self.image.topics.values():
            old = before.topics.get(topic.name)
            if old is not None and old.topic_id != topic.topic_id:
                assert (topic.name, old.topic_id) in delta.deleted
                old = None
            assert old == topic or topic.name in delta.topics
            min_isr = int(self.image.effective_configs(topic.name).get("min.insync.replicas") or 0)
            for partition_id, partition in enumerate(topic.partitions):
                self.check_partition(partition, min_isr)
                is_flagged = (topic.name, partition_id) in flagged
                holders = self.holders.setdefault((topic.topic_id, partition_id), _Holders(partition))
                if self.is_unclean:
                    holders.crash(crashed)
                holders.follow(partition, min_isr, is_flagged)
                if old is not None and partition_id < len(old.partitions):
                    check_change(old.partitions[partition_id], partition, is_flagged)
        self.check_brokers(before)

    def check_partition(self, partition: PartitionImage, min_isr: int) -> None:
        isr, elr, replicas = partition.isr, partition.elr, partition.replicas
        for brokers in (isr, elr, replicas, partition.adding, partition.removing):
            assert len(dict.fromkeys(brokers)) == len(brokers)
        for brokers in (isr, elr, partition.adding, partition.removing):
            assert all(broker in replicas for broker in brokers)
        assert not any(broker in isr for broker in elr)
        assert not any(broker in partition.adding for broker in partition.removing)
        assert (partition.leader == NO_LEADER) == (not isr)
        assert partition.leader == NO_LEADER or partition.leader in isr
        for broker in isr:
            assert self.image.brokers[broker].is_active
        # Whoever is eligible has all that is committed, as nothing is while so few are in sync.
        assert not elr or len(isr) < min(min_isr, len(replicas))
        assert len(partition.last_known_elr) <= 1
        assert not partition.last_known_elr or not isr

    def check_brokers(self, before: ClusterImage) -> None:
        for broker_id, broker in self.image.brokers.items():
            old = before.brokers.get(broker_id)
            if old is not None:
                assert broker.broker_epoch >= old.broker_epoch
                assert broker.broker_epoch > old.broker_epoch or broker.incarnation_id == old.incarnation_id
        assert self.image.next_producer_id >= before.next_producer_id


def check_change(before: PartitionImage, after: PartitionImage, is_flagged: bool) -> None:
    """Epochs only grow; a leader has everything, or it is marked as recovering."""
    assert after.leader_epoch >= before.leader_epoch
    assert after.partition_epoch >= before.partition_epoch
    if after == before:
        return
    assert after.partition_epoch > before.partition_epoch
    assert (after.leader != before.leader) == (after.leader_epoch > before.leader_epoch)
    if after.leader_recovery_state != before.leader_recovery_state and after.leader_recovery_state != RECOVERED:
        assert is_flagged


def through_bytes(cluster: Cluster) -> Iterator[MetadataRecord]:
    for record in cluster.log:
        decoded = decode(*encode(record))
        assert decoded is not None
        yield decoded


@pytest.mark.parametrize("seed", range(60))
def test_what_must_hold_of_the_metadata_holds_whatever_happens(seed: int) -> None:
    _Walk(seed).run()
