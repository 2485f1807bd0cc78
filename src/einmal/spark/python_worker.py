"""What a Python worker of Spark's keeps from task to task.

Spark uses a worker again for the next task, and runs a full garbage collection between two. With all the modules that a
worker has imported that takes longer than a task with few records. Connections are kept too: in a small batch finding
out where a partition's leader is takes longer than reading from it.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Final

from einmal.client import RangeReader

_KEPT_MAX: Final = 4
_readers: dict[tuple[tuple[str, str], ...], RangeReader] = {}


@cache
def settle() -> None:
    """To be called by each task, once everything is imported: collections do not look at the modules any more."""
    gc.freeze()


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
