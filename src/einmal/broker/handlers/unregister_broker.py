"""UnregisterBroker: forget a broker that will not come back.

API: 64. Versions: 0.
Behaviour: it is in no ISR any more and may lead nothing. Its replicas stay assigned to it: reassign them. One that is
alive is refused, which Kafka does not do.
"""

from __future__ import annotations

from typing import Any, Final

from einmal.broker.context import RequestContext, Versions
from einmal.metadata.brokers import Unregistered
from einmal.types import BrokerId, ErrorCode

API_KEY: Final = 64
VERSIONS: Final = Versions(0, 0, flexible=0)
FORWARDED: Final = True


async def handle(context: RequestContext, request: Any) -> dict[str, Any]:
    broker_id = BrokerId(request.broker_id)
    result = await context.node.controller.submit(lambda shard, now: shard.unregister_broker(broker_id))
    if isinstance(result, ErrorCode):
        result = Unregistered(result)
    return {"error_code": result.error, "error_message": result.message}
