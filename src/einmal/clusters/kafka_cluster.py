"""The questions that a source or a sink asks its Kafka cluster: topics, offsets, settings. Blocking.

One cluster object per query, on the driver. Knows nothing of Spark.
"""

from __future__ import annotations

import dataclasses
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, cast
from uuid import UUID

from einmal.client.aio.admin import Admin
from einmal.client.aio.consuming.offsets import EARLIEST, LATEST, list_offsets
from einmal.client.aio.network.leaders import passes
from einmal.client.aio.network.retry import KNOWN_MS, Retry
from einmal.client.apis import ApiKey
from einmal.client.blocking.admin import AdminCalls
from einmal.client.blocking.loop_thread import LoopThread
from einmal.client.config import AdminSettings, addresses, dotted
from einmal.client.cores.metadata_cache import NO_TOPIC_ID
from einmal.client.descriptions import NewTopic, TransactionDescription
from einmal.client.errors import Disconnected, KafkaError, RequestRefused, UnknownTopic, error_for
from einmal.client.records import OffsetAndTimestamp
from einmal.commit_protocol.commit_record import RESERVED_TOPICS
from einmal.commit_protocol.source_offsets import SourcePosition
from einmal.event_log import EventLog
from einmal.options.values import OptionError
from einmal.types import ErrorCode, IsolationLevel, Offset, TopicPartition

_logger = EventLog(__name__)

_VERIFYING_ADD_PARTITIONS: Final = 4
"""Brokers that speak this version verify a transactional write at the coordinator (KIP-890 part 1)."""
_NO_TRANSACTION: Final = frozenset({ErrorCode.transactional_id_not_found, ErrorCode.unsupported_version})
_APPEAR_MS: Final = 15_000
"""How long a topic that the broker may create on demand can take."""


@dataclass(frozen=True, slots=True)
class TopicSeen:
    """A topic that exists. ``topic_id``: as Kafka prints it; None: the brokers have none (before 2.8)."""

    topic_id: str | None
    partitions: tuple[TopicPartition, ...]
    leaderless: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Seen:
    """Answer of a cluster about the topics that were asked for; those that do not exist are missing."""

    cluster_id: str | None
    topics: Mapping[str, TopicSeen]

    def topic_ids(self) -> dict[str, str]:
        return {name: topic.topic_id for name, topic in self.topics.items() if topic.topic_id is not None}


