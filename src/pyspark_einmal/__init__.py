"""Makes ``format("einmal")`` known to every Spark session: Spark looks for data sources in packages ``pyspark_*``."""

from einmal.spark.source import KafkaDataSource as DefaultSource

__all__ = ["DefaultSource"]
