"""UnregisterBroker: forget a broker that will not come back.

API: 64. Versions: 0.
Behaviour: it is in no ISR any more and may lead nothing. Its replicas stay assigned to it: reassign them.
"""

from __future__ import annotations

from typing import Any, Final

from einmal.broker.context import RequestContext, Versions
from einmal.types import BrokerId

API_KEY: Final = 64
VERSIONS: Final = Versions(0, 0, flexible=0)
FORWARDED: Final = True


async def handle(context: RequestContext, request: Any) -> dict[str, Any]:
    broker_id = BrokerId(request.broker_id)
    error = await context.node.controller.submit(lambda shard, now: shard.unregister_broker(broker_id))
    return {"error_code": error, "error_message": None}
