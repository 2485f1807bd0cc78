"""Whole columns at once: varints and Kafka's murmur2 over numpy arrays, and bytes as Arrow's arrays.

The same encodings as ``wire.primitives`` and ``wire.murmur2``, which do one value at a time. Knows no records.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow

from einmal.wire.errors import CorruptBatch

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_BITS: Final = 7
_MORE: Final = 0x80
_VARLONG_BITS: Final = 63
_SEED: Final = np.uint32(0x9747B28C)
_M: Final = np.uint32(0x5BD1E995)


# --- varints ---------------------------------------------------------------------------------------------------


def read_varints(data: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """The zig-zag number at every position, and the positions after them. Raises IndexError or CorruptBatch."""
    byte = data[at]
    after = at + 1
    zigzag = (byte & 0x7F).astype(np.uint64)
    rest = np.flatnonzero(byte >= _MORE)
    shift = _BITS
    while rest.size:
        if shift > _VARLONG_BITS:
            raise CorruptBatch("varint longer than ten bytes")
        byte = data[after[rest]]
        after[rest] += 1
        zigzag[rest] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        rest = rest[byte >= _MORE]
        shift += _BITS
    return (zigzag >> np.uint64(1)).astype(np.int64) ^ -(zigzag & np.uint64(1)).astype(np.int64), after


class Varints:
    """A column of numbers, encoded: ``sizes`` in bytes, and the bytes in a table whose other cells mean nothing."""

    def __init__(self, values: Ints) -> None:
        rest = ((values << 1) ^ (values >> 63)).view(np.uint64)
        self.table: list[Bytes] = []
        self.used: list[Bools] = [np.ones(len(values), bool)]
        while True:
            low = (rest & np.uint64(0x7F)).astype(np.uint8)
            rest = rest >> np.uint64(_BITS)
            more = rest > 0
            self.table.append(low | more.astype(np.uint8) << np.uint8(_BITS))
            if not more.any():
                break
            self.used.append(more)
        self.sizes: Ints = np.sum(self.used, axis=0, dtype=np.int64)


def joined(*parts: Varints | bytes) -> Any:
    """Numbers, and bytes that are the same in every row, one after the other: an Arrow array of bytes."""
    rows = next(len(field.sizes) for field in parts if isinstance(field, Varints))
    table: list[Bytes] = []
    used: list[Bools] = []
    sizes = np.zeros(rows, np.int64)
    for field in parts:
        if isinstance(field, bytes):
            table += [np.full(rows, byte, np.uint8) for byte in field]
            used += [np.ones(rows, bool)] * len(field)
            sizes += len(field)
        else:
            table += field.table
            used += field.used
            sizes += field.sizes
    flat = np.stack(table, axis=1)[np.stack(used, axis=1)]
    return binary(flat, np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)]))


# --- Arrow -----------------------------------------------------------------------------------------------------


def binary(data: Bytes | bytes, bounds: Ints) -> Any:
    """An Arrow array of bytes: value i lies in ``data`` from ``bounds[i]`` to ``bounds[i + 1]``. Nothing is copied."""
    offsets = pyarrow.py_buffer(bounds.astype(np.int32))
    return pyarrow.Array.from_buffers(pyarrow.binary(), len(bounds) - 1, [None, offsets, pyarrow.py_buffer(data)])


def bounds_of(array: Any) -> Ints:
    """Where the values of an Arrow array of bytes begin in its data, and at last where the last one ends."""
    offsets = np.frombuffer(array.buffers()[1], np.int32)
    return offsets[array.offset : array.offset + len(array) + 1].astype(np.int64)


def data_of(array: Any) -> Bytes:
    """The data of an Arrow array of bytes, as ``bounds_of`` counts it."""
    buffer = array.buffers()[2]
    return np.frombuffer(b"" if buffer is None else buffer, np.uint8)


def present(array: Any) -> Bools:
    """Which values of an Arrow array are not null."""
    if not array.null_count:
        return np.ones(len(array), bool)
    validity: Bools = array.is_valid().to_numpy(zero_copy_only=False)
    return validity


def ints(array: Any, otherwise: int = 0) -> Ints:
    """The numbers of an Arrow array; ``otherwise`` for null."""
    numbers: Ints = array.fill_null(otherwise).to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers


# --- murmur2 ---------------------------------------------------------------------------------------------------


def murmur2s(keys: Any) -> npt.NDArray[np.int64]:
    """The hash of every key of an Arrow array, without its sign bit; of a null, that of the empty key."""
    bounds, data = bounds_of(keys), data_of(keys)
    begin, sizes = bounds[:-1], np.diff(bounds)
    state = _SEED ^ sizes.astype(np.uint32)
    words = sizes >> 2
    rows = np.flatnonzero(words)
    for index in range(int(words.max(initial=0))):
        rows = rows[words[rows] > index]
        at = begin[rows] + 4 * index
        word = _byte(data, at, 0) | _byte(data, at + 1, 8) | _byte(data, at + 2, 16) | _byte(data, at + 3, 24)
        word *= _M
        word = (word ^ word >> np.uint32(24)) * _M
        state[rows] = state[rows] * _M ^ word
    rest = sizes & 3
    for count in (1, 2, 3):
        rows = np.flatnonzero(rest == count)
        at = begin[rows] + 4 * words[rows]
        tail = np.zeros(len(rows), np.uint32)
        for index in range(count):
            tail |= _byte(data, at + index, 8 * index)
        state[rows] = (state[rows] ^ tail) * _M
    state = (state ^ state >> np.uint32(13)) * _M
    state ^= state >> np.uint32(15)
    return (state & np.uint32(0x7FFFFFFF)).astype(np.int64)


def _byte(data: Bytes, at: Ints, shift: int) -> npt.NDArray[np.uint32]:
    return data[at].astype(np.uint32) << np.uint32(shift)
