"""DescribeTransactions: one transactional id's state, its partitions, its age (KIP-664).

API: 65. Versions: 0.
Access: DESCRIBE on TransactionalId, DESCRIBE on Topic: other topics are left out.
Behaviour: asks the coordinator of each id; an id that it does not know is TRANSACTIONAL_ID_NOT_FOUND.
Version notes: none.
"""

from __future__ import annotations

from itertools import groupby
from typing import ClassVar

from einmal.broker.coordinators.transaction_service import TransactionService
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.security.acl import AclOperation, ResourceType
from einmal.transactions.transaction import Transaction
from einmal.types import ErrorCode
from einmal.wire.api.describe_transactions import (
    API,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)


@handler
class DescribeTransactionsHandler:
    api: ClassVar = API
    access: Access
    transactions: TransactionService

    async def handle(
        self, context: RequestContext, request: DescribeTransactionsRequest
    ) -> DescribeTransactionsResponse:
        # A transaction that is named twice is described once: it may have many partitions.
        asked = dict.fromkeys(request.transactional_ids)
        states = [await self._state(context, transactional_id) async for transactional_id in context.paced(asked)]
        return DescribeTransactionsResponse(transaction_states=states)

    async def _state(self, context: RequestContext, transactional_id: str) -> TransactionState:
        resource = ResourceType.TRANSACTIONAL_ID
        if refused := self.access.refusal(context, AclOperation.DESCRIBE, resource, transactional_id):
            return described(transactional_id, refused)
        outcome = await self.transactions.submit(
            transactional_id, lambda shard, _: shard.describe_transactions(transactional_id), reads_only=True
        )
        state = described(transactional_id, outcome)
        topics = [
            topic
            async for topic in context.paced(state.topics)
            if self.access.allows(context, AclOperation.DESCRIBE, ResourceType.TOPIC, topic.topic, is_filter=True)
        ]
        return state._replace(topics=topics)


def described(transactional_id: str, outcome: Transaction | ErrorCode) -> TransactionState:
    """One entry of the answer. A transaction that has not begun has the start time -1."""
    if isinstance(outcome, ErrorCode):
        return TransactionState(error_code=outcome, transactional_id=transactional_id, transaction_start_time=0)
    return TransactionState(
        transactional_id=transactional_id,
        transaction_state=outcome.state.kafka_name,
        transaction_timeout=outcome.timeout_ms,
        transaction_start_time=outcome.start_ms,
        producer_id=outcome.producer_id,
        producer_epoch=outcome.producer_epoch,
        topics=[
            TopicData(name, [topic_partition.partition for topic_partition in group])
            for name, group in groupby(outcome.partitions, key=lambda topic_partition: topic_partition.topic)
        ],
    )
