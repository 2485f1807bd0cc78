"""Makes ``format("einmal")`` known to every Spark session: Spark looks for data sources in packages ``pyspark_*``.

One that cannot be imported would take every other data source of the session with it.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource

try:
    from einmal.spark.environment.spark_version import require_spark

    require_spark()
    from einmal.spark.source.source import KafkaDataSource as DefaultSource
except ImportError as error:
    _reason = str(error)

    class DefaultSource(DataSource):  # type: ignore[no-redef]
        """Answers with why there is no source."""

        def __init__(self, options: Any) -> None:
            raise ImportError(_reason)

        @classmethod
        def name(cls) -> str:
            return "einmal"


__all__ = ["DefaultSource"]
