"""The table of APIs: where each is answered, and what its handler is made of.

To add an API, add its handler to the table; CONTRIBUTING.md has the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Flag, auto
from pathlib import PurePosixPath
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from einmal.broker.cluster_metadata import ClusterMetadata
from einmal.broker.config import BrokerConfig
from einmal.broker.control.controller_runtime import ControllerRuntime
from einmal.broker.control.quorum_runtime import QuorumRuntime
from einmal.broker.control.topic_creation import TopicCreation
from einmal.broker.coordinators.group_service import GroupService
from einmal.broker.coordinators.marker_writer import MarkerWriter
from einmal.broker.coordinators.transaction_service import TransactionService
from einmal.broker.front.authentication.failed_authentications import FailedAuthentications
from einmal.broker.front.authentication.sasl import SaslServer
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.fetch.fetch_sessions import FetchSessions
from einmal.broker.front.handlers.add_offsets_to_txn import AddOffsetsToTxnHandler
from einmal.broker.front.handlers.add_partitions_to_txn import AddPartitionsToTxnHandler
from einmal.broker.front.handlers.allocate_producer_ids import AllocateProducerIdsHandler
from einmal.broker.front.handlers.alter_client_quotas import AlterClientQuotasHandler
from einmal.broker.front.handlers.alter_configs import AlterConfigsHandler
from einmal.broker.front.handlers.alter_partition import AlterPartitionHandler
from einmal.broker.front.handlers.alter_partition_reassignments import AlterPartitionReassignmentsHandler
from einmal.broker.front.handlers.alter_replica_log_dirs import AlterReplicaLogDirsHandler
from einmal.broker.front.handlers.alter_user_scram_credentials import AlterUserScramCredentialsHandler
from einmal.broker.front.handlers.api_versions import ApiVersionsHandler
from einmal.broker.front.handlers.begin_quorum_epoch import BeginQuorumEpochHandler
from einmal.broker.front.handlers.broker_heartbeat import BrokerHeartbeatHandler
from einmal.broker.front.handlers.broker_registration import BrokerRegistrationHandler
from einmal.broker.front.handlers.create_acls import CreateAclsHandler
from einmal.broker.front.handlers.create_partitions import CreatePartitionsHandler
from einmal.broker.front.handlers.create_topics import CreateTopicsHandler
from einmal.broker.front.handlers.delete_acls import DeleteAclsHandler
from einmal.broker.front.handlers.delete_groups import DeleteGroupsHandler
from einmal.broker.front.handlers.delete_records import DeleteRecordsHandler
from einmal.broker.front.handlers.delete_topics import DeleteTopicsHandler
from einmal.broker.front.handlers.describe_acls import DescribeAclsHandler
from einmal.broker.front.handlers.describe_client_quotas import DescribeClientQuotasHandler
from einmal.broker.front.handlers.describe_cluster import DescribeClusterHandler
from einmal.broker.front.handlers.describe_configs import DescribeConfigsHandler
from einmal.broker.front.handlers.describe_groups import DescribeGroupsHandler
from einmal.broker.front.handlers.describe_log_dirs import DescribeLogDirsHandler
from einmal.broker.front.handlers.describe_producers import DescribeProducersHandler
from einmal.broker.front.handlers.describe_quorum import DescribeQuorumHandler
from einmal.broker.front.handlers.describe_topic_partitions import DescribeTopicPartitionsHandler
from einmal.broker.front.handlers.describe_transactions import DescribeTransactionsHandler
from einmal.broker.front.handlers.describe_user_scram_credentials import DescribeUserScramCredentialsHandler
from einmal.broker.front.handlers.elect_leaders import ElectLeadersHandler
from einmal.broker.front.handlers.end_quorum_epoch import EndQuorumEpochHandler
from einmal.broker.front.handlers.end_txn import EndTxnHandler
from einmal.broker.front.handlers.envelope import EnvelopeHandler
from einmal.broker.front.handlers.fetch import FetchHandler
from einmal.broker.front.handlers.fetch_snapshot import FetchSnapshotHandler
from einmal.broker.front.handlers.find_coordinator import FindCoordinatorHandler
from einmal.broker.front.handlers.heartbeat import HeartbeatHandler
from einmal.broker.front.handlers.incremental_alter_configs import IncrementalAlterConfigsHandler
from einmal.broker.front.handlers.init_producer_id import InitProducerIdHandler
from einmal.broker.front.handlers.join_group import JoinGroupHandler
from einmal.broker.front.handlers.leave_group import LeaveGroupHandler
from einmal.broker.front.handlers.list_groups import ListGroupsHandler
from einmal.broker.front.handlers.list_offsets import ListOffsetsHandler
from einmal.broker.front.handlers.list_partition_reassignments import ListPartitionReassignmentsHandler
from einmal.broker.front.handlers.list_transactions import ListTransactionsHandler
from einmal.broker.front.handlers.metadata import MetadataHandler
from einmal.broker.front.handlers.offset_commit import OffsetCommitHandler
from einmal.broker.front.handlers.offset_delete import OffsetDeleteHandler
from einmal.broker.front.handlers.offset_fetch import OffsetFetchHandler
from einmal.broker.front.handlers.offset_for_leader_epoch import OffsetForLeaderEpochHandler
from einmal.broker.front.handlers.produce import ProduceHandler
from einmal.broker.front.handlers.sasl_authenticate import SaslAuthenticateHandler
from einmal.broker.front.handlers.sasl_handshake import SaslHandshakeHandler
from einmal.broker.front.handlers.sync_group import SyncGroupHandler
from einmal.broker.front.handlers.txn_offset_commit import TxnOffsetCommitHandler
from einmal.broker.front.handlers.unregister_broker import UnregisterBrokerHandler
from einmal.broker.front.handlers.update_features import UpdateFeaturesHandler
from einmal.broker.front.handlers.vote import VoteHandler
from einmal.broker.front.handlers.write_txn_markers import WriteTxnMarkersHandler
from einmal.broker.front.hanging_transactions import HangingTransactions
from einmal.broker.front.produce.produced_batches import Destinations
from einmal.broker.front.quotas.client_throttles import ClientThrottles
from einmal.broker.front.routing.forwarding import Forwarding
from einmal.broker.front.routing.router import Router
from einmal.broker.front.routing.routes import ApiRoute, Handler, route
from einmal.broker.front.topics.metadata_answers import EncodedAnswers
from einmal.broker.front.topics.setting_descriptions import SettingDescriptions
from einmal.broker.listeners import Audience, NamedListener
from einmal.broker.replicas.batch_checks import BatchChecks
from einmal.broker.replicas.partitions import Partitions
from einmal.broker.replicas.replica_sessions import ReplicaSessions
from einmal.broker.resources.memory_budget import MemoryBudget
from einmal.broker.resources.parked_fetches import ParkedFetches
from einmal.broker.resources.supervision import Supervisor
from einmal.broker.resources.turns import Turns
from einmal.broker.rpc.controller_channel import ControllerChannel
from einmal.broker.rpc.peers import Peers
from einmal.seams import Clock
from einmal.wire.messages import Api, Values, Versions

Q = TypeVar("Q", bound=Values)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeParts:
    """Parts of the node of which its handlers are made, and which no handler sees."""

    config: BrokerConfig
    directory: PurePosixPath
    clock: Clock
    turns: Turns
    supervisor: Supervisor
    response_memory: MemoryBudget
    parked_fetches: ParkedFetches
    throttles: ClientThrottles
    new_uuid: Callable[[], UUID]
    access: Access
    sasl: Mapping[str, SaslServer]
    failed_authentications: FailedAuthentications
    peers: Peers
    controller_channel: ControllerChannel
    topic_creation: TopicCreation
    metadata: ClusterMetadata
    quorum: QuorumRuntime
    controller: ControllerRuntime
    partitions: Partitions
    batch_checks: BatchChecks
    encoded_metadata: EncodedAnswers
    fetch_sessions: FetchSessions
    replica_sessions: ReplicaSessions
    transactions: TransactionService
    markers: MarkerWriter
    groups: GroupService


class On(Flag):
    """Listeners. What is on ``CONTROLLERS`` alone is for nodes of the cluster."""

    BROKERS = auto()
    CONTROLLERS = auto()


_BROKERS: Final = On.BROKERS
_CONTROLLERS: Final = On.CONTROLLERS
_BOTH: Final = On.BROKERS | On.CONTROLLERS


class Entry(NamedTuple):
    """``build``: the route, from the parts and all entries of its listener.

    ``is_forwarded``: only the active controller can answer, other nodes pass the request on to it.
    """

    on: On
    key: int
    versions: Versions
    is_forwarded: bool
    build: Callable[[NodeParts, tuple[Entry, ...]], ApiRoute]


def _entry(
    on: On, api: Api[Q, Values], make: Callable[[NodeParts], Handler[Q]], *, is_forwarded: bool = False
) -> Entry:
    def build(parts: NodeParts, _entries: tuple[Entry, ...]) -> ApiRoute:
        return route(make(parts), is_forwarded=is_forwarded)

    return Entry(on, api.key, api.versions, is_forwarded, build)


def _api_versions(parts: NodeParts, entries: tuple[Entry, ...]) -> ApiRoute:
    return route(_about(parts, entries))


def _about(parts: NodeParts, entries: tuple[Entry, ...]) -> ApiVersionsHandler:
    return ApiVersionsHandler(parts.metadata, tuple((entry.key, entry.versions) for entry in entries))


def _envelope(parts: NodeParts, entries: tuple[Entry, ...]) -> ApiRoute:
    forwarded = [entry.build(parts, entries) for entry in entries if entry.is_forwarded]
    listener = parts.config.named_listeners.controllers_elsewhere
    return route(EnvelopeHandler(parts.access, parts.controller, Router(forwarded, parts.turns, listener)))


APIS: Final = (
    _entry(
        _BROKERS,
        ProduceHandler.api,
        lambda parts: ProduceHandler(
            parts.access,
            Destinations(parts.metadata, parts.partitions),
            parts.transactions,
            parts.batch_checks,
            parts.clock,
        ),
    ),
    _entry(
        _BOTH,
        FetchHandler.api,
        lambda parts: FetchHandler(
            parts.access,
            parts.config,
            parts.clock,
            parts.metadata,
            parts.partitions,
            parts.quorum,
            parts.replica_sessions,
            parts.fetch_sessions,
            parts.response_memory,
            parts.parked_fetches,
        ),
    ),
    _entry(
        _BROKERS,
        ListOffsetsHandler.api,
        lambda parts: ListOffsetsHandler(parts.access, parts.partitions, parts.batch_checks, parts.supervisor),
    ),
    _entry(
        _BROKERS,
        MetadataHandler.api,
        lambda parts: MetadataHandler(
            parts.access, parts.config, parts.metadata, parts.quorum, parts.topic_creation, parts.encoded_metadata
        ),
    ),
    _entry(
        _BROKERS, OffsetCommitHandler.api, lambda parts: OffsetCommitHandler(parts.access, parts.groups, parts.metadata)
    ),
    _entry(
        _BROKERS, OffsetFetchHandler.api, lambda parts: OffsetFetchHandler(parts.access, parts.groups, parts.metadata)
    ),
    _entry(
        _BROKERS,
        FindCoordinatorHandler.api,
        lambda parts: FindCoordinatorHandler(parts.access, parts.metadata, parts.topic_creation),
    ),
    _entry(_BROKERS, JoinGroupHandler.api, lambda parts: JoinGroupHandler(parts.access, parts.groups, parts.new_uuid)),
    _entry(_BROKERS, HeartbeatHandler.api, lambda parts: HeartbeatHandler(parts.access, parts.groups)),
    _entry(_BROKERS, LeaveGroupHandler.api, lambda parts: LeaveGroupHandler(parts.access, parts.groups)),
    _entry(_BROKERS, SyncGroupHandler.api, lambda parts: SyncGroupHandler(parts.access, parts.groups)),
    _entry(_BROKERS, DescribeGroupsHandler.api, lambda parts: DescribeGroupsHandler(parts.access, parts.groups)),
    _entry(_BROKERS, ListGroupsHandler.api, lambda parts: ListGroupsHandler(parts.access, parts.groups)),
    _entry(
        _BOTH,
        SaslHandshakeHandler.api,
        lambda parts: SaslHandshakeHandler(parts.sasl, parts.failed_authentications),
    ),
    Entry(_BOTH, ApiVersionsHandler.api.key, ApiVersionsHandler.api.versions, False, _api_versions),
    _entry(
        _BOTH,
        CreateTopicsHandler.api,
        lambda parts: CreateTopicsHandler(
            parts.access,
            parts.controller,
            parts.partitions,
            SettingDescriptions(parts.config, parts.metadata),
            parts.new_uuid,
            parts.throttles,
        ),
        is_forwarded=True,
    ),
    _entry(
        _BOTH,
        DeleteTopicsHandler.api,
        lambda parts: DeleteTopicsHandler(
            parts.access, parts.controller, parts.config, parts.metadata, parts.throttles
        ),
        is_forwarded=True,
    ),
    _entry(_BROKERS, DeleteRecordsHandler.api, lambda parts: DeleteRecordsHandler(parts.access, parts.partitions)),
    _entry(_BROKERS, InitProducerIdHandler.api, lambda parts: InitProducerIdHandler(parts.access, parts.transactions)),
    _entry(
        _BROKERS,
        OffsetForLeaderEpochHandler.api,
        lambda parts: OffsetForLeaderEpochHandler(parts.access, parts.partitions),
    ),
    _entry(
        _BROKERS,
        AddPartitionsToTxnHandler.api,
        lambda parts: AddPartitionsToTxnHandler(parts.access, parts.transactions, parts.metadata),
    ),
    _entry(
        _BROKERS,
        AddOffsetsToTxnHandler.api,
        lambda parts: AddOffsetsToTxnHandler(parts.access, parts.transactions, parts.metadata, parts.topic_creation),
    ),
    _entry(_BROKERS, EndTxnHandler.api, lambda parts: EndTxnHandler(parts.access, parts.transactions)),
    _entry(
        _BROKERS,
        WriteTxnMarkersHandler.api,
        lambda parts: WriteTxnMarkersHandler(
            parts.access,
            parts.markers,
            HangingTransactions(parts.metadata, parts.partitions, parts.markers, parts.peers),
        ),
    ),
    _entry(
        _BROKERS,
        TxnOffsetCommitHandler.api,
        lambda parts: TxnOffsetCommitHandler(parts.access, parts.groups, parts.transactions, parts.metadata),
    ),
    _entry(_BOTH, DescribeAclsHandler.api, lambda parts: DescribeAclsHandler(parts.access, parts.metadata)),
    _entry(
        _BOTH,
        CreateAclsHandler.api,
        lambda parts: CreateAclsHandler(parts.access, parts.controller, parts.new_uuid),
        is_forwarded=True,
    ),
    _entry(
        _BOTH,
        DeleteAclsHandler.api,
        lambda parts: DeleteAclsHandler(parts.access, parts.controller),
        is_forwarded=True,
    ),
    _entry(
        _BOTH,
        DescribeConfigsHandler.api,
        lambda parts: DescribeConfigsHandler(
            parts.access, parts.config, parts.metadata, SettingDescriptions(parts.config, parts.metadata)
        ),
    ),
    _entry(
        _BOTH,
        AlterConfigsHandler.api,
        lambda parts: AlterConfigsHandler(parts.access, parts.controller),
        is_forwarded=True,
    ),
    _entry(
        _BROKERS,
        AlterReplicaLogDirsHandler.api,
        lambda parts: AlterReplicaLogDirsHandler(parts.access, parts.partitions, parts.directory),
    ),
    _entry(
        _BROKERS,
        DescribeLogDirsHandler.api,
        lambda parts: DescribeLogDirsHandler(parts.access, parts.partitions, parts.directory),
    ),
    _entry(
        _BOTH,
        SaslAuthenticateHandler.api,
        lambda parts: SaslAuthenticateHandler(parts.sasl, parts.failed_authentications),
    ),
    _entry(
        _BOTH,
        CreatePartitionsHandler.api,
        lambda parts: CreatePartitionsHandler(parts.access, parts.controller, parts.partitions, parts.throttles),
        is_forwarded=True,
    ),
    _entry(_BROKERS, DeleteGroupsHandler.api, lambda parts: DeleteGroupsHandler(parts.access, parts.groups)),
    _entry(
        _BOTH,
        ElectLeadersHandler.api,
        lambda parts: ElectLeadersHandler(parts.access, parts.controller),
        is_forwarded=True,
    ),
    _entry(
        _BOTH,
        IncrementalAlterConfigsHandler.api,
        lambda parts: IncrementalAlterConfigsHandler(parts.access, parts.controller),
        is_forwarded=True,
    ),
    _entry(
        _BOTH,
        AlterPartitionReassignmentsHandler.api,
        lambda parts: AlterPartitionReassignmentsHandler(parts.access, parts.controller),
        is_forwarded=True,
    ),
    _entry(
        _BOTH,
        ListPartitionReassignmentsHandler.api,
        lambda parts: ListPartitionReassignmentsHandler(parts.access, parts.controller),
        is_forwarded=True,
    ),
    _entry(
        _BROKERS, OffsetDeleteHandler.api, lambda parts: OffsetDeleteHandler(parts.access, parts.groups, parts.metadata)
    ),
    _entry(
        _BROKERS,
        DescribeClientQuotasHandler.api,
        lambda parts: DescribeClientQuotasHandler(parts.access, parts.metadata),
    ),
    _entry(
        _BOTH,
        AlterClientQuotasHandler.api,
        lambda parts: AlterClientQuotasHandler(parts.access, parts.controller),
        is_forwarded=True,
    ),
    _entry(
        _BOTH,
        DescribeUserScramCredentialsHandler.api,
        lambda parts: DescribeUserScramCredentialsHandler(parts.access, parts.metadata),
    ),
    _entry(
        _BOTH,
        AlterUserScramCredentialsHandler.api,
        lambda parts: AlterUserScramCredentialsHandler(parts.access, parts.controller),
        is_forwarded=True,
    ),
    _entry(_CONTROLLERS, VoteHandler.api, lambda parts: VoteHandler(parts.access, parts.quorum)),
    _entry(
        _CONTROLLERS, BeginQuorumEpochHandler.api, lambda parts: BeginQuorumEpochHandler(parts.access, parts.quorum)
    ),
    _entry(_CONTROLLERS, EndQuorumEpochHandler.api, lambda parts: EndQuorumEpochHandler(parts.access, parts.quorum)),
    _entry(
        _BOTH,
        DescribeQuorumHandler.api,
        lambda parts: DescribeQuorumHandler(parts.access, parts.quorum, parts.clock),
        is_forwarded=True,
    ),
    _entry(
        _CONTROLLERS, AlterPartitionHandler.api, lambda parts: AlterPartitionHandler(parts.access, parts.controller)
    ),
    _entry(
        _BOTH,
        UpdateFeaturesHandler.api,
        lambda parts: UpdateFeaturesHandler(parts.access, parts.controller),
        is_forwarded=True,
    ),
    Entry(_CONTROLLERS, EnvelopeHandler.api.key, EnvelopeHandler.api.versions, False, _envelope),
    _entry(_CONTROLLERS, FetchSnapshotHandler.api, lambda parts: FetchSnapshotHandler(parts.access, parts.quorum)),
    _entry(
        _BOTH,
        DescribeClusterHandler.api,
        lambda parts: DescribeClusterHandler(parts.access, parts.config, parts.metadata, parts.quorum),
    ),
    _entry(
        _BROKERS, DescribeProducersHandler.api, lambda parts: DescribeProducersHandler(parts.access, parts.partitions)
    ),
    _entry(
        _CONTROLLERS,
        BrokerRegistrationHandler.api,
        lambda parts: BrokerRegistrationHandler(parts.access, parts.controller, parts.quorum),
    ),
    _entry(
        _CONTROLLERS, BrokerHeartbeatHandler.api, lambda parts: BrokerHeartbeatHandler(parts.access, parts.controller)
    ),
    _entry(
        _BOTH,
        UnregisterBrokerHandler.api,
        lambda parts: UnregisterBrokerHandler(parts.access, parts.controller),
        is_forwarded=True,
    ),
    _entry(
        _BROKERS,
        DescribeTransactionsHandler.api,
        lambda parts: DescribeTransactionsHandler(parts.access, parts.transactions),
    ),
    _entry(
        _BROKERS, ListTransactionsHandler.api, lambda parts: ListTransactionsHandler(parts.access, parts.transactions)
    ),
    _entry(
        _CONTROLLERS,
        AllocateProducerIdsHandler.api,
        lambda parts: AllocateProducerIdsHandler(parts.access, parts.controller),
    ),
    _entry(
        _BROKERS,
        DescribeTopicPartitionsHandler.api,
        lambda parts: DescribeTopicPartitionsHandler(parts.access, parts.metadata),
    ),
)
"""In the order of their keys."""

_UNSTABLE: Final = {InitProducerIdHandler.api.key: 6}
"""Versions that Apache Kafka has not released yet, by API. KIP-939 may still change them."""


def entries_on(listener: On, *, has_two_phase_commit: bool = False) -> tuple[Entry, ...]:
    """Return the APIs that a listener answers; the versions of KIP-939 only where the broker takes part in two-phase
    commits."""
    entries = tuple(entry for entry in APIS if entry.on & listener)
    return entries if has_two_phase_commit else tuple(map(_stable, entries))


def _stable(entry: Entry) -> Entry:
    unstable = _UNSTABLE.get(entry.key)
    return entry if unstable is None else entry._replace(versions=entry.versions._replace(max=unstable - 1))


def router(parts: NodeParts, listener: NamedListener) -> Router:
    """The router of one listener."""
    is_of_controllers = listener.audience is Audience.CONTROLLERS
    entries = entries_on(
        On.CONTROLLERS if is_of_controllers else On.BROKERS,
        has_two_phase_commit=parts.config.transaction_two_phase_commit_enable,
    )
    return Router(
        [entry.build(parts, entries)._replace(versions=entry.versions) for entry in entries],
        parts.turns,
        listener,
        forwarding=None if is_of_controllers else Forwarding(parts.controller, parts.controller_channel),
        throttles=parts.throttles if parts.config.named_listeners.identifies_clients(listener) else None,
        unsupported=_about(parts, entries).unsupported,
    )
