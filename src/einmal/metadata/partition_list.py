"""The partitions of a topic as a value that is cheap to change: ten thousand of them change one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final, Generic, TypeVar, overload

T = TypeVar("T")

_CHUNK: Final = 128
"""A change copies so many neighbours, not the topic: ten thousand changes of one topic were quadratic, and the broker
was fenced meanwhile."""


class PartitionList(Sequence[T], Generic[T]):
    """By partition id. Immutable: ``with_appended`` and ``with_replaced`` return a list that shares most of it."""

    __slots__ = ("_chunks", "_length")

    def __init__(self, items: Sequence[T] = ()) -> None:
        self._chunks: tuple[tuple[T, ...], ...] = tuple(
            tuple(items[start : start + _CHUNK]) for start in range(0, len(items), _CHUNK)
        )
        self._length = len(items)

    @classmethod
    def _of(cls, chunks: tuple[tuple[T, ...], ...], length: int) -> PartitionList[T]:
        made: PartitionList[T] = cls.__new__(cls)
        made._chunks, made._length = chunks, length
        return made

    def with_appended(self, item: T) -> PartitionList[T]:
        if not self._length % _CHUNK:
            return self._of((*self._chunks, (item,)), self._length + 1)
        return self._of((*self._chunks[:-1], (*self._chunks[-1], item)), self._length + 1)

    def with_replaced(self, index: int, item: T) -> PartitionList[T]:
        """``index`` counts from the start."""
        number, slot = divmod(index, _CHUNK)
        chunk = self._chunks[number]
        changed = (*chunk[:slot], item, *chunk[slot + 1 :])
        return self._of((*self._chunks[:number], changed, *self._chunks[number + 1 :]), self._length)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        return chain.from_iterable(self._chunks)

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...

    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        if isinstance(index, slice):
            return tuple(self)[index]
        if index < 0:
            index += self._length
        number, slot = divmod(index, _CHUNK)
        return self._chunks[number][slot]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PartitionList):
            return self._chunks == other._chunks
        return isinstance(other, tuple) and tuple(self) == other

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))
