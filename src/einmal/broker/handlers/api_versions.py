"""ApiVersions: what this broker speaks.

API: 18. Versions: 0-4.
Behaviour: the listener's routes, with their ranges, and the features of the cluster. Needs no authentication.
Version notes: the response header is always v0; an unknown version is answered in v0 with UNSUPPORTED_VERSION and the
list (KIP-511); v3 brings the client's software name and the features (KIP-584); features with a minimum of 0 are left
out below v4, whose older readers refuse them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from einmal.broker.context import RequestContext, Versions
from einmal.broker.listeners import Audience
from einmal.types import ErrorCode

if TYPE_CHECKING:
    from einmal.broker.node import Node

API_KEY: Final = 18
VERSIONS: Final = Versions(0, 4, flexible=3)
_PRODUCE: Final = 0


def handle(context: RequestContext, request: Any) -> dict[str, Any]:
    return supported(context.node, context.audience, context.api_version, ErrorCode.none)


def supported(node: Node, audience: Audience, version: int, error: ErrorCode) -> dict[str, Any]:
    """The answer's fields, also for a request that could not be read."""
    return {
        "error_code": error,
        "api_keys": [
            {
                "api_key": key,
                # librdkafka takes features and compression for missing unless Produce begins at 0 (KAFKA-18659).
                "min_version": 0 if key == _PRODUCE else versions.min,
                "max_version": versions.max,
            }
            for key, versions in node.routers[audience].versions()
        ],
        "throttle_time": 0,
        "supported_features": [
            {"name": name, "min_version": low, "max_version": high}
            for name, low, high in node.supported_features()
            if low > 0 or version >= 4
        ],
        "finalized_features_epoch": node.features_epoch(),
        "finalized_features": [
            {"name": name, "max_version_level": level, "min_version_level": level}
            for name, level in node.finalized_features()
        ],
        "zk_migration_ready": False,
    }
