"""``--spark MASTER``: a Spark session for a command whose records tasks read and write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from einmal.cli.commands.run import pipeline_failures_reported, quiet_py4j
from einmal.cli.printing.waiting import waiting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def spark_session(
    app_name: str, name: str, master: str, config: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Ended with the block. ``name``: in messages. What goes wrong with Spark is reported, and ends the command."""
    with pipeline_failures_reported(Path(name)):
        from einmal.spark.environment.spark_version import require_spark

        require_spark()
        from einmal.spark import session

        quiet_py4j()
        with waiting(f"{name}: starting Spark"):
            spark = session(app_name, master=master, config=config)
        try:
            yield spark
        finally:
            # A JVM that has died cannot be stopped.
            with suppress(Exception):
                spark.stop()
