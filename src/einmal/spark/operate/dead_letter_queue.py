"""A dead-letter topic as its owner manages it, without Spark: what is in it, and its records back to where they failed.

``replay`` copies original records in transactions. Each transaction also has a mark for each of its dead letters, in
``REPLAY_TOPIC``: the id of the dead-letter topic, partition and offset. A replay begins with InitProducerId under a
transactional.id that belongs to the dead-letter topic. It fences a replay that still runs and ends its transaction, and
only then reads the marks. So a replay that was killed, or that runs twice, copies each record once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from einmal.client import OffsetRange, Producer, RangeReader
from einmal.clusters.kafka_cluster import KafkaCluster
from einmal.commit_protocol.commit_record import REPLAY_TOPIC, RESERVED_TOPICS
from einmal.pipeline.dead_letters import (
    CONNECTOR,
    EXCEPTION,
    MESSAGE,
    ORIGINAL_OFFSET,
    ORIGINAL_PARTITION,
    ORIGINAL_TOPIC,
    STAGE,
    context_of,
    original_headers,
)
from einmal.types import Header, TopicPartition

_MARKS_CONFIG: Final = {"cleanup.policy": "compact"}
_TOGETHER: Final = 1_000
_BYTES: Final = 8 * 1024 * 1024
"""Dead letters of one transaction, and bytes of their keys and values after which it ends."""
_STABLE_S: Final = 60.0
_POLL_S: Final = 0.1


class ReplayRefused(Exception):
    """A replay cannot begin, or cannot continue with this record. ``hint``: what to do."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(f"{reason}\nhint: {hint}")
        self.reason = reason
        self.hint = hint


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One record of a dead-letter topic. ``timestamp`` in ms."""

    position: TopicPartition
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]

    @property
    def context(self) -> Mapping[str, str]:
        return context_of(self.headers)

    @property
    def reason(self) -> str:
        """The error's class without its module; empty without context headers."""
        return self.context.get(EXCEPTION, "").rpartition(".")[2]

    @property
    def stage(self) -> str:
        return self.context.get(STAGE, "")

    @property
    def source(self) -> str:
        return self.context.get(CONNECTOR, "")

    @property
    def message(self) -> str:
        return self.context.get(MESSAGE, "")

    @property
    def original_topic(self) -> str | None:
        return self.context.get(ORIGINAL_TOPIC)

    @property
    def original(self) -> tuple[TopicPartition, int] | None:
        """Where the record failed; None where its headers have no position."""
        topic, partition, offset = (
            self.context.get(name) for name in (ORIGINAL_TOPIC, ORIGINAL_PARTITION, ORIGINAL_OFFSET)
        )
        if topic is None or not (partition or "").isdecimal() or not (offset or "").isdecimal():
            return None
        return TopicPartition(topic, int(str(partition))), int(str(offset))


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which dead letters; what is empty selects all. ``since_ms``: at or after this timestamp. ``offsets``: of the
    dead-letter topic."""

    reasons: frozenset[str] = frozenset()
    stages: frozenset[str] = frozenset()
    sources: frozenset[str] = frozenset()
    since_ms: int | None = None
    offsets: frozenset[tuple[int, int]] = frozenset()

    def __contains__(self, letter: DeadLetter) -> bool:
        return (
            (not self.reasons or letter.reason in self.reasons)
            and (not self.stages or letter.stage in self.stages)
            and (not self.sources or letter.source in self.sources)
            and (self.since_ms is None or letter.timestamp >= self.since_ms)
            and (not self.offsets or (letter.position.partition, letter.offset) in self.offsets)
        )


class LetterGroup(NamedTuple):
    """Dead letters with the same ..."""

    source: str
    stage: str
    reason: str
    topic: str


@dataclass(slots=True)
class Counted:
    """``replayed``: of ``count``; timestamps in ms."""

    count: int = 0
    replayed: int = 0
    oldest: int = field(default=2**63 - 1)
    newest: int = -1


@dataclass(frozen=True, slots=True)
class Replayed:
    """``earlier``: selected dead letters that an earlier replay has copied."""

    copied: int
    earlier: int


class DeadLetterQueue:
    """One dead-letter topic. ``client``: settings under Kafka's names. ``with`` closes it. Raises KafkaError."""

    def __init__(self, client: Mapping[str, str], topic: str) -> None:
        self.topic = topic
        self._client = {name: value for name, value in client.items() if name != "transactional.id"}
        self._cluster = KafkaCluster(self._client)

    def __enter__(self) -> DeadLetterQueue:
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.close()

    @property
    def transactional_id(self) -> str:
        return f"einmal-dlq-replay-{self.topic}"

    # --- reading ------------------------------------------------------------------------------------------------

    def letters(self, selection: Selection | None = None) -> Iterator[DeadLetter]:
        """The committed ones, partition by partition."""
        wanted = Selection() if selection is None else selection
        yield from (letter for letter in self._read(self.topic) if letter in wanted)

    def letter(self, partition: int, offset: int) -> DeadLetter | None:
        """One of them; None where there is none."""
        at = TopicPartition(self.topic, partition)
        if at not in self._cluster.partitions([self.topic]):
            return None
        first, last = self._cluster.earliest([at])[at], self._cluster.latest([at], committed=True)[at]
        return next(self._between(at, offset, offset + 1), None) if first <= offset < last else None

    def groups(self, selection: Selection | None = None) -> dict[LetterGroup, Counted]:
        """How many there are, by source, stage, reason and original topic."""
        topic_id, marks = self._topic_id(), self._marks()
        groups: dict[LetterGroup, Counted] = {}
        for letter in self.letters(selection):
            group = LetterGroup(letter.source, letter.stage, letter.reason, letter.original_topic or "")
            counted = groups.setdefault(group, Counted())
            counted.count += 1
            counted.replayed += _mark(topic_id, letter) in marks
            counted.oldest = min(counted.oldest, letter.timestamp)
            counted.newest = max(counted.newest, letter.timestamp)
        return dict(sorted(groups.items()))

    def _read(self, topic: str) -> Iterator[DeadLetter]:
        partitions = self._cluster.partitions([topic])
        first, last = self._cluster.earliest(partitions), self._cluster.latest(partitions, committed=True)
        for partition in partitions:
            yield from self._between(partition, first[partition], last[partition])

    def _between(self, at: TopicPartition, first: int, last: int) -> Iterator[DeadLetter]:
        if first >= last:
            return
        bounds = OffsetRange(first, last)
        with RangeReader({**self._client, "isolation.level": "read_committed"}) as reader:
            for batch in reader.read({at: bounds}):
                for record in batch.records(bounds):
                    yield DeadLetter(at, record.offset, record.timestamp, record.key, record.value, record.headers)

    # --- replaying ----------------------------------------------------------------------------------------------

    def replay(
        self,
        selection: Selection,
        *,
        to: str | None = None,
        progress: Callable[[int], None] = lambda _: None,
    ) -> Replayed:
        """Copy the original records of the selected dead letters, each once, to their topic or ``to``.

        ``progress`` is called with the number of copies after each transaction. Raises KafkaError, ReplayRefused.
        """
        self._refuse_targets(to)
        self._cluster.create_topic(REPLAY_TOPIC, 1, _MARKS_CONFIG)
        topic_id = self._topic_id()
        copied = earlier = 0
        with Producer(self._client | {"transactional.id": self.transactional_id}) as producer:
            producer.init_transactions()
            marks = self._stable_marks()
            partitions: dict[str, int] = {}
            for some in _together(self.letters(selection)):
                rest = [letter for letter in some if _mark(topic_id, letter) not in marks]
                earlier += len(some) - len(rest)
                if rest:
                    self._copy(producer, rest, topic_id, to, partitions)
                    copied += len(rest)
                    progress(copied)
        return Replayed(copied, earlier)

    def _copy(
        self,
        producer: Producer,
        letters: list[DeadLetter],
        topic_id: str,
        to: str | None,
        partitions: dict[str, int],
    ) -> None:
        targets = [self._target(letter, to, partitions) for letter in letters]
        with producer.transaction() as transaction:
            sent = []
            for letter, (topic, partition) in zip(letters, targets, strict=True):
                headers = original_headers(letter.headers)
                timestamp = letter.timestamp if letter.timestamp >= 0 else None
                sent.append(transaction.send(topic, letter.value, letter.key, headers, partition, timestamp))
                sent.append(transaction.send(REPLAY_TOPIC, topic, _mark(topic_id, letter)))
            for future in sent:
                future.result()

    def _target(self, letter: DeadLetter, to: str | None, partitions: dict[str, int]) -> tuple[str, int | None]:
        """Topic, and the partition if it is the original one."""
        original = letter.original
        if to is not None:
            return to, None
        if original is None:
            raise ReplayRefused(
                f"{letter.position} offset {letter.offset} has no headers that name its original topic",
                "name the topic with --to; errors.deadletterqueue.context.headers.enable=true writes these headers",
            )
        (topic, partition), _ = original
        self._refuse_targets(topic)
        if topic not in partitions:
            partitions[topic] = len(self._cluster.partitions([topic]))
        return topic, partition if partition < partitions[topic] else None

    def _refuse_targets(self, topic: str | None) -> None:
        """A header can name any topic."""
        if topic in RESERVED_TOPICS or topic == self.topic:
            raise ReplayRefused(f"records are not replayed to {topic!r}", "choose another topic with --to")

    # --- marks --------------------------------------------------------------------------------------------------

    def _topic_id(self) -> str:
        seen = self._cluster.look([self.topic]).topics.get(self.topic)
        if seen is None:
            self._cluster.partitions([self.topic])
        # Brokers before 2.8 have no ids: a topic that is created again has the marks of the one before.
        return seen.topic_id or self.topic if seen is not None else self.topic

    def _marks(self) -> frozenset[bytes]:
        if REPLAY_TOPIC not in self._cluster.look([REPLAY_TOPIC], [REPLAY_TOPIC]).topics:
            return frozenset()
        return frozenset(record.key for record in self._read(REPLAY_TOPIC) if record.key is not None and record.value)

    def _stable_marks(self) -> frozenset[bytes]:
        """All that are committed: behind an open transaction of another replay there can be more."""
        partitions = self._cluster.partitions([REPLAY_TOPIC])
        ends = self._cluster.latest(partitions, committed=False)
        deadline = time.monotonic() + _STABLE_S
        while any(
            self._cluster.latest(partitions, committed=True)[partition] < ends[partition] for partition in partitions
        ):
            if time.monotonic() > deadline:
                raise ReplayRefused(
                    f"a transaction of another replay is open in {REPLAY_TOPIC} since {_STABLE_S:.0f} s",
                    "wait for its end, or end it: einmal txn list, einmal txn abort",
                )
            time.sleep(_POLL_S)
        return self._marks()


def _mark(topic_id: str, letter: DeadLetter) -> bytes:
    return f"{topic_id}:{letter.position.topic}:{letter.position.partition}:{letter.offset}".encode()


def _together(letters: Iterable[DeadLetter]) -> Iterator[list[DeadLetter]]:
    some: list[DeadLetter] = []
    size = 0
    for letter in letters:
        some.append(letter)
        size += len(letter.key or b"") + len(letter.value or b"")
        if len(some) >= _TOGETHER or size >= _BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some
