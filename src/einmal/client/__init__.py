"""The Kafka client, blocking. The same names on asyncio are in ``einmal.client.aio``.

What is large is imported when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from einmal.client.descriptions import NewTopic
from einmal.client.errors import (
    AbortableError,
    FatalError,
    KafkaError,
    LocalError,
    NotAuthorized,
    ProducerFenced,
    RequestRefused,
    RetriableError,
    SaslAuthenticationFailed,
    SslHandshakeFailed,
    UnknownOutcome,
)
from einmal.client.habits import missing_class
from einmal.client.prepared_txn_state import PreparedTxnState
from einmal.client.records import (
    ConsumerRecord,
    GroupMetadata,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    OffsetRange,
    RecordMetadata,
    WrittenRange,
)
from einmal.security.acl import Acl, AclFilter, AclOperation, PatternType, Permission, ResourceType
from einmal.types import Header, IsolationLevel, TopicPartition

if TYPE_CHECKING:
    from einmal.client.aio.consuming.offsets import EARLIEST, LATEST
    from einmal.client.blocking.admin import Admin
    from einmal.client.blocking.consumer import Consumer
    from einmal.client.blocking.producer import Producer, Transaction
    from einmal.client.blocking.raw import PartitionWriter, RangeReader, TransactionDriver

__all__ = [
    "EARLIEST",
    "LATEST",
    "AbortableError",
    "Acl",
    "AclFilter",
    "AclOperation",
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
    "NotAuthorized",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetRange",
    "PartitionWriter",
    "PatternType",
    "Permission",
    "PreparedTxnState",
    "Producer",
    "ProducerFenced",
    "RangeReader",
    "RecordMetadata",
    "RequestRefused",
    "ResourceType",
    "RetriableError",
    "SaslAuthenticationFailed",
    "SslHandshakeFailed",
    "TopicPartition",
    "Transaction",
    "TransactionDriver",
    "UnknownOutcome",
    "WrittenRange",
]

_LATER: Final = {
    "EARLIEST": "aio.consuming.offsets",
    "LATEST": "aio.consuming.offsets",
    "Admin": "blocking.admin",
    "Consumer": "blocking.consumer",
    "PartitionWriter": "blocking.raw",
    "Producer": "blocking.producer",
    "RangeReader": "blocking.raw",
    "Transaction": "blocking.producer",
    "TransactionDriver": "blocking.raw",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise missing_class(__name__, name)
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)


def __dir__() -> list[str]:
    return __all__
