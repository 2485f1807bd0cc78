"""Claims about where a commit record is, and what else may lie in its topic. No Spark; both brokers.

The number of partitions of ``__einmal_commits`` is a fact of the whole cluster: a test that changes it has a broker of
its own, and the others have names of their own on one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from google_crc32c import value as crc32c

from einmal.client import Admin, Producer, TransactionDriver
from einmal.client.cores.fetched import whole_batches
from einmal.clusters.kafka_cluster import KafkaCluster
from einmal.commit_protocol.commit_record import COMMIT_TOPIC, CommitRecord, UnreadableCommitRecord
from einmal.sinks.kafka.commit_log import TOPIC_CONFIG, CommitLog, PartitionRecords, candidates
from einmal.spark.operate.ownership import KafkaOwnership
from einmal.types import TopicPartition
from einmal.wire.murmur2 import partition_for_key
from einmal.wire.record_batch import NewRecord, encode_batch
from tests.interop.apache_kafka import ApacheKafka, KafkaUnavailable, in_the_long_run
from tests.interop.einmal_broker import EinmalBroker
from tests.suite.shared import unique

pytestmark = [pytest.mark.system]

FEW, MANY = 3, 16
NAME = next(
    name
    for name in map("pipeline-{}".format, range(1000))
    if len({partition_for_key(name.encode(), count) for count in (FEW, 5, MANY)}) == 3
)
"""One that every expansion would move."""


@contextmanager
def running(kind: str, directory: Path) -> Iterator[str]:
    """A broker with a commit topic of FEW partitions."""
    try:
        node = EinmalBroker(directory) if kind == "einmal" else ApacheKafka(directory)
    except KafkaUnavailable as error:
        pytest.skip(str(error))
    node.start()
    cluster = KafkaCluster({"bootstrap.servers": node.bootstrap})
    cluster.create_topic(COMMIT_TOPIC, FEW, TOPIC_CONFIG)
    cluster.close()
    yield node.bootstrap
    node.stop()


on_both = [*map(in_the_long_run, ("einmal", "apache"))]


@pytest.fixture(params=on_both)
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Of a broker whose commit topic may be expanded."""
    with running(request.param, tmp_path) as servers:
        yield servers


