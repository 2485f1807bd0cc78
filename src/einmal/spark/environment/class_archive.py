"""Spark's classes, loaded once and kept: a JVM that maps them starts in half the time.

The JVM can write the classes that it has loaded into an archive when it ends, and map that archive when it starts
(class data sharing). ``python -m einmal.spark.environment.class_archive`` makes one for this Java and this Spark,
which takes some 20 s; sessions on a local master use it where it is there. An archive that does not fit is ignored by
the JVM.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from einmal.spark.environment.cache import cache_directory

_BUILD_S: Final = 300.0
_PROGRAM: Final = """
import sys
from einmal.spark import session
spark = session("einmal-classes", master="local[2]", quick=True, config={
    "spark.driver.extraJavaOptions": "-XX:ArchiveClassesAtExit=" + sys.argv[1] + " -Xlog:cds=off -Xlog:cds+dynamic=off",
    "spark.sql.shuffle.partitions": 1})
numbers = spark.readStream.format("rate").load().groupBy("value").count()
query = numbers.writeStream.foreachBatch(lambda frame, _: frame.mapInArrow(lambda rows: rows, frame.schema).collect())
query = query.outputMode("update").option("checkpointLocation", sys.argv[2]).trigger(availableNow=True).start()
query.awaitTermination()
spark.stop()
# The JVM ends, and writes, when its standard input does.
gateway = spark.sparkContext._gateway
gateway.proc.stdin.close()
gateway.proc.wait()
"""


def archive() -> Path:
    """Where the archive of this process's Java and Spark is, or would be."""
    import pyspark

    about = f"{os.environ.get('JAVA_HOME')}:{Path(pyspark.__file__).parent}:{pyspark.__version__}"
    return cache_directory() / f"spark-classes-{hashlib.sha256(about.encode()).hexdigest()[:16]}.jsa"


def options() -> list[str]:
    """JVM options that use the archive; none where there is none."""
    path = archive()
    return [f"-XX:SharedArchiveFile={path}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"] if path.exists() else []


def build() -> Path | None:
    """Make the archive where it is missing; None where this Java cannot. Raises CalledProcessError, TimeoutExpired."""
    path = archive()
    if path.exists():
        return path
    with tempfile.TemporaryDirectory(dir=path.parent) as directory:
        made = Path(directory, path.name)
        command = [sys.executable, "-c", _PROGRAM, str(made), str(Path(directory, "checkpoint"))]
        subprocess.run(command, check=True, timeout=_BUILD_S, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        if not made.exists():
            return None
        made.replace(path)
    return path


if __name__ == "__main__":
    from einmal.spark.environment.java import use_java

    # As the sessions that use it.
    use_java(vector_module=False)
    build()
