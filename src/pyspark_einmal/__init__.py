"""Makes ``format("einmal")`` known to every Spark session: Spark looks for data sources in packages ``pyspark_*``.

One that cannot be imported would take every other data source of the session with it. The source is imported when it is
asked for: ``daemon`` starts workers that read no topic, too.
"""

from __future__ import annotations

from typing import Any

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> Any:
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from einmal.spark.environment.spark_version import require_spark

        require_spark()
        from einmal.spark.writer.data_source import EinmalDataSource
    except ImportError as error:
        return _unavailable(str(error))
    return EinmalDataSource


def _unavailable(reason: str) -> type[Any]:
    from pyspark.sql.datasource import DataSource

    class Unavailable(DataSource):
        """Answers with why there is no source."""

        def __init__(self, options: Any) -> None:
            raise ImportError(reason)

        @classmethod
        def name(cls) -> str:
            return "einmal"

    return Unavailable
