"""The preflight of a query: checks everything that it needs before it starts, and reports all problems in one error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from pyspark.errors import AnalysisException, IllegalArgumentException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from einmal.client.errors import FatalError, KafkaError
from einmal.clusters.kafka_cluster import KafkaCluster
from einmal.commit_protocol.commit_record import COMMIT_TOPIC, RESERVED_TOPICS
from einmal.event_log import EventLog
from einmal.options.sink import EXACTLY_ONCE, QueryOptions, SinkOptions, VersionOptions, WriteOptions
from einmal.options.source import fails_on_data_loss, reads_topic, topics_of
from einmal.options.values import OptionError, client_settings, reserved
from einmal.pipeline.errors import PipelineRefused, PreflightFailed
from einmal.sinks.commit_point import SinkError
from einmal.sinks.kafka.commit_log import PARTITIONS, TOPIC_CONFIG
from einmal.sinks.kafka.routing import check_columns
from einmal.sinks.kafka.sink import LATE_WRITES, deleted_with_time
from einmal.sinks.sink import RowSink
from einmal.spark.declare.inspection import READ, WRITE, ClusterFacts, TopicFacts, inspect
from einmal.spark.environment.plans.row_schemas import schema_of
from einmal.spark.environment.plans.source_nodes import SOURCE_NAMES_SETTING, source_names
from einmal.spark.environment.plans.streaming_query import SparkInternalsMissing, check_streaming, operator_class
from einmal.spark.protocol.checkpoint import Checkpoint, CheckpointError, check_commit_file
from einmal.spark.protocol.execution import FORMAT_SETTING, sources, state_format
from einmal.spark.sinks.kafka.sink import KafkaFrameSink
from einmal.spark.sinks.part import Part
from einmal.spark.sinks.rejected_letters import RejectedLetters
from einmal.spark.sinks.two_phase import FrameTwoPhaseSink
from einmal.types import ErrorCode

Missing = list[tuple[str, str]]
"""Pairs of what is wrong, and what to do."""

_logger = EventLog(__name__)

_KAFKA: Final = ("einmal", "kafka")
_SEES_ABORTED: Final = (
    'Spark\'s own source, format("kafka"), also reads records of aborted transactions by default',
    '.option("kafka.isolation.level", "read_committed"); or "read_uncommitted", if its topics have no transactions',
)

SINK_NAMES_SETTING: Final = "spark.sql.streaming.queryEvolution.enableSinkEvolution"
_COMPARED: Final = (
    "spark.sql.shuffle.orderIndependentChecksum.enabled",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch",
)
"""Without them a map task that is run again may give the tasks that read it last other rows than the first run gave
the others: rows without a key, or of a random function, would be written twice, or not at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedQuery:
    """A query that is about to start. ``schema``: of the rows that are written; None where they are computed batch by
    batch, and cannot be checked yet. ``topics``: those that rows are going to name, those of dead letters among
    them. ``letters_of``: topics of dead letters by the number of their source. ``query_name``, ``output_mode``: as
    passed to Spark."""

    frame: DataFrame
    options: QueryOptions
    stateful: bool
    schema: StructType | None
    topics: tuple[str, ...] = ()
    letters_of: Mapping[int, str] = field(default_factory=dict)
    query_name: str | None = None
    output_mode: str | None = None

    @property
    def dead_letters(self) -> list[str]:
        return list(dict.fromkeys(self.letters_of.values()))


def preflight(
    query: PlannedQuery, parts: Sequence[Part], checkpoint: Checkpoint, letters: RejectedLetters | None = None
) -> None:
    """``letters``: of the rows that sinks reject. Raises PreflightFailed."""
    options, spark = query.options, query.frame.sparkSession
    missing: Missing = []
    for part in _separate(parts):
        schema = None if query.schema is None else part.schema(query.schema)
        name = part.name or str(options.transactional_id)
        if isinstance(part.sink, KafkaFrameSink):
            _check_letter_circles(missing, query, part.sink)
        if isinstance(options, SinkOptions) and isinstance(part.sink, KafkaFrameSink):
            _check_circles(missing, query, part.sink, filter(None, [options.topic]))
            _check_topics(missing, part.sink, options, query, schema)
        elif isinstance(part.sink, KafkaFrameSink):
            # The dead letters beside a database.
            _check_letters(missing, part.sink, name, query.dead_letters)
        else:
            _check_sink(missing, part.sink, name, schema)
    if letters is not None:
        _check_circles(missing, query, letters.sink, letters.topics)
        _check_letters(missing, letters.sink, letters.name, letters.topics)
    _check_sources(missing, query.frame, options)
    _note(missing, lambda: _check_checkpoint(query.frame, checkpoint))
    _note(missing, lambda: _check_start(query, checkpoint))
    if options.guarantee == EXACTLY_ONCE:
        missing += shuffle_problems(spark)
        if query.stateful:
            _note(missing, lambda: _check_state(spark, checkpoint))
    if missing:
        raise PreflightFailed(missing)


