"""AddPartitionsToTxn: the partitions that a transaction is going to reach.

API: 24. Versions: 0-5.
Behaviour: all partitions of one transaction or none of them: where one does not exist, the others are
OPERATION_NOT_ATTEMPTED. Coordinators' own topics are TOPIC_AUTHORIZATION_FAILED, as in Kafka: a marker in the
transaction log is nothing that its coordinator could load. A group's offsets have APIs of their own.
Version notes: 0-3 are clients' (TV0, TV1); v2 knows PRODUCER_FENCED. 4-5 are for leaders of partitions: many
transactions in one request, to be verified or added (KIP-890).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from einmal.broker.context import RequestContext, Versions
from einmal.metadata.image import INTERNAL_TOPICS, TRANSACTION_STATE
from einmal.transactions.coordinator import PartitionErrors
from einmal.types import (
    ErrorCode,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionVersion,
)

API_KEY: Final = 24
VERSIONS: Final = Versions(0, 5, flexible=3)
_KNOWS_FENCED: Final = 2
_FROM_LEADERS: Final = 4


async def handle(context: RequestContext, request: Any) -> dict[str, Any]:
    if context.api_version >= _FROM_LEADERS and not context.may_be_from_broker:
        return {"error_code": context.refuse_client("AddPartitionsToTxn of a leader")}
    if context.api_version >= _FROM_LEADERS:
        transactions = context.paced(request.transactions)
        return {"results_by_transaction": [await _transaction(context, each) async for each in transactions]}
    transactional_id = request.v3_and_below_transactional_id
    producer = ProducerIdAndEpoch(
        ProducerId(request.v3_and_below_producer_id), ProducerEpoch(request.v3_and_below_producer_epoch)
    )
    partitions = _partitions(request.v3_and_below_topics)
    errors = _refused(context, partitions, INTERNAL_TOPICS)
    if not errors:
        error = await context.node.transactions.submit(
            transactional_id,
            lambda shard, now: shard.add_partitions_to_txn(
                transactional_id, producer, partitions, TransactionVersion.TV_0, now
            ),
        )
        if error is ErrorCode.producer_fenced and context.api_version < _KNOWS_FENCED:
            error = ErrorCode.invalid_producer_epoch
        errors = dict.fromkeys(partitions, error)
    return {"results_by_topic_v3_and_below": _topics(errors)}


async def _transaction(context: RequestContext, transaction: Any) -> dict[str, Any]:
    producer = ProducerIdAndEpoch(ProducerId(transaction.producer_id), ProducerEpoch(transaction.producer_epoch))
    partitions = _partitions(transaction.topics)
    errors: PartitionErrors = _refused(context, partitions, (TRANSACTION_STATE,))
    if not errors:
        errors = await context.node.transactions.verify_or_add(
            transaction.transactional_id, producer, partitions, adds=not transaction.verify_only
        )
    return {"transactional_id": transaction.transactional_id, "topic_results": _topics(errors)}


def _partitions(topics: Iterable[Any]) -> list[TopicPartition]:
    return [TopicPartition(topic.name, partition) for topic in topics for partition in topic.partitions]


def _refused(
    context: RequestContext, partitions: Iterable[TopicPartition], closed: Collection[str]
) -> dict[TopicPartition, ErrorCode]:
    """Empty where every partition exists, and is of no topic that is ``closed``."""
    topics = context.node.metadata.image.topics

    def error_of(partition: TopicPartition) -> ErrorCode:
        topic = topics.get(partition.topic)
        if topic is None or not 0 <= partition.partition < len(topic.partitions):
            return ErrorCode.unknown_topic_or_partition
        return ErrorCode.topic_authorization_failed if partition.topic in closed else ErrorCode.operation_not_attempted

    errors = {partition: error_of(partition) for partition in partitions}
    return {} if all(error is ErrorCode.operation_not_attempted for error in errors.values()) else errors


def _topics(errors: Mapping[TopicPartition, ErrorCode]) -> list[dict[str, Any]]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for (topic, partition), error in errors.items():
        topics.setdefault(topic, []).append({"partition_index": partition, "partition_error_code": error})
    return [{"name": name, "results_by_partition": results} for name, results in topics.items()]
