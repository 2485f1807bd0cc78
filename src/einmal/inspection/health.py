"""Whether every partition can be written and survives the loss of a broker, from the cluster's metadata. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from einmal.client.cores.metadata_cache import TopicMetadata
    from einmal.client.descriptions import ClusterDescription


@dataclass(frozen=True, slots=True)
class ClusterHealth:
    """``leaderless``, ``under_replicated``: partitions as topic-number. ``missing_brokers``: have replicas, and are not
    in the metadata."""

    verdict: str
    is_healthy: bool
    controller: int | None
    brokers: int
    partitions: int
    missing_brokers: tuple[int, ...]
    leaderless: tuple[str, ...]
    under_replicated: tuple[str, ...]


def health_of(cluster: ClusterDescription, topics: Iterable[TopicMetadata]) -> ClusterHealth:
    """Check the metadata."""
    partitions = [
        (f"{topic.name}-{index}", partition) for topic in topics for index, partition in topic.partitions.items()
    ]
    present = {broker.node_id for broker in cluster.brokers}
    missing = tuple(sorted({replica for _, partition in partitions for replica in partition.replicas} - present))
    leaderless = tuple(name for name, partition in partitions if partition.leader < 0)
    under = tuple(name for name, partition in partitions if len(partition.isr) < len(partition.replicas))
    controller = cluster.controller_id if cluster.controller_id >= 0 else None
    is_healthy = controller is not None and not (missing or leaderless or under)
    verdict = f"All {len(partitions)} partitions have a leader and all their replicas in sync."
    if not is_healthy:
        verdict = (
            f"{len(leaderless)} partitions have no leader, {len(under)} lack replicas in sync, "
            f"{len(missing)} brokers are missing{'' if controller is not None else ', no controller is known'}."
        )
    return ClusterHealth(
        verdict, is_healthy, controller, len(cluster.brokers), len(partitions), missing, leaderless, under
    )
