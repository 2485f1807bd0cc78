"""A Spark session with defaults that suit exactly-once pipelines on one machine, and nothing hidden.

Every default is a Spark setting that the caller can overrule. State stores are RocksDB with checkpoint format 2: only
there does Spark's commit file name the state of the committed attempt (SPARK-51714), which the sink depends on to keep
state and output together. A session of the user's own works too: Spark finds the source by ``pyspark_einmal``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession

from einmal.pipeline.errors import PipelineRefused
from einmal.security.properties import parse_properties
from einmal.spark.environment import class_archive
from einmal.spark.environment.cache import kept
from einmal.spark.environment.interpreter import worker_python
from einmal.spark.environment.java import use_java
from einmal.spark.environment.plans.plan_redaction import redact_plans
from einmal.spark.environment.temporary_folder import temporary_folder
from einmal.spark.errors import reason_of

_CONNECT: Final = "this session is Spark Connect, whose driver runs elsewhere: "
_CLASSIC: Final = (
    "run the program with spark-submit, or with the address of a Spark master (spark://, yarn, k8s://, local[*]); over "
    'Connect, format("einmal") of Spark\'s own readers and writers reads and writes topics'
)
_STATE_STORE: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_DEFAULTS: Final = {
    "spark.sql.streaming.stateStore.providerClass": _STATE_STORE,
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    # Adaptive execution does not work on streams with state, and Spark warns of it in every start.
    "spark.sql.adaptive.enabled": "false",
}
_LOCAL_DEFAULTS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Without these Spark guesses an address from the host's name, which may be one it cannot reach.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_FOLDER_MAX: Final = 62
"""Bytes of the directory for Unix domain sockets. The path of one may have some hundred, and Spark's names have 42."""
_QUICK: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")
"""Less than half the CPU of a short program goes into compiling then."""
JVM_LOG: Final = ("-Xlog:disable", "-Xlog:all=warning:stderr")
"""By default the JVM writes its warnings to stdout, between the lines of a program's output."""
_LOG4J: Final = """\
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
# Its level is what Spark would otherwise announce on every start, as the one it falls back to.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
# What ends a query is raised by awaitTermination; here it would be printed a second time, with every Java frame.
logger.streaming.name = org.apache.spark.sql.execution.streaming
logger.streaming.level = off
# A task that fails is named in the error that ends its batch.
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = off
"""


def session(
    app_name: str = "einmal",
    *,
    master: str | None = None,
    config: Mapping[str, Any] | None = None,
    quiet: bool = True,
    quick: bool = False,
) -> SparkSession:
    """The running session, or a new one: on ``master`` (default: ``spark.master``, else all cores of this machine).

    ``config`` holds Spark settings. They win over those of spark-submit (else of ``spark-defaults.conf``), and these
    over the defaults, which only a new session gets. ``quiet`` keeps PySpark from logging what it raises, and on a
    local master Spark's log to errors. On a local master ``quick`` is for programs that end within minutes: the JVM
    starts sooner and never compiles for peak speed. Java is found by ``einmal.spark.environment.java``; Python workers
    run this interpreter. Raises JavaMissing, and PipelineRefused for Spark Connect.
    """
    wanted = {name: str(value) for name, value in (config or {}).items()}
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    # A session that runs keeps what it was made with.
    is_new = SparkSession.getActiveSession() is None
    given: dict[str, str] = {}
    if is_new:
        given = _settings_of_the_jvm() if is_submitted else _settings_of_the_file()
    master = master or wanted.pop("spark.master", None) or given.get("spark.master") or "local[*]"
    if master.startswith("sc://") or os.environ.get("SPARK_REMOTE"):
        raise PipelineRefused(
            f"{_CONNECT}session() makes one with a driver in this process, which the sink needs",
            f"SparkSession.builder.remote(...) makes one of Spark Connect; or {_CLASSIC}",
        )
    settings = {}
    if is_new:
        if not is_submitted:
            use_java(vector_module=not (master.startswith("local") and quiet))
            if _JAVA_OPTIONS in given:
                # Together with ours. A JVM that runs has its options.
                wanted.setdefault(_JAVA_OPTIONS, given.pop(_JAVA_OPTIONS))
        defaults = _defaults(master, wanted, quiet=quiet, quick=quick)
        settings = {name: value for name, value in defaults.items() if name not in given}
    if quiet:
        _quiet_python()
    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in (settings | wanted).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    redact_plans(spark)
    return spark


