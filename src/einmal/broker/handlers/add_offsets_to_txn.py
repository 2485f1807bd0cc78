"""AddOffsetsToTxn: a transaction is going to commit offsets of a group.

API: 25. Versions: 0-4.
Behaviour: adds the group's partition of ``__consumer_offsets`` to the transaction.
Version notes: v2 knows PRODUCER_FENCED. Clients of TV2 do not send it: TxnOffsetCommit 5 does this too.
"""

from __future__ import annotations

from typing import Any, Final

from einmal.broker.context import RequestContext, Versions
from einmal.metadata.image import CONSUMER_OFFSETS
from einmal.types import (
    ErrorCode,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionVersion,
)
from einmal.wire.java_hash import partition_for_id

API_KEY: Final = 25
VERSIONS: Final = Versions(0, 4, flexible=3)
_KNOWS_FENCED: Final = 2


async def handle(context: RequestContext, request: Any) -> dict[str, Any]:
    # The first transaction of a cluster may come before the first group.
    error = await context.node.metadata.ensure_internal_topic(CONSUMER_OFFSETS)
    if error is ErrorCode.none:
        error = await _add(context, request)
    else:
        error = ErrorCode.coordinator_not_available
    if error is ErrorCode.producer_fenced and context.api_version < _KNOWS_FENCED:
        error = ErrorCode.invalid_producer_epoch
    return {"error_code": error}


async def _add(context: RequestContext, request: Any) -> ErrorCode:
    count = len(context.node.metadata.image.topics[CONSUMER_OFFSETS].partitions)
    offsets = TopicPartition(CONSUMER_OFFSETS, partition_for_id(request.group_id, count))
    transactional_id = request.transactional_id
    producer = ProducerIdAndEpoch(ProducerId(request.producer_id), ProducerEpoch(request.producer_epoch))
    return await context.node.transactions.submit(
        transactional_id,
        lambda shard, now: shard.add_partitions_to_txn(
            transactional_id, producer, (offsets,), TransactionVersion.TV_0, now
        ),
    )