class _Asker(Admin):
    """Questions that an admin client does not ask: it creates nothing on demand, and looks at no versions."""

    async def partitions(self, topics: list[str], *, may_create: bool) -> list[TopicPartition]:
        retry = Retry(self._cluster, f"metadata of {', '.join(topics)}", self._cluster.deadline())
        while True:
            try:
                # Asked anew each time: partitions can be added.
                await self._cluster.refresh_metadata(topics, may_create=may_create)
                break
            except Disconnected as error:
                # A source asks in every trigger: a broker that restarts must not end its query.
                await retry.after_disconnect(error)
        deadline, appear_ms = self._cluster.deadline(), _APPEAR_MS if may_create else KNOWN_MS
        described = [
            await self._cluster.topic(name, deadline=deadline, may_create=may_create, appear_ms=appear_ms)
            for name in topics
        ]
        return [TopicPartition(topic.name, index) for topic in described for index in sorted(topic.partitions)]

    async def look(self, topics: list[str], settled: Collection[str]) -> Seen:
        """Ask for these topics. One that is unknown, or has a partition without a leader, is asked for again, for
        ``KNOWN_MS``, unless it is among the ``settled``. Raises NotAuthorized, InvalidTopic, RetriableError."""
        retry = Retry(self._cluster, f"metadata of {', '.join(topics)}", self._cluster.deadline())
        until = min(self._cluster.deadline(), self._cluster.deadline(KNOWN_MS))
        backoff = self._cluster.backoff()
        while topics:
            try:
                await self._cluster.refresh_metadata(topics)
            except Disconnected as error:
                await retry.after_disconnect(error)
                continue
            seen = self._seen(topics)
            waits = any(
                name not in seen.topics or seen.topics[name].leaderless for name in topics if name not in settled
            )
            left = until - self._cluster.now_ms()
            if not waits or left <= 0:
                return seen
            await backoff.pause(left)
        return Seen(self._cluster.metadata.cluster_id, {})

    def _seen(self, names: list[str]) -> Seen:
        metadata = self._cluster.metadata
        topics: dict[str, TopicSeen] = {}
        for name in names:
            topic = metadata.topics.get(name)
            if topic is None or topic.error_code is not ErrorCode.none:
                code = ErrorCode.unknown_topic_or_partition if topic is None else topic.error_code
                # Of a name that no topic may have there is none, either.
                if not code.retriable and code is not ErrorCode.invalid_topic_exception:
                    raise error_for(code, f"topic {name!r}")
                continue
            partitions = tuple(TopicPartition(name, index) for index in sorted(topic.partitions))
            leaderless = frozenset(partition for partition in partitions if metadata.leader(partition) is None)
            topic_id = None if topic.topic_id == NO_TOPIC_ID else _as_text(topic.topic_id)
            topics[name] = TopicSeen(topic_id, partitions, leaderless)
        return Seen(metadata.cluster_id, topics)

    async def offsets(
        self, wanted: Mapping[TopicPartition, int], isolation: IsolationLevel
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """ListOffsets; a topic that has just been deleted is not waited for."""
        return await list_offsets(
            self._cluster, wanted, isolation, deadline=self._cluster.deadline(), appear_ms=KNOWN_MS
        )

    async def available(
        self, wanted: Mapping[TopicPartition, int], isolation: IsolationLevel
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """ListOffsets, without partitions that have no answer now. Raises UnknownTopic, NotAuthorized."""
        offsets: dict[TopicPartition, OffsetAndTimestamp] = {}
        for partition, answer in (await self.list_offsets_each(wanted, isolation=isolation)).items():
            if not isinstance(answer, KafkaError):
                offsets[partition] = answer
            elif isinstance(answer, UnknownTopic) or not passes(answer):
                raise answer
            else:
                unread = "%(partition)s is not read now, other partitions are: %(error)s"
                _logger.warning("partition_unread", unread, partition=partition, error=answer)
        return offsets

    async def ends(
        self,
        wanted: Mapping[TopicPartition, int],
        reached: Mapping[TopicPartition, int],
        isolation: IsolationLevel,
        *,
        may_lack: bool,
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """ListOffsets; what ends before what was ``reached`` of it is asked for twice."""
        ask = self.available if may_lack else self.offsets
        ends = await ask(wanted, isolation)
        short = {
            partition: wanted[partition] for partition in ends if ends[partition].offset < reached.get(partition, 0)
        }
        leaders = [
            leader.leader for partition in short if (leader := self._cluster.metadata.leader(partition)) is not None
        ]
        for node_id in dict.fromkeys(leaders):
            await self._cluster.doubt(node_id)
        if short:
            asked_again = await ask(short, isolation)
            ends = {partition: end for partition, end in ends.items() if partition not in short} | asked_again
        return ends

    async def newest_version(self, api_key: ApiKey) -> int:
        connection = await self._cluster.any_connection()
        return connection.versions.get(api_key, (0, -1))[1]


def uuid_of(topic_id: str) -> UUID:
    """The id of a topic that Kafka prints like this. Raises ValueError."""
    return UUID(bytes=urlsafe_b64decode(topic_id + "=="))


def _as_text(topic_id: UUID) -> str:
    return urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")


def matches(pattern: str, topic: str) -> bool:
    """Whether ``subscribePattern`` selects a topic: its whole name, never an internal one."""
    return topic not in RESERVED_TOPICS and re.fullmatch(pattern, topic) is not None


class KafkaCluster:
    """``client``: settings under Kafka's names; those that are not common to all clients are not looked at."""

    def __init__(self, client: Mapping[str, str]) -> None:
        names = {dotted(field.name) for field in dataclasses.fields(AdminSettings)}
        self.common = {name: value for name, value in client.items() if name in names}
        self._thread = LoopThread(lambda: _Asker(self.common), "einmal-cluster")
        # The receiver of its calls is an Admin, whatever else it can do.
        self.admin = AdminCalls(cast("LoopThread[Admin]", self._thread))
        """Everything else that an admin client can do, over the same connections."""

    # --- topics -------------------------------------------------------------------------------------------------

    def partition_count(self, topic: str) -> int:
        """Return the number of partitions of a topic that the broker may create on demand, as for any producer. Raises
        UnknownTopic, RetriableError."""
        return len(self._thread.run(lambda asker: asker.partitions([topic], may_create=True)))

    def partitions(self, topics: Iterable[str]) -> list[TopicPartition]:
        """All partitions of these topics, in order. Raises UnknownTopic, RetriableError."""
        wanted = list(topics)
        return self._thread.run(lambda asker: asker.partitions(wanted, may_create=False))

    def topics(self, pattern: str) -> list[str]:
        """The topics whose whole name matches, without internal ones."""
        names = self.admin.list_topics()
        return [name for name in names if matches(pattern, name)]

    def look(self, topics: Iterable[str], settled: Collection[str] = ()) -> Seen:
        """Return what exists of these topics. Waits up to 5 s for one that is unknown, or has a partition without a
        leader, unless it is among the ``settled``. Raises NotAuthorized, RetriableError where no broker answers."""
        wanted = list(topics)
        return self._thread.run(lambda asker: asker.look(wanted, settled))

    def existing(self, position: SourcePosition) -> list[TopicPartition]:
        """The partitions of a position that can be asked for their ends: topics that are gone, or that were created
        again, and partitions without a leader are left out. Does not wait for any."""
        topics = dict.fromkeys(partition.topic for partition in position.offsets)
        seen = self.look(topics, topics)
        return [
            partition
            for partition in position.offsets
            if (topic := seen.topics.get(partition.topic)) is not None
            and partition in topic.partitions
            and partition not in topic.leaderless
            and topic.topic_id in (None, position.topic_ids.get(partition.topic, topic.topic_id))
        ]

    def create_topic(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        """With the cluster's own replication factor. A topic that exists is left as it is. Raises KafkaError."""
        if name in self.look([name], [name]).topics:
            # Who may write to it need not be allowed to create it, and brokers look at that first.
            return
        topic = NewTopic(name, num_partitions=partitions, configs=dict(config))
        self.admin.create_topics([topic], if_not_exists=True)

    def topic_setting(self, topic: str, name: str) -> str | None:
        """One setting of a topic; None where the broker does not report it. Raises KafkaError."""
        entry = self.admin.describe_configs([topic])[topic].get(name)
        return None if entry is None else entry.value

    # --- offsets ------------------------------------------------------------------------------------------------

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Offset]:
        return self._offsets(dict.fromkeys(partitions, EARLIEST), IsolationLevel.READ_UNCOMMITTED)

    def latest(
        self,
        partitions: Iterable[TopicPartition],
        *,
        committed: bool,
        reached: Mapping[TopicPartition, Offset] | None = None,
        may_lack: bool = False,
    ) -> dict[TopicPartition, Offset]:
        """``committed``: the last stable offset, else the high watermark.

        ``reached``: offsets that existed once. A broker whose log ends before them may have been replaced as leader
        without knowing: its answer counts only if another broker confirms that it leads. ``may_lack``: leave out
        partitions that have no answer now.
        """
        isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        wanted = dict.fromkeys(partitions, LATEST)
        if not wanted:
            return {}
        ends = self._thread.run(lambda asker: asker.ends(wanted, reached or {}, isolation, may_lack=may_lack))
        return {partition: Offset(ends[partition].offset) for partition in wanted if partition in ends}

    def at_times(
        self, times: Mapping[TopicPartition, int], *, committed: bool, may_lack: bool = True
    ) -> dict[TopicPartition, Offset]:
        """The first record at or after a partition's time (ms); where there is none, the end, or without ``may_lack``
        an OptionError. ``committed``: as for ``latest``."""
        isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        # A record behind the last stable offset is none yet: to begin there would look like data that has vanished.
        offsets = self._offsets(times, isolation)
        lacking = [partition for partition in times if offsets[partition] < 0]
        if lacking and not may_lack:
            raise OptionError(
                f"no record at or after {times[lacking[0]]} ms in {', '.join(map(str, lacking))}\n"
                'hint: .option("startingOffsetsByTimestampStrategy", "latest") begins at the end there'
            )
        ends = self.latest(lacking, committed=committed)
        return {partition: offsets[partition] if offsets[partition] >= 0 else ends[partition] for partition in times}

    def _offsets(self, wanted: Mapping[TopicPartition, int], isolation: IsolationLevel) -> dict[TopicPartition, Offset]:
        if not wanted:
            return {}
        offsets = self._thread.run(lambda asker: asker.offsets(wanted, isolation))
        return {partition: Offset(offsets[partition].offset) for partition in wanted}

    # --- the cluster --------------------------------------------------------------------------------------------

    def cluster_id(self) -> str | None:
        """Raises RetriableError where no broker answers."""
        return self.admin.describe_cluster().cluster_id

    def transaction(self, transactional_id: str) -> TransactionDescription | None:
        """None where its coordinator does not know the name, or the brokers cannot report it (before 3.0). Raises
        KafkaError."""
        try:
            described = self.admin.describe_transactions([transactional_id])
        except RequestRefused as error:
            if error.code in _NO_TRANSACTION:
                return None
            raise
        return described[transactional_id]

    def open_transaction(self, transactional_id: str) -> TransactionDescription | None:
        """As ``transaction``, None where none is open."""
        transaction = self.transaction(transactional_id)
        return transaction if transaction is not None and transaction.state == "Ongoing" else None

    def refuses_late_writes(self) -> bool:
        """Whether a write that comes after its transaction's end is refused (brokers since 3.6, KIP-890)."""
        newest = self._thread.run(lambda asker: asker.newest_version(ApiKey.ADD_PARTITIONS_TO_TXN))
        return newest >= _VERIFYING_ADD_PARTITIONS

    def is_reached_by(self, bootstrap_servers: str) -> bool:
        """Whether these addresses lead to this cluster too."""
        if set(addresses(bootstrap_servers)) & set(addresses(self.common["bootstrap.servers"])):
            return True
        other = KafkaCluster(self.common | {"bootstrap.servers": bootstrap_servers})
        try:
            return other.cluster_id() == self.cluster_id()
        finally:
            other.close()

    def close(self) -> None:
        self._thread.close()
