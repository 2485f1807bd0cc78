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
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pyspark

from einmal.spark.environment.cache import cache_directory, is_private
from einmal.spark.environment.java import classes_of, use_java

_BUILD_S: Final = 300.0
_SILENT: Final = ("-Xlog:cds*=off:stdout", "-Xlog:cds*=off:stderr")
"""The JVM warns of an archive that does not fit, wherever it writes its warnings; nobody can do anything about it."""
_PROGRAM: Final = """
import sys
from einmal.spark import session
spark = session("einmal-classes", master="local[2]", quick=True, config={
    "spark.driver.extraJavaOptions": "-XX:ArchiveClassesAtExit=" + sys.argv[1] + " " + sys.argv[3],
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
    """Where the archive of this process's Java (``use_java``) and Spark is, or would be.

    The JVM refuses an archive once a file that it was made from has another size or time, as after a new installation
    into the same directory: the name ends with both, after the location.
    """
    return cache_directory() / f"spark-classes-{_digest(_locations())}-{_digest(map(_state, _sources()))}.jsa"


def options() -> list[str]:
    """JVM options that use the archive; none where there is none, or another user could have written it."""
    path = archive()
    return [f"-XX:SharedArchiveFile={path}", *_SILENT] if is_private(path) else []


def build() -> Path | None:
    """Make the archive where it is missing; None where this Java cannot. Raises CalledProcessError, TimeoutExpired."""
    path = archive()
    if not is_private(path) and not _make(path):
        return None
    # Archives of what was installed here before. A JVM that has mapped one keeps it.
    for other in path.parent.glob(f"spark-classes-{_digest(_locations())}-*.jsa"):
        if other != path:
            other.unlink(missing_ok=True)
    return path


def _make(path: Path) -> bool:
    with tempfile.TemporaryDirectory(dir=path.parent) as directory:
        made = Path(directory, path.name)
        command = [sys.executable, "-c", _PROGRAM, str(made), str(Path(directory, "checkpoint")), " ".join(_SILENT)]
        subprocess.run(command, check=True, timeout=_BUILD_S, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        if made.exists():
            made.replace(path)
    return path.exists()


def _locations() -> list[str]:
    return [os.environ["JAVA_HOME"], str(Path(pyspark.__file__).parent)]


def _sources() -> list[Path]:
    """Two files stand for all, because they are installed with the others: Java's classes and Spark's own jar."""
    java_home, spark = map(Path, _locations())
    return [classes_of(java_home), *spark.glob("jars/spark-core_*.jar")]


def _state(path: Path) -> str:
    try:
        status = path.stat()
    except FileNotFoundError:
        return ""
    return f"{status.st_size}:{status.st_mtime_ns}"


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256(":".join(parts).encode()).hexdigest()[:16]


if __name__ == "__main__":
    # As the sessions that use it.
    use_java(vector_module=False)
    build()
