"""BrokerRegistration: a broker process has started and wants to join the cluster.

API: 62. Versions: 0-4.
Access: CLUSTER_ACTION on Cluster, and only nodes of the cluster.
Behaviour: answered by the active controller with the broker's epoch once that is committed. The broker is fenced until
its heartbeats report that it has seen its registration. It loses its former leaderships.
Version notes: v2 the ids of data folders; v3 the epoch before a clean stop (KIP-966): below, none was clean; v4
features whose lowest level is 0.
"""

from __future__ import annotations

from typing import ClassVar, Final
from uuid import UUID

from einmal.broker.control.controller_runtime import ControllerRuntime
from einmal.broker.control.quorum_runtime import QuorumRuntime
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.metadata.brokers import Registered, Registration
from einmal.metadata.records import BrokerEndpoint, SupportedFeature
from einmal.types import BrokerId, ErrorCode
from einmal.wire.api.broker_registration import API, BrokerRegistrationRequest, BrokerRegistrationResponse

_NO_ID: Final = UUID(int=0)


@handler
class BrokerRegistrationHandler:
    api: ClassVar = API
    access: Access
    controller: ControllerRuntime
    quorum: QuorumRuntime

    async def handle(self, context: RequestContext, request: BrokerRegistrationRequest) -> BrokerRegistrationResponse:
        if refused := self.access.refusal_of_client(context, "BrokerRegistration"):
            return BrokerRegistrationResponse(error_code=refused, broker_epoch=-1)
        controller = self.controller
        registration = _registration(request)
        registered: Registered | ErrorCode
        if request.cluster_id != self.quorum.cluster_id:
            registered = ErrorCode.inconsistent_cluster_id
        else:
            registered = await controller.submit(
                lambda shard, now: shard.register_broker(registration, controller.next_offset, now)
            )
        if isinstance(registered, ErrorCode):
            registered = Registered(registered)
        return BrokerRegistrationResponse(error_code=registered.error, broker_epoch=registered.broker_epoch)


def _registration(request: BrokerRegistrationRequest) -> Registration:
    return Registration(
        broker_id=BrokerId(request.broker_id),
        incarnation_id=request.incarnation_id or _NO_ID,
        end_points=tuple(
            BrokerEndpoint(point.name, point.host, point.port, point.security_protocol) for point in request.listeners
        ),
        rack=request.rack,
        features=tuple(
            SupportedFeature(feature.name, feature.min_supported_version, feature.max_supported_version)
            for feature in request.features
        ),
        log_dirs=tuple(log_dir or _NO_ID for log_dir in request.log_dirs),
        previous_broker_epoch=request.previous_broker_epoch,
    )