def _settings_of_the_jvm() -> dict[str, str]:
    """Where spark-submit has started this program: its options, and its ``spark-defaults.conf``."""
    SparkContext._ensure_initialized()
    return dict(SparkConf().getAll())


def _settings_of_the_file() -> dict[str, str]:
    """Those that Spark takes from ``spark-defaults.conf``, and would let a builder's overrule, such as our defaults."""
    home = os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
    file = Path(os.environ.get("SPARK_CONF_DIR") or Path(home, "conf"), "spark-defaults.conf")
    try:
        values = parse_properties(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise PipelineRefused(f"{file} cannot be read: {error}", "correct the file, or unset SPARK_CONF_DIR") from error
    return {name: value.strip() for name, value in values.items() if name.startswith("spark.")}


def is_classic(spark: SparkSession) -> bool:
    """False for a session of Spark Connect, which has no JVM here."""
    return hasattr(spark, "_jvm")


def make_active(spark: SparkSession) -> None:
    """Make the session the active one of the calling thread, as ``createDataFrame`` does."""
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.SparkSession.setActiveSession(spark._jsparkSession)


def require_classic_session(frame: DataFrame, why: str) -> None:
    """Raises PipelineRefused for a frame of Spark Connect. ``why``: what a driver elsewhere prevents."""
    if not is_classic(frame.sparkSession):
        raise PipelineRefused(_CONNECT + why, _CLASSIC)


def connection_of(spark: SparkSession) -> object:
    """PySpark's connection to the JVM: one for all sessions of an application, also those that follow a stopped one."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None, "a session without a JVM"
    return gateway


def cores_of(spark: SparkSession) -> int:
    """Tasks that can run at the same time. Raises PipelineRefused if Spark has ended."""
    try:
        return max(1, spark.sparkContext.defaultParallelism)
    except Exception as error:
        if is_alive(spark):
            raise
        raise ended(error) from error


def is_alive(spark: SparkSession) -> bool:
    """False once its JVM has ended, or was stopped."""
    try:
        return not spark.sparkContext._jsc.sc().isStopped()
    except Exception:  # noqa: BLE001 - py4j's errors, or no context any more
        return False


def ended(error: Exception) -> PipelineRefused:
    """For an error of a session that is not alive."""
    return PipelineRefused(f"Spark has ended: {reason_of(error)}", "start it again: it resumes at its last commit")


def _defaults(master: str, wanted: dict[str, str], *, quiet: bool, quick: bool) -> dict[str, str]:
    """The settings of a new session. Moves Java's options from ``wanted`` into them, behind ours."""
    local = master.startswith("local")
    # The script of worker_python is on this machine only.
    python = worker_python() if local else sys.executable
    os.environ.setdefault("PYSPARK_PYTHON", python)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", python)
    settings = dict(_DEFAULTS)
    if local:
        settings |= _LOCAL_DEFAULTS
        folder = temporary_folder()
        if os.environ["PYSPARK_PYTHON"] == python != sys.executable:
            settings |= _unix_sockets(folder)
        settings["spark.sql.shuffle.partitions"] = str(_cores(master))
        options = [*JVM_LOG, *class_archive.options(), f'-Djava.io.tmpdir="{folder}"']
        if quiet:
            options.append(f"-Dlog4j2.configurationFile={kept('spark-log4j2-{}.properties', _LOG4J).as_uri()}")
        if quick:
            options += _QUICK
        # Together with the caller's, which come last and win.
        options.append(wanted.pop(_JAVA_OPTIONS, ""))
        settings[_JAVA_OPTIONS] = " ".join(options)
    return settings


def _unix_sockets(folder: Path) -> dict[str, str]:
    """Over TCP each hand-over from the JVM to a Python worker may take 40 ms, because the JVM sends in pieces and holds
    one back for a delayed acknowledgement. With PySpark's own daemon, a batch that is stopped would print tracebacks
    over Unix domain sockets."""
    if len(os.fsencode(folder)) > _FOLDER_MAX:
        return {}
    return {"spark.python.unix.domain.socket.enabled": "true", "spark.python.unix.domain.socket.dir": str(folder)}


def _quiet_python() -> None:
    """PySpark logs an error that it raises a second time, as one line of JSON with every frame of Java."""
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


def _cores(master: str) -> int:
    number = master.removeprefix("local[").split(",")[0].rstrip("]")
    return int(number) if number.isdecimal() else (os.cpu_count() or 1) if number == "*" else 1
