"""Placement of a new partition's replicas: spread over brokers and racks, and leaders over all brokers.

Deterministic: the broker with the fewest replicas of the same topic comes first, then the one with the fewest of all,
then the lowest id. Fenced brokers get a replica only if there are too few others, and are never the preferred leader.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from einmal.metadata.image import BrokerImage, ClusterImage
from einmal.types import BrokerId

Replicas = tuple[BrokerId, ...]


@dataclass(slots=True)
class _Load:
    """How many replicas each broker has, and of how many it is the preferred leader."""

    replicas: Counter[BrokerId]
    leads: Counter[BrokerId]

    def add(self, replicas: Replicas) -> None:
        self.replicas.update(replicas)
        self.leads[replicas[0]] += 1


def _load(partitions: Iterable[Replicas]) -> _Load:
    load = _Load(Counter(), Counter())
    for replicas in partitions:
        load.add(replicas)
    return load


class Placement:
    """For one decision: its earlier placements count too."""

    def __init__(self, image: ClusterImage) -> None:
        self._load = _load(partition.replicas for topic in image.topics.values() for partition in topic.partitions)
        self._brokers: Mapping[BrokerId, BrokerImage] = {
            broker_id: broker for broker_id, broker in image.brokers.items() if not broker.in_controlled_shutdown
        }

    @property
    def usable(self) -> int:
        """How many brokers can get replicas."""
        return len(self._brokers)

    @property
    def has_leader(self) -> bool:
        """Whether any broker could lead."""
        return any(broker.is_active for broker in self._brokers.values())

    def assign(self, existing: Iterable[Replicas], count: int, factor: int) -> list[Replicas]:
        """``existing``: replicas of the topic's partitions so far. There must be enough brokers, and one that can
        lead."""
        topic = _load(existing)
        placed = []
        for _ in range(count):
            replicas = self._assign_one(topic, factor)
            topic.add(replicas)
            self._load.add(replicas)
            placed.append(replicas)
        return placed

    def _assign_one(self, topic: _Load, factor: int) -> Replicas:
        leader = min(
            (broker_id for broker_id, broker in self._brokers.items() if broker.is_active),
            key=lambda broker: (topic.leads[broker], self._load.leads[broker], broker),
        )
        replicas = [leader]
        while len(replicas) < factor:
            racks = [self._brokers[broker].rack for broker in replicas]
            others = [broker for broker in self._brokers.values() if broker.broker_id not in replicas]
            # The last criterion is the next id after the leader's: so the successors of leaders differ too.
            best = min(
                others,
                key=lambda broker: (
                    broker.is_fenced,
                    broker.rack is not None and broker.rack in racks,
                    topic.replicas[broker.broker_id],
                    self._load.replicas[broker.broker_id],
                    broker.broker_id < leader,
                    broker.broker_id,
                ),
            )
            replicas.append(best.broker_id)
        return tuple(replicas)
