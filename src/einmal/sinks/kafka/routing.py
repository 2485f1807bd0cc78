"""Which partition every row goes to.

Kafka's choice: the ``partition`` column, else murmur2 of the key, else spread. Partitions of a batch are numbered over
all its topics (``TopicTable``). Where nothing can name a partition (no key, no partition column) all rows
of a task go to one partition.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow

from einmal.commit_protocol.commit_record import RESERVED_TOPICS
from einmal.options.values import OptionError, reserved
from einmal.sinks.batch_rows import RowRefused
from einmal.sinks.kafka.claim_client import Turn
from einmal.sinks.kafka.claim_messages import TopicNumbers
from einmal.sinks.kafka.vectors import Ints, ints, murmur2s, present
from einmal.sinks.row_schema import ArrayRowType, RowField, RowSchema, RowType

WRITTEN: Final = ("key", "value", "topic", "partition", "headers", "timestamp")
"""The columns that are written; others are left out."""
_HEADERS: Final = ArrayRowType(
    element=RowSchema(fields=(RowField("key", RowType("string")), RowField("value", RowType("binary"))))
)


@dataclass(frozen=True, slots=True)
class BatchRoute:
    """Route of the rows of one batch. ``count`` is the fixed topic's number of partitions.

    ``batch``: its number. Rows without a key begin at another partition in each, else a batch that one task has read
    would always go to the first.
    """

    topic: str | None
    count: int
    turn: Turn
    batch: int


def check_columns(schema: RowSchema, topic: str | None) -> None:
    """Whether rows can be written, as Spark's Kafka sink would ask. Raises OptionError."""
    columns = {field.name: field.type for field in schema}
    _refuse_other_case(columns)
    _refuse_twice(schema.names, topic)
    _require(
        columns, "value", ("string", "binary"), 'select it, for example .selectExpr("to_json(struct(*)) AS value")'
    )
    if topic is None:
        _require(columns, "topic", ("string",), 'set .option("topic", "counts"), or add a topic column')
    _allow(columns, "key", ("string", "binary"))
    _allow(columns, "partition", ("integer", "short", "long"))
    _allow(columns, "timestamp", ("timestamp",))
    headers = columns.get("headers")
    if headers is not None and not _is_headers(headers):
        raise OptionError(f'column "headers" is {_HEADERS}, not {headers}')


def is_keyless(columns: Collection[str], topic: str | None) -> bool:
    """Whether nothing can name a partition, so that every task may have one of its own."""
    return topic is not None and "key" not in columns and "partition" not in columns


@dataclass(frozen=True, slots=True)
class OwnPartition:
    """Every row of a task to a partition that is the task's own."""

    route: BatchRoute

    def __call__(self, rows: Any, task: int) -> Ints:
        return np.full(rows.num_rows, (self.route.batch + task) % self.route.count, np.int64)


@dataclass(frozen=True, slots=True)
class KafkasChoice:
    """Every row to the partition that Kafka's producer would choose. Raises RowRefused for a row without one."""

    route: BatchRoute

    def __call__(self, rows: Any, task: int) -> Ints:
        names = rows.schema.names
        topics = rows.column("topic") if self.route.topic is None else None
        partitions = rows.column("partition") if "partition" in names else None
        return choose_numbers(self.route, rows.column("key"), partitions, topics, task)


def chooser(route: BatchRoute, columns: Collection[str]) -> OwnPartition | KafkasChoice:
    return OwnPartition(route) if is_keyless(columns, route.topic) else KafkasChoice(route)