def _separate(parts: Sequence[Part]) -> Iterator[Part]:
    for part in parts:
        yield from part.sink.parts if isinstance(part.sink, FrameTwoPhaseSink) else (part,)


def preflight_write(frame: DataFrame, options: VersionOptions, sink: RowSink) -> None:
    """As ``preflight``, for a batch write. Raises PreflightFailed."""
    missing: Missing = []
    if isinstance(options, WriteOptions) and isinstance(sink, KafkaFrameSink):
        _check_topics(missing, sink, options, None, frame.schema)
    else:
        _check_sink(missing, sink, options.transactional_id, frame.schema)
    missing += shuffle_problems(frame.sparkSession)
    if missing:
        raise PreflightFailed(missing, "the batch cannot be written")


def _note(missing: Missing, check: Callable[[], None]) -> None:
    try:
        check()
    except PipelineRefused as error:
        missing.append((error.reason, error.hint))
    except (CheckpointError, KafkaError, OptionError, SparkInternalsMissing) as error:
        what, _, hint = str(error).partition("\nhint: ")
        missing.append((what, hint))


def _check_sink(missing: Missing, sink: RowSink, name: str, schema: StructType | None) -> None:
    try:
        missing += sink.problems(name, None if schema is None else schema_of(schema))
    except (SinkError, OptionError) as error:
        missing.append((str(error), "correct the options of the sink, or start it"))


def _check_topics(
    missing: Missing,
    sink: KafkaFrameSink,
    options: SinkOptions | WriteOptions,
    query: PlannedQuery | None,
    schema: StructType | None,
) -> None:
    """The cluster that is written to. Topics that it creates on demand are created. ``query``: None for a batch."""
    if schema is not None:
        _note(missing, lambda: check_columns(schema_of(schema), options.topic))
    topics = [*filter(None, [options.topic]), *(() if query is None else query.topics)]
    in_transactions = not isinstance(options, SinkOptions) or options.guarantee == EXACTLY_ONCE
    outputs = _unreserved(missing, topics)
    wanted = [*outputs, *([COMMIT_TOPIC] if in_transactions else [])]
    facts = _looked_at(
        missing,
        options.client,
        wanted,
        transactional_id=options.transactional_id if in_transactions else None,
        group_id=options.group_id if in_transactions and isinstance(options, SinkOptions) else None,
    )
    if facts is not None:
        _check_outputs(missing, sink.cluster, facts, wanted)
        if in_transactions:
            missing += transaction_problems(facts)
        if query is not None:
            _warn_of_retention(missing, options.client, facts, query.dead_letters)


def _check_letters(missing: Missing, sink: KafkaFrameSink, name: str, topics: Sequence[str]) -> None:
    """The cluster that gets dead letters beside other sinks, in transactions of their own; ``name``: of their commit
    record."""
    wanted = [*_unreserved(missing, topics), COMMIT_TOPIC]
    facts = _looked_at(missing, sink.client, wanted, transactional_id=name)
    if facts is not None:
        _check_outputs(missing, sink.cluster, facts, wanted)
        missing += [problem for problem in transaction_problems(facts) if problem not in missing]
        _warn_of_retention(missing, sink.client, facts, topics)


def _unreserved(missing: Missing, topics: Sequence[str]) -> list[str]:
    """The topics that may be written to; the others are problems."""
    for name in sorted(RESERVED_TOPICS.intersection(topics)):
        what, _, hint = reserved(name).partition("\nhint: ")
        missing.append((what, hint))
    return [name for name in dict.fromkeys(topics) if name not in RESERVED_TOPICS]


def _check_circles(missing: Missing, query: PlannedQuery, sink: KafkaFrameSink, topics: Iterable[str]) -> None:
    """Topics that get rows which can only come from them: every batch would add records to them, for the next one.

    Where a query has several sources its plan does not show which of them a row comes from."""
    read = sources(query.frame)
    for topic in topics:
        if read and all(_reads(source, topic, sink) for source in read):
            missing.append(_circle(topic))


