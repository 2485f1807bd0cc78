"""The parts of a node that monitoring reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from einmal.broker.cluster_metadata import ClusterMetadata
from einmal.broker.config import BrokerConfig
from einmal.broker.control.broker_lifecycle import BrokerLifecycle
from einmal.broker.control.controller_runtime import ControllerRuntime
from einmal.broker.control.quorum_runtime import QuorumRuntime
from einmal.broker.coordinators.group_service import GroupService
from einmal.broker.coordinators.transaction_service import TransactionService
from einmal.broker.front.connections.server import Server
from einmal.broker.listening import Listening
from einmal.broker.replicas.partitions import Partitions
from einmal.broker.resources.counts import RequestCounts
from einmal.broker.resources.turns import Turns
from einmal.broker.rpc.peers import Peers
from einmal.seams import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Monitored:
    """``servers``: by the names of their listeners. ``is_stopping``: whether the node ends."""

    config: BrokerConfig
    clock: Clock
    turns: Turns
    requests: RequestCounts
    metadata: ClusterMetadata
    quorum: QuorumRuntime
    controller: ControllerRuntime
    partitions: Partitions
    transactions: TransactionService
    groups: GroupService
    lifecycle: BrokerLifecycle
    listening: Listening
    servers: Mapping[str, Server]
    peers: Peers
    is_stopping: Callable[[], bool]
