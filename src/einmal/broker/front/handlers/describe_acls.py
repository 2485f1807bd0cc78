"""DescribeAcls: who may do what.

API: 29. Versions: 1-3.
Access: DESCRIBE on Cluster.
Behaviour: the ACLs that match the filter, by resource, as this node has them: a change on another node may still be on
its way here. SECURITY_DISABLED without an authorizer, as from Apache Kafka; INVALID_REQUEST for a filter with an
unknown number, where Apache Kafka closes the connection.
Version notes: none that matter here.
"""

from __future__ import annotations

from typing import ClassVar

from einmal.broker.cluster_metadata import ClusterMetadata
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.authorization.acl_messages import (
    NO_AUTHORIZER,
    NOT_AUTHORIZED,
    filter_of,
    matching_acls,
)
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.metadata.acls import problem_of_filter
from einmal.security.acl import AclOperation, PatternType, ResourceType
from einmal.types import ErrorCode
from einmal.wire.api.describe_acls import (
    API,
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)


@handler
class DescribeAclsHandler:
    api: ClassVar = API
    access: Access
    metadata: ClusterMetadata

    async def handle(self, context: RequestContext, request: DescribeAclsRequest) -> DescribeAclsResponse:
        if not self.access.is_enforced:
            return _refused(ErrorCode.security_disabled, NO_AUTHORIZER)
        if not self.access.allows(context, AclOperation.DESCRIBE, ResourceType.CLUSTER):
            return _refused(ErrorCode.cluster_authorization_failed, NOT_AUTHORIZED)
        wanted = filter_of(request)
        problem = problem_of_filter(wanted)
        if problem is not None:
            return _refused(ErrorCode.invalid_request, problem)
        only = wanted.only
        known = self.metadata.image.acl_ids
        descriptions: dict[tuple[ResourceType, str, PatternType], list[AclDescription]] = {}
        acls = list(known) if only is None else [only] if only in known else []
        async for acl in matching_acls(context, wanted, acls):
            described = AclDescription(acl.principal, acl.host, acl.operation, acl.permission)
            descriptions.setdefault(acl[:3], []).append(described)
        return DescribeAclsResponse(
            resources=[
                DescribeAclsResource(*pattern, acls) async for pattern, acls in context.paced(descriptions.items())
            ]
        )


def _refused(error: ErrorCode, message: str) -> DescribeAclsResponse:
    return DescribeAclsResponse(error_code=error, error_message=message)
