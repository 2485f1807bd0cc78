"""What a Python worker of Spark's keeps from task to task, and how it answers on the driver's machine.

Spark uses a worker again for the next task, and runs a full garbage collection between two. With all the modules that a
worker has imported that takes longer than a task with few records. Connections are kept too: in a small batch finding
out where a partition's leader is takes longer than reading from it.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any, Final, TypeVar

from einmal.client import RangeReader

AnyT = TypeVar("AnyT")

_HIDE_TRACEBACK: Final = "SPARK_HIDE_TRACEBACK"
"""What PySpark's workers ask the environment for."""
_KEPT_MAX: Final = 4
_readers: dict[tuple[tuple[str, str], ...], RangeReader] = {}


@cache
def settle() -> None:
    """To be called by each task, once everything is imported: collections do not look at the modules any more."""
    gc.freeze()


def answered(*errors: type[Exception]) -> Callable[[Callable[..., AnyT]], Callable[..., AnyT]]:
    """For methods that Spark calls while it plans: these errors are for the user, who gets them without our frames."""

    def decorate(method: Callable[..., AnyT]) -> Callable[..., AnyT]:
        @wraps(method)
        def call(*arguments: Any, **keywords: Any) -> AnyT:
            try:
                return method(*arguments, **keywords)
            except errors:
                main = sys.modules["__main__"].__spec__
                if main is not None and main.name.startswith("pyspark."):
                    # This process is a worker, and ends with its error.
                    os.environ[_HIDE_TRACEBACK] = "1"
                raise

        return call

    return decorate


@contextmanager
def range_reader(client: Mapping[str, str]) -> Iterator[RangeReader]:
    """A reader with these settings, perhaps one that an earlier task has used; after an error it is not kept."""
    settings = tuple(sorted(client.items()))
    reader = _readers.pop(settings, None) or RangeReader(dict(client))
    try:
        yield reader
    except BaseException:
        reader.close()
        raise
    while len(_readers) >= _KEPT_MAX:
        _readers.pop(next(iter(_readers))).close()
    _readers[settings] = reader
