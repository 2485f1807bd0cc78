"""AddPartitionsToTxn: the partitions that a transaction is going to reach.

API: 24. Versions: 0-5.
Access: WRITE on TransactionalId, WRITE on Topic; from version 4 on CLUSTER_ACTION on Cluster, and only nodes of the
cluster.
Behaviour: all partitions of one transaction or none of them: where one does not exist, the others are
OPERATION_NOT_ATTEMPTED. Coordinators' own topics are TOPIC_AUTHORIZATION_FAILED, as in Kafka: a marker in the
transaction log is nothing that its coordinator could load. A group's offsets have APIs of their own.
Version notes: 0-3 are clients' (TV0, TV1), and wait for the markers of the previous transaction; v2 knows
PRODUCER_FENCED. 4-5 are for leaders of partitions: many transactions in one request, to be verified or added (KIP-890),
all answered at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import ClassVar, Final

from einmal.broker.cluster_metadata import ClusterMetadata
from einmal.broker.coordinators.transaction_service import TransactionService
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.metadata.image import INTERNAL_TOPICS, TRANSACTION_STATE
from einmal.security.acl import AclOperation, ResourceType
from einmal.transactions.coordinator import PartitionErrors
from einmal.types import (
    ErrorCode,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionVersion,
)
from einmal.wire.api.add_partitions_to_txn import (
    API,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)

_KNOWS_FENCED: Final = 2
_FROM_LEADERS: Final = 4


@handler
class AddPartitionsToTxnHandler:
    api: ClassVar = API
    access: Access
    transactions: TransactionService
    metadata: ClusterMetadata

    async def handle(self, context: RequestContext, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        if context.api_version >= _FROM_LEADERS:
            if refused := self.access.refusal_of_client(context, "AddPartitionsToTxn of a leader"):
                return AddPartitionsToTxnResponse(error_code=refused)
            transactions = context.paced(request.transactions)
            results = [await self._transaction(transaction) async for transaction in transactions]
            return AddPartitionsToTxnResponse(results_by_transaction=results)
        transactional_id = request.v3_and_below_transactional_id
        producer = ProducerIdAndEpoch(
            ProducerId(request.v3_and_below_producer_id), ProducerEpoch(request.v3_and_below_producer_epoch)
        )
        partitions = _partitions(request.v3_and_below_topics)
        if refused := self.access.refusal(context, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
            return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_topics(dict.fromkeys(partitions, refused)))
        errors = self._refused(partitions, await self._closed(context, request.v3_and_below_topics))
        if not errors:
            error = await self.transactions.submit_next(
                transactional_id,
                lambda shard, now: shard.add_partitions_to_txn(
                    transactional_id, producer, partitions, TransactionVersion.TV_0, now
                ),
                self.transactions.ends.limit(context),
            )
            if error is ErrorCode.producer_fenced and context.api_version < _KNOWS_FENCED:
                error = ErrorCode.invalid_producer_epoch
            errors = dict.fromkeys(partitions, error)
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_topics(errors))

    async def _closed(self, context: RequestContext, asked: Iterable[AddPartitionsToTxnTopic]) -> set[str]:
        """Topics that the sender may not write to, whether they exist or not."""
        return {
            topic.name
            async for topic in context.paced(asked)
            if topic.name in INTERNAL_TOPICS
            or not self.access.allows(context, AclOperation.WRITE, ResourceType.TOPIC, topic.name)
        }

    async def _transaction(self, transaction: AddPartitionsToTxnTransaction) -> AddPartitionsToTxnResult:
        producer = ProducerIdAndEpoch(ProducerId(transaction.producer_id), ProducerEpoch(transaction.producer_epoch))
        partitions = _partitions(transaction.topics)
        errors: PartitionErrors = self._refused(partitions, (TRANSACTION_STATE,))
        if not errors:
            errors = await self.transactions.verify_or_add(
                transaction.transactional_id, producer, partitions, adds=not transaction.verify_only
            )
        return AddPartitionsToTxnResult(transaction.transactional_id, _topics(errors))

    def _refused(
        self, partitions: Iterable[TopicPartition], closed: Collection[str]
    ) -> dict[TopicPartition, ErrorCode]:
        """Empty where every partition exists, and is of no topic that is ``closed``."""
        topics = self.metadata.image.topics

        def error_of(partition: TopicPartition) -> ErrorCode:
            if partition.topic in closed:
                return ErrorCode.topic_authorization_failed
            topic = topics.get(partition.topic)
            is_known = topic is not None and 0 <= partition.partition < len(topic.partitions)
            return ErrorCode.operation_not_attempted if is_known else ErrorCode.unknown_topic_or_partition

        errors = {partition: error_of(partition) for partition in partitions}
        return {} if all(error is ErrorCode.operation_not_attempted for error in errors.values()) else errors


def _partitions(topics: Iterable[AddPartitionsToTxnTopic]) -> list[TopicPartition]:
    return [TopicPartition(topic.name, partition) for topic in topics for partition in topic.partitions]


def _topics(errors: Mapping[TopicPartition, ErrorCode]) -> list[AddPartitionsToTxnTopicResult]:
    topics: dict[str, list[AddPartitionsToTxnPartitionResult]] = {}
    for (topic, partition), error in errors.items():
        topics.setdefault(topic, []).append(AddPartitionsToTxnPartitionResult(partition, error))
    return [AddPartitionsToTxnTopicResult(name, results) for name, results in topics.items()]
