"""AllocateProducerIds: a broker needs producer ids to give out.

API: 67. Versions: 0.
Behaviour: a block that nobody else gets, also after a crash; refused to a broker whose epoch is stale (KIP-730).
"""

from __future__ import annotations

from typing import Any, Final

from einmal.broker.context import RequestContext, Versions
from einmal.types import BrokerId, ErrorCode

API_KEY: Final = 67
VERSIONS: Final = Versions(0, 0, flexible=0)


async def handle(context: RequestContext, request: Any) -> dict[str, Any]:
    block = await context.node.controller.submit(
        lambda shard, now: shard.allocate_producer_ids(BrokerId(request.broker_id), request.broker_epoch)
    )
    if isinstance(block, ErrorCode):
        return {"error_code": block, "producer_id_start": -1, "producer_id_len": 0}
    return {"error_code": ErrorCode.none, "producer_id_start": block.start, "producer_id_len": len(block)}
