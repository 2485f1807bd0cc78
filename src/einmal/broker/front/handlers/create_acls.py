"""CreateAcls: let somebody do something, or forbid it.

API: 30. Versions: 1-3.
Access: ALTER on Cluster.
Behaviour: answered when the ACLs are committed in the metadata log; other nodes follow. One that holds already is
accepted. The ACLs of a request are decided alone, each with its own error. SECURITY_DISABLED for each without an
authorizer.
Version notes: none that matter here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar
from uuid import UUID

from einmal.broker.control.controller_runtime import ControllerRuntime
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.authorization.acl_messages import NO_AUTHORIZER, NOT_AUTHORIZED, acl_of
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.metadata.acls import AclResult
from einmal.metadata.controller import Controller
from einmal.metadata.plan import MetadataDecision
from einmal.security.acl import Acl, AclOperation, ResourceType
from einmal.types import ErrorCode, Instant
from einmal.wire.api.create_acls import API, AclCreation, AclCreationResult, CreateAclsRequest, CreateAclsResponse


@handler
class CreateAclsHandler:
    api: ClassVar = API
    access: Access
    controller: ControllerRuntime
    new_uuid: Callable[[], UUID]

    async def handle(self, context: RequestContext, request: CreateAclsRequest) -> CreateAclsResponse:
        refused = None
        if not self.access.is_enforced:
            refused = AclCreationResult(ErrorCode.security_disabled, NO_AUTHORIZER)
        elif not self.access.allows(context, AclOperation.ALTER, ResourceType.CLUSTER):
            refused = AclCreationResult(ErrorCode.cluster_authorization_failed, NOT_AUTHORIZED)
        if refused is not None:
            return CreateAclsResponse(results=[refused async for _ in context.paced(request.creations)])
        results: list[AclCreationResult] = []
        async for creations in context.paced_chunks(request.creations):
            results += await self._create(creations)
        return CreateAclsResponse(results=results)

    async def _create(self, creations: Sequence[AclCreation]) -> list[AclCreationResult]:
        wanted = [(self.new_uuid(), acl_of(creation)) for creation in creations]
        results = await self.controller.submit(_creating(wanted))
        if isinstance(results, ErrorCode):
            results = [AclResult(results)] * len(wanted)
        return [AclCreationResult(result.error, result.message) for result in results]


def _creating(wanted: Sequence[tuple[UUID, Acl]]) -> Callable[[Controller, Instant], MetadataDecision[list[AclResult]]]:
    return lambda shard, _now: shard.create_acls(wanted)
