"""Record of a window of keys in a commit record: where in the topics its records are, not the keys themselves.

The keys follow from that: every committed record that the ingester's producer ids have written into these ranges of
offsets. Two windows that are recorded alike have the same keys. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final

from einmal.commit_protocol.claims import Output
from einmal.types import TopicPartition

SPANS_WINDOWS: Final = 2
"""Windows of time for which a record is remembered: see ``RecordedWindow``."""

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class DuplicateCounts:
    """``duplicates`` were removed, ``different`` of them with another value than the record that is written.
    ``without_key``: records without the business key (and tombstones), which are written. ``late``: records that are
    written although a duplicate of them may be forgotten."""

    duplicates: int = 0
    different: int = 0
    without_key: int = 0
    late: int = 0

    def __add__(self, other: DuplicateCounts) -> DuplicateCounts:
        return DuplicateCounts(
            *(getattr(self, count.name) + getattr(other, count.name) for count in fields(DuplicateCounts))
        )


@dataclass(frozen=True, slots=True)
class WindowSpan:
    """Records that were written one after the other. ``since``: the clock when it began; ``first``: the offset of its
    first record in each partition; ``producers``: producer ids that have written it. ``number`` is never used again."""

    number: int
    since: int
    first: Offsets = field(default_factory=dict)
    producers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RecordedWindow:
    """A window after a committed batch. ``clock``: the newest timestamp so far (ms), never after the time of day.
    ``reached``: the offset behind the last record in each partition.

    Records are forgotten by spans, the first once the second began two windows ago: a record whose timestamp is up to
    one window behind the clock finds every record that is up to one window older than itself.
    """

    window_ms: int
    clock: int = 0
    spans: tuple[WindowSpan, ...] = (WindowSpan(0, 0),)
    reached: Offsets = field(default_factory=dict)
    batch: DuplicateCounts = DuplicateCounts()
    total: DuplicateCounts = DuplicateCounts()

    def after(self, clock: int, counts: DuplicateCounts, outputs: Sequence[Output], producer_id: int) -> RecordedWindow:
        """With one more batch: what it has written, and the clock behind it."""
        written = {TopicPartition(output.topic, output.partition): output for output in outputs}
        created_again = {
            partition for partition, output in written.items() if output.first_offset < self.reached.get(partition, 0)
        }
        # What was remembered of a topic that is gone is gone with it.
        remembered = [_without(span, created_again) for span in self.spans]
        last = remembered[-1]
        first = {partition: output.first_offset for partition, output in written.items()} | dict(last.first)
        producers = dict.fromkeys((*last.producers, producer_id)) if outputs else last.producers
        # The time of day may have been set back, and the clock with it.
        spans = [replace(span, since=min(span.since, clock)) for span in remembered]
        spans[-1] = replace(spans[-1], first=first, producers=tuple(producers))
        if clock - spans[-1].since >= self.window_ms:
            spans.append(WindowSpan(last.number + 1, clock))
        while len(spans) > 1 and clock - spans[1].since >= SPANS_WINDOWS * self.window_ms:
            del spans[0]
        reached = {**self.reached, **{partition: output.last_offset + 1 for partition, output in written.items()}}
        return RecordedWindow(
            self.window_ms,
            clock,
            tuple(spans),
            {partition: end for partition, end in reached.items() if any(partition in span.first for span in spans)},
            counts,
            self.total + counts,
        )

    def start(self) -> dict[TopicPartition, int]:
        """The offset of the first record that is remembered, by partition."""
        offsets: dict[TopicPartition, int] = {}
        for span in reversed(self.spans):
            offsets.update(span.first)
        return offsets

    def span_of(self, partition: TopicPartition, offset: int) -> int:
        """The number of the span that a remembered record belongs to."""
        return next(span.number for span in reversed(self.spans) if span.first.get(partition, offset + 1) <= offset)

    def encode(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "window_ms": self.window_ms,
            "clock": self.clock,
            "spans": [
                {
                    "number": span.number,
                    "since": span.since,
                    "first": _nested(span.first),
                    "producers": [*span.producers],
                }
                for span in self.spans
            ],
            "reached": _nested(self.reached),
            "batch": asdict(self.batch),
            "total": asdict(self.total),
        }


def _without(span: WindowSpan, partitions: Collection[TopicPartition]) -> WindowSpan:
    first = {partition: offset for partition, offset in span.first.items() if partition not in partitions}
    return replace(span, first=first)


def decode_window(value: Any) -> RecordedWindow:
    """Raises ValueError for anything that ``encode`` cannot have returned: any client may have written it."""
    try:
        window = RecordedWindow(
            _number(value["window_ms"], 1),
            _number(value["clock"]),
            tuple(
                WindowSpan(
                    _number(span["number"]),
                    _number(span["since"]),
                    _flat(span["first"]),
                    tuple(_number(producer) for producer in span["producers"]),
                )
                for span in value["spans"]
            ),
            _flat(value["reached"]),
            DuplicateCounts(**{name: _number(count) for name, count in value["batch"].items()}),
            DuplicateCounts(**{name: _number(count) for name, count in value["total"].items()}),
        )
    except (TypeError, LookupError, AttributeError) as error:
        raise ValueError(f"not a window of keys: {error!r:.100}") from error
    numbers = [span.number for span in window.spans]
    start = window.start()
    if not numbers or numbers != sorted(set(numbers)):
        raise ValueError("not a window of keys: its spans are in no order")
    if start.keys() != window.reached.keys() or any(
        start[partition] >= end for partition, end in window.reached.items()
    ):
        raise ValueError("not a window of keys: its offsets contradict each other")
    return window


def _number(value: Any, least: int = 0) -> int:
    if type(value) is not int or value < least:
        raise ValueError(f"not a window of keys: {value!r:.40} for a number")
    return value


def _nested(offsets: Offsets) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for partition, offset in offsets.items():
        nested.setdefault(partition.topic, {})[str(partition.partition)] = offset
    return nested


def _flat(nested: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, int(partition)): _number(offset)
        for topic, offsets in nested.items()
        for partition, offset in offsets.items()
    }