def choose_numbers(route: BatchRoute, keys: Any, partitions: Any, topics: Any, task: int) -> Ints:
    """The number of every row's partition, from Arrow arrays. Raises RowRefused."""
    base, size = _tables(route, topics, len(keys))
    has_key = present(keys)
    offsets = np.zeros(len(keys), np.int64)
    if has_key.any():
        offsets = murmur2s(keys.cast(pyarrow.binary())) % size
    if partitions is not None:
        given = present(partitions)
        named = ints(partitions)
        if (wrong := np.flatnonzero(given & ((named < 0) | (named >= size)))).size:
            row = wrong[0]
            topic = route.topic if topics is None else topics[int(row)].as_py()
            raise RowRefused(f"a row names partition {named[row]} of {topic}, which has {size[row]}")
        offsets = np.where(given, named, offsets)
        has_key = has_key | given
    # Without a key rows are spread, from another beginning in each task; the same rows always in the same way.
    spread = np.flatnonzero(~has_key)
    offsets[spread] = (route.batch + task + np.arange(len(spread))) % size[spread]
    return base + offsets


def _tables(route: BatchRoute, topics: Any, rows: int) -> tuple[Ints, Ints]:
    """Return, for every row's topic, the number of its partition 0, and how many partitions it has."""
    if topics is None:
        return np.zeros(rows, np.int64), np.full(rows, route.count, np.int64)
    if topics.null_count:
        raise RowRefused('a row has no topic: set .option("topic", ...), or fill the topic column')
    encoded = topics.dictionary_encode()
    for name in sorted(RESERVED_TOPICS.intersection(encoded.dictionary.to_pylist())):
        raise RowRefused("a row's topic " + reserved(name))
    known = _looked_up(route.turn, encoded.dictionary.to_pylist())
    tables = np.array([known[name] for name in encoded.dictionary.to_pylist()], np.int64).reshape(-1, 2)
    which = encoded.indices.to_numpy()
    return tables[which, 0], tables[which, 1]


_topics: dict[str, dict[str, TopicNumbers]] = {}
"""Topics that this worker knows of one transaction, by its token: they keep their numbers while it lasts."""


def _looked_up(turn: Turn, names: list[str]) -> dict[str, TopicNumbers]:
    if turn.token not in _topics:
        _topics.clear()
    known = _topics.setdefault(turn.token, {})
    if missing := [name for name in names if name not in known]:
        with turn.claims() as claims:
            known |= {name: claims.topic(name) for name in missing}
    return known


def _refuse_other_case(columns: Collection[str]) -> None:
    """Spark's SQL takes KEY for key: as a column that is left out it would be missed only by readers."""
    for column in columns:
        name = column.lower()
        if name in WRITTEN and name != column:
            raise OptionError(
                f'column "{column}" is not written: the column is "{name}", in lower case\n'
                f'hint: .withColumnRenamed("{column}", "{name}")'
            )


def _refuse_twice(names: list[str], topic: str | None) -> None:
    """Two columns of one name leave open which is the record's. Raises OptionError."""
    for name in WRITTEN:
        if names.count(name) > 1 and not (name == "topic" and topic is not None):
            raise OptionError(
                f'column "{name}" is there {names.count(name)} times\n'
                "hint: leave out all but one, or give the others another name"
            )


def _require(columns: Mapping[str, RowType], name: str, kinds: tuple[str, ...], hint: str) -> None:
    if name not in columns:
        raise OptionError(f'column "{name}" is missing; there are: {", ".join(columns)}\nhint: {hint}')
    _allow(columns, name, kinds)


def _allow(columns: Mapping[str, RowType], name: str, kinds: tuple[str, ...]) -> None:
    kind = columns.get(name)
    if kind is not None and kind.kind not in kinds:
        wanted = [str(RowType(allowed)) for allowed in kinds]
        raise OptionError(
            f'column "{name}" is {" or ".join(wanted)}, not {kind}\n'
            f'hint: .withColumn("{name}", F.col("{name}").cast("{wanted[0]}"))'
        )


def _is_headers(kind: RowType) -> bool:
    if not isinstance(kind, ArrayRowType) or not isinstance(kind.element, RowSchema):
        return False
    return [(field.name, field.type.kind) for field in kind.element] == [("key", "string"), ("value", "binary")]
