"""Plan of what a source's next batch reads: which partitions exist, where they begin and end, and whether its position
fits.

A topic is its id, not its name: one that was deleted and created again is another topic, and offsets of the old one
mean nothing in it. One topic that is gone, or a partition without a leader, does not keep the others from being read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeVar

from einmal.client.errors import UnknownTopic, error_for
from einmal.clusters.kafka_cluster import KafkaCluster, Seen, matches
from einmal.commit_protocol.source_offsets import Positions, SourcePosition, first_offsets, limited, to_json
from einmal.event_log import EventLog
from einmal.options.source import (
    EARLIEST,
    LATEST,
    Offsets,
    Position,
    SourceOptions,
    Times,
)
from einmal.options.values import OptionError
from einmal.spark.source import data_loss
from einmal.spark.source.data_loss import DataLoss, of_topic
from einmal.types import ErrorCode, Offset, TopicPartition

_ASKED_MAX: Final = 3
"""How often the topics are asked for anew because one was deleted between two questions."""

T = TypeVar("T")

_logger = EventLog(__name__)


@dataclass(slots=True)
class _Reading:
    """Offsets that a batch can read. ``first``: where it begins, by partition. ``starts``: those of them that do not
    follow from the position before. ``kept``: offsets of partitions that are not read now. ``losses``: messages."""

    first: Positions = field(default_factory=dict)
    starts: Positions = field(default_factory=dict)
    kept: Positions = field(default_factory=dict)
    losses: list[str] = field(default_factory=list)

    def begin(self, partition: TopicPartition, offset: Offset) -> None:
        self.first[partition] = self.starts[partition] = offset


class SourcePlanner:
    """The questions of one source. ``close`` it."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._cluster = KafkaCluster(options.client)
        self._committed = options.isolation == "read_committed"
        self._settled: set[str] = set()
        """Topics that are known to be gone or to lack a leader: they are not waited for again."""
        self._logged: set[str] = set()

    def close(self) -> None:
        self._cluster.close()

    # --- where a query begins and ends --------------------------------------------------------------------------

    def starting(self) -> SourcePosition:
        """``startingOffsets`` as a position. Raises UnknownTopic."""
        seen = self._existing()
        offsets = self._resolved("starting", self._partitions(seen), self._options.starting)
        return SourcePosition(offsets, seen.topic_ids(), seen.cluster_id)

    def ending(self) -> Positions:
        """``endingOffsets`` as offsets. Raises DataLoss for one that does not exist, UnknownTopic."""
        partitions = self._partitions(self._existing())
        chosen = self._resolved("ending", partitions, self._options.ending)
        if self._options.fail_on_data_loss and isinstance(self._options.ending, dict):
            for partition, end in self._cluster.latest(partitions, committed=False).items():
                if chosen[partition] > end:
                    raise DataLoss(
                        f"{partition} ends at offset {end}, before {chosen[partition]}, which endingOffsets asks for"
                    )
        return chosen

    def ends(self) -> Positions:
        """Where the topics that exist end now, for a reader at the source's isolation level. Waits for leaders."""
        return self._unless_deleted(lambda: self._look([], {}, waits=True)[1])

    # --- the next batch -----------------------------------------------------------------------------------------

    def next(self, begin: SourcePosition, target: Positions | None, most: int | None) -> SourcePosition:
        """Where the batch after ``begin`` ends: ``begin`` itself while there is nothing new.

        ``target``: not to be read beyond (Trigger.AvailableNow). ``most``: about how many offsets at most.
        Raises DataLoss, PositionRefused.
        """
        return self._unless_deleted(lambda: self._next(begin, target, most))

    def _next(self, begin: SourcePosition, target: Positions | None, most: int | None) -> SourcePosition:
        selected = [topic for topic in _topics(begin.offsets) if self._selects(topic)]
        seen, ends = self._look(selected, begin.offsets, waits=target is not None)
        self._check_cluster(begin, seen)
        reading = self._compared(begin, seen, ends)
        self._add_new(begin, seen, ends if target is None else target, reading)
        available = {partition: ends.get(partition, first) for partition, first in reading.first.items()}
        if target is not None:
            available = {partition: min(end, target.get(partition, end)) for partition, end in available.items()}
        self._skip_expired(available, reading)
        self._report(reading.losses)
        available = {partition: max(first, available[partition]) for partition, first in reading.first.items()}
        reached = available if most is None else limited(reading.first, available, most)
        offsets = reading.kept | reached
        known = dict(begin.topic_ids) | seen.topic_ids()
        topic_ids = {topic: known[topic] for topic in _topics(offsets) if topic in known}
        end = SourcePosition(offsets, topic_ids, seen.cluster_id or begin.cluster_id, reading.starts)
        return begin if _is_where(end, begin) else end

    def first_offsets(self, begin: SourcePosition, end: SourcePosition) -> Positions:
        """Where a planned batch begins. Partitions that an older version planned as new begin at their first record."""
        known = first_offsets(begin, end)
        new = [partition for partition in end.offsets if partition not in known]
        return known | self._cluster.earliest(new) if new else known

    def check_replay(self, begin: SourcePosition, end: SourcePosition) -> None:
        """Report at once what a batch that was planned by an earlier run of the query cannot read any more.

        Raises DataLoss, PositionRefused.
        """
        first = first_offsets(begin, end)
        topics = _topics(
            {partition: offset for partition, offset in end.offsets.items() if offset > first.get(partition, 0)}
        )
        seen = self._seen(topics)
        self._check_cluster(end, seen)
        losses = []
        for topic in topics:
            reached = of_topic(first, topic)
            if topic not in seen.topics:
                losses.append(data_loss.deleted_topic(topic, reached))
            elif ids := _changed_id(end, seen, topic):
                losses.append(data_loss.recreated_topic(topic, *ids, reached))
        self._report(losses)

    # --- what there is ------------------------------------------------------------------------------------------

    def _look(self, others: Iterable[str], reached: Positions, *, waits: bool) -> tuple[Seen, Positions]:
        """The selected topics and ``others``, as far as they exist, and where their partitions end.

        ``reached``: see ``KafkaCluster.latest``. Without ``waits`` partitions that lack a leader are left out.
        """
        seen = self._seen(list(dict.fromkeys([*self._selected(), *others])))
        partitions = [
            partition
            for partition in self._partitions(seen)
            if waits or partition not in seen.topics[partition.topic].leaderless
        ]
        return seen, self._cluster.latest(partitions, committed=self._committed, reached=reached, may_lack=not waits)

    def _unless_deleted(self, ask: Callable[[], T]) -> T:
        """The answer to several questions; all are asked again when a topic was deleted between two of them."""
        for _ in range(_ASKED_MAX - 1):
            with suppress(UnknownTopic):
                return ask()
        return ask()

    def _existing(self) -> Seen:
        """All selected topics. Raises UnknownTopic."""
        names = self._selected()
        seen = self._seen(names)
        for name in names:
            if name not in seen.topics:
                raise error_for(ErrorCode.unknown_topic_or_partition, f"topic {name!r}")
        for partition in self._absent(seen):
            raise error_for(ErrorCode.unknown_topic_or_partition, f"assign: {partition}")
        return seen

    def _absent(self, seen: Seen) -> list[str]:
        """Partitions that are assigned, and that their topics do not have, with how many there are."""
        return [
            f"partition {partition} of a topic with {len(seen.topics[partition.topic].partitions)}"
            for partition in self._options.assigned
            if partition.topic in seen.topics and partition not in seen.topics[partition.topic].partitions
        ]

    def _selected(self) -> list[str]:
        options = self._options
        if options.pattern is not None:
            return self._cluster.topics(options.pattern)
        return list(options.topics) or _topics(options.assigned)

    def _selects(self, topic: str) -> bool:
        options = self._options
        if options.pattern is not None:
            return matches(options.pattern, topic)
        return topic in options.topics or any(partition.topic == topic for partition in options.assigned)

    def _partitions(self, seen: Seen) -> list[TopicPartition]:
        """The partitions to be read, of the topics that exist."""
        chosen = self._options.assigned
        return [
            partition
            for name in sorted(seen.topics)
            for partition in seen.topics[name].partitions
            if not chosen or partition in chosen
        ]

    def _seen(self, topics: list[str]) -> Seen:
        """Return what exists of these topics. One that is gone, or lacks a leader, is waited for once."""
        seen = self._cluster.look(topics, self._settled)
        for name in topics:
            topic = seen.topics.get(name)
            if topic is not None and not topic.leaderless:
                self._settled.discard(name)
                continue
            if topic is not None and name not in self._settled:
                _logger.warning(
                    "partitions_leaderless",
                    "partitions %(partitions)s have no leader: they are read once they have one; a running query reads "
                    "others meanwhile",
                    partitions=", ".join(map(str, sorted(topic.leaderless))),
                )
            self._settled.add(name)
        return seen

    # --- does the position fit? ---------------------------------------------------------------------------------

    def _check_cluster(self, begin: SourcePosition, seen: Seen) -> None:
        """Raises PositionRefused where positions of one cluster would be used in another."""
        if begin.cluster_id is None or seen.cluster_id in (None, begin.cluster_id):
            return
        ids = seen.topic_ids()
        if any(ids.get(topic) == topic_id for topic, topic_id in begin.topic_ids.items()):
            # The same topics: the cluster has another id now.
            return
        assert seen.cluster_id is not None
        raise data_loss.other_cluster(self._options.client["bootstrap.servers"], begin, seen.cluster_id)

    def _compared(self, begin: SourcePosition, seen: Seen, ends: Positions) -> _Reading:
        """Return what of the position can be continued, and what is lost."""
        reading = _Reading()
        self._leave_unselected(begin, reading)
        for topic in _topics(begin.offsets):
            reached = of_topic(begin.offsets, topic)
            if not self._selects(topic):
                continue
            if topic not in seen.topics:
                reading.kept |= reached
                reading.losses.append(data_loss.deleted_topic(topic, reached))
            elif ids := _changed_id(begin, seen, topic):
                self._begin_again(topic, seen, ends, reading)
                reading.losses.append(data_loss.recreated_topic(topic, *ids, reached))
            else:
                self._continue(topic, reached, begin, seen, ends, reading)
        return reading

    def _leave_unselected(self, begin: SourcePosition, reading: _Reading) -> None:
        """Raises PositionRefused."""
        others = {partition: offset for partition, offset in begin.offsets.items() if not self._reads(partition)}
        if self._options.pattern is not None:
            # An older version let a pattern choose them: they are dropped from the position.
            internal = {partition for partition in others if not matches(".*", partition.topic)}
            others = {partition: offset for partition, offset in others.items() if partition not in internal}
            for topic in _topics(internal):
                self._log_once(f"internal topic {topic!r} is not read any more: a pattern does not select it")
        if not others:
            return
        option = self._option()
        refusal = data_loss.not_selected(option, _topics(others), self._selected())
        if self._options.fail_on_data_loss:
            raise refusal
        self._log_once(str(refusal).partition("\n")[0])
        reading.kept |= others

    def _reads(self, partition: TopicPartition) -> bool:
        return self._selects(partition.topic) and (not self._options.assigned or partition in self._options.assigned)

    def _option(self) -> str:
        if self._options.pattern is not None:
            return "subscribePattern"
        return "assign" if self._options.assigned else "subscribe"

    def _begin_again(self, topic: str, seen: Seen, ends: Positions, reading: _Reading) -> None:
        """At the first record of a topic that has taken an old one's name."""
        partitions = [partition for partition in seen.topics[topic].partitions if partition in ends]
        for partition, offset in self._cluster.earliest(partitions).items():
            reading.begin(partition, offset)

    def _continue(
        self,
        topic: str,
        reached: Positions,
        begin: SourcePosition,
        seen: Seen,
        ends: Positions,
        reading: _Reading,
    ) -> None:
        """In a topic that is, as far as its id is known, the one that was read."""
        is_same_topic = topic in begin.topic_ids and seen.topics[topic].topic_id is not None
        reached = {partition: offset for partition, offset in reached.items() if self._reads(partition)}
        missing = {
            partition: reached[partition] for partition in reached if partition not in seen.topics[topic].partitions
        }
        short = {
            partition: ends[partition]
            for partition in reached
            if partition in ends and ends[partition] < reached[partition]
        }
        if short and self._committed:
            # An open transaction may lie before a position that was reached under read_uncommitted.
            marks = self._cluster.latest(short, committed=False, reached=reached)
            short = {partition: marks[partition] for partition in short if marks[partition] < reached[partition]}
        if missing and not is_same_topic:
            reading.losses.append(data_loss.missing_partitions(missing))
        if short:
            lost = {partition: reached[partition] for partition in short}
            reading.losses.append(data_loss.shorter_log(short, lost, is_same_topic=is_same_topic))
        if (missing or short) and not is_same_topic:
            # Without ids the likely cause decides: another topic, with nothing read of it.
            self._begin_again(topic, seen, ends, reading)
            return
        for partition, offset in reached.items():
            if partition in short:
                reading.begin(partition, short[partition])
            elif partition in ends:
                reading.first[partition] = offset
            else:
                reading.kept[partition] = offset

    def _add_new(self, begin: SourcePosition, seen: Seen, ends: Positions, reading: _Reading) -> None:
        """Partitions without a position are read from their first record, which becomes part of the position."""
        new = [
            partition
            for partition in self._partitions(seen)
            if partition in ends and partition not in reading.first and partition not in reading.kept
        ]
        known = set(_topics(begin.offsets))
        for partition, offset in self._cluster.earliest(new).items():
            reading.begin(partition, offset)
            if offset and partition.topic in known:
                zero = {partition: Offset(0)}
                reading.losses.append(data_loss.expired_records(zero, {partition: offset}))
            elif offset:
                self._log_once(f"{partition} is read from offset {offset} on, the first that exists")
        if not self._options.pattern:
            wanted = self._options.topics or _topics(self._options.assigned)
            absent = [repr(name) for name in wanted if name not in seen.topics and name not in known]
            absent += self._absent(seen)
            if absent:
                refusal = data_loss.no_such_topic(self._option(), absent)
                if self._options.fail_on_data_loss:
                    raise refusal
                self._log_once(str(refusal).partition("\n")[0])

    def _skip_expired(self, available: Positions, reading: _Reading) -> None:
        """Skip what retention has taken from before the batch's records, where there are any to read."""
        pending = [partition for partition, first in reading.first.items() if available[partition] > first]
        expired = {
            partition: offset
            for partition, offset in self._cluster.earliest(pending).items()
            if offset > reading.first[partition]
        }
        if expired:
            starts = {partition: reading.first[partition] for partition in expired}
            reading.losses.append(data_loss.expired_records(starts, expired))
        for partition, offset in expired.items():
            reading.begin(partition, offset)

    # --- reporting ----------------------------------------------------------------------------------------------

    def _report(self, losses: list[str]) -> None:
        """Raises DataLoss under failOnDataLoss, else logs each loss once."""
        if losses and self._options.fail_on_data_loss:
            raise DataLoss("; ".join(losses))
        for loss in losses:
            self._log_once(f"failOnDataLoss=false: {loss}")

    def _log_once(self, what: str) -> None:
        if what not in self._logged:
            self._logged.add(what)
            _logger.warning("source_notice", "%(what)s", what=what)

    # --- options as offsets -------------------------------------------------------------------------------------

    def _resolved(self, side: str, partitions: list[TopicPartition], wanted: Position) -> Positions:
        if wanted == "earliest":
            return self._cluster.earliest(partitions)
        if wanted == "latest":
            return self._cluster.latest(partitions, committed=self._committed)
        if isinstance(wanted, Times):
            if isinstance(wanted.ms, int):
                times = dict.fromkeys(partitions, wanted.ms)
            else:
                times = _for_each(partitions, wanted.ms, f"{side}OffsetsByTimestamp", "a time")
            may_lack = side == "ending" or self._options.starting_without_record == "latest"
            return self._cluster.at_times(times, committed=self._committed, may_lack=may_lack)
        assert not isinstance(wanted, str)
        # No range ends at earliest.
        words = "-1 stands for latest" if side == "ending" else "-2 stands for earliest, -1 for latest"
        chosen = _for_each(partitions, wanted, f"{side}Offsets", "an offset", f"\nhint: {words}")
        earliest = self._cluster.earliest([partition for partition in partitions if chosen[partition] == EARLIEST])
        latest = self._cluster.latest(
            [partition for partition in partitions if chosen[partition] == LATEST], committed=self._committed
        )
        return {
            partition: earliest.get(partition, latest.get(partition, Offset(chosen[partition])))
            for partition in partitions
        }


def _for_each(
    partitions: list[TopicPartition], given: Offsets, name: str, what: str, hint: str = ""
) -> dict[TopicPartition, int]:
    chosen = {TopicPartition(topic, index): number for topic in given for index, number in given[topic].items()}
    if set(chosen) != set(partitions):
        raise OptionError(
            f'option "{name}" must have {what} for each of {to_json(dict.fromkeys(partitions, 0))}'
            f", given are {to_json(chosen)}{hint}"
        )
    return chosen


def _topics(partitions: Iterable[TopicPartition]) -> list[str]:
    return sorted({partition.topic for partition in partitions})


def _changed_id(begin: SourcePosition, seen: Seen, topic: str) -> tuple[str, str] | None:
    """The topic's id in the position and now, where they differ; an unknown one differs from none."""
    before, now = begin.topic_ids.get(topic), seen.topics[topic].topic_id
    return (before, now) if before is not None and now is not None and before != now else None


def _is_where(end: SourcePosition, begin: SourcePosition) -> bool:
    """Whether nothing has moved since ``begin``, and nothing more is known of what it is a position in."""
    return (end.offsets, end.topic_ids, end.cluster_id) == (begin.offsets, dict(begin.topic_ids), begin.cluster_id)
