"""DescribeClientQuotas: the quotas of users, client ids and addresses.

API: 48. Versions: 0-1.
Access: DESCRIBE_CONFIGS on Cluster.
Behaviour: quotas are found by a filter (KIP-546); from this broker's metadata, which a change reaches a little later.
Version notes: none that matter here.
"""

from __future__ import annotations

from typing import ClassVar, Final

from einmal.broker.cluster_metadata import ClusterMetadata
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.metadata.client_quotas import QuotaFilter, matching, problem_of_filter
from einmal.security.acl import AclOperation, ResourceType
from einmal.types import ErrorCode
from einmal.wire.api.describe_client_quotas import (
    API,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)

_COMPONENTS_MAX: Final = 10
"""Maximum number of a filter's components that are looked at: there are three types, so one with more is refused for
the first ones."""


@handler
class DescribeClientQuotasHandler:
    api: ClassVar = API
    access: Access
    metadata: ClusterMetadata

    async def handle(
        self, context: RequestContext, request: DescribeClientQuotasRequest
    ) -> DescribeClientQuotasResponse:
        if not self.access.allows(context, AclOperation.DESCRIBE_CONFIGS, ResourceType.CLUSTER):
            return DescribeClientQuotasResponse(error_code=ErrorCode.cluster_authorization_failed)
        filters = [QuotaFilter(*component) for component in request.components[:_COMPONENTS_MAX]]
        problem = problem_of_filter(filters)
        if problem.error is not ErrorCode.none:
            return DescribeClientQuotasResponse(error_code=problem.error, error_message=problem.message)
        matched = matching(self.metadata.image.client_quotas, filters, strict=request.strict)
        entries = [
            EntryData(
                [EntityData(*component) for component in entity_quotas[0]],
                [ValueData(*value) for value in entity_quotas[1].items()],
            )
            async for entity_quotas in context.paced(matched)
            if entity_quotas is not None
        ]
        return DescribeClientQuotasResponse(entries=entries)
