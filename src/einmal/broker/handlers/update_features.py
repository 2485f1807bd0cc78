"""UpdateFeatures: raise or lower what the whole cluster speaks.

API: 57. Versions: 0-2.
Behaviour: all of the updates or none (KIP-584, KIP-778). A level that a broker or the controller does not support is
refused.
Version notes: v0 says with a flag whether it may go down; v1 the kind of update, and trying only; v0 and v1 answer for
each feature, v2 once.
"""

from __future__ import annotations

from typing import Any, Final

from einmal.broker.context import RequestContext, Versions
from einmal.metadata.features import SAFE_DOWNGRADE, UPGRADE, FeatureResult, FeatureUpdate
from einmal.types import ErrorCode

API_KEY: Final = 57
VERSIONS: Final = Versions(0, 2, flexible=0)
FORWARDED: Final = True


async def handle(context: RequestContext, request: Any) -> dict[str, Any]:
    updates = [FeatureUpdate(item.feature, item.max_version_level, _kind(item)) for item in request.feature_updates]
    validate_only = getattr(request, "validate_only", False)
    result = await context.node.controller.submit(
        lambda shard, now: shard.update_features(updates, validate_only=validate_only)
    )
    if isinstance(result, ErrorCode):
        result = FeatureResult(result)
    fields: dict[str, Any] = {"error_code": result.error, "error_message": result.message}
    if context.api_version < 2:
        fields["results"] = [
            {"feature": update.name, "error_code": result.error, "error_message": result.message} for update in updates
        ]
    return fields


def _kind(item: Any) -> int:
    if hasattr(item, "upgrade_type"):
        return int(item.upgrade_type)
    return SAFE_DOWNGRADE if item.allow_downgrade else UPGRADE
