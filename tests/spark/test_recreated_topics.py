"""Source topics that are deleted, created again, expanded, or of another cluster: the source, without Spark.

What a query then does on Spark is in ``test_changed_topics``.
"""

from __future__ import annotations

import json
import logging
import time
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from einmal.client import Admin, NewTopic, Producer
from einmal.client.errors import RetriableError
from einmal.clusters.kafka_cluster import KafkaCluster
from einmal.commit_protocol.commit_record import COMMIT_TOPIC
from einmal.commit_protocol.positions import cluster_id, starts, topic_ids, topics_in
from einmal.spark.source.data_loss import DataLoss, PositionRefused
from einmal.types import TopicPartition
from tests.interop.cluster import einmal_cluster
from tests.interop.einmal_broker import EinmalBroker
from tests.spark.conftest import long, on_both_in_the_long_run
from tests.spark.stream_reader import Query, Reader, delete
from tests.spark.topics import create, fill
from tests.suite.shared import unique

pytestmark = pytest.mark.spark

triggers = pytest.mark.parametrize("available_now", [False, True], ids=["processingTime", "availableNow"])


def without_identity(query: Query) -> None:
    """Make the checkpoint one that an older version wrote."""
    for number, text in enumerate(query.log):
        query.log[number] = json.dumps(topics_in(json.loads(text)))


# --- a topic that was created again -------------------------------------------------------------------------------


@pytest.mark.representatives(1)
@on_both_in_the_long_run
@triggers
@pytest.mark.parametrize("count", [6, 20, 30])
def test_a_recreated_topic_is_data_loss_under_every_trigger(bootstrap: str, available_now: bool, count: int) -> None:
    topic = unique("recreated")
    create(bootstrap, topic, partitions=1)
    fill(bootstrap, topic, range(20))
    query = Query(bootstrap, subscribe=topic)
    assert query.run(available_now=available_now) == list(range(20))
    delete(bootstrap, topic)
    create(bootstrap, topic, partitions=1)
    fill(bootstrap, topic, range(100, 100 + count))
    with pytest.raises(DataLoss, match=rf"'{topic}' was deleted and created again \(topic id \S+, now \S+\)(?s:.*):20"):
        query.run(available_now=available_now)


