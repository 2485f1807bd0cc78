"""State that a Python worker of Spark's keeps from task to task, and how it answers on the driver's machine.

Spark uses a worker again for the next task, and runs a full garbage collection between two. With all the modules that a
worker has imported that takes longer than a task with few records. Connections are kept too: in a small batch finding
out where a partition's leader is takes longer than reading from it.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from itertools import count
from typing import Any, Final, TypeVar

from einmal.client import PartitionWriter, RangeReader

AnyT = TypeVar("AnyT")
ClosableT = TypeVar("ClosableT", RangeReader, PartitionWriter)
Settings = tuple[tuple[str, str], ...]

_HIDE_TRACEBACK: Final = "SPARK_HIDE_TRACEBACK"
"""Name of the variable that PySpark's workers ask the environment for."""
_SETTLING: Final = 4
_settled: Final = count()
_KEPT_MAX: Final = 4
_readers: dict[Settings, RangeReader] = {}
_writers: dict[Settings, PartitionWriter] = {}


def settle() -> None:
    """To be called by each task, once everything is imported: collections do not look at the modules any more.

    The first tasks import more while they run. Later ones leave nothing behind but what they have unpickled, which
    would stay for ever.
    """
    if next(_settled) < _SETTLING:
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
                if main is not None and main.name.startswith(("pyspark.", "pyspark_einmal.")):
                    # This process is a worker, and ends with its error.
                    os.environ[_HIDE_TRACEBACK] = "1"
                raise

        return call

    return decorate


def range_reader(client: Mapping[str, str]) -> AbstractContextManager[RangeReader]:
    """A reader with these settings, perhaps one that an earlier task has used; after an error it is not kept."""
    return _kept(_readers, RangeReader, client)


def partition_writer(client: Mapping[str, str]) -> AbstractContextManager[PartitionWriter]:
    """Like ``range_reader``. Call ``begin`` first and ``flush`` last."""
    return _kept(_writers, PartitionWriter, client)


@contextmanager
def _kept(
    there: dict[Settings, ClosableT], make: Callable[[dict[str, str]], ClosableT], client: Mapping[str, str]
) -> Iterator[ClosableT]:
    settings = tuple(sorted(client.items()))
    used = there.pop(settings, None) or make(dict(client))
    try:
        yield used
    except BaseException:
        used.close()
        raise
    if settings in there:
        # A use inside of this one has left its own.
        there.pop(settings).close()
    while len(there) >= _KEPT_MAX:
        there.pop(next(iter(there))).close()
    there[settings] = used
