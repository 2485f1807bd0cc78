"""Claims about the plan of a source's batches, on a broker and without Spark; through Spark, in ``test_source``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from einmal.client import Admin
from einmal.client.errors import UnknownTopic
from einmal.commit_protocol.source_offsets import SourcePosition
from einmal.options.source import source_options
from einmal.spark.source.data_loss import DataLoss, PositionRefused
from einmal.spark.source.planner import SourcePlanner
from einmal.types import Offset, TopicPartition
from tests.interop.einmal_broker import EinmalBroker
from tests.spark.topics import create, fill
from tests.suite.shared import shared, unique

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def bootstrap() -> str:
    broker: EinmalBroker = shared("einmal")
    return broker.bootstrap


@contextmanager
def planning(bootstrap: str, **given: str) -> Iterator[SourcePlanner]:
    options = {"kafka.bootstrap.servers": bootstrap, "startingOffsets": "earliest", **given}
    with closing(SourcePlanner(source_options(options, streaming=True))) as planner:
        yield planner


def of(position: SourcePosition) -> dict[tuple[str, int], int]:
    return {(each.topic, each.partition): int(offset) for each, offset in position.offsets.items()}


def test_only_the_partitions_that_are_assigned_are_planned(bootstrap: str) -> None:
    topic, other = unique("assigned"), unique("not-assigned")
    create(bootstrap, topic, other, partitions=3)
    fill(bootstrap, topic, range(30))
    with planning(bootstrap, assign=json.dumps({topic: [0, 2]})) as planner:
        begin = planner.starting()
        assert of(begin) == {(topic, 0): 0, (topic, 2): 0}
        end = planner.next(begin, None, None)
        assert {number for _, number in of(end)} == {0, 2}
        assert end.offsets == planner.ends()
        assert planner.next(end, None, None) is end


def test_a_partition_that_is_assigned_and_does_not_exist_is_an_error(bootstrap: str) -> None:
    topic = unique("assigned")
    create(bootstrap, topic, partitions=2)
    with planning(bootstrap, assign=json.dumps({topic: [0, 7]})) as planner:
        for ask in (planner.starting, planner.ending):
            with pytest.raises(UnknownTopic, match="partition .*-7 of a topic with 2"):
                ask()
        position = SourcePosition({TopicPartition(topic, 0): Offset(0)})
        with pytest.raises(PositionRefused, match='"assign" selects partition .*-7 of a topic with 2, which does not'):
            planner.next(position, None, None)


def test_a_limited_batch_reads_of_each_partition_in_proportion_and_never_beyond_the_target(bootstrap: str) -> None:
    topic = unique("limited")
    create(bootstrap, topic, partitions=2)
    fill(bootstrap, topic, range(40))
    with planning(bootstrap, subscribe=topic) as planner:
        position, target = planner.starting(), planner.ends()
        fill(bootstrap, topic, range(40))
        read = 0
        while (reached := planner.next(position, target, 10)) is not position:
            step = sum(reached.offsets.values()) - sum(position.offsets.values())
            assert 0 < step <= 11
            read, position = read + step, reached
        assert read == 40
        assert position.offsets == target


def test_a_new_partition_is_read_from_its_first_record_which_the_position_names(bootstrap: str) -> None:
    topic = unique("grown")
    create(bootstrap, topic, partitions=1)
    fill(bootstrap, topic, range(5))
    with planning(bootstrap, subscribe=topic, startingOffsets="latest") as planner:
        begin = planner.starting()
        assert of(begin) == {(topic, 0): 5}
        with Admin({"bootstrap.servers": bootstrap}) as admin:
            admin.create_partitions({topic: 2})
        fill(bootstrap, topic, range(20))
        end = planner.next(begin, None, None)
        assert end.starts == {TopicPartition(topic, 1): Offset(0)}
        assert sum(of(end).values()) == 25
        assert planner.first_offsets(begin, end) == {**begin.offsets, **end.starts}


def test_a_deleted_topic_is_a_loss_or_is_kept_in_the_position(bootstrap: str) -> None:
    topic = unique("deleted")
    create(bootstrap, topic, partitions=1)
    fill(bootstrap, topic, range(5))
    with (
        planning(bootstrap, subscribe=topic) as planner,
        planning(bootstrap, subscribe=topic, failOnDataLoss="false") as tolerant,
    ):
        begin = planner.starting()
        with Admin({"bootstrap.servers": bootstrap}) as admin:
            admin.delete_topics([topic])
        with pytest.raises(DataLoss, match=topic):
            planner.next(begin, None, None)
        assert tolerant.next(begin, None, None) is begin
        with pytest.raises(UnknownTopic):
            planner.starting()
