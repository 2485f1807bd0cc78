"""UnregisterBroker: forget a broker that will not come back.

API: 64. Versions: 0.
Access: ALTER on Cluster.
Behaviour: it is in no ISR any more and may lead nothing. Its replicas stay assigned to it: reassign them. One that is
alive is refused, which Kafka does not do.
"""

from __future__ import annotations

from typing import ClassVar

from einmal.broker.control.controller_runtime import ControllerRuntime
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.metadata.brokers import Unregistered
from einmal.security.acl import AclOperation, ResourceType
from einmal.types import BrokerId, ErrorCode
from einmal.wire.api.unregister_broker import API, UnregisterBrokerRequest, UnregisterBrokerResponse


@handler
class UnregisterBrokerHandler:
    api: ClassVar = API
    access: Access
    controller: ControllerRuntime

    async def handle(self, context: RequestContext, request: UnregisterBrokerRequest) -> UnregisterBrokerResponse:
        if refused := self.access.refusal(context, AclOperation.ALTER, ResourceType.CLUSTER):
            return UnregisterBrokerResponse(error_code=refused)
        broker_id = BrokerId(request.broker_id)
        result = await self.controller.submit(lambda shard, now: shard.unregister_broker(broker_id))
        if isinstance(result, ErrorCode):
            result = Unregistered(result)
        return UnregisterBrokerResponse(error_code=result.error, error_message=result.message)
