"""BrokerHeartbeat: a broker is alive, and reports its metadata offset and what it wants.

API: 63. Versions: 0-1.
Access: CLUSTER_ACTION on Cluster, and only nodes of the cluster.
Behaviour: the active controller answers whether the broker is fenced and whether it may shut down. The loss of a
connection that carried heartbeats reveals the broker's end before its session expires.
Version notes: v1 offline log directories: a broker of ours has one, and is fenced with it.
"""

from __future__ import annotations

from typing import ClassVar

from einmal.broker.control.controller_runtime import ControllerRuntime
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.event_log import EventLog
from einmal.metadata.brokers import Heartbeat, HeartbeatAnswer
from einmal.types import BrokerId, ErrorCode
from einmal.wire.api.broker_heartbeat import API, BrokerHeartbeatRequest, BrokerHeartbeatResponse

log = EventLog(__name__)


@handler
class BrokerHeartbeatHandler:
    api: ClassVar = API
    access: Access
    controller: ControllerRuntime

    async def handle(self, context: RequestContext, request: BrokerHeartbeatRequest) -> BrokerHeartbeatResponse:
        if refused := self.access.refusal_of_client(context, "BrokerHeartbeat"):
            return BrokerHeartbeatResponse(error_code=refused, is_fenced=True)
        controller = self.controller
        if controller.is_active and request.current_metadata_offset >= controller.next_offset:
            # No broker can have applied records that do not exist; this would unfence a broker that has applied
            # nothing.
            log.warning(
                "impossible_heartbeat_refused",
                "refused a heartbeat of broker %(broker)d: metadata offset %(offset)d is beyond the end of the log",
                broker=request.broker_id,
                offset=request.current_metadata_offset,
                client=context.client_address,
            )
            return BrokerHeartbeatResponse(error_code=ErrorCode.invalid_request, is_fenced=True)
        beat = Heartbeat(
            broker_id=BrokerId(request.broker_id),
            broker_epoch=request.broker_epoch,
            metadata_offset=request.current_metadata_offset,
            wants_fence=request.want_fence,
            wants_shutdown=request.want_shut_down,
            is_disk_broken=bool(request.offline_log_dirs),
        )
        answer = await controller.submit(lambda shard, now: shard.heartbeat(beat, controller.next_offset, now))
        if isinstance(answer, ErrorCode):
            answer = HeartbeatAnswer(error=answer)
        if not answer.is_fenced:
            context.on_connection_lost(
                (self.api.key, beat.broker_id), lambda: controller.broker_lost(beat.broker_id, beat.broker_epoch)
            )
        return BrokerHeartbeatResponse(
            error_code=answer.error,
            is_caught_up=answer.is_caught_up,
            is_fenced=answer.is_fenced,
            should_shut_down=answer.should_shut_down,
        )
