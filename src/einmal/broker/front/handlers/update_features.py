"""UpdateFeatures: raise or lower the cluster's finalized feature levels.

API: 57. Versions: 0-2.
Access: ALTER on Cluster.
Behaviour: all of the updates or none (KIP-584, KIP-778). A level that a broker or the controller does not support is
refused.
Version notes: v0 has a flag for downgrades; v1 the kind of update, and validateOnly; v0 and v1 answer for each feature,
v2 once.
"""

from __future__ import annotations

from typing import ClassVar, Final

from einmal.broker.control.controller_runtime import ControllerRuntime
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.metadata.features import SAFE_DOWNGRADE, UPGRADE, FeatureResult, FeatureUpdate
from einmal.security.acl import AclOperation, ResourceType
from einmal.types import ErrorCode
from einmal.wire.api.update_features import (
    API,
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)

_FIRST_WITH_KINDS: Final = 1


@handler
class UpdateFeaturesHandler:
    api: ClassVar = API
    access: Access
    controller: ControllerRuntime

    async def handle(self, context: RequestContext, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
        if refused := self.access.refusal(context, AclOperation.ALTER, ResourceType.CLUSTER):
            return UpdateFeaturesResponse(error_code=refused)
        updates = [
            FeatureUpdate(item.feature, item.max_version_level, _kind(context, item))
            for item in request.feature_updates
        ]
        result = await self.controller.submit(
            lambda shard, now: shard.update_features(updates, validate_only=request.validate_only)
        )
        if isinstance(result, ErrorCode):
            result = FeatureResult(result)
        return UpdateFeaturesResponse(
            error_code=result.error,
            error_message=result.message,
            results=[UpdatableFeatureResult(update.name, result.error, result.message) for update in updates],
        )


def _kind(context: RequestContext, item: FeatureUpdateKey) -> int:
    if context.api_version >= _FIRST_WITH_KINDS:
        return item.upgrade_type
    return SAFE_DOWNGRADE if item.allow_downgrade else UPGRADE
