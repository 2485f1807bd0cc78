"""The Kafka client, blocking. The same names on asyncio are in ``einmal.client.aio``."""

from einmal.client.blocking.consumer import Consumer
from einmal.client.blocking.producer import Producer, Transaction
from einmal.client.blocking.raw import PartitionWriter, RangeReader, TransactionDriver
from einmal.client.errors import (
    AbortableError,
    FatalError,
    KafkaError,
    LocalError,
    ProducerFenced,
    RequestRefused,
    RetriableError,
    UnknownOutcome,
)
from einmal.client.records import (
    ConsumerRecord,
    GroupMetadata,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    OffsetRange,
    RecordMetadata,
    WrittenRange,
)
from einmal.types import Header, TopicPartition

__all__ = [
    "AbortableError",
    "Consumer",
    "ConsumerRecord",
    "FatalError",
    "GroupMetadata",
    "Header",
    "KafkaError",
    "LocalError",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetRange",
    "PartitionWriter",
    "Producer",
    "ProducerFenced",
    "RangeReader",
    "RecordMetadata",
    "RequestRefused",
    "RetriableError",
    "TopicPartition",
    "Transaction",
    "TransactionDriver",
    "UnknownOutcome",
    "WrittenRange",
]