@pytest.fixture(scope="module", params=on_both)
def few(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a broker whose commit topic keeps its number of partitions."""
    with running(request.param, tmp_path_factory.mktemp("few")) as servers:
        yield servers


@pytest.fixture
def name() -> str:
    return unique("pipeline")


class Driver:
    """A pipeline's driver, as far as it has to do with commit records."""

    def __init__(self, servers: str, name: str = NAME) -> None:
        self._client = {"bootstrap.servers": servers}
        self._cluster = KafkaCluster(self._client)
        self._name = name
        self.log = CommitLog(self._cluster, self._client, name)

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.close()

    def commit(self, batch_id: int, place: TopicPartition | None = None) -> CommitRecord | None:
        """Acquire the name, and commit a batch; what was committed before. An older release writes elsewhere."""
        with TransactionDriver(self._client | {"transactional.id": self._name}) as driver:
            identity = driver.init_producer_id()
            before = self.log.read(120.0)
            if place is not None:
                self.log._partition = place
            driver.add_partitions(identity, [self.log.partition])
            self.log.write(record_of(batch_id, self._name), identity, driver.transaction_version)
            driver.end_txn(identity, committed=True)
            # Answered once the markers are written, which EndTxn does not wait for.
            driver.init_producer_id()
        return before


def record_of(batch_id: int, name: str = NAME) -> CommitRecord:
    return CommitRecord(transactional_id=name, query_id="q", checkpoint="c", batch_id=batch_id, end=(batch_id,))


def expand(servers: str, count: int) -> None:
    with Admin({"bootstrap.servers": servers}) as admin:
        admin.create_partitions({COMMIT_TOPIC: count})


def commit(
    servers: str, batch_id: int, place: TopicPartition | None = None, *, name: str = NAME
) -> CommitRecord | None:
    with Driver(servers, name) as driver:
        return driver.commit(batch_id, place)


def home(count: int, name: str = NAME) -> TopicPartition:
    """Where a release that follows the number of partitions looks."""
    return TopicPartition(COMMIT_TOPIC, partition_for_key(name.encode(), count))


def test_a_commit_record_is_found_where_it_was_before_its_topic_was_expanded(servers: str) -> None:
    assert commit(servers, 1) is None
    for batch_id, count in ((2, 5), (3, MANY), (4, MANY + 8)):
        expand(servers, count)
        with Driver(servers) as driver:
            assert driver.log.look() == record_of(batch_id - 1)
        assert commit(servers, batch_id) == record_of(batch_id - 1)
    with KafkaOwnership({"bootstrap.servers": servers}) as owned:
        assert owned.committed()[NAME].record == record_of(4)


def test_of_the_records_that_an_older_release_left_in_two_partitions_the_last_one_counts(servers: str) -> None:
    commit(servers, 7, home(FEW))
    expand(servers, MANY)
    commit(servers, 1, home(MANY))
    with KafkaOwnership({"bootstrap.servers": servers}) as owned:
        assert owned.committed()[NAME].record == record_of(1)
    assert commit(servers, 2) == record_of(1)
    assert commit(servers, 3) == record_of(2)


def test_a_record_stays_in_its_partition_when_older_and_newer_releases_take_turns(few: str, name: str) -> None:
    commit(few, 1, home(FEW, name), name=name)
    assert commit(few, 2, name=name) == record_of(1, name)
    assert commit(few, 3, home(FEW, name), name=name) == record_of(2, name)
    assert commit(few, 4, name=name) == record_of(3, name)


def test_a_tombstone_in_the_last_partition_hides_what_is_older(servers: str) -> None:
    commit(servers, 7, home(FEW))
    expand(servers, MANY)
    with Driver(servers) as driver:
        driver.log._partition = home(MANY)
        driver.log.forget()
    assert commit(servers, 1) is None
    assert commit(servers, 2) == record_of(1)


# --- what others write there ------------------------------------------------------------------------------------------


def append(servers: str, key: str, value: bytes) -> None:
    """As any client: into all partitions, in no transaction."""
    with Producer({"bootstrap.servers": servers}) as producer:
        for partition in range(FEW):
            producer.send(COMMIT_TOPIC, value, key, partition=partition)


def test_records_of_other_keys_are_ignored_whatever_they_are(few: str, name: str) -> None:
    commit(few, 1, name=name)
    for value in (b"", b"not JSON", b"\xff" * 1000, b"[" * 100_000, b'{"version":99}'):
        append(few, unique("somebody-else"), value)
    assert commit(few, 2, name=name) == record_of(1, name)


def test_a_batch_that_cannot_be_read_is_ignored() -> None:
    """Its CRC is right, so it is as its client has sent it, and no pipeline sends it so."""
    batch = bytearray(encode_batch([NewRecord(NAME.encode(), b"value", 0)]))
    batch[-12:] = b"\x7f" * 12
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    found = PartitionRecords(home(1))
    (poison,) = whole_batches(home(1), memoryview(batch))
    found.take(poison, NAME.encode())
    assert not found.is_known and found.readable() is None


@pytest.mark.parametrize(
    "value_for",
    [
        lambda _: b"not JSON",
        lambda _: b"[" * 100_000,
        lambda _: b'{"version":99}',
        lambda name: json.dumps({**json.loads(record_of(9, name).encode()), "batch_id": "9"}).encode(),
        lambda name: json.dumps({**json.loads(record_of(9, name).encode()), "end": "abc"}).encode(),
        lambda name: record_of(9, name).encode(),
    ],
    ids=["no JSON", "deep", "later", "batch_id", "end", "outside of a transaction"],
)
def test_a_record_that_no_pipeline_has_written_is_refused_and_can_be_replaced(
    few: str, name: str, value_for: Callable[[str], bytes]
) -> None:
    commit(few, 1, name=name)
    append(few, name, value_for(name))
    with Driver(few, name) as driver, pytest.raises(UnreadableCommitRecord, match="at offset .* of __einmal_commits"):
        driver.log.look()
    with KafkaOwnership({"bootstrap.servers": few}) as owned:
        found = owned.committed()[name]
        assert found.record is None and found.problem
        owned.change(name, None, record_of(1, name))
    assert commit(few, 2, name=name) == record_of(1, name)


def test_candidates_begin_with_where_every_release_looks() -> None:
    for count in (1, FEW, MANY, 100):
        assert candidates(NAME, count)[0] == home(min(count, MANY))
    assert set(candidates(NAME, FEW)) <= set(candidates(NAME, MANY))
