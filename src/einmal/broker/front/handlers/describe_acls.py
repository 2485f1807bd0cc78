"""DescribeAcls: who may do what.

API: 29. Versions: 1-3.
Behaviour: SECURITY_DISABLED, as from an Apache Kafka without an authorizer: everybody may do everything.
Version notes: none that matter here.
"""

from __future__ import annotations

from typing import ClassVar, Final

from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.types import ErrorCode
from einmal.wire.api.describe_acls import API, DescribeAclsRequest, DescribeAclsResponse

NO_AUTHORIZER: Final = "No Authorizer is configured on the broker."


@handler
class DescribeAclsHandler:
    api: ClassVar = API

    def handle(self, context: RequestContext, request: DescribeAclsRequest) -> DescribeAclsResponse:
        return DescribeAclsResponse(error_code=ErrorCode.security_disabled, error_message=NO_AUTHORIZER)
