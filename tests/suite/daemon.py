"""Spark's daemon of Python workers for the session of the tests: its workers begin with all that tasks import.

Hundreds of workers of the tests, each a fork, would import Arrow, pandas and our sinks: most of what they compute. The
daemon of users loads nothing that starts a thread (``pyspark_einmal.daemon``); numpy and Arrow start one each, which
has nothing to do before the fork.
"""

from __future__ import annotations

import importlib
from typing import Final

from pyspark_einmal import daemon

_MODULES: Final = ("einmal.spark", "einmal.spark.api.sink", "einmal.spark.source.source", "pandas", "pyspark.worker")

if __name__ == "__main__":
    for module in _MODULES:
        importlib.import_module(module)
    daemon.main()
