"""The blocking admin client: the asyncio one in a thread of its own. Same names, same arguments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

from einmal.client.aio import admin as aio
from einmal.client.blocking.loop_thread import LoopThread
from einmal.client.blocking.security_calls import SecurityCalls
from einmal.client.config import AdminSettings, parse
from einmal.client.cores.metadata_cache import TopicMetadata
from einmal.client.descriptions import (
    ClusterDescription,
    ConfigEntry,
    GroupDescription,
    GroupListing,
    HangingProducers,
    NewTopic,
    ProducerDescription,
    TransactionDescription,
    TransactionListing,
)
from einmal.client.errors import KafkaError
from einmal.client.habits import missing_method
from einmal.client.records import OffsetAndMetadata, OffsetAndTimestamp
from einmal.types import EpochEnd, IsolationLevel, TopicPartition


class AdminCalls(SecurityCalls):
    """The calls of ``Admin`` on an asyncio client that somebody else makes and closes."""

    def __init__(self, thread: LoopThread[aio.Admin]) -> None:
        self._thread = thread

    def describe_cluster(self) -> ClusterDescription:
        return self._thread.run(lambda admin: admin.describe_cluster())

    def list_topics(self, *, include_internal: bool = False) -> list[str]:
        return self._thread.run(lambda admin: admin.list_topics(include_internal=include_internal))

    def describe_topics(self, topics: Iterable[str] | None = None) -> dict[str, TopicMetadata]:
        """Partitions with leader, epoch, replicas and ISR. Raises UnknownTopic."""
        return self._thread.run(lambda admin: admin.describe_topics(topics))

    def create_topics(
        self, topics: Iterable[NewTopic | str], *, if_not_exists: bool = False, validate_only: bool = False
    ) -> list[str]:
        """The topics that were made. Raises TopicAlreadyExists (unless ``if_not_exists``), RequestRefused."""
        return self._thread.run(
            lambda admin: admin.create_topics(topics, if_not_exists=if_not_exists, validate_only=validate_only)
        )

    def delete_topics(self, topics: Iterable[str]) -> None:
        """Raises UnknownTopic."""
        self._thread.run(lambda admin: admin.delete_topics(topics))

    def create_partitions(self, counts: Mapping[str, int], *, validate_only: bool = False) -> None:
        """Let topics have so many partitions in all."""
        self._thread.run(lambda admin: admin.create_partitions(counts, validate_only=validate_only))

    def describe_configs(self, topics: Iterable[str]) -> dict[str, dict[str, ConfigEntry]]:
        """All settings of topics, those of the broker's defaults too. Raises UnknownTopic."""
        return self._thread.run(lambda admin: admin.describe_configs(topics))

    def describe_configs_each(self, topics: Iterable[str]) -> dict[str, dict[str, ConfigEntry] | KafkaError]:
        """As ``describe_configs``; a topic that does not exist, or is not shown, has its error instead."""
        return self._thread.run(lambda admin: admin.describe_configs_each(topics))

    def describe_broker_configs(self, node_id: int) -> dict[str, ConfigEntry]:
        """All settings of a broker, as it runs. Raises RequestRefused."""
        return self._thread.run(lambda admin: admin.describe_broker_configs(node_id))

    def describe_broker_loggers(self, node_id: int) -> dict[str, str]:
        """The level of each logger of a broker, in Kafka's names. Raises RequestRefused."""
        return self._thread.run(lambda admin: admin.describe_broker_loggers(node_id))

    def alter_broker_loggers(
        self, node_id: int, levels: Mapping[str, str | None], *, validate_only: bool = False
    ) -> None:
        """Set levels of a broker's loggers until its next start; None: the level of the package above."""
        self._thread.run(lambda admin: admin.alter_broker_loggers(node_id, levels, validate_only=validate_only))

    def alter_configs(self, topic: str, configs: Mapping[str, str | None], *, validate_only: bool = False) -> None:
        """Set settings of a topic; None takes one back to the broker's default."""
        self._thread.run(lambda admin: admin.alter_configs(topic, configs, validate_only=validate_only))

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int], *, isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """For each partition the offset at EARLIEST, LATEST, or of the first record at or after a time in ms."""
        return self._thread.run(lambda admin: admin.list_offsets(wanted, isolation=isolation))

    def list_offsets_each(
        self, wanted: Mapping[TopicPartition, int], *, isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    ) -> dict[TopicPartition, OffsetAndTimestamp | KafkaError]:
        """As ``list_offsets``; a partition that has no leader, or does not exist, has its error instead."""
        return self._thread.run(lambda admin: admin.list_offsets_each(wanted, isolation=isolation))

    def log_end_offsets_each(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | KafkaError]:
        """The end of each leader's log, with what is not replicated yet, or why it is not known; one whose leader does
        not report it has no entry."""
        return self._thread.run(lambda admin: admin.log_end_offsets_each(partitions))

    def epoch_ends_each(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, EpochEnd | KafkaError]:
        """The end of a leader epoch in each leader's log (OffsetForLeaderEpoch), or why it is not known: where it is
        below an offset that was read in that epoch, the log was truncated."""
        return self._thread.run(lambda admin: admin.epoch_ends_each(epochs))

    def describe_producers(self, partitions: Iterable[TopicPartition]) -> list[ProducerDescription]:
        """Every producer that the leaders of these partitions remember: who holds the last stable offset back."""
        return self._thread.run(lambda admin: admin.describe_producers(partitions))

    def describe_producers_each(
        self, partitions: Iterable[TopicPartition]
    ) -> tuple[list[ProducerDescription], dict[TopicPartition, KafkaError]]:
        """As ``describe_producers``, and the errors of partitions that have no leader, do not exist or are refused."""
        return self._thread.run(lambda admin: admin.describe_producers_each(partitions))

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete records below these offsets (-1: up to the high watermark); gives the new log starts."""
        return self._thread.run(lambda admin: admin.delete_records(before))

    def list_transactions(
        self, *, states: Iterable[str] = (), producer_ids: Iterable[int] = (), longer_than_ms: int = -1
    ) -> list[TransactionListing]:
        """Every transactional id that any coordinator knows; states in Kafka's words (Ongoing, PrepareCommit, ...).

        ``longer_than_ms``: only those whose transaction began longer ago (KIP-994), on brokers of Kafka 3.8 or later.
        Raises RequestRefused for a state that a broker does not know.
        """
        return self._thread.run(
            lambda admin: admin.list_transactions(
                states=states, producer_ids=producer_ids, longer_than_ms=longer_than_ms
            )
        )

    def list_managed_transactions(self, producer_ids: Iterable[int]) -> list[TransactionListing]:
        """Certainly all open transactions of these producers. See the asyncio twin."""
        return self._thread.run(lambda admin: admin.list_managed_transactions(producer_ids))

    def describe_transactions(self, transactional_ids: Iterable[str]) -> dict[str, TransactionDescription]:
        """State, identity, timeout, start and partitions. Raises RequestRefused (TRANSACTIONAL_ID_NOT_FOUND)."""
        return self._thread.run(lambda admin: admin.describe_transactions(transactional_ids))

    def find_hanging_transactions(
        self, topics: Iterable[str] | None = None, *, last_timestamp_before: int
    ) -> HangingProducers:
        """Open transactions of partitions that no coordinator will end (KIP-664). See the asyncio twin."""
        return self._thread.run(
            lambda admin: admin.find_hanging_transactions(topics, last_timestamp_before=last_timestamp_before)
        )

    def abort_transaction(
        self, topic_partition: TopicPartition, producer_id: int, producer_epoch: int, *, coordinator_epoch: int = 0
    ) -> None:
        """Write an abort marker into one partition: for a transaction that hangs. See the asyncio twin first."""
        self._thread.run(
            lambda admin: admin.abort_transaction(
                topic_partition, producer_id, producer_epoch, coordinator_epoch=coordinator_epoch
            )
        )

    def list_groups(self) -> list[GroupListing]:
        return self._thread.run(lambda admin: admin.list_groups())

    def describe_groups(self, group_ids: Iterable[str]) -> dict[str, GroupDescription]:
        """State, protocol and members with their partitions. A group that does not exist is in state Dead."""
        return self._thread.run(lambda admin: admin.describe_groups(group_ids))

    def list_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None, *, require_stable: bool = True
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """A group's committed offsets, by default of all partitions. Waits for transactions with offsets of this
        group, unless ``require_stable`` is False."""
        return self._thread.run(
            lambda admin: admin.list_group_offsets(group_id, partitions, require_stable=require_stable)
        )

    def list_group_offsets_each(self, group_id: str) -> dict[TopicPartition, OffsetAndMetadata | KafkaError]:
        """As ``list_group_offsets`` of all partitions; one whose offset a transaction leaves undecided has its error
        instead."""
        return self._thread.run(lambda admin: admin.list_group_offsets_each(group_id))

    def delete_groups(self, group_ids: Iterable[str]) -> None:
        """Delete groups without members, with their offsets. Raises RequestRefused."""
        self._thread.run(lambda admin: admin.delete_groups(group_ids))


class Admin(AdminCalls):
    """Takes Kafka's dotted names as a mapping, snake_case keywords, or both. ``with``, or ``close()``."""

    def __init__(self, config: Mapping[str, Any] | None = None, **settings: Any) -> None:
        self.settings = parse(AdminSettings, config, settings)
        super().__init__(LoopThread(lambda: aio.Admin(config, **settings), "einmal-admin"))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise missing_method(self, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._thread.close()
