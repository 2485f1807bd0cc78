"""Samples of the replicas on this broker, and of their topics."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from einmal.broker.monitoring.page import Page, labels
from einmal.broker.monitoring.parts import Monitored
from einmal.broker.replicas.partition import Partition
from einmal.broker.resources.counts import TopicCounts
from einmal.metadata.image import ClusterImage
from einmal.replication.leader import Leader

HELD_BACK_MAX: Final = 1_000
"""Partitions that are held back by a transaction and have samples of their own: those with the largest lag."""
_LATE_MS: Final = 300_000
"""A transaction is late so long after transaction.max.timeout.ms (KIP-664)."""
_TRAFFIC: Final = tuple(
    (f"kafka_server_brokertopicmetrics_{name}_total", field)
    for name, field in (
        ("messagesin", "messages_in"),
        ("bytesin", "bytes_in"),
        ("bytesout", "bytes_out"),
        ("totalproducerequests", "produces"),
        ("failedproducerequests", "failed_produces"),
        ("totalfetchrequests", "fetches"),
        ("failedfetchrequests", "failed_fetches"),
    )
)
_REPLICATION: Final = (
    ("kafka_server_brokertopicmetrics_replicationbytesin_total", "replication_bytes_in"),
    ("kafka_server_brokertopicmetrics_replicationbytesout_total", "replication_bytes_out"),
)
_OWN: Final = (
    ("einmal_dedup_hits_total", "duplicates"),
    ("einmal_out_of_order_sequence_total", "gaps"),
    ("einmal_control_records_total", "markers"),
)


class _HeldBack(NamedTuple):
    lag: int
    labels: str
    open_count: int
    held_ms: int


@dataclass(slots=True)
class _Sums:
    led: int = 0
    under_replicated: int = 0
    under_min: int = 0
    at_min: int = 0
    offline: int = 0
    reassigning: int = 0
    producers: int = 0
    late: int = 0
    held_back: int = 0
    held_most: list[_HeldBack] = field(default_factory=list)


def add_topics(page: Page, node: Monitored) -> Iterator[None]:
    """Add what is counted by topic."""
    total = TopicCounts()
    total.add(node.partitions.topics.former)
    for topic, counts in node.partitions.topics:
        total.add(counts)
        _add_counts(page, counts, f'{{topic="{topic}"}}')
        for name, key in _OWN:
            page.add(name, getattr(counts, key), f'{{topic="{topic}"}}')
        yield
    _add_counts(page, total, "")
    for name, key in _REPLICATION:
        page.add(name, getattr(total, key))
    page.add("einmal_producer_fenced_total", total.fenced, labels(cause="partition"))


def _add_counts(page: Page, counts: TopicCounts, of: str) -> None:
    for name, key in _TRAFFIC:
        page.add(name, getattr(counts, key), of)


def add_replicas(page: Page, node: Monitored) -> Iterator[None]:
    """Add what each replica is now, and what all are together."""
    sums = _Sums()
    now_ms = node.clock.now().monotonic_ms
    late_ms = node.config.transaction_max_timeout_ms + _LATE_MS
    for partition in node.partitions:
        # Names of topics have no character that would have to be escaped.
        topic, index = partition.topic_partition
        own = f'{{topic="{topic}",partition="{index}"}}'
        page.add("kafka_log_log_logstartoffset", partition.log_start_offset, own)
        page.add("kafka_log_log_logendoffset", partition.log_end_offset, own)
        page.add("kafka_log_log_size", partition.log_size, own)
        page.add("kafka_log_log_numlogsegments", partition.segment_count, own)
        sums.producers += len(partition.producers)
        sums.offline += partition.is_offline
        if partition.replication is not None:
            _add_led(page, node.metadata.image, partition, partition.replication, own, sums)
            _look_at_transactions(partition, own, now_ms, late_ms, sums)
        yield
    _add_sums(page, node, sums)


def _add_led(page: Page, image: ClusterImage, partition: Partition, leader: Leader, own: str, sums: _Sums) -> None:
    replicas, in_sync = len(leader.replicas), len(leader.isr)
    least = min(partition.min_insync_replicas, replicas)
    is_under_replicated, is_under_min, is_at_min = in_sync < replicas, in_sync < least, in_sync == least
    sums.led += 1
    sums.under_replicated += is_under_replicated
    sums.under_min += is_under_min
    sums.at_min += is_at_min
    topic, index = partition.topic_partition
    described = image.topics.get(topic)
    if described is not None and index < len(described.partitions):
        sums.reassigning += described.partitions[index].is_reassigning
        if index == 0:
            page.add("kafka_topic_partitions", len(described.partitions), f'{{topic="{topic}"}}')
    high_watermark = partition.high_watermark
    page.add("kafka_cluster_partition_replicascount", replicas, own)
    page.add("kafka_cluster_partition_insyncreplicascount", in_sync, own)
    page.add("kafka_cluster_partition_underreplicated", int(is_under_replicated), own)
    page.add("kafka_cluster_partition_underminisr", int(is_under_min), own)
    page.add("kafka_cluster_partition_atminisr", int(is_at_min), own)
    page.add("kafka_cluster_partition_laststableoffsetlag", high_watermark - partition.last_stable_offset, own)
    page.add("kafka_topic_partition_current_offset", high_watermark, own)
    page.add("kafka_topic_partition_oldest_offset", partition.log_start_offset, own)
    page.add("kafka_topic_partition_in_sync_replica", in_sync, own)
    page.add("kafka_topic_partition_leader", partition.leader, own)
    page.add("kafka_topic_partition_leader_is_preferred", int(leader.replicas[0] == partition.leader), own)
    page.add("kafka_topic_partition_replicas", replicas, own)
    page.add("kafka_topic_partition_under_replicated_partition", int(is_under_replicated), own)


def _look_at_transactions(partition: Partition, own: str, now_ms: int, late_ms: int, sums: _Sums) -> None:
    since_ms = partition.producers.held_since_ms()
    if since_ms is None:
        return
    sums.late += now_ms - since_ms > late_ms
    lag = partition.high_watermark - partition.last_stable_offset
    if lag <= 0:
        return
    sums.held_back += 1
    held = _HeldBack(lag, own, partition.producers.open_count, now_ms - since_ms)
    keep = heapq.heappush if len(sums.held_most) < HELD_BACK_MAX else heapq.heappushpop
    keep(sums.held_most, held)


def _add_sums(page: Page, node: Monitored, sums: _Sums) -> None:
    partitions = node.partitions
    for name, value in (
        ("partitioncount", len(partitions) + len(partitions.offline)),
        ("leadercount", sums.led),
        ("underreplicatedpartitions", sums.under_replicated),
        ("underminisrpartitioncount", sums.under_min),
        ("atminisrpartitioncount", sums.at_min),
        ("offlinereplicacount", sums.offline + len(partitions.offline)),
        ("reassigningpartitions", sums.reassigning),
        ("produceridcount", sums.producers),
        ("partitionswithlatetransactionscount", sums.late),
        ("isrshrinks_total", partitions.isr_shrinks),
        ("isrexpands_total", partitions.isr_expands),
    ):
        page.add(f"kafka_server_replicamanager_{name}", value)
    page.add("kafka_log_logmanager_offlinelogdirectorycount", int(partitions.is_disk_broken))
    page.add("einmal_txn_partitions_held_back", sums.held_back)
    for lag, own, open_count, held_ms in sums.held_most:
        page.add("einmal_txn_lso_lag", lag, own)
        page.add("einmal_txn_open", open_count, own)
        page.add("einmal_txn_lso_held_seconds", held_ms / 1000, own)
