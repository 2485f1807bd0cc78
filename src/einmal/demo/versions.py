"""Versions of the programs that only the demo has."""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path

from einmal.spark.environment.java import probe


def spark_versions() -> dict[str, str]:
    """Return Spark's, and that of the Java that it starts: ``JAVA_HOME`` is set by then."""
    runtime = probe(Path(os.environ.get("JAVA_HOME", ""), "bin", "java"))
    return {"Spark": version("pyspark"), "Java": "unknown" if runtime is None else str(runtime.version)}
