"""The hash by which Kafka's producers choose a key's partition: 32-bit MurmurHash2 with Kafka's seed."""

from __future__ import annotations

import struct
from typing import Final

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_WORD: Final = struct.Struct("<I")
_POSITIVE: Final = 0x7FFFFFFF


def murmur2(data: bytes) -> int:
    """The hash as a signed 32-bit number, as Java has it."""
    size = len(data)
    state = _SEED ^ size
    whole = size & ~3
    for (word,) in _WORD.iter_unpack(data[:whole]):
        word = word * _M & _MASK
        word = (word ^ word >> 24) * _M & _MASK
        state = (state * _M & _MASK) ^ word
    if whole < size:
        state = (state ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    state = (state ^ state >> 13) * _M & _MASK
    state ^= state >> 15
    return state - (1 << 32) if state > _POSITIVE else state


def partition_for_key(key: bytes, partition_count: int) -> int:
    """The partition of a key among ``partition_count``: the same as Java's and librdkafka's murmur2 partitioners."""
    return (murmur2(key) & _POSITIVE) % partition_count
