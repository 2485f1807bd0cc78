"""InitProducerId: an identity for an idempotent or transactional producer.

API: 22. Versions: 0-5.
Behaviour: without a transactional id any broker gives a fresh producer id. With one, its coordinator moves the epoch,
so that every instance before is fenced; over an open transaction it first aborts that one and answers
CONCURRENT_TRANSACTIONS until its markers are written.
Version notes: v3 brings the producer's own id and epoch (KIP-360); v4 knows PRODUCER_FENCED.
"""

from __future__ import annotations

from typing import Any, Final

from einmal.broker.context import RequestContext, Versions
from einmal.transactions.coordinator import InitProducerIdResult
from einmal.types import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    ErrorCode,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
)
from einmal.wire.messages import milliseconds

API_KEY: Final = 22
VERSIONS: Final = Versions(0, 5, flexible=2)
_KNOWS_FENCED: Final = 4


async def handle(context: RequestContext, request: Any) -> dict[str, Any]:
    service = context.node.transactions
    producer = ProducerIdAndEpoch(
        ProducerId(getattr(request, "producer_id", NO_PRODUCER_ID)),
        ProducerEpoch(getattr(request, "producer_epoch", NO_PRODUCER_EPOCH)),
    )
    if (producer.producer_id == NO_PRODUCER_ID) != (producer.producer_epoch == NO_PRODUCER_EPOCH):
        return _answer(context, InitProducerIdResult(ErrorCode.invalid_request))
    if request.transactional_id is None:
        await service.producer_ids.ready()
        return _answer(context, _idempotent(service.producer_ids.take()))
    owner = None if producer.producer_id == NO_PRODUCER_ID else producer
    result = await _initialise(context, request, owner)
    if result.error is ErrorCode.coordinator_load_in_progress and not service.producer_ids.has_any:
        # Only an id that is new, or whose epochs are at their end, has to wait for the controller.
        await service.producer_ids.ready()
        result = await _initialise(context, request, owner)
    return _answer(context, result)


async def _initialise(context: RequestContext, request: Any, owner: ProducerIdAndEpoch | None) -> InitProducerIdResult:
    transactional_id, timeout_ms = request.transactional_id, milliseconds(request.transaction_timeout)
    outcome = await context.node.transactions.submit(
        transactional_id, lambda shard, now: shard.init_producer_id(transactional_id, timeout_ms, owner, now)
    )
    return InitProducerIdResult(outcome) if isinstance(outcome, ErrorCode) else outcome


def _idempotent(producer_id: ProducerId | None) -> InitProducerIdResult:
    if producer_id is None:
        return InitProducerIdResult(ErrorCode.coordinator_load_in_progress)
    return InitProducerIdResult(ErrorCode.none, producer_id, ProducerEpoch(0))


def _answer(context: RequestContext, result: InitProducerIdResult) -> dict[str, Any]:
    error = result.error
    if error is ErrorCode.producer_fenced and context.api_version < _KNOWS_FENCED:
        error = ErrorCode.invalid_producer_epoch
    return {"error_code": error, "producer_id": result.producer_id, "producer_epoch": result.producer_epoch}
