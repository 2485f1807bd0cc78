"""DeleteAcls: let somebody do something no more.

API: 31. Versions: 1-3.
Behaviour: SECURITY_DISABLED for each, as from an Apache Kafka without an authorizer.
Version notes: none that matter here.
"""

from __future__ import annotations

from typing import Any, Final

from einmal.broker.context import RequestContext, Versions
from einmal.broker.handlers.describe_acls import NO_AUTHORIZER

API_KEY: Final = 31
VERSIONS: Final = Versions(1, 3, flexible=2)


def handle(context: RequestContext, request: Any) -> dict[str, Any]:
    return {"filter_results": [{**NO_AUTHORIZER, "matching_acls": ()} for _ in request.filters]}
