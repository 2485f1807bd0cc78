"""BrokerHeartbeat: a broker is alive, and says what it has seen of the metadata and what it wants.

API: 63. Versions: 0-1.
Behaviour: the active controller tells it whether it is fenced and whether it may shut down. A connection that brought
heartbeats and is lost tells of the broker's end before its session does.
Version notes: v1 data folders that are offline: a broker of ours has one, and is fenced with it.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from einmal.broker.context import RequestContext, Versions
from einmal.metadata.brokers import Heartbeat, HeartbeatAnswer
from einmal.types import BrokerId, ErrorCode

log = logging.getLogger(__name__)

API_KEY: Final = 63
VERSIONS: Final = Versions(0, 1, flexible=0)


async def handle(context: RequestContext, request: Any) -> dict[str, Any]:
    controller = context.node.controller
    if controller.is_active and request.current_metadata_offset >= controller.next_offset:
        # Nobody has seen what is not written yet; it would let a broker take part that has seen nothing.
        log.warning(
            "refused a heartbeat of broker %d: metadata offset %d is beyond the end of the log",
            request.broker_id,
            request.current_metadata_offset,
            extra={"client": context.client_address},
        )
        return {"error_code": ErrorCode.invalid_request, "is_fenced": True}
    beat = Heartbeat(
        broker_id=BrokerId(request.broker_id),
        broker_epoch=request.broker_epoch,
        metadata_offset=request.current_metadata_offset,
        wants_fence=request.want_fence,
        wants_shutdown=request.want_shut_down,
        is_disk_broken=bool(getattr(request, "offline_log_dirs", ())),
    )
    answer = await controller.submit(lambda shard, now: shard.heartbeat(beat, controller.next_offset, now))
    if isinstance(answer, ErrorCode):
        answer = HeartbeatAnswer(error=answer)
    if not answer.is_fenced:
        context.on_connection_lost(
            (API_KEY, beat.broker_id), lambda: controller.broker_lost(beat.broker_id, beat.broker_epoch)
        )
    return {
        "error_code": answer.error,
        "is_caught_up": answer.is_caught_up,
        "is_fenced": answer.is_fenced,
        "should_shut_down": answer.should_shut_down,
    }
