"""One partition without a broker: a real log on a disk in memory, led here, and committed as far as it is allowed."""

from __future__ import annotations

import random
from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from einmal.broker.replicas.partition import Partition
from einmal.log.config import LogConfig
from einmal.log.partition_log import PartitionLog
from einmal.metadata.image import ClusterImage
from einmal.simulation.clock import SimulatedClock
from einmal.simulation.disk import SimulatedDisk
from einmal.simulation.loop import Host, SimulatedLoop
from einmal.simulation.trace import Trace
from einmal.types import BrokerId, ErrorCode, LeaderEpoch, Offset, TopicPartition

TP = TopicPartition("t", 0)
TOPIC_ID = UUID(int=5)


class OnePartition:
    """``is_held``: nothing more is committed."""

    def __init__(self, *, flush_each: bool = False) -> None:
        self.loop = SimulatedLoop()  # type: ignore[abstract]
        self.clock = SimulatedClock(self.loop)
        self.is_held = False
        disk = SimulatedDisk(self.loop, random.Random(1), Trace()).view(Host("broker"))
        log = PartitionLog.open(
            disk, PurePosixPath("/data") / str(TP), TP, LogConfig(flush_each=flush_each), self.clock.now()
        )
        self.partition = Partition(log, TOPIC_ID, self.clock, broker_id=BrokerId(1), flush_each=flush_each)
        self.partition.lead(self, LeaderEpoch(3))
        self.image = ClusterImage(topic_names={TOPIC_ID: "t"})

    def resign(self) -> None:
        """There is no other replica."""

    def local_end_moved(self, end: Offset) -> Offset:
        return self.partition.high_watermark if self.is_held else end

    @property
    def partitions(self) -> Any:
        """In place of the broker's."""
        return SimpleNamespace(
            get=lambda each: self.partition if each == TP else None,
            error_of_missing=lambda each: ErrorCode.unknown_topic_or_partition,
        )
