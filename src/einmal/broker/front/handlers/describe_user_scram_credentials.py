"""DescribeUserScramCredentials: the users with credentials for SCRAM, their mechanisms and iterations.

API: 50. Versions: 0.
Access: DESCRIBE on Cluster.
Behaviour: salts and keys are never returned (KIP-554). No users named: all of them. RESOURCE_NOT_FOUND for one without
a credential, DUPLICATE_RESOURCE for one named twice.
"""

from __future__ import annotations

from typing import ClassVar

from einmal.broker.cluster_metadata import ClusterMetadata
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.metadata.image import ClusterImage
from einmal.security.acl import AclOperation, ResourceType
from einmal.types import ErrorCode
from einmal.wire.api.describe_user_scram_credentials import (
    API,
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)


@handler
class DescribeUserScramCredentialsHandler:
    api: ClassVar = API
    access: Access
    metadata: ClusterMetadata

    async def handle(
        self, context: RequestContext, request: DescribeUserScramCredentialsRequest
    ) -> DescribeUserScramCredentialsResponse:
        if not self.access.allows(context, AclOperation.DESCRIBE, ResourceType.CLUSTER):
            error = ErrorCode.cluster_authorization_failed
            return DescribeUserScramCredentialsResponse(error_code=error, error_message="Cluster authorization failed.")
        image = self.metadata.image
        if request.users:
            counts: dict[str, int] = {}
            async for asked in context.paced(request.users):
                counts[asked.name] = counts.get(asked.name, 0) + 1
        else:
            counts = {user: 1 for users in image.scram_credentials.values() for user in users}
        results = [_described(image, user, count) async for user, count in context.paced(sorted(counts.items()))]
        return DescribeUserScramCredentialsResponse(results=results)


def _described(image: ClusterImage, user: str, count: int) -> DescribeUserScramCredentialsResult:
    if count > 1:
        return DescribeUserScramCredentialsResult(
            user, ErrorCode.duplicate_resource, f"{user} is named {count} times in the request.", []
        )
    infos = [
        CredentialInfo(mechanism, users[user].iterations)
        for mechanism, users in sorted(image.scram_credentials.items())
        if user in users
    ]
    if not infos:
        return DescribeUserScramCredentialsResult(
            user, ErrorCode.resource_not_found, f"{user} has no SCRAM credential.", []
        )
    return DescribeUserScramCredentialsResult(user, credential_infos=infos)
