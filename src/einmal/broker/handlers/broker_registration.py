"""BrokerRegistration: a broker process has come up and wants to take part.

API: 62. Versions: 0-4.
Behaviour: answered by the active controller with the broker's epoch once that is committed. The broker is fenced until
its heartbeats say that it has seen its registration. What it led it leads no longer.
Version notes: v2 the ids of data folders; v3 the epoch before a clean stop (KIP-966): below, none was clean; v4
features whose lowest level is 0.
"""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from einmal.broker.context import RequestContext, Versions
from einmal.metadata.brokers import Registered, Registration
from einmal.metadata.records import BrokerEndpoint, SupportedFeature
from einmal.types import BrokerId, ErrorCode

API_KEY: Final = 62
VERSIONS: Final = Versions(0, 4, flexible=0)
_NO_ID: Final = UUID(int=0)


async def handle(context: RequestContext, request: Any) -> dict[str, Any]:
    controller = context.node.controller
    registration = _registration(request)
    registered: Registered | ErrorCode
    if request.cluster_id != context.node.metadata.cluster_id:
        registered = ErrorCode.inconsistent_cluster_id
    else:
        registered = await controller.submit(
            lambda shard, now: shard.register_broker(registration, controller.next_offset, now)
        )
    if isinstance(registered, ErrorCode):
        registered = Registered(registered)
    return {"error_code": registered.error, "broker_epoch": registered.broker_epoch}


def _registration(request: Any) -> Registration:
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
        log_dirs=tuple(log_dir or _NO_ID for log_dir in getattr(request, "log_dirs", None) or ()),
        previous_broker_epoch=getattr(request, "previous_broker_epoch", -1),
    )