def _check_letter_circles(missing: Missing, query: PlannedQuery, sink: KafkaFrameSink) -> None:
    """Sources that read their own dead letters."""
    read = sources(query.frame)
    for number, topic in query.letters_of.items():
        if _reads(read[number], topic, sink) and _circle(topic) not in missing:
            missing.append(_circle(topic))


def _reads(source: tuple[str, Mapping[str, str]], topic: str, sink: KafkaFrameSink) -> bool:
    kind, options = source
    return kind in _KAFKA and reads_topic(options, topic, sink.client["bootstrap.servers"])


def _circle(topic: str) -> tuple[str, str]:
    return (
        f"topic {topic!r} is the source of rows that the query writes to it: every batch would add records to it",
        "write to another topic, select topics without it, or name it in a column of the rows that are to return",
    )


def _warn_of_retention(missing: Missing, client: Mapping[str, str], facts: ClusterFacts, topics: Sequence[str]) -> None:
    """``facts``: from before topics were created, which have the settings of the brokers."""
    created = [name for name in topics if name in facts.topics and not facts.topics[name].exists]
    again = _looked_at(missing, client, created) if created else None
    seen = facts.topics if again is None else {**facts.topics, **again.topics}
    for name in topics:
        topic = seen.get(name)
        if topic is not None and topic.deletes_after_ms is not None:
            sentence = "%(topic)s has retention.ms=%(retention_ms)d, by which dead letters of older records are deleted"
            _logger.warning("dead_letters_expire", sentence, topic=name, retention_ms=topic.deletes_after_ms)


def _check_outputs(missing: Missing, cluster: KafkaCluster, facts: ClusterFacts, wanted: Sequence[str]) -> None:
    for name in wanted:
        if facts.topics[name].exists:
            missing += [
                problem
                for problem in write_problems(facts.topics[name], reads=name == COMMIT_TOPIC)
                if problem not in missing
            ]
        else:
            _note(missing, partial(_create, cluster, name))


def _check_sources(missing: Missing, frame: DataFrame, sink: QueryOptions) -> None:
    for kind, options in sources(frame):
        if kind == "kafka" and sink.guarantee == EXACTLY_ONCE and "kafka.isolation.level" not in options:
            missing.append(_SEES_ABORTED)
        if kind not in _KAFKA or (kind == "kafka" and "kafka.security.protocol" in options):
            # Spark's own source has settings of Java's client, which ours does not read.
            continue
        facts = _looked_at(missing, client_settings(options), topics_of(options))
        for topic in () if facts is None else _looked_for(facts, options):
            missing += [problem for problem in read_problems(topic) if problem not in missing]


def _looked_for(facts: ClusterFacts, options: Mapping[str, str]) -> list[TopicFacts]:
    """The topics that a source cannot do without: under failOnDataLoss=false the others continue where one is gone."""
    topics = list(facts.topics.values())
    existing = [topic for topic in topics if topic.exists]
    return existing if existing and not fails_on_data_loss(options) else topics


def _looked_at(
    missing: Missing, client: Mapping[str, str], topics: list[str], **names: str | None
) -> ClusterFacts | None:
    nobody = f"no broker answers at {client['bootstrap.servers']}: "
    if any(what.startswith(nobody) for what, _ in missing):
        # It is not waited for twice.
        return None
    try:
        return inspect(client, topics, **names)
    except FatalError as error:
        # A broker answers, and rejects the credentials or the certificate.
        missing.append(
            (f"{client['bootstrap.servers']}: {error.name}: {error.meaning} [{error.detail}]", error.what_to_do)
        )
        return None
    except KafkaError as error:
        missing.append((f"{nobody}{error}", "start it, or correct kafka.bootstrap.servers"))
        return None


# --- what is wrong with what was seen ---------------------------------------------------------------------------


def read_problems(topic: TopicFacts) -> Missing:
    """Why a source cannot read a topic."""
    if not topic.exists:
        return [(f"topic {topic.name!r}, a source, does not exist", "create it, or correct subscribe")]
    return _hidden(topic) or _denied(topic, READ, "read")


def write_problems(topic: TopicFacts, *, reads: bool = False) -> Missing:
    """Why nothing can be written to a topic that exists; ``reads``: the commit topic, which is read too."""
    problems = _hidden(topic)
    if problems:
        return problems
    problems += _denied(topic, WRITE, "write to")
    if reads:
        problems += _denied(topic, READ, "read")
    if reads:
        problems += deleted_with_time(topic.name, topic.settings.get("cleanup.policy"))
    return problems


