"""Consumer groups of either cluster: which of them have members, and what they have committed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from einmal.client.blocking.admin import Admin
from einmal.types import TopicPartition

_NO_MEMBERS: Final = ("Empty", "Dead")


def active_groups(client: Mapping[str, str], groups: Iterable[str]) -> frozenset[str]:
    """Those with members. ``client``: settings under Kafka's names. Raises KafkaError."""
    # DescribeGroups knows no groups of the newer protocol (KIP-848).
    with Admin(client) as admin:
        states = {each.group_id: each.state for each in admin.list_groups()}
    return frozenset(each for each in groups if each in states and states[each] not in _NO_MEMBERS)


def group_names(client: Mapping[str, str]) -> list[str]:
    """Raises KafkaError."""
    with Admin(client) as admin:
        return [each.group_id for each in admin.list_groups()]


def committed_offsets(
    client: Mapping[str, str], groups: Mapping[str, Collection[TopicPartition] | None]
) -> dict[str, dict[TopicPartition, int]]:
    """Of these partitions by group; None: of all. Raises KafkaError."""
    with Admin(client) as admin:
        return {
            group: {each: found.offset for each, found in admin.list_group_offsets(group, partitions).items()}
            for group, partitions in groups.items()
        }
