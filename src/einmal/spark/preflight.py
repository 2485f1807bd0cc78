"""What must be there before a query starts, looked at all at once: one error lists everything that is missing."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession

from einmal.client.errors import KafkaError
from einmal.pipeline.commit_record import COMMIT_TOPIC
from einmal.spark.checkpoint import Checkpoint
from einmal.spark.cluster import KafkaCluster
from einmal.spark.commit_log import PARTITIONS, TOPIC_CONFIG
from einmal.spark.errors import PipelineRefused, PreflightFailed
from einmal.spark.execution import FORMAT_SETTING, SparkInternalsMissing, operator_class, state_format
from einmal.spark.options import EXACTLY_ONCE, OptionError, SinkOptions, WriteOptions
from einmal.spark.routing import check_columns

Missing = list[tuple[str, str]]


def preflight(
    spark: SparkSession,
    frame: DataFrame,
    options: SinkOptions,
    cluster: KafkaCluster,
    checkpoint: Checkpoint,
    *,
    stateful: bool,
    transforms: bool,
) -> None:
    """Raises PreflightFailed. ``transforms``: the columns are made batch by batch, and cannot be looked at yet."""
    missing: Missing = []
    if not transforms:
        _note(missing, lambda: check_columns(frame.schema, options.topic))
    if _is_reachable(missing, cluster, options):
        if options.topic is not None:
            _note(missing, lambda: _check_topic(cluster, options.topic or ""))
        if options.guarantee == EXACTLY_ONCE:
            _note(missing, lambda: _check_commit_topic(cluster))
            _note(missing, lambda: _check_broker(cluster))
    if options.guarantee == EXACTLY_ONCE and stateful:
        _note(missing, lambda: _check_state(spark, checkpoint))
    if missing:
        raise PreflightFailed(missing)


def preflight_write(frame: DataFrame, options: WriteOptions, cluster: KafkaCluster) -> None:
    """As ``preflight``, for a batch write. Raises PreflightFailed."""
    missing: Missing = []
    _note(missing, lambda: check_columns(frame.schema, options.topic))
    if _is_reachable(missing, cluster, options):
        if options.topic is not None:
            _note(missing, lambda: _check_topic(cluster, options.topic or ""))
        _note(missing, lambda: _check_commit_topic(cluster))
        _note(missing, lambda: _check_broker(cluster))
    if missing:
        raise PreflightFailed(missing, "the batch cannot be written")


def _note(missing: Missing, check: Callable[[], None]) -> None:
    try:
        check()
    except PipelineRefused as error:
        missing.append((error.reason, error.hint))
    except (KafkaError, OptionError, SparkInternalsMissing) as error:
        what, _, hint = str(error).partition("\nhint: ")
        missing.append((what, hint))


def _is_reachable(missing: Missing, cluster: KafkaCluster, options: SinkOptions | WriteOptions) -> bool:
    try:
        cluster.cluster_id()
    except KafkaError as error:
        servers = options.client["bootstrap.servers"]
        missing.append((f"no broker answers at {servers}: {error}", "start it, or mend kafka.bootstrap.servers"))
        return False
    return True


def _check_topic(cluster: KafkaCluster, topic: str) -> None:
    try:
        cluster.partition_count(topic)
    except KafkaError as error:
        raise PipelineRefused(
            f"topic {topic!r}: {error}", "create the topic; this cluster does not create it on demand"
        ) from error


def _check_commit_topic(cluster: KafkaCluster) -> None:
    cluster.create_topic(COMMIT_TOPIC, PARTITIONS, TOPIC_CONFIG)
    cluster.partition_count(COMMIT_TOPIC)
    policy = cluster.topic_setting(COMMIT_TOPIC, "cleanup.policy")
    if policy is not None and policy != "compact":
        raise PipelineRefused(
            f"topic {COMMIT_TOPIC!r} has cleanup.policy={policy}: commit records would be deleted with time",
            f"set cleanup.policy=compact on {COMMIT_TOPIC}",
        )


def _check_broker(cluster: KafkaCluster) -> None:
    if not cluster.refuses_late_writes():
        raise PipelineRefused(
            "the brokers do not refuse writes that come after their transaction has ended (KIP-890, since Kafka 3.6): "
            "a late request of a dead task could be committed with a later batch",
            "use brokers of Kafka 3.6 or later, or processing.guarantee=at_least_once",
        )


def _check_state(spark: SparkSession, checkpoint: Checkpoint) -> None:
    operator_class(spark)
    latest = checkpoint.latest_committed()
    if latest is None:
        return
    text = checkpoint.commit_text(latest) or ""
    version = text.partition("\n")[0]
    if version not in ("v1", "v2"):
        raise PipelineRefused(
            f"{checkpoint.name}/commits/{latest} has format {version!r}, known are v1 and v2",
            "this einmal does not know that format of Spark's: use a Spark that it was tested with",
        )
    if version != f"v{state_format(spark)}":
        raise PipelineRefused(
            f"the checkpoint's state has format {version}, this session writes v{state_format(spark)}",
            f"set {FORMAT_SETTING}={version[1:]}",
        )
