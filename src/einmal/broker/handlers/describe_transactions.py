"""DescribeTransactions: one transactional id's state, its partitions, its age (KIP-664).

API: 65. Versions: 0.
Behaviour: asks the coordinator of each id; an id that it does not know is TRANSACTIONAL_ID_NOT_FOUND.
Version notes: written by hand, since a transaction that has not begun has the start time -1, which the generated schema
cannot express.
"""

from __future__ import annotations

import struct
from itertools import groupby
from typing import Any, Final

from einmal.broker.context import RequestContext, Versions
from einmal.transactions.transaction import Transaction
from einmal.types import ErrorCode
from einmal.wire.primitives import NO_TAGS, encode_length, encode_nullable_string

API_KEY: Final = 65
VERSIONS: Final = Versions(0, 0, flexible=0)


async def handle(context: RequestContext, request: Any) -> bytes:
    throttle_time = struct.pack(">i", 0)
    # A transaction that is named twice is described once: it may have many partitions.
    asked = dict.fromkeys(request.transactional_ids)
    states = [await _state(context, transactional_id) async for transactional_id in context.paced(asked)]
    return b"".join((throttle_time, encode_length(len(states), True), *states, NO_TAGS))


async def _state(context: RequestContext, transactional_id: str) -> bytes:
    outcome = await context.node.transactions.submit(
        transactional_id, lambda shard, _: shard.describe_transactions(transactional_id), reads_only=True
    )
    return encode_state(transactional_id, outcome)


def encode_state(transactional_id: str, outcome: Transaction | ErrorCode) -> bytes:
    """One entry of the answer."""
    if isinstance(outcome, ErrorCode):
        head = struct.pack(">h", outcome) + _string(transactional_id) + _string("")
        return head + struct.pack(">iqqh", 0, 0, 0, 0) + encode_length(0, True) + NO_TAGS
    topics = [
        _topic(name, [each.partition for each in group])
        for name, group in groupby(outcome.partitions, key=lambda each: each.topic)
    ]
    return b"".join(
        (
            struct.pack(">h", ErrorCode.none),
            _string(transactional_id),
            _string(outcome.state.kafka_name),
            struct.pack(">iqqh", outcome.timeout_ms, outcome.start_ms, outcome.producer_id, outcome.producer_epoch),
            encode_length(len(topics), True),
            *topics,
            NO_TAGS,
        )
    )


def _topic(name: str, partitions: list[int]) -> bytes:
    count = encode_length(len(partitions), True)
    return _string(name) + count + struct.pack(f">{len(partitions)}i", *partitions) + NO_TAGS


def _string(value: str) -> bytes:
    return encode_nullable_string(value, True)
