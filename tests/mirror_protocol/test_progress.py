from __future__ import annotations

import json

from einmal.commit_protocol.commit_record import CommitRecord, decode
from einmal.commit_protocol.positions import short
from einmal.mirror_protocol.progress import RecordedPosition
from einmal.types import TopicPartition

POSITION = RecordedPosition(
    source_cluster="A-id",
    target_cluster="B-id",
    source_ids={"__consumer_offsets": "id-0", "orders": "id-1"},
    target_ids={"A.orders": "id-2"},
    offsets={TopicPartition("__consumer_offsets", 7): 40, TopicPartition("orders", 0): 5},
    seen={"orders": {7: 44}},
)


def recorded(position: RecordedPosition) -> CommitRecord:
    return CommitRecord(
        transactional_id="einmal-mirror-A-B", query_id="q", checkpoint="cp", batch_id=0, end=position.end()
    )


def test_a_position_survives_the_commit_record() -> None:
    record = recorded(POSITION)
    assert RecordedPosition.of(decode(record.key, record.encode())) == POSITION


def test_readers_of_positions_find_the_offsets_of_the_source_only() -> None:
    assert short(POSITION.end()) == "__consumer_offsets-7:40, orders-0:5"
    assert "@seen=orders=7=44" in json.dumps(POSITION.end())


def test_nothing_is_recorded_before_the_first_batch() -> None:
    assert RecordedPosition.of(None) == RecordedPosition()
