"""Java's ``String.hashCode``: it decides which partition of a coordinator's topic an id lives in."""

from __future__ import annotations

import struct
from typing import Final

_MASK: Final = 0xFFFFFFFF
_MIN: Final = -(1 << 31)
_UTF16: Final = struct.Struct(">H")


def java_string_hash(value: str) -> int:
    """The signed 32-bit hash over the UTF-16 code units."""
    state = 0
    for (unit,) in _UTF16.iter_unpack(value.encode("utf-16-be", "surrogatepass")):
        state = (31 * state + unit) & _MASK
    return state + 2 * _MIN if state >= -_MIN else state


def partition_for_id(value: str, partition_count: int) -> int:
    """The partition of a transactional or group id. The smallest number has no absolute value: it counts as 0."""
    state = java_string_hash(value)
    return 0 if state == _MIN else abs(state) % partition_count
