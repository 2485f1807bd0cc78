"""The admin client on asyncio: topics, settings, quotas, offsets, producers, transactions, groups, users, ACLs.

Each call is retried until default.api.timeout.ms. A call for several items raises the error of the first refused one;
those before it are done.
"""

from __future__ import annotations

import random as random_module
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

from einmal.client.aio.admin_calls.acls import AclCalls
from einmal.client.aio.admin_calls.broker_calls import BrokerCalls, config_changes
from einmal.client.aio.admin_calls.producer_calls import ProducerCalls
from einmal.client.aio.admin_calls.quota_calls import QuotaCalls
from einmal.client.aio.admin_calls.user_calls import UserCalls
from einmal.client.aio.consuming.membership import fetch_committed, fetch_settled_each
from einmal.client.aio.consuming.offsets import epoch_ends_each, list_offsets, list_offsets_each, log_end_offsets_each
from einmal.client.aio.network.cluster import Cluster, by_topic
from einmal.client.aio.network.coordinators import GROUP, TRANSACTION, CoordinatorRequest
from einmal.client.aio.network.leaders import LeaderRequest, P, ask_leaders
from einmal.client.aio.network.results import ApiResult, check, error_code
from einmal.client.aio.network.retry import Retry
from einmal.client.apis import ApiKey
from einmal.client.config import AdminSettings, parse
from einmal.client.cores.consumer_protocol import PROTOCOL_TYPE, decode_assignment
from einmal.client.cores.metadata_cache import TopicMetadata
from einmal.client.descriptions import (
    OPEN_STATES,
    ClusterDescription,
    ConfigEntry,
    GroupDescription,
    GroupListing,
    HangingProducers,
    MemberDescription,
    NewTopic,
    TransactionDescription,
    TransactionListing,
)
from einmal.client.errors import Disconnected, KafkaError, RequestRefused, RetriableError, UnknownTopic, error_for
from einmal.client.habits import missing_method
from einmal.client.records import (
    OffsetAndMetadata,
    OffsetAndTimestamp,
    by_partition,
    names_of,
    partition_of,
    settings_of,
)
from einmal.event_log import EventLog
from einmal.seams import Clock, Network, SystemClock, TcpNetwork
from einmal.types import EpochEnd, ErrorCode, IsolationLevel, TopicPartition
from einmal.wire.api.consumer_group_describe import API as CONSUMER_GROUP_DESCRIBE
from einmal.wire.api.consumer_group_describe import ConsumerGroupDescribeRequest
from einmal.wire.api.create_partitions import API as CREATE_PARTITIONS
from einmal.wire.api.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from einmal.wire.api.create_topics import API as CREATE_TOPICS
from einmal.wire.api.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from einmal.wire.api.delete_groups import API as DELETE_GROUPS
from einmal.wire.api.delete_groups import DeleteGroupsRequest
from einmal.wire.api.delete_records import API as DELETE_RECORDS
from einmal.wire.api.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from einmal.wire.api.delete_topics import API as DELETE_TOPICS
from einmal.wire.api.delete_topics import DeleteTopicsRequest
from einmal.wire.api.describe_configs import API as DESCRIBE_CONFIGS
from einmal.wire.api.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
)
from einmal.wire.api.describe_groups import API as DESCRIBE_GROUPS
from einmal.wire.api.describe_groups import DescribedGroupMember, DescribeGroupsRequest
from einmal.wire.api.describe_transactions import API as DESCRIBE_TRANSACTIONS
from einmal.wire.api.describe_transactions import DescribeTransactionsRequest
from einmal.wire.api.incremental_alter_configs import API as INCREMENTAL_ALTER_CONFIGS
from einmal.wire.api.incremental_alter_configs import (
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from einmal.wire.api.list_groups import API as LIST_GROUPS
from einmal.wire.api.list_groups import ListGroupsRequest
from einmal.wire.api.list_transactions import API as LIST_TRANSACTIONS
from einmal.wire.api.list_transactions import ListTransactionsRequest
from einmal.wire.api.write_txn_markers import API as WRITE_TXN_MARKERS
from einmal.wire.api.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from einmal.wire.errors import WireError
from einmal.wire.messages import Api, Q, R

_log = EventLog(__name__)

_TOPIC: Final = 2
"""The resource type of a topic in DescribeConfigs."""
_SET_FOR_TOPIC: Final = 1
"""The config source of a value that was set for the topic itself."""
_TRANSACTION_STATE: Final = "__transaction_state"
LIST_TRANSACTIONS_BY_DURATION: Final = 1
"""The first version that filters by duration."""


class Admin(AclCalls, BrokerCalls, ProducerCalls, QuotaCalls, UserCalls):
    """Create it inside a running event loop; ``async with``, or ``await close()``."""

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        *,
        network: Network | None = None,
        clock: Clock | None = None,
        random: random_module.Random | None = None,
        **settings: Any,
    ) -> None:
        self.settings = parse(AdminSettings, config, settings)
        self._cluster = Cluster(
            self.settings,
            network=network or TcpNetwork(),
            clock=clock or SystemClock(),
            source=random or random_module.Random(),
        )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise missing_method(self, name)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._cluster.close()

    # --- cluster and topics ---------------------------------------------------------------------------------------

    async def describe_cluster(self) -> ClusterDescription:
        await self._refresh([])
        metadata = self._cluster.metadata
        brokers = tuple(metadata.brokers[broker] for broker in sorted(metadata.brokers))
        return ClusterDescription(
            metadata.cluster_id, metadata.controller_id, brokers, self._cluster.transaction_version
        )

    async def list_topics(self, *, include_internal: bool = False) -> list[str]:
        await self._refresh(None)
        topics = self._cluster.metadata.topics
        return sorted(name for name, topic in topics.items() if include_internal or not topic.is_internal)

    async def describe_topics(self, topics: Iterable[str] | None = None) -> dict[str, TopicMetadata]:
        """Partitions with leader, epoch, replicas and ISR, by default of every topic. Raises UnknownTopic."""
        if topics is None:
            await self._refresh(None)
            known = self._cluster.metadata.topics
            return {name: known[name] for name in sorted(known) if known[name].error_code is ErrorCode.none}
        names = names_of(topics, "topics")
        await self._refresh(names)
        described = {}
        for name in names:
            topic = self._cluster.metadata.topics.get(name)
            code = ErrorCode.unknown_topic_or_partition if topic is None else topic.error_code
            if topic is None or code is not ErrorCode.none:
                raise error_for(code, f"topic {name!r}")
            described[name] = topic
        return described

    async def _refresh(self, topics: list[str] | None) -> None:
        retry = Retry(self._cluster, "Metadata", self._cluster.deadline())
        while True:
            try:
                await self._cluster.refresh_metadata(topics)
                return
            except Disconnected as error:
                await retry.after_disconnect(error)

    async def create_topics(
        self, topics: Iterable[NewTopic | str], *, if_not_exists: bool = False, validate_only: bool = False
    ) -> list[str]:
        """Returns the created topics. Raises TopicAlreadyExists (unless ``if_not_exists``), RequestRefused."""
        listed = names_of(topics, "topics") if isinstance(topics, str) else topics
        wanted = [topic if isinstance(topic, NewTopic) else NewTopic(topic) for topic in listed]
        names_of((topic.name for topic in wanted), "topics")
        creatable = tuple(
            CreatableTopic(
                topic.name,
                topic.num_partitions,
                topic.replication_factor,
                configs=tuple(CreatableTopicConfig(*setting) for setting in settings_of(topic.configs).items()),
            )
            for topic in wanted
        )
        request = CreateTopicsRequest(creatable, self.settings.request_timeout_ms, validate_only)
        response = await self._call(CREATE_TOPICS, request, lambda response: response.topics)
        created = []
        for result in response.topics:
            if not (if_not_exists and result.error_code is ErrorCode.topic_already_exists):
                check(result, f"creating topic {result.name!r}")
                created.append(result.name)
        return created

    async def delete_topics(self, topics: Iterable[str]) -> None:
        """Raises UnknownTopic."""
        request = DeleteTopicsRequest(
            timeout=self.settings.request_timeout_ms, topic_names=tuple(names_of(topics, "topics"))
        )
        response = await self._call(DELETE_TOPICS, request, lambda _: ())
        for result in response.responses:
            check(result, f"deleting topic {result.name!r}")
            self._cluster.metadata.topics.pop(result.name or "", None)

    async def create_partitions(self, counts: Mapping[str, int], *, validate_only: bool = False) -> None:
        """Increase the partition counts of topics to these totals; ``validate_only``: only ask whether it may be."""
        topics = tuple(CreatePartitionsTopic(name, count) for name, count in counts.items())
        request = CreatePartitionsRequest(topics, self.settings.request_timeout_ms, validate_only)
        response = await self._call(CREATE_PARTITIONS, request, lambda _: ())
        for result in response.results:
            check(result, f"adding partitions to {result.name!r}")

    async def describe_configs(self, topics: Iterable[str]) -> dict[str, dict[str, ConfigEntry]]:
        """All settings of topics, including the broker's defaults. Raises UnknownTopic."""
        configs = {}
        for topic, answer in (await self.describe_configs_each(topics)).items():
            if isinstance(answer, KafkaError):
                raise answer
            configs[topic] = answer
        return configs

    async def describe_configs_each(self, topics: Iterable[str]) -> dict[str, dict[str, ConfigEntry] | KafkaError]:
        """As ``describe_configs``; a topic that does not exist, or is not shown, has its error instead."""
        resources = tuple(DescribeConfigsResource(_TOPIC, name, None) for name in names_of(topics, "topics"))
        response = await self._call(
            DESCRIBE_CONFIGS, DescribeConfigsRequest(resources), lambda response: response.results
        )
        answers: dict[str, dict[str, ConfigEntry] | KafkaError] = {}
        for result in response.results:
            try:
                check(result, f"settings of topic {result.resource_name!r}")
            except KafkaError as error:
                answers[result.resource_name] = error
            else:
                answers[result.resource_name] = {config.name: _config_entry(config) for config in result.configs}
        for missing in (resource.resource_name for resource in resources if resource.resource_name not in answers):
            raise error_for(ErrorCode.unknown_server_error, f"no answer about the settings of topic {missing!r}")
        return answers

    async def alter_configs(
        self, topic: str, configs: Mapping[str, str | None], *, validate_only: bool = False
    ) -> None:
        """Set settings of a topic; None resets one to the broker's default. ``validate_only``: only ask whether it may
        be."""
        resource = AlterConfigsResource(_TOPIC, topic, config_changes(configs))
        request = IncrementalAlterConfigsRequest((resource,), validate_only)
        response = await self._call(INCREMENTAL_ALTER_CONFIGS, request, lambda response: response.responses)
        for result in response.responses:
            check(result, f"settings of topic {topic!r}")

    async def _call(self, api: Api[Q, R], request: Q, results: Callable[[R], Iterable[ApiResult]]) -> R:
        """A request for any broker; retried while any of its results has a retriable error."""
        return await self._cluster.call_any(
            api,
            request,
            deadline=self._cluster.deadline(),
            error_of=lambda response: _retriable_of([result.error_code for result in results(response)]),
        )

    # --- offsets and producers of partitions ----------------------------------------------------------------------

    async def list_offsets(
        self, wanted: Mapping[TopicPartition, int], *, isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """For each partition the offset at EARLIEST, LATEST, or of the first record at or after a time in ms.

        Under READ_COMMITTED the latest is the last stable offset. Without such a record the offset is -1.
        """
        return await list_offsets(self._cluster, by_partition(wanted), isolation, deadline=self._cluster.deadline())

    async def list_offsets_each(
        self, wanted: Mapping[TopicPartition, int], *, isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    ) -> dict[TopicPartition, OffsetAndTimestamp | KafkaError]:
        """As ``list_offsets``; a partition that has no leader, or does not exist, has its error instead."""
        return await list_offsets_each(
            self._cluster, by_partition(wanted), isolation, deadline=self._cluster.deadline()
        )

    async def log_end_offsets_each(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int | KafkaError]:
        """The end of each leader's log, with what is not replicated yet, or why it is not known; one whose leader does
        not report it has no entry."""
        return await log_end_offsets_each(
            self._cluster, map(partition_of, partitions), deadline=self._cluster.deadline()
        )

    async def epoch_ends_each(
        self, epochs: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, EpochEnd | KafkaError]:
        """The end of a leader epoch in each leader's log (OffsetForLeaderEpoch), or why it is not known: where it is
        below an offset that was read in that epoch, the log was truncated."""
        return await epoch_ends_each(self._cluster, by_partition(epochs), deadline=self._cluster.deadline())

    async def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete records below these offsets (-1: up to the high watermark); gives the new log starts."""
        ends = by_partition(before)

        def request_of(some: Sequence[TopicPartition]) -> DeleteRecordsRequest:
            topics = tuple(
                DeleteRecordsTopic(
                    name, tuple(DeleteRecordsPartition(index, ends[TopicPartition(name, index)]) for index in indexes)
                )
                for name, indexes in by_topic(some).items()
            )
            return DeleteRecordsRequest(topics, self.settings.request_timeout_ms)

        def results(response: DeleteRecordsResponse) -> list[tuple[TopicPartition, DeleteRecordsPartitionResult]]:
            return [
                (TopicPartition(topic.name, partition.partition_index), partition)
                for topic in response.topics
                for partition in topic.partitions
            ]

        request = LeaderRequest(DELETE_RECORDS, request_of, results, changes_something=True)
        answers = await _of_leaders(self._cluster, request, ends)
        return {topic_partition: partition.low_watermark for topic_partition, partition in answers.items()}

    # --- transactions ---------------------------------------------------------------------------------------------

    async def list_transactions(
        self, *, states: Iterable[str] = (), producer_ids: Iterable[int] = (), longer_than_ms: int = -1
    ) -> list[TransactionListing]:
        """Every transactional id that any coordinator knows; states in Kafka's words (Ongoing, PrepareCommit, ...).

        ``longer_than_ms``: only those whose transaction began longer ago (KIP-994), on brokers of Kafka 3.8 or later.
        Raises RequestRefused for a state that a broker does not know.
        """
        request = ListTransactionsRequest(tuple(names_of(states, "states")), tuple(producer_ids), longer_than_ms)
        listings = []
        at_least = LIST_TRANSACTIONS_BY_DURATION if longer_than_ms >= 0 else 0
        for node_id, response in await self._call_all(LIST_TRANSACTIONS, request, error_code, at_least=at_least):
            if response.unknown_state_filters:
                raise RequestRefused(
                    detail=", ".join(response.unknown_state_filters),
                    meaning="the broker does not know this transaction state",
                    what_to_do="use Kafka's words, as Empty, Ongoing, PrepareCommit or CompleteAbort",
                )
            for state in response.transaction_states:
                listings.append(
                    TransactionListing(state.transactional_id, state.producer_id, state.transaction_state, node_id)
                )
        return sorted(listings, key=lambda listing: listing.transactional_id)

    async def list_managed_transactions(self, producer_ids: Iterable[int]) -> list[TransactionListing]:
        """As ``list_transactions``, and certainly all that a coordinator will end in every partition.

        Raises RetriableError where a coordinator is missing, or moves meanwhile: what it has would be missing, too, and
        look like a transaction that nobody will end. Transactional ids without permission (DESCRIBE) stay hidden.
        """
        before = await _coordinators(self)
        listed = await self.list_transactions(states=OPEN_STATES, producer_ids=producer_ids)
        if None in before.values() or await _coordinators(self) != before:
            raise RetriableError(
                ErrorCode.coordinator_not_available,
                f"partitions of {_TRANSACTION_STATE} have no leader, or a new one",
                meaning="a transaction coordinator is missing, so nobody knows all open transactions",
                what_to_do="wait until every partition has a leader, and try again",
            )
        return listed

    async def describe_transactions(self, transactional_ids: Iterable[str]) -> dict[str, TransactionDescription]:
        """State, identity, timeout, start and partitions. Raises RequestRefused (TRANSACTIONAL_ID_NOT_FOUND)."""
        descriptions = {}
        for transactional_id in names_of(transactional_ids, "transactional ids"):
            description = await self._describe_transaction(transactional_id)
            if description.error_code is not ErrorCode.none:
                raise error_for(description.error_code, f"transactional id {transactional_id!r}")
            descriptions[transactional_id] = description
        return descriptions

    async def _describe_transaction(self, transactional_id: str) -> TransactionDescription:
        deadline = self._cluster.deadline()
        retry = Retry(self._cluster, f"DescribeTransactions of {transactional_id!r}", deadline)
        while True:
            node_id = await self._cluster.coordinators.find(TRANSACTION, transactional_id, deadline=deadline)
            try:
                request = DescribeTransactionsRequest((transactional_id,))
                response = await self._cluster.call(node_id, DESCRIBE_TRANSACTIONS, request)
            except Disconnected as error:
                self._cluster.coordinators.forget(TRANSACTION, transactional_id)
                await retry.after_disconnect(error)
                continue
            (state,) = response.transaction_states
            if not state.error_code.retriable:
                return TransactionDescription(
                    state.transactional_id,
                    state.transaction_state,
                    state.producer_id,
                    state.producer_epoch,
                    state.transaction_timeout,
                    state.transaction_start_time,
                    tuple(TopicPartition(topic.topic, index) for topic in state.topics for index in topic.partitions),
                    node_id,
                    state.error_code,
                )
            self._cluster.coordinators.forget(TRANSACTION, transactional_id)
            await retry.after_refusal(state.error_code)

    async def find_hanging_transactions(
        self, topics: Iterable[str] | None = None, *, last_timestamp_before: int
    ) -> HangingProducers:
        """Open transactions of partitions that no coordinator will end (KIP-664), in these topics or in all.

        Raises RetriableError where a coordinator is missing: see ``list_managed_transactions``.
        ``last_timestamp_before`` (ms since 1970): a producer that wrote later may still be active.
        """
        described = await self.describe_topics(topics)
        partitions = [TopicPartition(name, index) for name, topic in described.items() for index in topic.partitions]
        producers, unseen = await self.describe_producers_each(partitions)
        suspects = [
            producer
            for producer in producers
            if producer.current_transaction_start_offset >= 0 and producer.last_timestamp < last_timestamp_before
        ]
        if not suspects:
            return HangingProducers([], unseen)
        listed = await self.list_managed_transactions(sorted({suspect.producer_id for suspect in suspects}))
        owned: dict[tuple[int, TopicPartition], None] = {}
        ended: dict[int, None] = {}
        for listing in listed:
            try:
                transactions = await self.describe_transactions([listing.transactional_id])
            except RequestRefused as error:
                if error.code is not ErrorCode.transactional_id_not_found:
                    raise
                # Its transaction has ended since it was listed, and what the partitions had of it is old.
                ended[listing.producer_id] = None
            else:
                transaction = transactions[listing.transactional_id]
                owned |= dict.fromkeys((transaction.producer_id, at) for at in transaction.partitions)
        hanging = [
            suspect
            for suspect in suspects
            if suspect.producer_id not in ended and (suspect.producer_id, suspect.topic_partition) not in owned
        ]
        return HangingProducers(hanging, unseen)

    async def abort_transaction(
        self, topic_partition: TopicPartition, producer_id: int, producer_epoch: int, *, coordinator_epoch: int = 0
    ) -> None:
        """Write an abort marker into one partition, past the coordinator: for a transaction that hangs (KIP-664).

        The arguments are those of ``describe_producers``. A transaction that its coordinator still knows as open would
        be torn: let that one time out, or acquire its transactional id.
        """
        topic = WritableTxnMarkerTopic(topic_partition.topic, (topic_partition.partition,))
        marker = WritableTxnMarker(
            producer_id, producer_epoch, topics=(topic,), coordinator_epoch=max(0, coordinator_epoch)
        )

        def results(
            response: WriteTxnMarkersResponse,
        ) -> list[tuple[TopicPartition, WritableTxnMarkerPartitionResult]]:
            return [
                (TopicPartition(topic.name, partition.partition_index), partition)
                for written in response.markers
                for topic in written.topics
                for partition in topic.partitions
            ]

        request = LeaderRequest(
            WRITE_TXN_MARKERS, lambda _: WriteTxnMarkersRequest((marker,)), results, changes_something=True
        )
        await _of_leaders(self._cluster, request, [topic_partition])

    # --- groups ---------------------------------------------------------------------------------------------------

    async def list_groups(self) -> list[GroupListing]:
        listings = []
        for _node_id, response in await self._call_all(LIST_GROUPS, ListGroupsRequest(), error_code):
            for group in response.groups:
                listings.append(GroupListing(group.group_id, group.protocol_type, group.group_state))
        return sorted(listings, key=lambda listing: listing.group_id)

    async def describe_groups(self, group_ids: Iterable[str]) -> dict[str, GroupDescription]:
        """State, protocol and members with their partitions, of classic groups and of those of the consumer protocol
        (KIP-848). A group that does not exist is in state Dead."""
        descriptions = {}
        for group_id in names_of(group_ids, "groups"):
            answer = await self._call_group(
                group_id,
                DESCRIBE_GROUPS,
                DescribeGroupsRequest((group_id,)),
                lambda response: response.groups[0].error_code,
            )
            group = answer.groups[0]
            if group.error_code not in (ErrorCode.none, ErrorCode.group_id_not_found):
                raise error_for(group.error_code, f"group {group_id!r}")
            node_id = await self._cluster.coordinators.find(GROUP, group_id, deadline=self._cluster.deadline())
            members = tuple(_member(member, group.protocol_type) for member in group.members)
            described = GroupDescription(
                group_id, group.group_state, group.protocol_type, group.protocol_data, members, node_id
            )
            if described.state == "Dead":
                # For this request a group of the other protocol is none.
                described = await self._describe_consumer_group(group_id, node_id) or described
            descriptions[group_id] = described
        return descriptions

    async def _describe_consumer_group(self, group_id: str, node_id: int) -> GroupDescription | None:
        """None: there is none of the consumer protocol, or brokers that do not know it."""
        try:
            answer = await self._call_group(
                group_id,
                CONSUMER_GROUP_DESCRIBE,
                ConsumerGroupDescribeRequest((group_id,)),
                lambda response: response.groups[0].error_code,
            )
        except RequestRefused as error:
            if error.code is not ErrorCode.unsupported_version:
                raise
            return None
        group = answer.groups[0]
        if group.error_code in (ErrorCode.group_id_not_found, ErrorCode.unsupported_version):
            return None
        if group.error_code is not ErrorCode.none:
            raise error_for(group.error_code, f"group {group_id!r}")
        members = tuple(
            MemberDescription(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                tuple(
                    TopicPartition(topic.topic_name, index)
                    for topic in member.assignment.topic_partitions
                    for index in topic.partitions
                ),
            )
            for member in group.members
        )
        return GroupDescription(group_id, group.group_state, PROTOCOL_TYPE, group.assignor_name, members, node_id)

    async def list_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None, *, require_stable: bool = True
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """A group's committed offsets, by default of all partitions. Waits for transactions with offsets of this
        group, unless ``require_stable`` is False."""
        wanted = None if partitions is None else [partition_of(partition) for partition in partitions]
        deadline = self._cluster.deadline()
        offsets = await fetch_committed(
            self._cluster, group_id, wanted, deadline=deadline, require_stable=require_stable
        )
        return {partition: offset for partition, offset in offsets.items() if offset is not None}

    async def list_group_offsets_each(self, group_id: str) -> dict[TopicPartition, OffsetAndMetadata | KafkaError]:
        """As ``list_group_offsets`` of all partitions; one whose offset a transaction leaves undecided has its error
        instead."""
        offsets = await fetch_settled_each(self._cluster, group_id, deadline=self._cluster.deadline())
        return {partition: offset for partition, offset in offsets.items() if offset is not None}

    async def delete_groups(self, group_ids: Iterable[str]) -> None:
        """Delete groups without members, with their offsets. Raises RequestRefused."""
        for group_id in names_of(group_ids, "groups"):
            answer = await self._call_group(
                group_id,
                DELETE_GROUPS,
                DeleteGroupsRequest((group_id,)),
                lambda response: response.results[0].error_code,
            )
            code = answer.results[0].error_code
            if code is not ErrorCode.none:
                raise error_for(code, f"deleting group {group_id!r}")

    async def _call_group(self, group_id: str, api: Api[Q, R], request: Q, error_of: Callable[[R], ErrorCode]) -> R:
        asked = CoordinatorRequest(kind=GROUP, key=group_id, api=api, request=request, error_of=error_of)
        answer = await self._cluster.coordinators.call(asked, deadline=self._cluster.deadline())
        return answer.response

    async def _call_all(
        self, api: Api[Q, R], request: Q, error_of: Callable[[R], ErrorCode], *, at_least: int = 0
    ) -> list[tuple[int, R]]:
        """The answers of all brokers but those that leave the cluster: each describes only what it coordinates."""
        await self._refresh([])
        answers = []
        for node_id in sorted(self._cluster.metadata.brokers):
            retry = Retry(self._cluster, f"{ApiKey(api.key).name} at broker {node_id}", self._cluster.deadline())
            while True:
                try:
                    response = await self._cluster.call(node_id, api, request, at_least=at_least)
                except Disconnected as error:
                    await self._refresh([])
                    if node_id not in self._cluster.metadata.brokers:
                        break
                    await retry.after_disconnect(error)
                    continue
                code = error_of(response)
                if code is ErrorCode.none:
                    answers.append((node_id, response))
                    break
                if not code.retriable:
                    raise error_for(code, retry.what)
                await retry.after_refusal(code)
        return answers


async def _of_leaders(
    cluster: Cluster, request: LeaderRequest[Q, R, P], partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, P]:
    """The result of each partition's leader. Raises an error that names the partitions that have it."""
    answers = await ask_leaders(cluster, request, partitions, deadline=cluster.deadline())
    return answers.all_or_raise()


async def _coordinators(admin: Admin) -> dict[int, tuple[int, int] | None]:
    """Leader and epoch of each transaction coordinator's partition; None: it has no leader."""
    try:
        topic = (await admin.describe_topics([_TRANSACTION_STATE]))[_TRANSACTION_STATE]
    except UnknownTopic:
        # There has been no transaction yet.
        return {}
    brokers = (await admin.describe_cluster()).brokers
    known = {broker.node_id for broker in brokers}
    return {
        index: (partition.leader, partition.leader_epoch) if partition.leader in known else None
        for index, partition in topic.partitions.items()
    }


def _retriable_of(codes: Iterable[ErrorCode]) -> ErrorCode:
    """A retriable code; one for existing or unknown items is not: that will not change by itself.

    Neither is a quota that stopped only some: the others are done, and cannot be done twice.
    """
    codes = list(codes)
    final = [ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id]
    if ErrorCode.none in codes:
        final.append(ErrorCode.throttling_quota_exceeded)
    return next((code for code in codes if code.retriable and code not in final), ErrorCode.none)


def _config_entry(config: DescribeConfigsResourceResult) -> ConfigEntry:
    is_default = config.config_source != _SET_FOR_TOPIC
    return ConfigEntry(config.name, config.value, is_default, config.read_only, config.is_sensitive)


def _member(member: DescribedGroupMember, protocol_type: str) -> MemberDescription:
    partitions: tuple[TopicPartition, ...] = ()
    if protocol_type == PROTOCOL_TYPE:
        try:
            partitions = decode_assignment(member.member_assignment)
        except WireError as error:
            # The group's leader wrote it. The caller still wants to see the other members.
            unreadable = "the assignment of member %(member).100r cannot be read: %(error)s"
            _log.warning("assignment_unreadable", unreadable, member=member.member_id, error=error)
    return MemberDescription(
        member.member_id, member.group_instance_id, member.client_id, member.client_host, partitions
    )
