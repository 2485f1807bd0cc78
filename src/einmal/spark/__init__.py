"""Spark: topics as a source, and a sink that writes each micro-batch exactly once.

The only room that imports pyspark. ``einmal.pipeline`` decides, this room performs.
"""

from einmal.spark.errors import PipelineError, PipelineFailed, PipelineFenced, PipelineRefused, PreflightFailed
from einmal.spark.options import OptionError
from einmal.spark.query import PipelineQuery
from einmal.spark.session import register, session
from einmal.spark.sink import KafkaStreamWriter, write_stream

__all__ = [
    "KafkaStreamWriter",
    "OptionError",
    "PipelineError",
    "PipelineFailed",
    "PipelineFenced",
    "PipelineQuery",
    "PipelineRefused",
    "PreflightFailed",
    "register",
    "session",
    "write_stream",
]
