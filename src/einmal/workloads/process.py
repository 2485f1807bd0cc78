"""A client process of a workload: its name, its seams to the system under test, and the clients that it opens.

The same workload runs on simulated and on real processes: it does not know what starts, pauses and kills it. A workload
that needs no more of a client than ``WorkloadProducer`` and ``WorkloadConsumer`` runs through any Kafka client: their
settings, values and errors are those of ``einmal.client``.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from einmal.client.aio import Admin, Consumer, Producer
from einmal.client.records import ConsumerRecord, OffsetAndMetadata, RecordMetadata
from einmal.seams import Clock, Network
from einmal.types import TopicPartition


class WorkloadProducer(Protocol):
    """The part of ``einmal.client.aio.Producer`` that workloads use, with its errors."""

    def send(self, topic: str, value: str, *, partition: int) -> asyncio.Future[RecordMetadata]: ...

    async def init_transactions(self) -> None: ...

    def begin_transaction(self) -> object: ...

    async def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], group: Any, /
    ) -> None:
        """``group``: ``WorkloadConsumer.group_metadata()`` of the same library, each of which has a type of its own."""

    async def commit_transaction(self) -> None:
        """Commit; then the future of each ``send`` is done."""

    async def abort_transaction(self) -> None: ...

    async def close(self) -> None: ...


class WorkloadConsumer(Protocol):
    """The part of ``einmal.client.aio.Consumer`` that workloads use, with its errors."""

    def assign(self, partitions: Sequence[TopicPartition], /) -> object: ...

    def subscribe(self, topics: Sequence[str], /) -> object: ...

    def assignment(self) -> list[TopicPartition]: ...

    def group_metadata(self) -> Any: ...

    async def poll(self, timeout_ms: int) -> Sequence[ConsumerRecord]: ...

    def seek(self, topic_partition: TopicPartition, offset: int | OffsetAndMetadata, /) -> object: ...

    async def position(self, topic_partition: TopicPartition, /) -> int: ...

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], /) -> None: ...

    async def committed(self, *partitions: TopicPartition) -> dict[TopicPartition, OffsetAndMetadata | None]: ...

    async def end_offsets(self, *partitions: TopicPartition) -> dict[TopicPartition, int]: ...

    async def close(self) -> None: ...


class ClientProcess(Protocol):
    """A process with clients of any library. ``number`` is unique in a run: a restarted role is another process."""

    @property
    def name(self) -> str: ...

    @property
    def number(self) -> int: ...

    @property
    def random(self) -> random.Random: ...

    def producer(self, **settings: Any) -> WorkloadProducer: ...

    def consumer(self, **settings: Any) -> WorkloadConsumer: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process with clients of ``einmal.client``."""

    name: str
    number: int
    bootstrap_servers: str
    network: Network
    clock: Clock
    random: random.Random

    def producer(self, **settings: Any) -> Producer:
        return Producer(**self._common, **settings)

    def consumer(self, **settings: Any) -> Consumer:
        return Consumer(**self._common, **settings)

    def admin(self, **settings: Any) -> Admin:
        return Admin(**self._common, **settings)

    @property
    def _common(self) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.bootstrap_servers,
            # Faults hit brokers before a client has connected, too.
            "bootstrap_timeout_ms": 60_000,
            "network": self.network,
            "clock": self.clock,
            "random": self.random,
        }


P = TypeVar("P", bound=ClientProcess, contravariant=True)


@dataclass(frozen=True, slots=True)
class Role(Generic[P]):
    """One process of a workload. ``run`` returns when the workload stops, or when it cannot continue.

    Roles may be paused, killed and started again; while one is paused another process may replace it.
    """

    name: str
    run: Callable[[P], Awaitable[None]]
