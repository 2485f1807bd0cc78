"""Pipelines with declared formats, for the tests of bad rows: a topic with records of every kind, good and bad."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from einmal.client import Producer
from einmal.pipeline.dead_letters import context_of, original_headers
from einmal.spark import StreamWriter, decode, write_stream
from einmal.types import Header, TopicPartition
from tests.spark.topics import create, records
from tests.suite.shared import unique

PAYMENT = json.dumps(
    {
        "type": "object",
        "required": ["id", "amount"],
        "properties": {
            "id": {"type": "integer"},
            "card": {"type": "string"},
            "amount": {"type": "number"},
            "at": {"type": "string", "format": "date-time"},
        },
    }
)
KINDS = ("MalformedValue", "WrongType", "MissingField", "OutOfRange", "InvalidText")


def good(number: int) -> bytes:
    return json.dumps({"id": number, "card": f"card-{number % 7}", "amount": number / 4}).encode()


def bad(number: int) -> bytes:
    """One of five kinds in turn; ``KINDS`` names its reason."""
    match number % 5:
        case 0:
            return f'{{"id": {number}, "amo'.encode()
        case 1:
            return json.dumps({"id": f"number {number}", "amount": 1}).encode()
        case 2:
            return json.dumps({"id": number}).encode()
        case 3:
            return json.dumps({"id": 2**70 + number, "amount": 1}).encode()
    return b'{"id": %d, "amount": 1, "card": "\xff\xfe"}' % number


@dataclass
class Payments:
    """One pipeline of payments, with topics of its own."""

    bootstrap: str
    directory: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    name: str = field(default_factory=lambda: unique("payments"))
    partitions: int = 2
    avro: Mapping[str, str] = field(default_factory=dict)
    """Another format than JSON."""

    def __post_init__(self) -> None:
        self.topic, self.out, self.letters = (f"{self.name}-{each}" for each in ("in", "out", "dlq"))

    def create(self) -> None:
        create(self.bootstrap, self.topic, self.out, self.letters, partitions=self.partitions)

    def send(self, values: Sequence[bytes | None], headers: Sequence[Header] = ()) -> None:
        with Producer({"bootstrap.servers": self.bootstrap}) as producer:
            for number, value in enumerate(values):
                key = f"k{number}".encode()
                producer.send(self.topic, value, key, headers=headers)

    @property
    def decoding(self) -> dict[str, str]:
        return {**(self.avro or {"value.format": "json", "value.schema": PAYMENT}), **self.settings}

    @property
    def tolerant(self) -> dict[str, str]:
        return {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": self.letters}

    def source(self, spark: SparkSession, **options: str) -> DataFrame:
        reader = spark.readStream.format("einmal").option("kafka.bootstrap.servers", self.bootstrap)
        reader = reader.option("subscribe", self.topic).option("startingOffsets", "earliest").options(**options)
        return decode(reader.load(), self.decoding, name="payments")

    def writer(self, frame: DataFrame, *, stateful: bool = False) -> StreamWriter:
        writer = write_stream(frame).option("kafka.bootstrap.servers", self.bootstrap)
        writer = writer.option("checkpointLocation", str(self.directory / self.name)).option("topic", self.out)
        writer = writer.option("transactional.id", self.name)
        return writer.outputMode("update" if stateful else "append").trigger(availableNow=True)

    def run(self, spark: SparkSession, **options: str) -> list[Any]:
        """Copies id and amount; returns the events."""
        happened: list[Any] = []
        frame = self.source(spark, **options).selectExpr("key", "cast(value.id as string) as value")
        self.writer(frame).listener(happened.append).start().awaitTermination()
        return happened

    def output(self) -> list[str]:
        return [(record.value or b"").decode() for _, record in records(self.bootstrap, self.out)]

    def dead(self) -> list[Letter]:
        return [letter_of(record) for _, record in records(self.bootstrap, self.letters)]

    def positions(self) -> dict[tuple[TopicPartition, int], bytes | None]:
        """The values of the input by position."""
        return {(at, record.offset): record.value for at, record in records(self.bootstrap, self.topic)}


@dataclass(frozen=True)
class Letter:
    key: bytes | None
    value: bytes | None
    context: Mapping[str, str]
    headers: tuple[Header, ...]

    @property
    def reason(self) -> str:
        return self.context["__connect.errors.exception.class.name"].rpartition(".")[2]

    @property
    def position(self) -> tuple[TopicPartition, int]:
        found = (self.context[f"__connect.errors.{name}"] for name in ("topic", "partition", "offset"))
        topic, partition, offset = found
        return TopicPartition(topic, int(partition)), int(offset)


def letter_of(record: Any) -> Letter:
    return Letter(record.key, record.value, context_of(record.headers), original_headers(record.headers))
