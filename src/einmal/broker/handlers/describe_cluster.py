"""DescribeCluster: the cluster's id, and its brokers or controllers.

API: 60. Versions: 0-2.
Behaviour: a broker describes the brokers; only where this process is no broker are the controllers described (KIP-919),
and asking either one for the other gets MISMATCHED_ENDPOINT_TYPE.
Version notes: v1 endpoint type; v2 fenced brokers, if they are asked for.
"""

from __future__ import annotations

from typing import Any, Final

from einmal.broker.context import RequestContext, Versions
from einmal.broker.handlers.metadata import CLUSTER_OPERATIONS, told_controller_id
from einmal.metadata.image import BrokerImage
from einmal.types import ErrorCode
from einmal.wire.metadata import NO_AUTHORIZED_OPERATIONS

API_KEY: Final = 60
VERSIONS: Final = Versions(0, 2, flexible=0)
_BROKERS: Final = 1
_CONTROLLERS: Final = 2
_NAMES: Final = {_BROKERS: "BROKER", _CONTROLLERS: "CONTROLLER"}


def handle(context: RequestContext, request: Any) -> dict[str, Any]:
    node = context.node
    is_broker = node.config.is_broker
    told = _BROKERS if is_broker else _CONTROLLERS
    operations = CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NO_AUTHORIZED_OPERATIONS
    if getattr(request, "endpoint_type", _BROKERS) != told:
        return {
            "error_code": ErrorCode.mismatched_endpoint_type,
            "error_message": f"The request was sent to an endpoint of type {_NAMES[told]}.",
            "endpoint_type": told,
            "cluster_operations": NO_AUTHORIZED_OPERATIONS,
        }
    with_fenced = getattr(request, "include_fenced_brokers", False)
    return {
        "error_code": ErrorCode.none,
        "endpoint_type": told,
        "cluster_id": node.metadata.cluster_id,
        "controller_id": told_controller_id(node) if is_broker else _active_controller_id(context),
        "brokers": (
            [
                _broker(broker, context.for_brokers)
                for broker in node.metadata.image.brokers.values()
                if with_fenced or not broker.is_fenced
            ]
            if is_broker
            else _controllers(context)
        ),
        "cluster_authorized_operations": operations,
    }


def _broker(broker: BrokerImage, for_brokers: bool) -> dict[str, Any]:
    point = broker.end_point(for_brokers=for_brokers)
    return {
        "broker_id": broker.broker_id,
        "host": point.host,
        "port": point.port,
        "rack": broker.rack,
        "is_fenced": broker.is_fenced,
    }


def _active_controller_id(context: RequestContext) -> int:
    leader_id = context.node.quorum.leader_id
    return -1 if leader_id is None else leader_id


def _controllers(context: RequestContext) -> list[dict[str, Any]]:
    voters = context.node.config.quorum_voters
    return [{"broker_id": node_id, "host": host, "port": port} for node_id, (host, port) in sorted(voters.items())]
