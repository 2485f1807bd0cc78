"""Another Python process that drives the Spark application of this one, as tests of sinks have it."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def joining(spark: SparkSession) -> Callable[[], None]:
    """A function for the other process, which begins a session in the JVM of this one."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None, "a session without a JVM"
    return partial(_join, gateway.gateway_parameters.port, gateway.gateway_parameters.auth_token)


def _join(port: int, token: str) -> None:
    # As spark-submit starts one.
    os.environ |= {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": token}
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    gateway = launch_gateway()  # type: ignore[no-untyped-call]
    jvm: Any = gateway.jvm
    java = jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(
        jvm.org.apache.spark.SparkContext.getOrCreate()
    )
    conf = SparkConf(loadDefaults=False, _jvm=jvm, _jconf=java.getConf())
    SparkSession(SparkContext(gateway=gateway, jsc=java, conf=conf))
