"""ApiVersions: what this broker speaks.

API: 18. Versions: 0-4.
Access: none: it is answered before authentication.
Behaviour: the listener's routes, with their ranges, and the features of the cluster. Needs no authentication.
Version notes: the response header is always v0; an unknown version is answered in v0 with UNSUPPORTED_VERSION and the
list (KIP-511); v3 brings the client's software name and the features (KIP-584); features with a minimum of 0 are left
out below v4, whose older readers refuse them.
"""

from __future__ import annotations

from typing import ClassVar, Final

from einmal.broker.cluster_metadata import ClusterMetadata
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.metadata.features import SUPPORTED_FEATURES
from einmal.types import ErrorCode
from einmal.wire.api.api_versions import (
    API,
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from einmal.wire.messages import Versions

_PRODUCE: Final = 0
_FIRST_WITH_OPTIONAL_FEATURES: Final = 4


@handler
class ApiVersionsHandler:
    """``apis``: keys and versions of the listener's APIs, in their order."""

    api: ClassVar = API
    metadata: ClusterMetadata
    apis: tuple[tuple[int, Versions], ...]

    def handle(self, context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
        return self._supported(context.api_version, ErrorCode.none)

    def unsupported(self) -> ApiVersionsResponse:
        """The answer, in version 0, to a request that could not be read."""
        return self._supported(0, ErrorCode.unsupported_version)

    def _supported(self, version: int, error: ErrorCode) -> ApiVersionsResponse:
        features = self.metadata.image.features
        return ApiVersionsResponse(
            error_code=error,
            api_keys=[
                # librdkafka takes features and compression for missing unless Produce begins at 0 (KAFKA-18659).
                ApiVersion(key, 0 if key == _PRODUCE else versions.min, versions.max)
                for key, versions in self.apis
            ],
            supported_features=[
                SupportedFeatureKey(feature.name, feature.min_supported_version, feature.max_supported_version)
                for feature in SUPPORTED_FEATURES
                if feature.min_supported_version > 0 or version >= _FIRST_WITH_OPTIONAL_FEATURES
            ],
            finalized_features_epoch=self.metadata.next_offset - 1,
            finalized_features=[
                FinalizedFeatureKey(name, level, level) for name, level in features.items() if level > 0
            ],
        )
