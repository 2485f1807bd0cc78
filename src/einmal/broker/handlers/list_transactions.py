"""ListTransactions: the transactional ids whose coordinator is this broker (KIP-664).

API: 66. Versions: 0-2.
Behaviour: every shard is asked; COORDINATOR_LOAD_IN_PROGRESS as long as one is not loaded. Names of states that do
not exist are given back.
Version notes: v1 filters by duration (KIP-994); v2 by a pattern of the whole id (KIP-1152), which is
INVALID_REGULAR_EXPRESSION where it is none, or not supported (``wire/regular_expression.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from einmal.broker.context import RequestContext, Versions
from einmal.transactions.states import STATES_BY_NAME
from einmal.transactions.transaction import Transaction
from einmal.types import ErrorCode
from einmal.wire.regular_expression import RegularExpression, Unsupported

API_KEY: Final = 66
VERSIONS: Final = Versions(0, 2, flexible=0)
_STEPS_PER_TURN: Final = 100_000
"""Of matching; then other connections get their turn."""
_NEVER: Final = ("Dead", "PrepareEpochFence")
"""States of Apache Kafka that no transaction is ever seen in here."""


async def handle(context: RequestContext, request: Any) -> dict[str, Any]:
    try:
        pattern = RegularExpression(getattr(request, "transactional_id_pattern", None) or ".*")
    except Unsupported:
        return {"error_code": ErrorCode.invalid_regular_expression}
    states = [STATES_BY_NAME[name] for name in request.state_filters if name in STATES_BY_NAME]
    unknown = [name for name in request.state_filters if name not in STATES_BY_NAME and name not in _NEVER]
    listed: list[Transaction] = []
    if states or not request.state_filters:
        async for runtime in context.paced(context.node.transactions.runtimes()):
            outcome = await runtime.submit(
                lambda shard, now: shard.list_transactions(
                    states=states,
                    producer_ids=request.producer_id_filters,
                    longer_than_ms=getattr(request, "duration_filter", -1),
                    now=now,
                ),
                reads_only=True,
            )
            if isinstance(outcome, ErrorCode):
                return {"error_code": outcome}
            listed += await _matching(pattern, outcome)
    return {
        "unknown_state_filters": unknown,
        "transaction_states": [
            {
                "transactional_id": each.transactional_id,
                "producer_id": each.producer_id,
                "transaction_state": each.state.kafka_name,
            }
            for each in listed
        ],
    }


async def _matching(pattern: RegularExpression, transactions: Sequence[Transaction]) -> list[Transaction]:
    found = []
    steps = 0
    for each in transactions:
        steps += pattern.cost * (len(each.transactional_id) + 1)
        if steps > _STEPS_PER_TURN:
            steps = 0
            await asyncio.sleep(0)
        if pattern.matches(each.transactional_id):
            found.append(each)
    return found
