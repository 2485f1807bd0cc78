"""DeleteAcls: let somebody do something no more.

API: 31. Versions: 1-3.
Behaviour: SECURITY_DISABLED for each, as from an Apache Kafka without an authorizer.
Version notes: none that matter here.
"""

from __future__ import annotations

from typing import ClassVar

from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.broker.front.handlers.describe_acls import NO_AUTHORIZER
from einmal.types import ErrorCode
from einmal.wire.api.delete_acls import API, DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse


@handler
class DeleteAclsHandler:
    api: ClassVar = API

    def handle(self, context: RequestContext, request: DeleteAclsRequest) -> DeleteAclsResponse:
        result = DeleteAclsFilterResult(ErrorCode.security_disabled, NO_AUTHORIZER)
        return DeleteAclsResponse(filter_results=[result for _ in request.filters])
