"""The result of a method that is done at once: nothing, whether it is awaited or not.

Other asyncio clients have some of these methods as coroutines: ``await consumer.subscribe([...])`` works as well.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final


class DoneAtOnce:
    """Can be awaited, and does not wait."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


DONE: Final = DoneAtOnce()
