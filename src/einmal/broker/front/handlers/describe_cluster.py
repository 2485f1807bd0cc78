"""DescribeCluster: the cluster's id, and its brokers or controllers.

API: 60. Versions: 0-2.
Access: nothing; DESCRIBE on Cluster for the authorized operations. Of a controller ALTER on Cluster.
Behaviour: a broker describes the brokers that have the listener which the request came to; only where this process is
no broker are the controllers described (KIP-919), and asking either one for the other gets MISMATCHED_ENDPOINT_TYPE.
Version notes: v1 endpoint type; v2 fenced brokers, if they are asked for.
"""

from __future__ import annotations

from typing import ClassVar, Final

from einmal.broker.cluster_metadata import ClusterMetadata
from einmal.broker.config import BrokerConfig
from einmal.broker.control.quorum_runtime import QuorumRuntime
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.broker.front.handlers.metadata import cluster_operations, reported_controller_id
from einmal.broker.listeners import Audience
from einmal.security.acl import AclOperation, ResourceType
from einmal.types import ErrorCode
from einmal.wire.api.describe_cluster import (
    API,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from einmal.wire.metadata import NO_AUTHORIZED_OPERATIONS

_BROKERS: Final = 1
_CONTROLLERS: Final = 2
_NAMES: Final = {_BROKERS: "BROKER", _CONTROLLERS: "CONTROLLER"}


@handler
class DescribeClusterHandler:
    api: ClassVar = API
    access: Access
    config: BrokerConfig
    metadata: ClusterMetadata
    quorum: QuorumRuntime

    def handle(self, context: RequestContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
        is_broker = self.config.is_broker
        of_controllers = context.audience is Audience.CONTROLLERS
        if of_controllers and (refused := self.access.refusal(context, AclOperation.ALTER, ResourceType.CLUSTER)):
            return DescribeClusterResponse(error_code=refused)
        endpoint_type = _BROKERS if is_broker else _CONTROLLERS
        if request.endpoint_type != endpoint_type:
            return DescribeClusterResponse(
                error_code=ErrorCode.mismatched_endpoint_type,
                error_message=f"The request was sent to an endpoint of type {_NAMES[endpoint_type]}.",
                endpoint_type=endpoint_type,
            )
        with_operations = request.include_cluster_authorized_operations
        operations = cluster_operations(self.access, context) if with_operations else NO_AUTHORIZED_OPERATIONS
        return DescribeClusterResponse(
            endpoint_type=endpoint_type,
            cluster_id=self.quorum.cluster_id,
            controller_id=self._controller_id(),
            brokers=self._brokers(context, request.include_fenced_brokers) if is_broker else self._controllers(),
            cluster_authorized_operations=operations,
        )

    def _controller_id(self) -> int:
        if self.config.is_broker:
            return reported_controller_id(self.quorum, self.metadata.image, self.config.node_id)
        leader_id = self.quorum.leader_id
        return -1 if leader_id is None else leader_id

    def _brokers(self, context: RequestContext, with_fenced: bool) -> list[DescribeClusterBroker]:
        return [
            DescribeClusterBroker(broker.broker_id, point.host, point.port, broker.rack, broker.is_fenced)
            for broker in self.metadata.image.brokers.values()
            if with_fenced or not broker.is_fenced
            for point in (broker.end_point(context.listener.name),)
            if point is not None
        ]

    def _controllers(self) -> list[DescribeClusterBroker]:
        voters = self.config.quorum_voters
        return [DescribeClusterBroker(node_id, host, port) for node_id, (host, port) in sorted(voters.items())]
