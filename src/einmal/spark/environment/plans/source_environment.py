"""The environment of a Python data source's workers, which all queries that read the source share.

Spark keeps it in one ``java.util.HashMap`` per data source. When a query starts, the thread of that query puts four
variables into it (``PythonStreamingSourceRunner.init``), without a lock. If several queries start at the same instant,
two of them may add one key: the map then counts more entries than it holds. Every task is sent with this map, so from
then on every task of this JVM fails with OptionalDataException, until the program is started again.

So the keys are added before, under a lock: Spark then replaces values, which does not change the map's structure. A
release of Spark that keeps the environment elsewhere is left alone, and that is logged.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession

from einmal.event_log import EventLog
from einmal.spark.environment.plans.plan_nodes import kind_of, plan_nodes

_KEYS: Final = ("SPARK_LOCAL_DIRS", "SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE", "SPARK_PYTHON_RUNTIME")
"""Spark sets each of them again, for every worker that it starts."""
_lock: Final = threading.Lock()
_logger = EventLog(__name__)


def share_environments(frame: DataFrame) -> None:
    """Add the keys for every Python source of a streaming query; to be called before it starts."""
    with _where_spark_has_it():
        for node in plan_nodes(frame):
            if kind_of(node) == "StreamingRelationV2" and node.source().isDefined():
                provider = node.source().get()
                if kind_of(provider) == "PythonDataSourceV2":
                    _add_keys(provider.source())


def share_environment(spark: SparkSession, name: str) -> None:
    """Add the keys for a data source that the session knows by this name."""
    with _where_spark_has_it():
        _add_keys(spark._jsparkSession.sessionState().dataSourceManager().lookupDataSource(name))


@contextmanager
def _where_spark_has_it() -> Iterator[None]:
    try:
        yield
    except Py4JError as error:
        unknown = "start queries one after the other: the environment of their sources is not found (%(error)s)"
        _logger.warning("source_environment_unknown", unknown, error=error)


def _add_keys(source: Any) -> None:
    environment = source.dataSourceCls().envVars()
    with _lock:
        for key in _KEYS:
            environment.putIfAbsent(key, "")
