"""The table of APIs: which handler answers each, and where.

To add an API, add its handler to the table; CONTRIBUTING.md has the steps.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Flag, auto
from typing import Final, NamedTuple, TypeVar

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
from einmal.broker.front.parts import HandlerType, ListenerParts, NodeParts, Parts, by_type, maker
from einmal.broker.front.routing.forwarding import Forwarding
from einmal.broker.front.routing.router import Router
from einmal.broker.front.routing.routes import REQUEST_BYTES_MAX, ApiRoute, route
from einmal.broker.listeners import Audience, NamedListener
from einmal.wire.messages import Values, Versions

Q = TypeVar("Q", bound=Values)


class On(Flag):
    """Listeners. What is on ``CONTROLLERS`` alone is for nodes of the cluster."""

    BROKERS = auto()
    CONTROLLERS = auto()
    BOTH = BROKERS | CONTROLLERS


class Entry(NamedTuple):
    """``build``: the route, with a handler made of the parts.

    ``is_forwarded``: only the active controller can answer, other nodes pass the request on to it.
    """

    on: On
    key: int
    versions: Versions
    is_forwarded: bool
    build: Callable[[Parts], ApiRoute]


def _entry(handler: HandlerType[Q], on: On, *, is_forwarded: bool = False) -> Entry:
    make = maker(handler)

    def build(parts: Parts) -> ApiRoute:
        return route(make(parts), is_forwarded=is_forwarded)

    return Entry(on, handler.api.key, handler.api.versions, is_forwarded, build)


APIS: Final = (
    _entry(ProduceHandler, On.BROKERS),
    _entry(FetchHandler, On.BOTH),
    _entry(ListOffsetsHandler, On.BROKERS),
    _entry(MetadataHandler, On.BROKERS),
    _entry(OffsetCommitHandler, On.BROKERS),
    _entry(OffsetFetchHandler, On.BROKERS),
    _entry(FindCoordinatorHandler, On.BROKERS),
    _entry(JoinGroupHandler, On.BROKERS),
    _entry(HeartbeatHandler, On.BROKERS),
    _entry(LeaveGroupHandler, On.BROKERS),
    _entry(SyncGroupHandler, On.BROKERS),
    _entry(DescribeGroupsHandler, On.BROKERS),
    _entry(ListGroupsHandler, On.BROKERS),
    _entry(SaslHandshakeHandler, On.BOTH),
    _entry(ApiVersionsHandler, On.BOTH),
    _entry(CreateTopicsHandler, On.BOTH, is_forwarded=True),
    _entry(DeleteTopicsHandler, On.BOTH, is_forwarded=True),
    _entry(DeleteRecordsHandler, On.BROKERS),
    _entry(InitProducerIdHandler, On.BROKERS),
    _entry(OffsetForLeaderEpochHandler, On.BROKERS),
    _entry(AddPartitionsToTxnHandler, On.BROKERS),
    _entry(AddOffsetsToTxnHandler, On.BROKERS),
    _entry(EndTxnHandler, On.BROKERS),
    _entry(WriteTxnMarkersHandler, On.BROKERS),
    _entry(TxnOffsetCommitHandler, On.BROKERS),
    _entry(DescribeAclsHandler, On.BOTH),
    _entry(CreateAclsHandler, On.BOTH, is_forwarded=True),
    _entry(DeleteAclsHandler, On.BOTH, is_forwarded=True),
    _entry(DescribeConfigsHandler, On.BOTH),
    _entry(AlterConfigsHandler, On.BOTH, is_forwarded=True),
    _entry(AlterReplicaLogDirsHandler, On.BROKERS),
    _entry(DescribeLogDirsHandler, On.BROKERS),
    _entry(SaslAuthenticateHandler, On.BOTH),
    _entry(CreatePartitionsHandler, On.BOTH, is_forwarded=True),
    _entry(DeleteGroupsHandler, On.BROKERS),
    _entry(ElectLeadersHandler, On.BOTH, is_forwarded=True),
    _entry(IncrementalAlterConfigsHandler, On.BOTH, is_forwarded=True),
    _entry(AlterPartitionReassignmentsHandler, On.BOTH, is_forwarded=True),
    _entry(ListPartitionReassignmentsHandler, On.BOTH, is_forwarded=True),
    _entry(OffsetDeleteHandler, On.BROKERS),
    _entry(DescribeClientQuotasHandler, On.BROKERS),
    _entry(AlterClientQuotasHandler, On.BOTH, is_forwarded=True),
    _entry(DescribeUserScramCredentialsHandler, On.BOTH),
    _entry(AlterUserScramCredentialsHandler, On.BOTH, is_forwarded=True),
    _entry(VoteHandler, On.CONTROLLERS),
    _entry(BeginQuorumEpochHandler, On.CONTROLLERS),
    _entry(EndQuorumEpochHandler, On.CONTROLLERS),
    _entry(DescribeQuorumHandler, On.BOTH, is_forwarded=True),
    _entry(AlterPartitionHandler, On.CONTROLLERS),
    _entry(UpdateFeaturesHandler, On.BOTH, is_forwarded=True),
    _entry(EnvelopeHandler, On.CONTROLLERS),
    _entry(FetchSnapshotHandler, On.CONTROLLERS),
    _entry(DescribeClusterHandler, On.BOTH),
    _entry(DescribeProducersHandler, On.BROKERS),
    _entry(BrokerRegistrationHandler, On.CONTROLLERS),
    _entry(BrokerHeartbeatHandler, On.CONTROLLERS),
    _entry(UnregisterBrokerHandler, On.BOTH, is_forwarded=True),
    _entry(DescribeTransactionsHandler, On.BROKERS),
    _entry(ListTransactionsHandler, On.BROKERS),
    _entry(AllocateProducerIdsHandler, On.CONTROLLERS),
    _entry(DescribeTopicPartitionsHandler, On.BROKERS),
)
"""In the order of their keys."""

_UNSTABLE: Final = {InitProducerIdHandler.api.key: 6}
"""Versions that Apache Kafka has not released yet, by API. KIP-939 may still change them."""


def entries_on(listener: On, *, has_two_phase_commit: bool = False) -> tuple[Entry, ...]:
    """Return the APIs that are answered there. Versions of KIP-939 only where the broker takes part in two-phase
    commits."""
    entries = tuple(entry for entry in APIS if entry.on & listener)
    return entries if has_two_phase_commit else tuple(map(_stable, entries))


def _stable(entry: Entry) -> Entry:
    unstable = _UNSTABLE.get(entry.key)
    return entry if unstable is None else entry._replace(versions=entry.versions._replace(max=unstable - 1))


def router(parts: NodeParts, listener: NamedListener) -> Router:
    """The router of one listener. Raises TypeError: a handler cannot be made of the parts."""
    is_of_controllers = listener.audience is Audience.CONTROLLERS
    entries = entries_on(
        On.CONTROLLERS if is_of_controllers else On.BROKERS,
        has_two_phase_commit=parts.config.transaction_two_phase_commit_enable,
    )
    listeners = parts.config.named_listeners
    versions = tuple((entry.key, entry.versions) for entry in entries)
    forwarded = [entry.build(by_type(parts)) for entry in entries if entry.is_forwarded]
    of_listener = ListenerParts(versions, Router(forwarded, parts.turns, listeners.controllers_elsewhere))
    all_parts = by_type(parts, of_listener)
    frame_bytes_max = min(REQUEST_BYTES_MAX, parts.config.socket_request_max_bytes)
    forwarding = Forwarding(parts.controller, parts.controller_channel, frame_bytes_max)
    return Router(
        [entry.build(all_parts)._replace(versions=entry.versions) for entry in entries],
        parts.turns,
        listener,
        forwarding=None if is_of_controllers else forwarding,
        throttles=parts.throttles if listeners.identifies_clients(listener) else None,
        # A few percent of a small request, for who looks at it.
        counts=parts.requests if parts.config.metrics_listeners else None,
        unsupported=ApiVersionsHandler(parts.metadata, versions).unsupported,
    )
