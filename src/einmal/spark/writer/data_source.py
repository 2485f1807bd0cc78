"""``format("einmal")`` as Spark finds it: the source, and the sink."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

from einmal.options.values import OptionError
from einmal.pipeline.errors import PipelineError
from einmal.spark.environment.plans.source_environment import share_environment
from einmal.spark.environment.python_worker import answered
from einmal.spark.environment.spark_session import is_classic, make_active
from einmal.spark.source.source import KafkaDataSource
from einmal.spark.writer.writer import KafkaBatchWriter, KafkaStreamWriter


class EinmalDataSource(KafkaDataSource):
    @answered(OptionError, PipelineError)
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return KafkaBatchWriter(self.options, schema, overwrite)

    @answered(OptionError)
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """``overwrite``: in the output mode "complete", whose rows are written as those of every other."""
        return KafkaStreamWriter(self.options, schema)


def register(spark: SparkSession) -> None:
    """Make ``format("einmal")`` known to a session, to read and to write, and the session to the calling thread.

    Spark finds them by itself where its Python has einmal installed (``pyspark_einmal``); this is for other sessions,
    and for programs that start queries again after errors. Spark looks once per JVM: if the Python worker that looks is
    killed, ``load`` answers DATA_SOURCE_NOT_FOUND for as long as the JVM lives, except for what is registered.

    Without it, queries of Spark's own ``writeStream`` that start at the same instant may break the JVM
    (``einmal.spark.environment.plans.source_environment``); those of ``write_stream`` do not need it.

    Call it in every thread that starts queries of ``writeStream.format("einmal")``: ``start`` looks for Python sinks in
    the active session of its thread, which a thread of Python's has not, and then answers DATA_SOURCE_NOT_FOUND.
    """
    spark.dataSource.register(EinmalDataSource)
    # A Connect server has einmal installed, too; nobody reaches into its JVM from here.
    if is_classic(spark):
        make_active(spark)
        share_environment(spark, EinmalDataSource.name())
