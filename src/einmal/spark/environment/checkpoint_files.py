"""How Spark writes the files of a query's checkpoint on a local file system: with fewer processes.

Without Hadoop's native library, Spark's default there (Hadoop's FileContext) starts eight processes for each file,
``chmod`` and ``readlink``: 40 to 60 ms, twice in every batch. Spark has another manager, which uses Hadoop's FileSystem
and starts three. Both write a temporary file and its checksum, check that there is no file under the final name, and
rename the two, the data first; neither flushes them. So a crash leaves the same files behind.

On HDFS and in object stores the two differ in what a rename may replace; Spark's choice is left to it there.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.sql import SparkSession

SETTING: Final = "spark.sql.streaming.checkpointFileManagerClass"
LOCAL_MANAGER: Final = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
_LOCAL: Final = "file:"
_starting: Final = threading.Lock()


@contextmanager
def local_checkpoint_files(spark: SparkSession, location: str) -> Iterator[None]:
    """A query that is started within writes its checkpoint with fewer processes, if ``location`` (a full URI) is on a
    local file system and the session does not name a manager. The query keeps the setting, the session does not."""
    if not location.startswith(_LOCAL):
        yield
        return
    # A query copies the settings of its session when it is started: two of them at once must not undo each other's.
    with _starting:
        if spark._jsparkSession.sessionState().newHadoopConf().get(SETTING) is not None:
            yield
            return
        spark.conf.set(SETTING, LOCAL_MANAGER)
        try:
            yield
        finally:
            spark.conf.unset(SETTING)
