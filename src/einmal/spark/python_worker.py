"""What a Python worker of Spark's keeps from task to task.

Spark uses a worker again for the next task, and runs a full garbage collection between two. With all the modules that a
worker has imported that takes longer than a task with few records.
"""

from __future__ import annotations

import gc
from functools import cache


@cache
def settle() -> None:
    """To be called by each task, once everything is imported: collections do not look at the modules any more."""
    gc.freeze()
