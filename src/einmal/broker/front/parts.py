"""The parts of a node, and how a handler is made of them: each field gets the one part of the field's type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, ClassVar, Final, Protocol, TypeAlias, TypeVar, get_type_hints
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
from einmal.broker.front.hanging_transactions import HangingTransactions
from einmal.broker.front.produce.produced_batches import Destinations
from einmal.broker.front.quotas.client_throttles import ClientThrottles
from einmal.broker.front.routing.router import Router
from einmal.broker.front.routing.routes import Handler
from einmal.broker.front.topics.metadata_answers import EncodedAnswers
from einmal.broker.front.topics.setting_descriptions import SettingDescriptions
from einmal.broker.replicas.batch_checks import BatchChecks
from einmal.broker.replicas.partitions import Partitions
from einmal.broker.replicas.replica_sessions import ReplicaSessions
from einmal.broker.resources.counts import RequestCounts
from einmal.broker.resources.memory_budget import MemoryBudget
from einmal.broker.resources.parked_fetches import ParkedFetches
from einmal.broker.resources.supervision import Supervisor
from einmal.broker.resources.turns import Turns
from einmal.broker.rpc.controller_channel import ControllerChannel
from einmal.seams import Clock
from einmal.wire.messages import Api, Values, Versions

Q = TypeVar("Q", bound=Values)
Parts: TypeAlias = Mapping[object, object]
"""By their types."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeParts:
    """Parts of the node that its handlers are made of. No handler sees them all, and no two have the same type."""

    config: BrokerConfig
    directory: PurePosixPath
    clock: Clock
    turns: Turns
    supervisor: Supervisor
    requests: RequestCounts
    response_memory: MemoryBudget
    parked_fetches: ParkedFetches
    throttles: ClientThrottles
    new_uuid: Callable[[], UUID]
    access: Access
    sasl: Mapping[str, SaslServer]
    failed_authentications: FailedAuthentications
    controller_channel: ControllerChannel
    topic_creation: TopicCreation
    metadata: ClusterMetadata
    settings: SettingDescriptions
    quorum: QuorumRuntime
    controller: ControllerRuntime
    partitions: Partitions
    destinations: Destinations
    batch_checks: BatchChecks
    encoded_metadata: EncodedAnswers
    fetch_sessions: FetchSessions
    replica_sessions: ReplicaSessions
    transactions: TransactionService
    markers: MarkerWriter
    hanging: HangingTransactions
    groups: GroupService


@dataclass(frozen=True, slots=True)
class ListenerParts:
    """Keys and versions of the APIs of one listener, in their order, and a router of those that are forwarded."""

    versions: tuple[tuple[int, Versions], ...]
    forwarded: Router


class HandlerType(Protocol[Q]):
    """A class under ``@handler``."""

    @property
    def api(self) -> Api[Q, Values]: ...
    def __call__(self, *args: Any, **fields: Any) -> Handler[Q]: ...


def by_type(*groups: NodeParts | ListenerParts) -> Parts:
    """Raises TypeError: two parts have the same type, so that a handler cannot name one of them."""
    parts: dict[object, object] = {}
    for group in groups:
        for name, kind in _fields(type(group)).items():
            if kind in parts:
                raise TypeError(f"{type(group).__name__}.{name}: another part is a {kind} too")
            parts[kind] = getattr(group, name)
    return parts


def maker(handler: HandlerType[Q]) -> Callable[[Parts], Handler[Q]]:
    """Return the function that makes the handler of parts. Raises TypeError: there is no part for a field."""
    fields = _fields(handler)

    def make(parts: Parts) -> Handler[Q]:
        for name, kind in fields.items():
            if kind not in parts:
                raise TypeError(f"{handler}: no part has the type of its field {name}, {kind}; add one to NodeParts")
        return handler(**{name: parts[kind] for name, kind in fields.items()})

    return make


_known: Final[dict[object, Mapping[str, object]]] = {}
"""The fields of classes. Kept: to resolve the names of types is slow, and each listener asks."""


def _fields(cls: object) -> Mapping[str, object]:
    """The types of its fields, by their names."""
    if cls not in _known:
        _known[cls] = {name: kind for name, kind in get_type_hints(cls).items() if kind is not ClassVar}
    return _known[cls]
