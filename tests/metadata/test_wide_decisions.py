"""A decision is one step of the event loop: however many things it is asked for, it looks through none of the metadata
for each of them.

Counted are the entries that a decision takes from the image's tables by walking through them, beside many topics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any, TypeVar
from uuid import UUID

import pytest

from einmal.metadata.client_quotas import QuotaChange
from einmal.metadata.configs import SET, ConfigChange
from einmal.metadata.controller import Controller
from einmal.metadata.partitions import PREFERRED
from einmal.metadata.reassignment import Reassignment
from einmal.metadata.records import AccessControlEntryRecord, UserScramCredentialRecord
from einmal.metadata.scram_users import ScramChange
from einmal.metadata.topics import NewPartitions, NewTopic
from einmal.security.acl import Acl, AclOperation, PatternType, Permission, ResourceType
from einmal.security.sasl.scram_server import ScramCredential
from einmal.types import BrokerId, TopicPartition
from tests.metadata.cluster import Cluster, ids

K = TypeVar("K")
V = TypeVar("V")

KNOWN = 300
ASKED = 200
LOOKS_MAX = 10 * (KNOWN + ASKED)
"""Far less than each for each."""
CREDENTIAL = ScramCredential(b"salt", b"stored", b"server", 4_096)


class Walks:
    """How many entries were taken by walking."""

    def __init__(self) -> None:
        self.looks = 0

    def through(self, items: Iterator[V]) -> Iterator[V]:
        for item in items:
            self.looks += 1
            yield item


class Walked(dict[K, V]):
    def __init__(self, known: Mapping[K, V], walks: Walks) -> None:
        super().__init__(known)
        self._walks = walks

    def __iter__(self) -> Iterator[K]:
        return self._walks.through(super().__iter__())

    def keys(self) -> Any:
        return self._walks.through(iter(super().keys()))

    def values(self) -> Any:
        return self._walks.through(iter(super().values()))

    def items(self) -> Any:
        return self._walks.through(iter(super().items()))


def _acl(topic: str) -> Acl:
    return Acl(ResourceType.TOPIC, topic, PatternType.LITERAL, "User:a", "*", AclOperation.READ, Permission.ALLOW)


def _of_cluster() -> Cluster:
    cluster = Cluster(3)
    topics = [
        NewTopic(name=f"known_{index}", topic_id=UUID(int=index + 1), partitions=1, replication_factor=3)
        for index in range(KNOWN)
    ]
    cluster.done(cluster.controller.create_topics(topics))
    for index in range(KNOWN):
        cluster.controller.replay(AccessControlEntryRecord(UUID(int=index + 1), *_acl(f"known_{index}")))
        cluster.controller.replay(UserScramCredentialRecord(f"known_{index}", 1, *CREDENTIAL))
    assert len(cluster.image.topics) == KNOWN
    return cluster


def _new(form: str) -> list[NewTopic]:
    return [
        NewTopic(name=form % index, topic_id=UUID(int=KNOWN + index + 1), replication_factor=3)
        for index in range(ASKED)
    ]


_NAMES = [f"known_{index}" for index in range(ASKED)]
_CHANGES = [ConfigChange(name="min.insync.replicas", operation=SET, value="3")]

DECISIONS: Mapping[str, Callable[[Controller], object]] = {
    "topics are created": lambda shard: shard.create_topics(_new("new_.%d")),
    "topics that collide": lambda shard: shard.create_topics(_new("known.%d")),
    "topics that exist": lambda shard: shard.create_topics(_new("known_%d")),
    "topics with replicas by hand": lambda shard: shard.create_topics(
        [
            NewTopic(name=f"new_{index}", topic_id=UUID(int=KNOWN + index + 1), assignments=[(0, (1, 2, 3))])
            for index in range(ASKED)
        ]
    ),
    "topics are deleted": lambda shard: shard.delete_topics([(name, UUID(int=0)) for name in _NAMES]),
    "topics are deleted by id": lambda shard: shard.delete_topics([(None, UUID(int=i + 1)) for i in range(ASKED)]),
    "partitions are added": lambda shard: shard.create_partitions(
        [NewPartitions(name=name, count=2) for name in _NAMES]
    ),
    "settings are changed": lambda shard: shard.alter_topic_configs([(name, _CHANGES) for name in _NAMES]),
    "settings are replaced": lambda shard: shard.replace_topic_configs(
        [(name, {"min.insync.replicas": "3"}) for name in _NAMES]
    ),
    "settings of all brokers": lambda shard: shard.alter_cluster_configs(
        [ConfigChange(name="unclean.leader.election.enable", operation=SET, value="true")] * ASKED
    ),
    "leaders are elected": lambda shard: shard.elect_leaders(PREFERRED, [TopicPartition(name, 0) for name in _NAMES]),
    "replicas are moved": lambda shard: shard.reassign_partitions(
        [Reassignment(TopicPartition(name, 0), ids(3, 2, 1)) for name in _NAMES]
    ),
    "ISRs are changed": lambda shard: shard.alter_partition(
        BrokerId(1),
        shard.image.brokers[BrokerId(1)].broker_epoch,
        [(UUID(int=index + 1), []) for index in range(ASKED)],
    ),
    "quotas are changed": lambda shard: shard.alter_client_quotas(
        [QuotaChange((("user", name),), {"producer_byte_rate": 1.0}) for name in _NAMES]
    ),
    "ACLs are created": lambda shard: shard.create_acls(
        [(UUID(int=KNOWN + index), _acl(f"new_{index}")) for index in range(ASKED)]
    ),
    "ACLs are deleted": lambda shard: shard.remove_acls([_acl(name) for name in _NAMES]),
    "users are changed": lambda shard: shard.alter_scram_credentials(
        [ScramChange(name, 1, CREDENTIAL) for name in _NAMES] + [ScramChange(name, 1) for name in _NAMES]
    ),
}


@pytest.mark.parametrize("name", DECISIONS)
def test_a_decision_looks_through_nothing_for_each_of_many(name: str) -> None:
    cluster = _of_cluster()
    walks = Walks()
    for each in fields(cluster.image):
        table = getattr(cluster.image, each.name)
        if type(table) is dict:
            setattr(cluster.image, each.name, Walked(table, walks))
    DECISIONS[name](cluster.controller)
    assert walks.looks <= LOOKS_MAX


def test_every_kind_of_change_is_among_them() -> None:
    """Those of a single broker, of single settings, and without a list stay out."""
    single = {
        "allocate_producer_ids",
        "broker_lost",
        "heartbeat",
        "known_acls",
        "loaded",
        "next_deadline",
        "reassignments",
        "register_broker",
        "replace_cluster_configs",
        "replay",
        "replay_marker",
        "tick",
        "unregister_broker",
        "update_features",
    }
    decided = {name for decide in DECISIONS.values() for name in decide.__code__.co_names}
    public = {name for name in dir(Controller) if not name.startswith("_")}
    assert public == single | (decided & public)
