"""Sources for tests, and what a reader sees of their records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from einmal.client import Consumer
from einmal.ingest import IngestBatch, IngestRecord, Position, RecordSource, SourceNotice
from einmal.types import TopicPartition


@dataclass
class NumbersSource(RecordSource):
    """Numbers in batches of ``size``. ``confirmed``: every position, in order. ``is_endless``: more may come."""

    topic: str
    last: int
    size: int = 3
    name: str = "numbers"
    is_endless: bool = True
    confirmed: list[int] = field(default_factory=list)

    def origin(self) -> str:
        return self.name

    def read(self, position: Position | None) -> Iterator[IngestBatch | SourceNotice | None]:
        begin = 0 if position is None else int(position["next"])
        while begin < self.last or self.is_endless:
            end = min(begin + self.size, self.last)
            if begin == end:
                yield None
                continue
            numbers = range(begin, end)
            yield IngestBatch(
                [IngestRecord(self.topic, b"%d" % each, b"k%d" % each) for each in numbers], {"next": end}
            )
            begin = end

    def confirm(self, position: Position) -> None:
        self.confirmed.append(int(position["next"]))


def committed(cluster: str | Mapping[str, str], topic: str, partitions: int) -> list[list[bytes]]:
    """All committed values below the last stable offsets of now, by partition.

    ``cluster``: its address, or the settings of its clients.
    """
    settings = {"bootstrap.servers": cluster} if isinstance(cluster, str) else cluster
    places = [TopicPartition(topic, index) for index in range(partitions)]
    found: dict[TopicPartition, list[bytes]] = {each: [] for each in places}
    with Consumer({**settings, "isolation.level": "read_committed"}) as consumer:
        consumer.assign(places)
        consumer.seek_to_beginning(*places)
        ends = consumer.end_offsets(*places)
        while any(consumer.position(each) < ends[each] for each in places):
            for record in consumer.poll(100):
                assert record.value is not None
                found[TopicPartition(record.topic, record.partition)].append(record.value)
    return list(found.values())
