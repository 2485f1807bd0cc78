"""AllocateProducerIds: a broker needs producer ids to give out.

API: 67. Versions: 0.
Access: CLUSTER_ACTION on Cluster, and only nodes of the cluster.
Behaviour: a block that nobody else gets, also after a crash; refused to a broker whose epoch is stale (KIP-730).
"""

from __future__ import annotations

from typing import ClassVar

from einmal.broker.control.controller_runtime import ControllerRuntime
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.types import BrokerId, ErrorCode
from einmal.wire.api.allocate_producer_ids import API, AllocateProducerIdsRequest, AllocateProducerIdsResponse


@handler
class AllocateProducerIdsHandler:
    api: ClassVar = API
    access: Access
    controller: ControllerRuntime

    async def handle(self, context: RequestContext, request: AllocateProducerIdsRequest) -> AllocateProducerIdsResponse:
        if refused := self.access.refusal_of_client(context, "AllocateProducerIds"):
            return AllocateProducerIdsResponse(error_code=refused, producer_id_start=-1, producer_id_len=0)
        block = await self.controller.submit(
            lambda shard, now: shard.allocate_producer_ids(BrokerId(request.broker_id), request.broker_epoch)
        )
        if isinstance(block, ErrorCode):
            return AllocateProducerIdsResponse(error_code=block, producer_id_start=-1, producer_id_len=0)
        return AllocateProducerIdsResponse(producer_id_start=block.start, producer_id_len=len(block))
