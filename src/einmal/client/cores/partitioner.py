"""Which partition a record goes to: by its key as Java does, else sticky.

Records without a key stay with one partition for ``batch.size`` bytes and then move to another, so that batches fill
(KIP-480, KIP-794). The choice of the next one comes from the given source of randomness.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from einmal.wire.murmur2 import partition_for_key


@dataclass(slots=True)
class _Sticky:
    partition: int
    bytes_left: int


class Partitioner:
    def __init__(self, source: random.Random, batch_size: int) -> None:
        self._source = source
        self._batch_size = max(1, batch_size)
        self._sticky: dict[str, _Sticky] = {}

    def partition(self, topic: str, key: bytes | None, size: int, partition_count: int) -> int:
        """The partition for one record of ``size`` bytes."""
        if key is not None:
            return partition_for_key(key, partition_count)
        sticky = self._sticky.get(topic)
        if sticky is None or sticky.bytes_left <= 0 or sticky.partition >= partition_count:
            sticky = _Sticky(self._next(sticky, partition_count), self._batch_size)
            self._sticky[topic] = sticky
        sticky.bytes_left -= size
        return sticky.partition

    def _next(self, sticky: _Sticky | None, partition_count: int) -> int:
        if sticky is None or partition_count == 1 or sticky.partition >= partition_count:
            return self._source.randrange(partition_count)
        chosen = self._source.randrange(partition_count - 1)
        return chosen + (chosen >= sticky.partition)
