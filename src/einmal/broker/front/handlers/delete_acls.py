"""DeleteAcls: let somebody do something no more, or forbid it no more.

API: 31. Versions: 1-3.
Access: ALTER on Cluster.
Behaviour: answered when the removal is committed in the metadata log, with the ACLs that each filter matches. An ACL
that two filters match is in both answers. SECURITY_DISABLED for each without an authorizer. Bounded, with
POLICY_VIOLATION: filters that may match several ACLs, each of which is a search, and matches.
Version notes: none that matter here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Final
from uuid import UUID

from einmal.broker.control.controller_runtime import ControllerRuntime
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.authorization.acl_messages import (
    NO_AUTHORIZER,
    NOT_AUTHORIZED,
    filter_of,
    matching_acls,
)
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.metadata.acls import ACLS_MAX, problem_of_filter
from einmal.metadata.controller import Controller
from einmal.metadata.plan import MetadataDecision
from einmal.security.acl import Acl, AclFilter, AclOperation, ResourceType
from einmal.types import ErrorCode, Instant
from einmal.wire.api.delete_acls import (
    API,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)

SEARCHES_MAX: Final = 100
"""In a request. Filters that name one ACL need none."""


class _Search:
    """The ACLs that the filters of one request match."""

    def __init__(self, context: RequestContext, known: Mapping[Acl, UUID]) -> None:
        self._context = context
        self._known = known
        self._all = list(known)
        self._searches = 0
        self.acls: dict[Acl, None] = {}
        self.matches = 0

    async def result(self, wanted: AclFilter) -> DeleteAclsFilterResult:
        problem = problem_of_filter(wanted)
        if problem is not None:
            return DeleteAclsFilterResult(ErrorCode.invalid_request, problem)
        only = wanted.only
        acls = self._all
        if only is not None:
            acls = [only] if only in self._known else []
        elif self._searches == SEARCHES_MAX:
            return _too_large(f"more than {SEARCHES_MAX} filters that may match several ACLs")
        else:
            self._searches += 1
        matching = [acl async for acl in matching_acls(self._context, wanted, acls)]
        if self.matches + len(matching) > ACLS_MAX:
            return _too_large(f"more than {ACLS_MAX} matches")
        self.matches += len(matching)
        self.acls.update(dict.fromkeys(matching))
        return DeleteAclsFilterResult(matching_acls=[_matching(acl) async for acl in self._context.paced(matching)])


@handler
class DeleteAclsHandler:
    api: ClassVar = API
    access: Access
    controller: ControllerRuntime

    async def handle(self, context: RequestContext, request: DeleteAclsRequest) -> DeleteAclsResponse:
        if not self.access.is_enforced:
            refused = DeleteAclsFilterResult(ErrorCode.security_disabled, NO_AUTHORIZER)
        elif not self.access.allows(context, AclOperation.ALTER, ResourceType.CLUSTER):
            refused = DeleteAclsFilterResult(ErrorCode.cluster_authorization_failed, NOT_AUTHORIZED)
        else:
            known = await self.controller.submit(lambda shard, _now: shard.known_acls())
            if not isinstance(known, ErrorCode):
                return await self._delete(context, request, known)
            refused = DeleteAclsFilterResult(known)
        return DeleteAclsResponse(filter_results=[refused async for _ in context.paced(request.filters)])

    async def _delete(
        self, context: RequestContext, request: DeleteAclsRequest, known: Mapping[Acl, UUID]
    ) -> DeleteAclsResponse:
        search = _Search(context, known)
        results = [await search.result(filter_of(fields)) async for fields in context.paced(request.filters)]
        error = await self._remove(context, list(search.acls))
        if error is not ErrorCode.none:
            failed = DeleteAclsFilterResult(error)
            results = [failed if result.matching_acls else result for result in results]
        return DeleteAclsResponse(filter_results=results)

    async def _remove(self, context: RequestContext, acls: Sequence[Acl]) -> ErrorCode:
        async for some in context.paced_chunks(acls):
            result = await self.controller.submit(_removing(some))
            if isinstance(result, ErrorCode):
                return result
        return ErrorCode.none


def _removing(acls: Sequence[Acl]) -> Callable[[Controller, Instant], MetadataDecision[None]]:
    return lambda shard, _now: shard.remove_acls(acls)


def _too_large(what: str) -> DeleteAclsFilterResult:
    return DeleteAclsFilterResult(
        ErrorCode.policy_violation, f"The request has {what}: delete them with several requests."
    )


def _matching(acl: Acl) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        resource_type=acl.resource_type,
        resource_name=acl.resource_name,
        pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )
