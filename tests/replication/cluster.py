"""A partition on some brokers, made of the machines under test, lists for logs, and messages that come when they like.

The controller is a value with a lock: what it decides is decided, but brokers learn of it late, and in any order of
brokers. The network loses, doubles, delays and reorders requests and answers. Brokers stop and start again with the log
they had, or without the end that they had not flushed; such an unclean one is no member of the ISR any more.
Whatever a leader's high watermark passes is written down, and must be the same for ever.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from einmal.log.leader_epochs import LeaderEpochs
from einmal.replication.follower import (
    Append,
    Later,
    Outdated,
    Restart,
    Step,
    Truncate,
    divergence,
    next_step,
    question,
)
from einmal.replication.leader import IsrProposal, Leader, Membership
from einmal.types import BrokerId, ErrorCode, LeaderEpoch, Offset
from einmal.wire.fetch import FetchedPartition, FetchPartition

LAG_MAX_MS = 25
BATCH_MAX = 4


@dataclass
class Log:
    """Entries are (epoch, value)."""

    entries: list[tuple[int, int]] = field(default_factory=list)
    start: int = 0
    epochs: LeaderEpochs = field(default_factory=LeaderEpochs)
    high_watermark: int = 0

    @property
    def log_start_offset(self) -> Offset:
        return Offset(self.start)

    @property
    def log_end_offset(self) -> Offset:
        return Offset(self.start + len(self.entries))

    @property
    def latest_epoch(self) -> LeaderEpoch:
        return self.epochs.latest

    def end_offset_for_epoch(self, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset]:
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    def append(self, entry: tuple[int, int]) -> None:
        self.epochs.assign(LeaderEpoch(entry[0]), self.log_end_offset)
        self.entries.append(entry)

    def truncate(self, offset: int) -> None:
        del self.entries[offset - self.start :]
        self.epochs.truncate_to(self.log_end_offset)
        self.high_watermark = min(self.high_watermark, self.log_end_offset)

    def restart(self, offset: int) -> None:
        self.entries, self.start, self.epochs, self.high_watermark = [], offset, LeaderEpochs(), offset

    def delete_before(self, offset: int) -> None:
        if offset > self.start:
            del self.entries[: offset - self.start]
            self.start = offset
            self.epochs.advance_start(Offset(offset))


@dataclass(frozen=True)
class Image:
    """What the controller has recorded."""

    leader: int
    leader_epoch: int
    isr: tuple[BrokerId, ...]
    partition_epoch: int
    broker_epochs: dict[BrokerId, int]


@dataclass
class Broker:
    broker_id: BrokerId
    log: Log = field(default_factory=Log)
    is_up: bool = True
    broker_epoch: int = 1
    image: Image | None = None
    leader: Leader | None = None
    flushed: int = 0
    outdated_at: int = -1
    """The leader epoch that the leader said is old."""


@dataclass
class Message:
    kind: str
    source: BrokerId
    target: BrokerId
    content: Any


class Cluster:
    def __init__(self, seed: int, *, brokers: int = 3, min_insync_replicas: int = 1, flush_each: bool = False) -> None:
        self.random = random.Random(seed)
        self.replicas = tuple(BrokerId(number) for number in range(1, brokers + 1))
        self.brokers = {broker_id: Broker(broker_id) for broker_id in self.replicas}
        self.min_insync_replicas = min_insync_replicas
        self.flush_each = flush_each
        self.image = Image(1, 0, self.replicas, 0, dict.fromkeys(self.replicas, 1))
        self.fenced: dict[BrokerId, None] = {}
        self.messages: list[Message] = []
        self.committed: list[tuple[int, int]] = []
        self.now = 0
        self.next_value = 0
        self.truncations = 0
        self.leaders: dict[int, BrokerId] = {}

    # --- the controller ----------------------------------------------------------------------------------------------

    def record(self, **changes: Any) -> None:
        fields = {**self.image.__dict__, **changes, "partition_epoch": self.image.partition_epoch + 1}
        self.image = Image(**fields)

    def eligible(self) -> dict[BrokerId, int]:
        return {
            broker_id: epoch for broker_id, epoch in self.image.broker_epochs.items() if broker_id not in self.fenced
        }

    def elect(self) -> None:
        """A leader out of the ISR, where anybody of it is alive."""
        image = self.image
        if image.leader not in (-1, *self.fenced) and image.leader in image.isr:
            return
        alive = [broker_id for broker_id in image.isr if broker_id not in self.fenced]
        leader = self.random.choice(alive) if alive else -1
        if leader != image.leader:
            self.record(leader=leader, leader_epoch=image.leader_epoch + 1)

    def fence(self, broker_id: BrokerId) -> None:
        """The last one stays in the ISR: nobody else may lead."""
        self.fenced[broker_id] = None
        isr = tuple(member for member in self.image.isr if member != broker_id) or self.image.isr
        if isr != self.image.isr:
            self.record(isr=isr)
        self.elect()

    def register(self, broker: Broker, *, is_clean: bool) -> None:
        broker.broker_epoch += 1
        epochs = {**self.image.broker_epochs, broker.broker_id: broker.broker_epoch}
        isr = self.image.isr
        if not is_clean:
            isr = tuple(member for member in isr if member != broker.broker_id)
        self.record(broker_epochs=epochs, isr=isr)
        if self.image.leader == broker.broker_id:
            self.record(leader=-1, leader_epoch=self.image.leader_epoch + 1)
        self.fenced.pop(broker.broker_id, None)
        self.elect()

    def alter(self, proposal: IsrProposal) -> ErrorCode:
        if proposal.leader_epoch != self.image.leader_epoch:
            return ErrorCode.fenced_leader_epoch
        if proposal.partition_epoch != self.image.partition_epoch:
            return ErrorCode.invalid_update_version
        for broker_id, epoch in proposal.isr:
            is_leader = broker_id == self.image.leader
            if not is_leader and (broker_id in self.fenced or epoch != self.image.broker_epochs[broker_id]):
                return ErrorCode.ineligible_replica
        self.record(isr=tuple(broker_id for broker_id, _epoch in proposal.isr))
        return ErrorCode.none

    # --- brokers -----------------------------------------------------------------------------------------------------

    def learn(self, broker: Broker) -> None:
        """The newest image reaches a broker."""
        image, before = self.image, broker.image
        broker.image = image
        is_new_epoch = before is None or image.leader_epoch > before.leader_epoch
        membership = Membership(self.replicas, image.isr, image.partition_epoch)
        if is_new_epoch:
            broker.leader = None
            if image.leader == broker.broker_id:
                self.lead(broker, image, membership)
            else:
                broker.log.epochs.truncate_to(broker.log.log_end_offset)
        elif broker.leader is not None:
            broker.leader.membership_changed(membership, self.now)
            broker.leader.brokers_changed(self.eligible())
        self.advanced(broker)

    def lead(self, broker: Broker, image: Image, membership: Membership) -> None:
        assert self.leaders.setdefault(image.leader_epoch, broker.broker_id) == broker.broker_id
        log = broker.log
        assert log.log_end_offset >= len(self.committed), "a leader without what is committed"
        log.epochs.assign(LeaderEpoch(image.leader_epoch), log.log_end_offset)
        broker.leader = Leader(
            broker.broker_id,
            LeaderEpoch(image.leader_epoch),
            membership,
            epoch_start=log.log_end_offset,
            high_watermark=Offset(log.high_watermark),
            min_insync_replicas=self.min_insync_replicas,
            lag_max_ms=LAG_MAX_MS,
            now_ms=self.now,
            eligible=self.eligible(),
        )
        broker.leader.local_end_moved(self.counted_end(broker))

    def counted_end(self, broker: Broker) -> Offset:
        return Offset(broker.flushed) if self.flush_each else broker.log.log_end_offset

    def advanced(self, broker: Broker) -> None:
        """Whatever a leader lets its clients see is committed, for ever."""
        leader, log = broker.leader, broker.log
        if leader is None:
            return
        assert leader.high_watermark >= log.high_watermark, "the high watermark falls"
        log.high_watermark = leader.high_watermark
        known = len(self.committed)
        for offset in range(log.start, min(known, log.high_watermark)):
            assert log.entries[offset - log.start] == self.committed[offset], f"offset {offset} has changed"
        assert log.start <= known
        self.committed += log.entries[known - log.start : log.high_watermark - log.start]

    def produce(self, broker: Broker) -> None:
        if broker.leader is None:
            return
        for _ in range(self.random.randint(1, BATCH_MAX)):
            self.next_value += 1
            broker.log.append((broker.leader.leader_epoch, self.next_value))
        if not self.flush_each:
            broker.leader.local_end_moved(broker.log.log_end_offset)
        self.advanced(broker)

    def flush(self, broker: Broker) -> None:
        broker.flushed = broker.log.log_end_offset
        if broker.leader is not None:
            broker.leader.local_end_moved(self.counted_end(broker))
            self.advanced(broker)

    def ask(self, broker: Broker) -> None:
        image = broker.image
        if image is None or broker.leader is not None or image.leader in (-1, broker.broker_id):
            return
        if broker.outdated_at == image.leader_epoch:
            return
        if self.flush_each:
            self.flush(broker)
        asked = question(broker.log, 0, LeaderEpoch(image.leader_epoch), 1_000)
        content = (broker.broker_epoch, asked)
        self.messages.append(Message("ask", broker.broker_id, BrokerId(image.leader), content))

    def propose(self, broker: Broker) -> None:
        if broker.leader is None:
            return
        broker.leader.look(broker.log.log_end_offset, self.now)
        proposal = broker.leader.propose(self.now)
        self.advanced(broker)
        if proposal is not None:
            self.messages.append(Message("alter", broker.broker_id, BrokerId(0), proposal))

    # --- messages ----------------------------------------------------------------------------------------------------

    def deliver(self, message: Message) -> None:
        if message.kind == "alter":
            error = self.alter(message.content)
            self.messages.append(Message("altered", BrokerId(0), message.source, (message.content, error)))
            return
        broker = self.brokers[message.target]
        if not broker.is_up:
            return
        if message.kind == "ask":
            self.answer(broker, message)
        elif message.kind == "answer":
            self.take(broker, *message.content)
        elif broker.leader is not None:
            proposal, error = message.content
            if error is ErrorCode.ineligible_replica:
                broker.leader.refused(proposal, self.now)
            self.advanced(broker)

    def answer(self, broker: Broker, message: Message) -> None:
        broker_epoch, asked = message.content
        answered = self.answer_to(broker, message.source, broker_epoch, asked)
        self.messages.append(Message("answer", broker.broker_id, message.source, (broker_epoch, asked, answered)))

    def answer_to(self, broker: Broker, source: BrokerId, broker_epoch: int, asked: FetchPartition) -> FetchedPartition:
        known = -1 if broker.image is None else broker.image.leader_epoch
        if asked.current_leader_epoch != known:
            is_old = asked.current_leader_epoch < known
            return FetchedPartition(0, ErrorCode.fenced_leader_epoch if is_old else ErrorCode.unknown_leader_epoch)
        leader, log = broker.leader, broker.log
        if leader is None:
            return FetchedPartition(0, ErrorCode.not_leader_or_follower)
        diverging = divergence(log, asked)
        if diverging is not None:
            return FetchedPartition(0, diverging_epoch=diverging)
        if not log.start <= asked.fetch_offset <= log.log_end_offset:
            return FetchedPartition(0, ErrorCode.offset_out_of_range, log_start_offset=log.start)
        offset, start = Offset(asked.fetch_offset), Offset(asked.log_start_offset)
        error = leader.fetched(source, broker_epoch, offset, log.log_end_offset, self.now, start)
        self.advanced(broker)
        if error is not ErrorCode.none:
            return FetchedPartition(0, error)
        first = asked.fetch_offset - log.start
        records = log.entries[first : first + self.random.randint(1, BATCH_MAX)]
        return FetchedPartition(0, ErrorCode.none, log.high_watermark, -1, log.start, records=records)  # type: ignore[arg-type]

    def take(self, broker: Broker, broker_epoch: int, asked: FetchPartition, answered: FetchedPartition) -> None:
        """An answer that is not to the question of now means nothing."""
        log, image = broker.log, broker.image
        is_current = image is not None and image.leader_epoch == asked.current_leader_epoch
        if not is_current or broker.leader is not None or broker_epoch != broker.broker_epoch:
            return
        if question(log, 0, LeaderEpoch(asked.current_leader_epoch), 1_000) != asked:
            return
        self.carry_out(broker, next_step(log, answered))

    def carry_out(self, broker: Broker, step: Step) -> None:
        log = broker.log
        match step:
            case Append(records, high_watermark, start):
                for entry in records:
                    log.append(entry)  # type: ignore[arg-type]
                if self.flush_each:
                    self.flush(broker)
                log.high_watermark = max(log.high_watermark, min(high_watermark, log.log_end_offset))
                log.delete_before(min(start, log.high_watermark))
            case Truncate(offset):
                self.truncations += 1
                assert log.start <= offset < log.log_end_offset
                log.truncate(offset)
                broker.flushed = min(broker.flushed, offset)
            case Restart(offset):
                log.restart(offset)
                broker.flushed = offset
            case Later(error):
                assert error is not ErrorCode.unknown_server_error
            case Outdated():
                assert broker.image is not None
                broker.outdated_at = broker.image.leader_epoch

    # --- faults ------------------------------------------------------------------------------------------------------

    def crash(self, broker: Broker, *, loses_unflushed: bool) -> None:
        broker.is_up = False
        broker.leader = None
        broker.image = None
        broker.outdated_at = -1
        log = broker.log
        if loses_unflushed:
            log.truncate(max(broker.flushed, log.start))
        # Nobody writes the high watermark down.
        log.high_watermark = log.start
        log.epochs.truncate_to(log.log_end_offset)

    def start(self, broker: Broker, *, is_clean: bool) -> None:
        broker.is_up = True
        self.register(broker, is_clean=is_clean)
