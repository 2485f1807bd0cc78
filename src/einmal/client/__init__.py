"""The Kafka client, blocking. The same names on asyncio are in ``einmal.client.aio``."""

from einmal.client.aio.offsets import EARLIEST, LATEST
from einmal.client.blocking.admin import Admin
from einmal.client.blocking.consumer import Consumer
from einmal.client.blocking.producer import Producer, Transaction
from einmal.client.blocking.raw import PartitionWriter, RangeReader, TransactionDriver
from einmal.client.descriptions import NewTopic
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
from einmal.types import Header, IsolationLevel, TopicPartition

__all__ = [
    "EARLIEST",
    "LATEST",
    "AbortableError",
    "Admin",
    "Consumer",
    "ConsumerRecord",
    "FatalError",
    "GroupMetadata",
    "Header",
    "IsolationLevel",
    "KafkaError",
    "LocalError",
    "NewTopic",
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
