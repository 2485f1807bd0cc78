"""DescribeCluster: the cluster's id and brokers.

API: 60. Versions: 0-2.
Behaviour: every broker of the image; the controller is this one.
Version notes: v1 endpoint type, of which only 1 (brokers) is spoken here; v2 fenced brokers, of which there are none.
"""

from __future__ import annotations

from typing import Any, Final

from einmal.broker.context import RequestContext, Versions
from einmal.broker.handlers.metadata import CLUSTER_OPERATIONS
from einmal.types import ErrorCode
from einmal.wire.metadata import NO_AUTHORIZED_OPERATIONS

API_KEY: Final = 60
VERSIONS: Final = Versions(0, 2, flexible=0)
_BROKERS: Final = 1


def handle(context: RequestContext, request: Any) -> dict[str, Any]:
    metadata = context.node.metadata
    endpoint_type = getattr(request, "endpoint_type", _BROKERS)
    if endpoint_type != _BROKERS:
        return {
            "error_code": ErrorCode.mismatched_endpoint_type,
            "error_message": "The request was sent to an endpoint of type BROKER.",
            "endpoint_type": _BROKERS,
            "cluster_operations": NO_AUTHORIZED_OPERATIONS,
        }
    return {
        "error_code": ErrorCode.none,
        "endpoint_type": _BROKERS,
        "cluster_id": metadata.cluster_id,
        "controller_id": context.node.config.node_id,
        "brokers": [
            {
                "broker_id": broker.broker_id,
                "host": broker.end_points[0].host,
                "port": broker.end_points[0].port,
                "rack": broker.rack,
            }
            for broker in metadata.image.brokers.values()
        ],
        "cluster_authorized_operations": (
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else NO_AUTHORIZED_OPERATIONS
        ),
    }