@pytest.mark.representatives(1)
@on_both_in_the_long_run
@triggers
@pytest.mark.parametrize("count", [6, 20, 30])
def test_without_fail_on_data_loss_a_recreated_topic_is_read_from_its_first_record(
    bootstrap: str, available_now: bool, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    topic, other = unique("recreated"), unique("other")
    create(bootstrap, topic, other, partitions=3)
    fill(bootstrap, topic, range(20))
    query = Query(bootstrap, subscribe=f"{topic},{other}", failOnDataLoss="false")
    assert query.run(available_now=available_now) == list(range(20))
    delete(bootstrap, topic)
    create(bootstrap, topic, partitions=1)
    fill(bootstrap, topic, range(100, 100 + count))
    with caplog.at_level(logging.WARNING):
        assert query.run(available_now=available_now, limit=ReadMaxRows(4)) == list(range(100, 100 + count))
    assert [record.message for record in caplog.records if "created again" in record.message]
    assert list(query.position()[topic]) == ["0"], "the old topic had more partitions"
    fill(bootstrap, topic, range(200, 203))
    assert query.run(available_now=available_now) == list(range(200, 203))


def test_a_batch_planned_on_a_topic_that_was_recreated_since_is_data_loss(bootstrap: str) -> None:
    topic = unique("planned")
    create(bootstrap, topic, partitions=1)
    query = Query(bootstrap, subscribe=topic)
    query.run()
    fill(bootstrap, topic, range(20))
    query.plan()
    delete(bootstrap, topic)
    create(bootstrap, topic, partitions=1)
    fill(bootstrap, topic, range(100, 130))
    with pytest.raises(DataLoss, match="created again"):
        query.run()
    query.options["failOnDataLoss"] = "false"
    assert query.run() == list(range(100, 130)), "and nothing under the old topic's offsets"


def test_a_task_never_reads_another_topic_under_the_same_name(bootstrap: str) -> None:
    topic = unique("task")
    create(bootstrap, topic, partitions=1)
    query = Query(bootstrap, subscribe=topic, **{"kafka.default.api.timeout.ms": "1200000"})
    query.run()
    fill(bootstrap, topic, range(20))
    reader = Reader(query.options)
    start = query.position()
    end = reader.latestOffset(start, ReadMaxRows(1_000))
    (piece,) = reader.partitions(start, end)
    delete(bootstrap, topic)
    create(bootstrap, topic, partitions=1)
    fill(bootstrap, topic, range(100, 130))
    began = time.monotonic()
    with pytest.raises(DataLoss, match=f"{topic}-0 offsets 0 to 19 cannot be read: the topic was deleted"):
        list(reader.read(piece))
    assert time.monotonic() - began < 600, "not default.api.timeout.ms"
    reader.stop()


@on_both_in_the_long_run
def test_a_checkpoint_without_topic_ids_is_adopted_once(bootstrap: str) -> None:
    topic = unique("adopted")
    create(bootstrap, topic, partitions=1)
    fill(bootstrap, topic, range(20))
    query = Query(bootstrap, subscribe=topic)
    query.run()
    without_identity(query)
    planned = len(query.log)
    assert query.run() == []
    assert len(query.log) == planned + 1, "one empty batch takes the ids down"
    assert topic in topic_ids(query.position())
    query.run()
    assert len(query.log) == planned + 1
    delete(bootstrap, topic)
    create(bootstrap, topic, partitions=1)
    fill(bootstrap, topic, range(20))
    with pytest.raises(DataLoss, match="created again"):
        query.run()


@pytest.mark.representatives(1)
@triggers
def test_a_log_that_is_shorter_than_a_position_without_topic_ids_is_data_loss(
    bootstrap: str, available_now: bool
) -> None:
    topic = unique("shorter")
    create(bootstrap, topic, partitions=2)
    fill(bootstrap, topic, range(20))
    query = Query(bootstrap, subscribe=topic)
    query.run()
    without_identity(query)
    delete(bootstrap, topic)
    create(bootstrap, topic, partitions=1)
    fill(bootstrap, topic, range(100, 103))
    with pytest.raises(DataLoss, match=f"{topic}-1:(?s:.*){topic}-0 ends at offset 3, before offset"):
        query.run(available_now=available_now)
    query.options["failOnDataLoss"] = "false"
    assert query.run(available_now=available_now) == list(range(100, 103))


def test_positions_have_the_format_of_sparks_source_beside_the_identity(bootstrap: str) -> None:
    topic = unique("format")
    create(bootstrap, topic, partitions=2)
    query = Query(bootstrap, subscribe=topic)
    query.run()
    position = query.position()
    assert topics_in(position) == {topic: {"0": 0, "1": 0}}
    assert all(not value for key, value in position.items() if key != topic), "others find no offsets there"
    assert cluster_id(position)
    again = Query(bootstrap, subscribe=topic, startingOffsets=json.dumps(topics_in(position)))
    assert again.run() == []


# --- a topic that is gone -----------------------------------------------------------------------------------------


@on_both_in_the_long_run
@pytest.mark.parametrize("available_now", [False, long(True)], ids=["processingTime", "availableNow"])
def test_one_deleted_topic_is_named_and_the_others_are_read(
    bootstrap: str, available_now: bool, caplog: pytest.LogCaptureFixture
) -> None:
    gone, other = unique("gone"), unique("other")
    create(bootstrap, gone, other, partitions=1)
    fill(bootstrap, gone, range(5))
    query = Query(bootstrap, subscribe=f"{gone},{other}")
    assert query.run(available_now=available_now) == list(range(5))
    delete(bootstrap, gone)
    fill(bootstrap, other, range(10, 15))
    with pytest.raises(DataLoss, match=f"topic '{gone}' was deleted; it was read up to {gone}-0:5"):
        query.run(available_now=available_now)
    query.options["failOnDataLoss"] = "false"
    with caplog.at_level(logging.WARNING):
        assert query.run(available_now=available_now) == list(range(10, 15))
        fill(bootstrap, other, range(15, 20))
        assert query.run(available_now=available_now) == list(range(15, 20))
    named = [record.message for record in caplog.records if f"'{gone}' was deleted" in record.message]
    assert len(named) == 2, "once in each run"
    assert query.position()[gone] == {"0": 5}, "kept, should the topic come back"


@pytest.mark.long
@on_both_in_the_long_run
def test_a_batch_planned_on_a_topic_that_was_deleted_since_reads_the_others(bootstrap: str) -> None:
    gone, other = unique("gone"), unique("other")
    create(bootstrap, gone, other, partitions=1)
    query = Query(bootstrap, subscribe=f"{gone},{other}")
    query.run()
    fill(bootstrap, gone, range(5))
    fill(bootstrap, other, range(10, 15))
    query.plan()
    delete(bootstrap, gone)
    with pytest.raises(DataLoss, match=f"'{gone}' was deleted"):
        query.run()
    query.options["failOnDataLoss"] = "false"
    assert query.run() == list(range(10, 15))


# --- retention, new partitions ------------------------------------------------------------------------------------


@pytest.mark.long
@on_both_in_the_long_run
def test_a_new_partition_begins_at_the_same_record_in_every_replay(bootstrap: str) -> None:
    topic = unique("expanded")
    create(bootstrap, topic, partitions=1)
    query = Query(bootstrap, subscribe=topic)
    query.run()
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        admin.create_partitions({topic: 2})
        fill(bootstrap, topic, range(40))
        query.plan()
        assert starts(query.position()) == {topic: {"1": 0}}
        admin.delete_records({TopicPartition(topic, 1): 3})
    with pytest.raises(DataLoss, match=f"{topic}-1 offsets 0 to 2"):
        query.run()
    query.options["failOnDataLoss"] = "false"
    assert len(query.run()) == 37


def test_new_partitions_are_read_from_their_first_record_once(bootstrap: str) -> None:
    topic = unique("expanded")
    create(bootstrap, topic, partitions=1)
    fill(bootstrap, topic, range(10))
    query = Query(bootstrap, subscribe=topic)
    assert query.run() == list(range(10))
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        admin.create_partitions({topic: 3})
    fill(bootstrap, topic, range(10, 40))
    assert query.run(limit=ReadMaxRows(7)) == list(range(10, 40))
    assert query.run() == []


@pytest.mark.representatives(1)
@on_both_in_the_long_run
@triggers
def test_records_that_retention_took_are_named_with_their_offsets(
    bootstrap: str, available_now: bool, caplog: pytest.LogCaptureFixture
) -> None:
    topic = unique("expired")
    create(bootstrap, topic, partitions=1)
    fill(bootstrap, topic, range(5))
    query = Query(bootstrap, subscribe=topic)
    query.run()
    fill(bootstrap, topic, range(5, 20))
    with Admin({"bootstrap.servers": bootstrap}) as admin:
        admin.delete_records({TopicPartition(topic, 0): 12})
    lost = f"7 offset.s. were deleted before they were read: {topic}-0 offsets 5 to 11"
    with pytest.raises(DataLoss, match=lost):
        query.run(available_now=available_now)
    query.options["failOnDataLoss"] = "false"
    with caplog.at_level(logging.WARNING):
        assert query.run(available_now=available_now) == list(range(12, 20))
    assert "7 offset(s) were deleted before they were read" in caplog.text


# --- other topics, another cluster --------------------------------------------------------------------------------


def test_a_changed_subscription_is_refused_and_not_called_data_loss(bootstrap: str) -> None:
    before, after = unique("before"), unique("after")
    create(bootstrap, before, after, partitions=1)
    fill(bootstrap, before, range(5))
    query = Query(bootstrap, subscribe=before)
    query.run()
    query.options["subscribe"] = after
    with pytest.raises(PositionRefused, match=f"\"subscribe\" does not select '{before}'") as refused:
        query.run()
    assert "failOnDataLoss" not in str(refused.value)
    query.options["subscribe"] = f"{after},{before}"
    fill(bootstrap, after, range(5, 10))
    assert query.run() == list(range(5, 10)), "a topic may be added"
    del query.options["subscribe"]
    query.options["assign"] = json.dumps({after: [0]})
    with pytest.raises(PositionRefused, match=f"\"assign\" does not select '{before}'"):
        query.run()


def test_a_position_of_one_cluster_is_refused_in_another(bootstrap: str, tmp_path: Path) -> None:
    other = EinmalBroker(tmp_path)
    other.start()
    try:
        topic, unknown = unique("moved"), unique("left")
        create(bootstrap, topic, unknown, partitions=1)
        create(other.bootstrap, topic, partitions=1)
        fill(bootstrap, topic, range(5))
        fill(other.bootstrap, topic, range(10))
        for subscribed in (topic, unknown):
            query = Query(bootstrap, subscribe=subscribed)
            query.run()
            query.options["kafka.bootstrap.servers"] = other.bootstrap
            for fails in ("true", "false"):
                query.options["failOnDataLoss"] = fails
                with pytest.raises(PositionRefused, match="leads to cluster (?s:.*)MirrorMaker") as refused:
                    query.run(available_now=True)
                assert "failOnDataLoss" not in str(refused.value)
    finally:
        other.stop()


# --- internal topics ----------------------------------------------------------------------------------------------


@on_both_in_the_long_run
def test_a_pattern_selects_no_internal_topic(bootstrap: str) -> None:
    topic = unique("pattern")
    create(bootstrap, topic, COMMIT_TOPIC, partitions=1)
    query = Query(bootstrap, subscribePattern=f"__.*|{topic}")
    query.run()
    assert set(topics_in(query.position())) == {topic}
    query.log[-1] = json.dumps(query.position() | {COMMIT_TOPIC: {"0": 0}})
    fill(bootstrap, topic, range(3))
    assert query.run() == [0, 1, 2], "a position that an older version has in one is dropped"
    assert set(topics_in(query.position())) == {topic}


# --- a log that is not what it was --------------------------------------------------------------------------------


@pytest.mark.long
def test_a_truncated_log_of_the_same_topic_continues_at_its_end(bootstrap: str) -> None:
    topic = unique("truncated")
    create(bootstrap, topic, partitions=1)
    fill(bootstrap, topic, range(5))
    query = Query(bootstrap, subscribe=topic)
    query.run()
    query.log[-1] = json.dumps(query.position() | {topic: {"0": 9}})
    with pytest.raises(DataLoss, match=f"{topic}-0 ends at offset 5, before offset 9.*the log was truncated"):
        query.run()
    query.options["failOnDataLoss"] = "false"
    assert query.run() == []
    assert topics_in(query.position()) == {topic: {"0": 5}}
    fill(bootstrap, topic, range(5, 8))
    assert query.run() == [5, 6, 7], "not from offset 9 on, once the log has got there"


def test_a_position_behind_an_open_transaction_is_no_loss(bootstrap: str) -> None:
    topic = unique("isolation")
    create(bootstrap, topic, partitions=1)
    with Producer({"bootstrap.servers": bootstrap, "transactional.id": unique("id")}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, "1")
        producer.flush()
        query = Query(bootstrap, subscribe=topic, **{"kafka.isolation.level": "read_uncommitted"})
        assert query.run() == [1]
        query.options["kafka.isolation.level"] = "read_committed"
        assert query.run() == [], "the last stable offset is before the position"
        producer.commit_transaction()
    fill(bootstrap, topic, [2])
    assert query.run() == [2]


def await_leaderless(bootstrap: str, partition: TopicPartition) -> None:
    with closing(KafkaCluster({"bootstrap.servers": bootstrap})) as cluster:
        deadline = time.monotonic() + 300
        while partition not in cluster.look([partition.topic], [partition.topic]).topics[partition.topic].leaderless:
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.long
def test_a_partition_without_a_leader_does_not_stop_the_others(tmp_path: Path) -> None:
    cluster = einmal_cluster(tmp_path)
    cluster.start()
    try:
        topic = unique("leaderless")
        with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
            settings = {"min.insync.replicas": "1"}
            admin.create_topics([NewTopic(topic, num_partitions=3, replication_factor=1, configs=settings)])
        query = Query(cluster.bootstrap, subscribe=topic, **{"kafka.default.api.timeout.ms": "8000"})
        with Producer({"bootstrap.servers": cluster.bootstrap}) as producer:
            for number in range(9):
                producer.send(topic, str(number), partition=number % 3)
        query.run()
        with Producer({"bootstrap.servers": cluster.bootstrap}) as producer:
            for number in range(9, 18):
                producer.send(topic, str(number), partition=number % 3)
        dead = next(index for index in range(3) if cluster.leader(topic, index) != cluster.controller())
        node_id = cluster.leader(topic, dead)
        cluster.kill(node_id)
        await_leaderless(cluster.bootstrap, TopicPartition(topic, dead))
        others = [number for number in range(9, 18) if number % 3 != dead]
        assert query.run() == others
        with pytest.raises(RetriableError):
            query.run(available_now=True)
        cluster.start_node(node_id)
        assert query.run(available_now=True) == [number for number in range(9, 18) if number % 3 == dead]
    finally:
        cluster.stop()
