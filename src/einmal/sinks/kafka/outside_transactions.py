"""A batch that is written in no transaction: at least once, or at most once."""

from __future__ import annotations

from collections.abc import Callable

from einmal.clusters.kafka_cluster import KafkaCluster
from einmal.commit_protocol.claims import Denied, Output
from einmal.sinks.kafka.claim_service import ClaimService
from einmal.sinks.kafka.open_transaction import OpenTransaction, TopicTable, WriteAs


def write_plainly(
    cluster: KafkaCluster,
    service: ClaimService,
    run: Callable[[OpenTransaction, WriteAs], list[Output]],
    *,
    is_at_most_once: bool,
    reported: Callable[[Output], None] = lambda output: None,
) -> tuple[Output, ...] | Denied:
    """Write plain records. ``run`` is a job whose tasks claim partitions at ``service`` before they write, and returns
    what they have written. At most once: a partition has one writer, which sends nothing twice.

    Raises what ``run`` raises.
    """
    claims = OpenTransaction(
        TopicTable(cluster.partition_count), add=lambda _: None, reported=reported, exclusive=is_at_most_once
    )
    service.begin(claims)
    try:
        return claims.close(run(claims, WriteAs(sends_once=is_at_most_once)))
    finally:
        service.end()
