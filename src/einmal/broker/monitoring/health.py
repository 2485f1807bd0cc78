"""Whether this node can do its work, and if not, why."""

from __future__ import annotations

from collections.abc import Iterator

from einmal.broker.monitoring.parts import Monitored


def why_not_ready(node: Monitored) -> list[str]:
    """Return the reasons why this node is not ready; empty: it is."""
    return list(_reasons(node))


def _reasons(node: Monitored) -> Iterator[str]:
    if node.is_stopping():
        yield "the node is stopping"
    elif not node.quorum.is_loaded:
        yield "the metadata log is being recovered"
    else:
        if node.quorum.leader_id is None:
            yield "no active controller is known"
        if node.config.is_broker:
            yield from _reasons_of_broker(node)


def _reasons_of_broker(node: Monitored) -> Iterator[str]:
    metadata, partitions, node_id = node.metadata, node.partitions, node.config.node_id
    if not metadata.is_applied:
        yield f"broker {node_id} is not registered"
        return
    if not node.lifecycle.is_unfenced:
        yield f"broker {node_id} is fenced"
    elif node.lifecycle.silent_seconds() * 1000 > node.config.broker_session_timeout_ms:
        yield "the active controller has not answered a heartbeat for broker.session.timeout.ms"
    behind = node.quorum.partition.high_watermark - metadata.next_offset
    if behind > 0:
        yield f"{behind} committed metadata records are not applied"
    if partitions.has_put_off:
        yield "replicas are being opened"
    unavailable = [topic_partition for topic_partition in partitions.offline if _leads(node, *topic_partition)]
    if unavailable:
        yield f"{len(unavailable)} led partitions cannot be opened, the first: {unavailable[0]}"
    if partitions.is_disk_broken:
        yield "a log cannot be written to"
    if not all(node.servers[listener.name].is_serving for listener in node.config.named_listeners.of_broker):
        yield "clients are not served yet"


def _leads(node: Monitored, topic: str, partition: int) -> bool:
    described = node.metadata.image.topics.get(topic)
    if described is None or partition >= len(described.partitions):
        return False
    return described.partitions[partition].leader == node.config.node_id
