"""Spark: topics as a source, and a sink that writes each micro-batch exactly once.

The only package that imports pyspark, and only when one of its names is used: a pipeline can be declared, explained and
managed where Spark is not installed. ``einmal.commit_protocol`` decides, this package performs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from einmal.extras import explained

if TYPE_CHECKING:
    from einmal.options.values import OptionError
    from einmal.pipeline.errors import (
        BatchLost,
        PipelineError,
        PipelineFailed,
        PipelineFenced,
        PipelineRefused,
        PreflightFailed,
    )
    from einmal.spark.api.batch import BatchWriter, Written, write
    from einmal.spark.api.program import pipeline
    from einmal.spark.api.sink import StreamWriter, write_stream
    from einmal.spark.decoding.decode import decode
    from einmal.spark.environment.spark_session import session
    from einmal.spark.errors import SparkUnsupported
    from einmal.spark.protocol.query import PipelineQuery
    from einmal.spark.writer.data_source import register

__all__ = [
    "BatchWriter",
    "BatchLost",
    "StreamWriter",
    "OptionError",
    "PipelineError",
    "PipelineFailed",
    "PipelineFenced",
    "PipelineQuery",
    "PipelineRefused",
    "PreflightFailed",
    "SparkUnsupported",
    "Written",
    "decode",
    "pipeline",
    "register",
    "session",
    "write",
    "write_stream",
]

_LATER: Final = {
    "BatchWriter": "spark.api.batch",
    "Written": "spark.api.batch",
    "write": "spark.api.batch",
    "BatchLost": "pipeline.errors",
    "StreamWriter": "spark.api.sink",
    "OptionError": "options.values",
    "PipelineError": "pipeline.errors",
    "PipelineFailed": "pipeline.errors",
    "PipelineFenced": "pipeline.errors",
    "PipelineQuery": "spark.protocol.query",
    "PipelineRefused": "pipeline.errors",
    "PreflightFailed": "pipeline.errors",
    "SparkUnsupported": "spark.errors",
    "decode": "spark.decoding.decode",
    "pipeline": "spark.api.program",
    "register": "spark.writer.data_source",
    "session": "spark.environment.spark_session",
    "write_stream": "spark.api.sink",
}
_WITHOUT_SPARK: Final = ("spark.errors", "pipeline.errors", "options.values")


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with explained():
        if _LATER[name] not in _WITHOUT_SPARK:
            import_module(f"{__name__}.environment.spark_version").require_spark()
        return getattr(import_module(f"einmal.{_LATER[name]}"), name)


def __dir__() -> list[str]:
    return __all__
