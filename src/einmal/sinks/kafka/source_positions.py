"""A stream's source positions as offsets of a consumer group, in the batch's transaction: for lag tools.

A restart goes by the commit record, so a position that is refused costs nothing but the lag that a tool shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from einmal.client.errors import KafkaError, RetriableError
from einmal.clusters.kafka_cluster import KafkaCluster
from einmal.commit_protocol.positions import cluster_id
from einmal.commit_protocol.source_offsets import from_json
from einmal.event_log import EventLog
from einmal.sinks.kafka.transactions import KafkaTransactions
from einmal.types import ErrorCode, ProducerIdAndEpoch

SELF_CONTAINED: Final = frozenset({"einmal", "kafka"})
"""Sources whose offsets alone are a complete position, so that a query can begin at them without the old checkpoint."""

_OF_LAG_ONLY: Final = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.topic_authorization_failed,
        ErrorCode.group_authorization_failed,
        ErrorCode.group_id_not_found,
        ErrorCode.invalid_group_id,
        ErrorCode.illegal_generation,
        ErrorCode.unknown_member_id,
        ErrorCode.stale_member_epoch,
        ErrorCode.fenced_instance_id,
        ErrorCode.rebalance_in_progress,
        ErrorCode.offset_metadata_too_large,
        ErrorCode.invalid_commit_offset_size,
        ErrorCode.unsupported_version,
        ErrorCode.unsupported_for_message_format,
    }
)
"""Refusals of offsets that do not concern the transaction."""

_logger = EventLog(__name__)


class SourcePositions:
    def __init__(
        self, sources: Sequence[tuple[str, Mapping[str, str]]] | None, cluster: KafkaCluster, group_id: str
    ) -> None:
        """``sources``: formats and options as in ``execution.sources``; None: they are not known, and only positions
        that name their cluster count. ``cluster``: that is written to."""
        self._sources = sources
        self._cluster = cluster
        self._group_id = group_id
        self._same_cluster: dict[str, bool] = {}
        """By bootstrap servers."""
        self._last_refusal = ""
        """The error that was logged last."""

    def commit(
        self, transactions: KafkaTransactions, identity: ProducerIdAndEpoch, batch_id: int, end: tuple[Any, ...]
    ) -> None:
        """Raises KafkaError if the transaction is concerned."""
        positions = {}
        for number, offsets in enumerate(end):
            if isinstance(offsets, dict) and self._is_here(number, offsets):
                positions.update(from_json(offsets))
        try:
            transactions.commit_offsets(identity, self._group_id, positions)
        except KafkaError as error:
            if not _concerns_lag_only(error):
                raise
            if error.name != self._last_refusal:
                self._last_refusal = error.name
                _logger.warning(
                    "positions_uncommitted",
                    "batch %(batch)d: some positions of group %(group)r, which lag tools show, are not committed: "
                    "%(error)s",
                    batch=batch_id,
                    group=self._group_id,
                    error=error,
                )

    def _is_here(self, number: int, position: Mapping[str, Any]) -> bool:
        """Whether a source reads from the cluster that is written to."""
        if self._sources is None:
            return cluster_id(position) == self._cluster.cluster_id()
        kind, options = self._sources[number]
        if kind not in SELF_CONTAINED:
            return False
        servers = options.get("kafka.bootstrap.servers", "")
        if servers not in self._same_cluster:
            self._same_cluster[servers] = bool(servers) and self._cluster.is_reached_by(servers)
        return self._same_cluster[servers]


def _concerns_lag_only(error: KafkaError) -> bool:
    """Whether a refusal of source positions leaves the transaction as it was, with no request under way.

    Only errors that fence or abort count, and UnknownOutcome: a late request could still reach the transaction's
    coordinator.
    """
    return error.code in _OF_LAG_ONLY or isinstance(error, RetriableError)
