"""Items of a request that one decision is about, without those that the sender may not touch.

Both are put together again in the answer, in the order of the request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from einmal.broker.front.context import RequestContext
from einmal.types import ErrorCode

T = TypeVar("T")
R = TypeVar("R")


class PermittedItems(Generic[T]):
    """``items``: each with the error for this sender, None: there is none."""

    def __init__(self, items: Sequence[tuple[T, ErrorCode | None]]) -> None:
        self._items = items
        self.permitted = [item for item, refused in items if refused is None]

    def __iter__(self) -> Iterator[tuple[T, ErrorCode | None]]:
        return iter(self._items)

    def merge(self, results: Iterable[R], refuse: Callable[[T, ErrorCode], R]) -> list[R]:
        """A result for each item. ``results``: of the permitted ones, in their order."""
        remaining = iter(results)
        return [next(remaining) if refused is None else refuse(item, refused) for item, refused in self._items]


async def permitted_items(
    context: RequestContext, items: Iterable[T], refusal_of: Callable[[T], ErrorCode | None]
) -> PermittedItems[T]:
    """Ask for each item."""
    return PermittedItems([(item, refusal_of(item)) async for item in context.paced(items)])
