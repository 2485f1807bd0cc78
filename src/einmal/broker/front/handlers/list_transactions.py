"""ListTransactions: the transactional ids whose coordinator is this broker (KIP-664).

API: 66. Versions: 0-2.
Access: DESCRIBE on TransactionalId: others are left out.
Behaviour: every shard is asked; COORDINATOR_LOAD_IN_PROGRESS as long as one is not loaded. Names of states that do
not exist are given back.
Version notes: v1 filters by duration (KIP-994); v2 by a pattern of the whole id (KIP-1152), which is
INVALID_REGULAR_EXPRESSION where it is none, in RE2's syntax.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

import re2

from einmal.broker.coordinators.transaction_service import TransactionService
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.security.acl import AclOperation, ResourceType
from einmal.transactions.states import STATES_BY_NAME
from einmal.types import ErrorCode, ProducerId
from einmal.wire.api.list_transactions import (
    API,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)

_PATTERN_MAX: Final = 512
"""Characters: to compile a longer one may take long, and RE2 keeps what it has compiled."""
_COMPILED_BYTES_MAX: Final = 256 * 1024
_NEVER: Final = ("Dead", "PrepareEpochFence")
"""States of Apache Kafka that no transaction is ever seen in here."""


@handler
class ListTransactionsHandler:
    api: ClassVar = API
    access: Access
    transactions: TransactionService

    async def handle(self, context: RequestContext, request: ListTransactionsRequest) -> ListTransactionsResponse:
        pattern = None
        if request.transactional_id_pattern:
            try:
                pattern = _compiled(request.transactional_id_pattern)
            except re2.error:
                return ListTransactionsResponse(error_code=ErrorCode.invalid_regular_expression)
        states = frozenset(STATES_BY_NAME[name] for name in request.state_filters if name in STATES_BY_NAME)
        unknown = [name for name in request.state_filters if name not in STATES_BY_NAME and name not in _NEVER]
        producer_ids = frozenset(map(ProducerId, request.producer_id_filters))
        listed: list[TransactionState] = []
        if states or not request.state_filters:
            async for runtime in context.paced(self.transactions.runtimes()):
                outcome = await runtime.submit(
                    lambda shard, now: shard.list_transactions(
                        states=states, producer_ids=producer_ids, longer_than_ms=request.duration_filter, now=now
                    ),
                    reads_only=True,
                )
                if isinstance(outcome, ErrorCode):
                    return ListTransactionsResponse(error_code=outcome)
                listed += [
                    TransactionState(
                        transaction.transactional_id, transaction.producer_id, transaction.state.kafka_name
                    )
                    async for transaction in context.paced(outcome)
                    if (pattern is None or pattern.fullmatch(transaction.transactional_id))
                    and self._is_visible(context, transaction.transactional_id)
                ]
        return ListTransactionsResponse(unknown_state_filters=unknown, transaction_states=listed)

    def _is_visible(self, context: RequestContext, transactional_id: str) -> bool:
        return self.access.allows(
            context, AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id, is_filter=True
        )


def _compiled(pattern: str) -> Any:
    """Raises re2.error."""
    if len(pattern) > _PATTERN_MAX:
        raise re2.error(f"longer than {_PATTERN_MAX} characters")
    options = re2.Options()
    options.max_mem = _COMPILED_BYTES_MAX
    options.log_errors = False
    return re2.compile(pattern, options)
