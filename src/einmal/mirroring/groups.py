"""Consumer groups of either cluster: which of them have members, and what they have committed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, MutableMapping
from typing import Final

from einmal.client.errors import KafkaError
from einmal.clusters.kafka_cluster import KafkaCluster
from einmal.mirroring.faults import OF_A_GROUP
from einmal.types import TopicPartition

_NO_MEMBERS: Final = ("Empty", "Dead")


def active_groups(cluster: KafkaCluster, groups: Iterable[str]) -> frozenset[str]:
    """Those with members. Raises KafkaError."""
    # DescribeGroups knows no groups of the newer protocol (KIP-848).
    states = {group.group_id: group.state for group in cluster.admin.list_groups()}
    return frozenset(group for group in groups if group in states and states[group] not in _NO_MEMBERS)


def group_names(cluster: KafkaCluster) -> list[str]:
    """Raises KafkaError."""
    return [group.group_id for group in cluster.admin.list_groups()]


def committed_offsets(
    cluster: KafkaCluster, groups: Mapping[str, Collection[TopicPartition] | None]
) -> dict[str, dict[TopicPartition, int]]:
    """Return the committed offsets of these partitions by group; None: of all. Raises KafkaError."""
    return {
        group: {
            partition: position.offset
            for partition, position in cluster.admin.list_group_offsets(group, partitions).items()
        }
        for group, partitions in groups.items()
    }


def shown_offsets(
    cluster: KafkaCluster, groups: Iterable[str], denied: MutableMapping[str, str]
) -> dict[str, dict[TopicPartition, int]]:
    """Return all committed offsets by group. Those of groups that the cluster does not show become ``denied``, with the
    reasons. Raises KafkaError."""
    offsets: dict[str, dict[TopicPartition, int]] = {}
    for group in groups:
        try:
            offsets |= committed_offsets(cluster, {group: None})
        except KafkaError as error:
            if error.code not in OF_A_GROUP:
                raise
            denied[group] = str(error)
    return offsets
