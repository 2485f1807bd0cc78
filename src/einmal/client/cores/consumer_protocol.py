"""The messages that members of a consumer group exchange through the broker (protocol type ``consumer``).

A subscription: topics, and (from version 1 on) the partitions the member still owns. An assignment: partitions.
Readers take any version, and ignore what they do not know behind the fields they do.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from einmal.types import TopicPartition
from einmal.wire.errors import Malformed

PROTOCOL_TYPE: Final = "consumer"
_VERSION: Final = 1
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")


class Subscription(NamedTuple):
    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()


def encode_subscription(subscription: Subscription) -> bytes:
    parts = [_INT16.pack(_VERSION), _INT32.pack(len(subscription.topics))]
    parts += [_string(topic) for topic in subscription.topics]
    parts += [_INT32.pack(-1), _partitions(subscription.owned)]
    return b"".join(parts)


def decode_subscription(data: bytes) -> Subscription:
    """Raises Malformed."""
    reader = _Reader(data)
    version = reader.int16()
    topics = tuple(reader.string() for _ in range(reader.count()))
    reader.skip_bytes()
    return Subscription(topics, reader.partitions() if version >= 1 else ())


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    return _INT16.pack(_VERSION) + _partitions(partitions) + _INT32.pack(-1)


def decode_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """No bytes at all mean no partitions. Raises Malformed."""
    if not data:
        return ()
    reader = _Reader(data)
    reader.int16()
    return reader.partitions()


def _string(text: str) -> bytes:
    encoded = text.encode()
    return _INT16.pack(len(encoded)) + encoded


def _partitions(partitions: Iterable[TopicPartition]) -> bytes:
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    parts = [_INT32.pack(len(topics))]
    for topic, indexes in topics.items():
        parts += [_string(topic), _INT32.pack(len(indexes)), *map(_INT32.pack, indexes)]
    return b"".join(parts)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def _unpack(self, layout: struct.Struct) -> int:
        try:
            (value,) = layout.unpack_from(self._data, self._position)
        except struct.error as error:
            raise Malformed("consumer protocol message ends early") from error
        self._position += layout.size
        return int(value)

    def int16(self) -> int:
        return self._unpack(_INT16)

    def count(self) -> int:
        count = self._unpack(_INT32)
        # Every element takes at least two bytes: a wrong count is refused before memory is allocated for it.
        if not 0 <= count <= (len(self._data) - self._position) // 2:
            raise Malformed(f"{count} elements in {len(self._data)} bytes")
        return count

    def string(self) -> str:
        return self._take(self.int16()).decode(errors="replace")

    def skip_bytes(self) -> None:
        size = self._unpack(_INT32)
        if size > 0:
            self._take(size)

    def _take(self, size: int) -> bytes:
        end = self._position + size
        if size < 0 or end > len(self._data):
            raise Malformed("consumer protocol message ends early")
        taken = self._data[self._position : end]
        self._position = end
        return taken

    def partitions(self) -> tuple[TopicPartition, ...]:
        partitions = []
        for _ in range(self.count()):
            topic = self.string()
            partitions += [TopicPartition(topic, self._unpack(_INT32)) for _ in range(self.count())]
        return tuple(partitions)
