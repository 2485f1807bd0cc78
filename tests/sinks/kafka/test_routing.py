from dataclasses import dataclass
from typing import cast

import pyarrow
import pytest

from einmal.options.values import OptionError
from einmal.sinks.batch_rows import RowRefused
from einmal.sinks.kafka.claim_client import Claimant
from einmal.sinks.kafka.routing import BatchRoute, OwnPartition, check_columns, choose_numbers
from einmal.sinks.row_schema import ArrayRowType, MapRowType, RowField, RowSchema, RowType
from einmal.wire.murmur2 import partition_for_key


class _Table:
    """A driver that knows two topics."""

    def __enter__(self) -> "_Table":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def topic(self, name: str) -> tuple[int, int]:
        return {"left": (0, 4), "right": (4, 2)}[name]


@dataclass(frozen=True)
class _Turn:
    """``table``: None where nobody may ask."""

    token: str
    table: _Table | None = None

    def claims(self) -> Claimant:
        return cast("Claimant", self.table)


NOWHERE = _Turn("")


def choose(
    keys: list[bytes | None], partitions: list[int | None] | None = None, task: int = 0, batch: int = 0
) -> list[int]:
    given = None if partitions is None else pyarrow.array(partitions, pyarrow.int32())
    route = BatchRoute("t", 4, NOWHERE, batch)
    numbers: list[int] = choose_numbers(route, pyarrow.array(keys, pyarrow.binary()), given, None, task).tolist()
    return numbers


def test_a_row_goes_to_its_partition_column_then_to_its_keys_hash_then_anywhere() -> None:
    assert choose([b"a", b"a", None, None, None], [3, None, None, None, 0]) == [3, partition_for_key(b"a", 4), 0, 1, 0]
    assert choose([None, b"a", None], task=3) == [3, partition_for_key(b"a", 4), 0]
    assert choose([None, b"a", None], task=3, batch=2) == [1, partition_for_key(b"a", 4), 2]


def test_the_tasks_of_rows_without_keys_have_a_partition_each_and_another_in_the_next_batch() -> None:
    rows = pyarrow.RecordBatch.from_pydict({"value": [b"a", b"b"]})
    chosen = [
        [OwnPartition(BatchRoute("t", 3, NOWHERE, batch))(rows, task).tolist() for task in (0, 1)] for batch in (0, 5)
    ]
    assert chosen == [[[0, 0], [1, 1]], [[2, 2], [0, 0]]]


def test_every_topic_of_a_row_has_numbers_of_its_own() -> None:
    keys = pyarrow.array([b"a", b"a", None], pyarrow.binary())
    topics = pyarrow.array(["right", "left", "right"])
    found = choose_numbers(BatchRoute(None, 0, _Turn("", _Table()), 0), keys, None, topics, 1)
    assert found.tolist() == [4 + partition_for_key(b"a", 2), partition_for_key(b"a", 4), 5]


def test_a_partition_that_does_not_exist_is_named() -> None:
    with pytest.raises(RowRefused, match="partition 4 of t, which has 4"):
        choose([None], [4])


def test_a_row_without_a_topic_is_an_error() -> None:
    nothing = pyarrow.array([None], pyarrow.binary())
    with pytest.raises(RowRefused, match="a row has no topic"):
        choose_numbers(BatchRoute(None, 0, NOWHERE, 0), nothing, None, pyarrow.array([None], pyarrow.string()), 0)


KINDS: dict[str, RowType] = {
    "string": RowType("string"),
    "binary": RowType("binary"),
    "int": RowType("integer"),
    "long": RowType("long"),
    "timestamp": RowType("timestamp"),
    "map": MapRowType(key=RowType("string"), value=RowType("binary")),
    "headers": ArrayRowType(
        element=RowSchema(fields=(RowField("key", RowType("string")), RowField("value", RowType("binary"))))
    ),
}


def schema(**columns: str) -> RowSchema:
    return RowSchema(fields=tuple(RowField(name, KINDS[kind]) for name, kind in columns.items()))


@pytest.mark.parametrize(
    ("columns", "topic", "complaint"),
    [
        ({"key": "string"}, "t", 'column "value" is missing'),
        ({"VALUE": "string"}, "t", 'column "VALUE" is not written: the column is "value"'),
        ({"Key": "string", "value": "string"}, "t", 'column "Key" is not written'),
        ({"value": "string", "PARTITION": "int"}, "t", 'column "PARTITION" is not written'),
        ({"value": "int"}, "t", 'column "value" is string or binary, not int'),
        ({"value": "string"}, None, 'column "topic" is missing'),
        ({"value": "string", "partition": "string"}, "t", 'column "partition" is int or smallint or bigint'),
        ({"value": "string", "timestamp": "long"}, "t", 'column "timestamp" is timestamp, not bigint'),
        ({"value": "string", "headers": "map"}, "t", 'column "headers" is array'),
    ],
)
def test_a_frame_that_cannot_be_written_is_refused_by_column(
    columns: dict[str, str], topic: str | None, complaint: str
) -> None:
    with pytest.raises(OptionError, match=complaint):
        check_columns(schema(**columns), topic)


def test_a_column_that_is_there_twice_is_refused_unless_it_is_not_written() -> None:
    value, topic, other = (RowField(name, RowType("string")) for name in ("value", "topic", "other"))
    check_columns(RowSchema(fields=(value, topic, topic, other, other)), "t")
    for fields, written_to in (((value, value), "t"), ((value, topic, topic), None)):
        with pytest.raises(OptionError, match=f'column "{fields[-1].name}" is there 2 times'):
            check_columns(RowSchema(fields=fields), written_to)


def test_the_columns_of_the_source_can_be_written_as_they_are() -> None:
    source = schema(
        key="binary",
        value="binary",
        topic="string",
        partition="int",
        offset="long",
        timestamp="timestamp",
        headers="headers",
    )
    check_columns(source, None)


def test_a_worker_asks_once_in_a_transaction_where_a_topics_partitions_are() -> None:
    asked = []

    class _Driver(_Table):
        def topic(self, name: str) -> tuple[int, int]:
            asked.append(name)
            return super().topic(name)

    def choose_in(token: str, *topics: str) -> list[int]:
        route = BatchRoute(None, 0, _Turn(token, _Driver()), 0)
        keys = pyarrow.nulls(len(topics), pyarrow.binary())
        numbers: list[int] = choose_numbers(route, keys, None, pyarrow.array(topics), 0).tolist()
        return numbers

    assert choose_in("first", "left", "left") == [0, 1]
    assert choose_in("first", "right", "left") == [4, 1]
    assert asked == ["left", "right"]
    assert choose_in("second", "right") == [4]
    assert asked == ["left", "right", "right"]