def transaction_problems(facts: ClusterFacts) -> Missing:
    """Why transactions cannot be had, or not be trusted."""
    problems = [
        (f"the client may not use the {word} {name!r}: {why}", _ACL_OF[word]) for word, name, why in facts.refused
    ]
    if not facts.verifies:
        problems.append(LATE_WRITES)
    return problems


_ACL_OF: Final = {
    "transactional.id": "grant Write and Describe on this TransactionalId",
    "group": "grant Read on this Group, under which the source's positions are committed for lag tools",
}


def _hidden(topic: TopicFacts) -> Missing:
    if topic.error is ErrorCode.topic_authorization_failed:
        return [(f"the client may not see topic {topic.name!r}", "grant Describe on this Topic, and Read or Write")]
    return []


def _denied(topic: TopicFacts, operation: int, word: str) -> Missing:
    if topic.may(operation):
        return []
    return [(f"the client may not {word} topic {topic.name!r}", f"grant {word.split()[0].title()} on this Topic")]


def _create(cluster: KafkaCluster, topic: str) -> None:
    try:
        if topic == COMMIT_TOPIC:
            cluster.create_topic(COMMIT_TOPIC, PARTITIONS, TOPIC_CONFIG)
        cluster.partition_count(topic)
    except KafkaError as error:
        raise PipelineRefused(
            f"topic {topic!r}: {error}", "create the topic; this cluster does not create it on demand"
        ) from error


# --- Spark ------------------------------------------------------------------------------------------------------


def shuffle_problems(spark: SparkSession) -> Missing:
    """Why two runs of a part of a batch could be mixed."""
    return [
        (f"{name} is false: when an executor is lost, parts of two different runs may be written", f"set {name}=true")
        for name in _COMPARED
        if spark.conf.get(name) == "false"
    ]


def _check_start(query: PlannedQuery, checkpoint: Checkpoint) -> None:
    """Refuse what Spark would refuse when it starts the query: by then the transactional.id is acquired, and whoever
    ran under it is fenced."""
    spark, query_name = query.frame.sparkSession, query.query_name
    query_id = checkpoint.query_id()
    for active in spark.streams.active:
        if query_name is not None and active.name == query_name:
            raise PipelineRefused(
                f"a query with queryName {query_name!r} runs in this session already", "stop it, or choose another name"
            )
        if query_id is not None and active.id == query_id:
            raise PipelineRefused(
                f"a query with the checkpoint's id {query_id} runs in this session already: {checkpoint.name} is its "
                "checkpoint, or a copy of it",
                "stop it first",
            )
    try:
        check_streaming(query.frame, query.output_mode or "append")
    except (AnalysisException, IllegalArgumentException) as error:
        raise PipelineRefused(f"Spark refuses the query: {str(error).partition(';')[0]}") from error


def _check_checkpoint(frame: DataFrame, checkpoint: Checkpoint) -> None:
    """Whether we can read what Spark has written there, and will write, and whether Spark can continue it."""
    if str(frame.sparkSession.conf.get(SINK_NAMES_SETTING, "false")).lower() == "true":
        raise PipelineRefused(
            f"{SINK_NAMES_SETTING} is true: Spark then asks for a name of the sink, which a query from Python cannot "
            "give it",
            f"set {SINK_NAMES_SETTING}=false, or leave it out",
        )
    latest = checkpoint.latest_batch_id()
    planned = None if latest is None else checkpoint.offsets(latest)
    if planned is not None and planned.names != (names := source_names(frame)):
        raise PipelineRefused(
            f"the checkpoint {checkpoint.name} has {_named(planned.names)}, the query has {_named(names)}: Spark would "
            "not continue the sources where they are",
            f"name the sources as they were ({SOURCE_NAMES_SETTING}, spark.readStream.name); or choose a new "
            "checkpointLocation: under its transactional.id a query resumes where its output ends, with empty state",
        )
    done = checkpoint.latest_committed()
    if done is not None:
        check_commit_file(checkpoint.commit_text(done) or "", f"{checkpoint.name}/commits/{done}")
    checkpoint.last_run()


def _named(names: tuple[str, ...]) -> str:
    return f"sources with the names {', '.join(names)}" if names else "sources without names"


def _check_state(spark: SparkSession, checkpoint: Checkpoint) -> None:
    operator_class(spark)
    latest = checkpoint.latest_committed()
    if latest is None:
        return
    text = checkpoint.commit_text(latest) or ""
    version = text.partition("\n")[0]
    if version in ("v1", "v2") and version != f"v{state_format(spark)}":
        raise PipelineRefused(
            f"the checkpoint's state has format {version}, this session writes v{state_format(spark)}",
            f"set {FORMAT_SETTING}={version[1:]}",
        )
