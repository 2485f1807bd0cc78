"""A pipeline as its commits and its checkpoint show it to ``einmal pipeline``, without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from einmal.client import TransactionDriver
from einmal.clusters.kafka_cluster import KafkaCluster
from einmal.commit_protocol.commit_record import COMMIT_TOPIC, CommitRecord
from einmal.sinks.kafka.commit_log import PARTITIONS, TOPIC_CONFIG, CommitLog


class PipelineOwner:
    """A pipeline without Spark: commits records under its name."""

    def __init__(self, client: Mapping[str, str], name: str) -> None:
        self._client = dict(client)
        self._cluster = KafkaCluster(self._client)
        self._cluster.create_topic(COMMIT_TOPIC, PARTITIONS, TOPIC_CONFIG)
        self._log = CommitLog(self._cluster, self._client, name)
        self._driver = TransactionDriver(self._client | {"transactional.id": name})
        self.identity = self._driver.init_producer_id()
        self.name = name

    def write(self, batch_id: int, end: dict[str, dict[str, int]], checkpoint: str = "file:/c") -> None:
        record = CommitRecord(
            transactional_id=self.name, query_id="q", checkpoint=checkpoint, batch_id=batch_id, end=(end,), records=5
        )
        self._driver.add_partitions(self.identity, [self._log.partition])
        self._log.write(record, self.identity, self._driver.transaction_version)

    def commit(self, batch_id: int, end: dict[str, dict[str, int]], checkpoint: str = "file:/c") -> None:
        self.write(batch_id, end, checkpoint)
        following = self._driver.end_txn(self.identity, committed=True)
        assert following is not None
        self.identity = following

    def read(self) -> CommitRecord | None:
        return self._log.read(120.0)

    def close(self) -> None:
        self._driver.close()
        self._cluster.close()


def write_checkpoint(directory: Path) -> None:
    """Of the query "other": batch 7 is committed, up to offset 2 of t-0; batch 8 is planned."""
    for name, text in {
        "metadata": '{"id":"other"}',
        "offsets/7": 'v1\n{}\n{"t":{"0":2}}',
        "commits/7": "v1\n{}",
        "offsets/8": 'v1\n{}\n{"t":{"0":9}}',
    }.items():
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
