"""DescribeAcls: who may do what.

API: 29. Versions: 1-3.
Behaviour: SECURITY_DISABLED, as from an Apache Kafka without an authorizer: everybody may do everything.
Version notes: none that matter here.
"""

from __future__ import annotations

from typing import Any, Final

from einmal.broker.context import RequestContext, Versions
from einmal.types import ErrorCode

API_KEY: Final = 29
VERSIONS: Final = Versions(1, 3, flexible=2)
NO_AUTHORIZER: Final = {
    "error_code": ErrorCode.security_disabled,
    "error_message": "No Authorizer is configured on the broker.",
}


def handle(context: RequestContext, request: Any) -> dict[str, Any]:
    return {**NO_AUTHORIZER, "resources": ()}
