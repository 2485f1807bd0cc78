"""Writes files of a checkpoint, one after the other, until it is killed: ``python -m ... DIRECTORY FIRST``.

Each file is written as Spark writes ``offsets/N``. Its number is printed once it is there.
"""

from __future__ import annotations

import itertools
import sys
from typing import Any

from pyspark.java_gateway import launch_gateway

from einmal.spark.environment.checkpoint_files import LOCAL_MANAGER
from einmal.spark.environment.java import use_java
from tests.spark.test_checkpoint_files import text_of


def main(directory: str, first: int) -> None:
    use_java(vector_module=False)
    gateway: Any = launch_gateway  # untyped
    jvm = gateway().jvm
    path = jvm.org.apache.hadoop.fs.Path
    package, _, name = LOCAL_MANAGER.rpartition(".")
    manager = getattr(getattr(jvm, package), name)(path(directory), jvm.org.apache.hadoop.conf.Configuration())
    for number in itertools.count(first):
        stream = manager.createAtomic(path(directory, str(number)), False)
        stream.write(text_of(number).encode())
        stream.close()
        print(number, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
