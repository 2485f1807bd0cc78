"""Topics of one Kafka cluster, by the options of a query or batch write."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from typing import Final

from einmal.client.errors import KafkaError, NotAuthorized
from einmal.clusters.kafka_cluster import KafkaCluster
from einmal.commit_protocol.commit_record import COMMIT_TOPIC
from einmal.options.sink import TWO_PHASE_COMMIT
from einmal.options.values import OptionError
from einmal.pipeline.reasons import HopVerdict, Reason
from einmal.sinks.commit_point import Committed, SinkFailed
from einmal.sinks.kafka.commit_log import PARTITIONS, TOPIC_CONFIG
from einmal.sinks.kafka.commit_point import KafkaCommitPoint, KafkaOpening, KafkaRowCommitPoint
from einmal.sinks.kafka.committed import committed
from einmal.sinks.kafka.source_positions import SourcePositions
from einmal.sinks.row_schema import RowSchema
from einmal.sinks.sink import Opening, RowSink, Sink

LATE_WRITES: Final = (
    "the brokers do not refuse writes that come after their transaction has ended (KIP-890, since Kafka 3.6): a late "
    "request of a dead task could be committed with a later batch",
    "use brokers of Kafka 3.6 or later, or processing.guarantee=at_least_once",
)
"""Problem of brokers, and what to do."""


def deleted_with_time(topic: str, policy: str | None) -> list[tuple[str, str]]:
    """Return what is wrong with the cleanup.policy of a topic of commit records."""
    if policy in (None, "compact"):
        return []
    what = f"topic {topic!r} has cleanup.policy={policy}: commit records would be deleted with time"
    return [(what, f"set cleanup.policy=compact on {topic}")]


class KafkaSink(Sink):
    """See ``Sink``. Its options are those of ``options.sink.sink_options``."""

    def __init__(self, client: Mapping[str, str], topic: str | None = None, group_id: str | None = None) -> None:
        """``client``: settings under Kafka's names. ``topic``: None where each row has its own. ``group_id``: of the
        source positions for lag tools."""
        self.two_phase = client.get(TWO_PHASE_COMMIT) == "true"
        """Whether its transactions can be prepared."""
        self.client = {name: value for name, value in client.items() if name != TWO_PHASE_COMMIT}
        self._topic = topic
        self._group_id = group_id

    @cached_property
    def cluster(self) -> KafkaCluster:
        return KafkaCluster(self.client)

    @property
    def table(self) -> str:
        return self._topic or ""

    def identity(self) -> str | None:
        try:
            return self.cluster.cluster_id()
        except KafkaError as error:
            raise SinkFailed(str(error)) from error

    def commit_point(self, opening: Opening) -> KafkaCommitPoint:
        return KafkaCommitPoint(self.opened(opening))

    def opened(self, opening: Opening) -> KafkaOpening:
        positions = None
        if opening.sources is None or opening.sources:
            positions = SourcePositions(opening.sources, self.cluster, self._group_id or opening.name)
        return KafkaOpening(
            transactional_id=opening.name,
            client=self.client,
            cluster=self.cluster,
            positions=positions,
            is_new=opening.is_new,
            two_phase=self.two_phase,
        )

    def committed(self) -> Mapping[str, Committed]:
        try:
            return committed(self.cluster)
        except KafkaError as error:
            raise SinkFailed(str(error)) from error

    def close(self) -> None:
        self.cluster.close()


class KafkaRowSink(KafkaSink, RowSink):
    """Topics that take rows with the columns of Spark's Kafka sink; other columns are left out."""

    def problems(self, name: str, schema: RowSchema | None) -> list[tuple[str, str]]:
        # Mirrors and the commands of pipelines run without pyarrow.
        from einmal.sinks.kafka.routing import check_columns

        try:
            if schema is not None:
                check_columns(schema, self._topic)
            self.cluster.create_topic(COMMIT_TOPIC, PARTITIONS, TOPIC_CONFIG)
        except OptionError as error:
            what, _, hint = str(error).partition("\nhint: ")
            return [(what, hint)]
        except KafkaError as error:
            raise SinkFailed(str(error)) from error
        return []

    def transaction_problems(self) -> list[tuple[str, str]]:
        """Return what keeps these brokers, or the topic of commit records, which exists, from transactions. Raises
        SinkFailed."""
        try:
            problems = [] if self.cluster.refuses_late_writes() else [LATE_WRITES]
            # Settings may be hidden from who may write.
            with suppress(NotAuthorized):
                problems += deleted_with_time(COMMIT_TOPIC, self.cluster.topic_setting(COMMIT_TOPIC, "cleanup.policy"))
        except KafkaError as error:
            raise SinkFailed(str(error)) from error
        return problems

    def promises(self) -> tuple[Reason, ...]:
        return (
            Reason(HopVerdict.HOLDS, "one transaction of Kafka has rows, commit record and source positions"),
            Reason(
                HopVerdict.IF,
                "readers with isolation.level=read_uncommitted also get what is aborted",
                "set isolation.level=read_committed",
            ),
        )

    def commit_point(self, opening: Opening) -> KafkaRowCommitPoint:
        return KafkaRowCommitPoint(self.opened(opening), self._topic, opening.notify)
