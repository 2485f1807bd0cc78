"""Spark: topics as a source, and a sink that writes each micro-batch exactly once.

The only room that imports pyspark, and not before something of it is asked for: a pipeline can be declared, explained
and looked after where Spark is not installed. ``einmal.pipeline`` decides, this room performs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from einmal.spark.batch import KafkaBatchWriter, Written, write
    from einmal.spark.errors import (
        BatchLost,
        PipelineError,
        PipelineFailed,
        PipelineFenced,
        PipelineRefused,
        PreflightFailed,
        SparkUnsupported,
    )
    from einmal.spark.options import OptionError
    from einmal.spark.program import pipeline
    from einmal.spark.query import PipelineQuery
    from einmal.spark.sink import KafkaStreamWriter, write_stream
    from einmal.spark.spark_session import register, session

__all__ = [
    "KafkaBatchWriter",
    "BatchLost",
    "KafkaStreamWriter",
    "OptionError",
    "PipelineError",
    "PipelineFailed",
    "PipelineFenced",
    "PipelineQuery",
    "PipelineRefused",
    "PreflightFailed",
    "SparkUnsupported",
    "Written",
    "pipeline",
    "register",
    "session",
    "write",
    "write_stream",
]

_LATER: Final = {
    "KafkaBatchWriter": "batch",
    "Written": "batch",
    "write": "batch",
    "BatchLost": "errors",
    "KafkaStreamWriter": "sink",
    "OptionError": "options",
    "PipelineError": "errors",
    "PipelineFailed": "errors",
    "PipelineFenced": "errors",
    "PipelineQuery": "query",
    "PipelineRefused": "errors",
    "PreflightFailed": "errors",
    "SparkUnsupported": "errors",
    "pipeline": "program",
    "register": "spark_session",
    "session": "spark_session",
    "write_stream": "sink",
}
_WITHOUT_SPARK: Final = ("errors", "options")


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _LATER[name] not in _WITHOUT_SPARK:
        import_module(f"{__name__}.spark_version").require_spark()
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)


def __dir__() -> list[str]:
    return __all__
