"""Produce: append record batches.

API: 0. Versions: 3-13 (0 is advertised as the minimum, see ``api_versions``).
Behaviour: each partition is decided alone. Answers when acks is met: 0 not at all (a refused batch closes the
connection), 1 when the leader has the batches (flushed, where each write is), all when they are below the high
watermark. The first transactional batch of a transaction in a partition is first verified at, or from v12 on added
by, the transaction coordinator (KIP-890). A batch with very many records, or bytes once it is decompressed, is
checked in the background while other connections are served. All others are appended before this call returns.
Version notes: v10 says who leads, where this broker does not; v13 names topics by id; errors that old versions do not
know are mapped by the coordinator's side.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from einmal.broker.context import Body, HandlerResult, Parked, RequestContext, Versions
from einmal.broker.leader_hints import WRONG_BROKER, LeaderHints
from einmal.broker.partition import Partition
from einmal.log.admission import Admission
from einmal.log.producer_state import CONTINUES, VerificationGuard
from einmal.metadata.image import INTERNAL_TOPICS
from einmal.types import ErrorCode, Instant, LeaderEpoch, Offset, ProducerIdAndEpoch, TopicPartition, TransactionVersion
from einmal.wire.errors import Unanswered, WireError
from einmal.wire.primitives import Topic
from einmal.wire.produce import (
    NodeEndpoint,
    ProducedPartition,
    ProduceRequest,
    ProduceResponse,
    Records,
    decode_produce_request,
    encode_produce_response,
)
from einmal.wire.record_batch import HEADER_SIZE, TRANSACTIONAL, read_header

API_KEY: Final = 0
VERSIONS: Final = Versions(3, 13, flexible=9)
_ALL_REPLICAS: Final = -1
_NONE: Final = ErrorCode.none
_IMPLICIT_ADD: Final = 12
"""From this version on a transactional write adds its partition to the transaction (TV2)."""
_CURRENT_LEADER: Final = 10
_ATTRIBUTES_LOW_BYTE: Final = 22
"""Of the two attribute bytes of a batch, the one with the transactional bit."""

_AT_ONCE_MAX: Final = 100
"""Above so many partitions others are served between."""

decode = decode_produce_request


def handle(context: RequestContext, request: ProduceRequest) -> HandlerResult:
    if request.acks not in (0, 1, _ALL_REPLICAS):
        return _Answer(context, request).refuse_all(ErrorCode.invalid_required_acks)
    answer = _Answer(context, request)
    is_wide = sum(len(partitions) for _topic, partitions in request.topics) > _AT_ONCE_MAX
    if _is_transactional(request):
        if is_wide:
            return answer.verify_in_turns()
        to_verify = [item for each in request.topics for item in answer.to_verify(*each)]
        if to_verify:
            return answer.verify_and_append(to_verify)
    if is_wide:
        return answer.append_in_turns({})
    for topic, partitions in request.topics:
        answer.begin(topic)
        answer.append(partitions, {})
    return answer.append_undecided() if answer.has_undecided else answer.result()


def _is_transactional(request: ProduceRequest) -> bool:
    for _topic, partitions in request.topics:
        for _index, records in partitions:
            if records is not None and len(records) >= HEADER_SIZE and records[_ATTRIBUTES_LOW_BYTE] & TRANSACTIONAL:
                return True
    return False


class _Unverified(NamedTuple):
    """A transactional batch that may be the first of its transaction in its partition."""

    topic_partition: TopicPartition
    producer: ProducerIdAndEpoch
    guard: VerificationGuard
    leader_epoch: LeaderEpoch
    """A guard means nothing to a later leader, nor to this one when it leads again."""


class _Verdict(NamedTuple):
    item: _Unverified
    error: ErrorCode
    """What the coordinator says of it."""


_Verdicts: TypeAlias = Mapping[TopicPartition, _Verdict]


class _Waiting(NamedTuple):
    """An answer that holds only when ``offset`` is committed in ``partition``."""

    topic_index: int
    partition_index: int
    partition: Partition
    offset: Offset


class _Undecided(NamedTuple):
    """A batch with so many records that other clients are served while they are checked."""

    place: tuple[int, int]
    """Of its topic in the request, and of its partition there."""
    partition: Partition
    leader_epoch: LeaderEpoch
    batch: bytearray | memoryview
    verification: VerificationGuard
    admission: Admission


class _Answer:
    """The answer of one request while it is being made."""

    def __init__(self, context: RequestContext, request: ProduceRequest) -> None:
        self._node = context.node
        self._version = context.api_version
        self._request = request
        self._topics: list[tuple[Topic, list[ProducedPartition]]] = []
        self._waiting: list[_Waiting] = []
        self._undecided: list[_Undecided] = []
        self._has_refused = False
        """Whether anything was, so that there may be a leader to name."""
        self._needs_all = request.acks == _ALL_REPLICAS
        # Without an answer nobody sends again what was refused.
        self._refused = None if context.origin is None or request.acks == 0 else context.origin.refused_batches

    @property
    def has_undecided(self) -> bool:
        return bool(self._undecided)

    # --- verification --------------------------------------------------------------------------------------------

    def to_verify(self, topic: Topic, partitions: Iterable[tuple[int, Records | None]]) -> list[_Unverified]:
        unverified = []
        for index, records in partitions:
            partition = self._partition(topic, index)
            if records is None or not isinstance(partition, Partition):
                continue
            try:
                header = read_header(records)
            except WireError:
                continue
            if not header.is_transactional:
                continue
            producer = ProducerIdAndEpoch(header.producer_id, header.producer_epoch)
            guard = partition.log.producers.begin_verification(
                producer,
                header.base_sequence,
                TransactionVersion.TV_2 if self._version >= _IMPLICIT_ADD else TransactionVersion.TV_1,
            )
            if guard is not None:
                unverified.append(_Unverified(partition.topic_partition, producer, guard, partition.leader_epoch))
        return unverified

    async def verify_in_turns(self) -> Body | Parked:
        """Verify and append all, so that others are served between."""
        unverified: list[_Unverified] = []
        for topic, partitions in self._request.topics:
            async for partition in self._node.turns.paced(partitions):
                unverified += self.to_verify(topic, (partition,))
        return await self.verify_and_append(unverified)

    async def verify_and_append(self, unverified: list[_Unverified]) -> Body | Parked:
        verdicts: dict[TopicPartition, _Verdict] = {}
        if self._request.transactional_id is None:
            for item in unverified:
                verdicts[item.topic_partition] = _Verdict(item, ErrorCode.transactional_id_authorization_failed)
        else:
            by_producer: dict[ProducerIdAndEpoch, list[_Unverified]] = {}
            for item in unverified:
                by_producer.setdefault(item.producer, []).append(item)
            for producer, items in by_producer.items():
                errors = await self._node.transactions.verify_produce(
                    self._request.transactional_id, producer, [item.topic_partition for item in items], self._version
                )
                for item in items:
                    verdicts[item.topic_partition] = _Verdict(item, errors[item.topic_partition])
        return await self.append_in_turns(verdicts)

    @staticmethod
    def _verification(verdict: _Verdict | None, partition: Partition) -> ErrorCode | VerificationGuard:
        """How a batch may be appended now."""
        if verdict is None:
            return CONTINUES
        if verdict.error is not _NONE:
            return verdict.error
        if not partition.is_leader or partition.leader_epoch != verdict.item.leader_epoch:
            return ErrorCode.not_leader_or_follower
        return verdict.item.guard

    # --- appending -----------------------------------------------------------------------------------------------

    def begin(self, topic: Topic) -> None:
        """The next topic of the request."""
        self._topics.append((topic, []))

    def append(self, partitions: Iterable[tuple[int, Records | None]], verdicts: _Verdicts) -> None:
        """Append to partitions of the topic that was begun last."""
        topic, results = self._topics[-1]
        now = self._node.clock.now()
        for index, records in partitions:
            partition = self._partition(topic, index)
            verdict: ErrorCode | VerificationGuard = CONTINUES
            if verdicts and isinstance(partition, Partition):
                verdict = self._verification(verdicts.get(partition.topic_partition), partition)
            # Nearly always nothing was refused before.
            if self._refused and (error := self._refused.error_behind(topic, index, records)) is not _NONE:
                self._has_refused = True
                results.append(ProducedPartition(index, error))
            elif isinstance(partition, ErrorCode):
                results.append(self._refuse(topic, index, records, partition))
            elif isinstance(verdict, ErrorCode):
                results.append(self._refuse(topic, index, records, verdict))
            elif records is None:
                results.append(self._refuse(topic, index, records, ErrorCode.invalid_record))
            else:
                batch = _writable(records)
                admission = partition.log.admit(batch, now)
                place = (len(self._topics) - 1, len(results))
                if admission.is_decided:
                    results.append(self._append(place, partition, batch, verdict, admission, now))
                else:
                    epoch = partition.leader_epoch
                    self._undecided.append(_Undecided(place, partition, epoch, batch, verdict, admission))
                    results.append(ProducedPartition(index))

    async def append_in_turns(self, verdicts: _Verdicts) -> Body | Parked:
        """Append all, so that others are served between."""
        for topic, partitions in self._request.topics:
            self.begin(topic)
            async for partition in self._node.turns.paced(partitions):
                self.append((partition,), verdicts)
        return await self.append_undecided()

    async def append_undecided(self) -> Body | Parked:
        """Append what takes longer to check. The connection's next request waits meanwhile: batches stay in order."""
        for place, partition, leader_epoch, batch, verification, admission in self._undecided:
            await self._node.batch_checks.run(admission.decide)
            topic_index, number = place
            topic, results = self._topics[topic_index]
            if partition.leader_epoch == leader_epoch:
                now = self._node.clock.now()
                results[number] = self._append(place, partition, batch, verification, admission, now)
            else:
                # What was verified under another leader epoch means nothing.
                error = ErrorCode.not_leader_or_follower
                results[number] = self._refuse(topic, results[number].partition, batch, error)
        return self.result()

    def _append(
        self,
        place: tuple[int, int],
        partition: Partition,
        batch: bytearray | memoryview,
        verification: VerificationGuard,
        admission: Admission,
        now: Instant,
    ) -> ProducedPartition:
        topic_index, number = place
        topic, partitions = self._request.topics[topic_index]
        index = partitions[number][0]
        if self._needs_all and not partition.has_enough_replicas:
            return self._refuse(topic, index, batch, ErrorCode.not_enough_replicas)
        appended = partition.append(batch, now, verification=verification, admission=admission)
        error, base_offset, last_offset, append_time, log_start_offset, _is_duplicate, message, errors = appended
        if error is not _NONE:
            self._refuse(topic, index, batch, error)
        elif not self._is_met(partition, last_offset):
            self._waiting.append(_Waiting(topic_index, number, partition, last_offset))
        return ProducedPartition(index, error, base_offset, append_time, log_start_offset, errors, message)

    def _refuse(self, topic: Topic, index: int, records: Records | None, error: ErrorCode) -> ProducedPartition:
        self._has_refused = True
        if self._refused is not None:
            self._refused.refuse(topic, index, records, error)
        return ProducedPartition(index, error)

    def _is_met(self, partition: Partition, last_offset: Offset) -> bool:
        """Whether acks is met."""
        return partition.is_committed(last_offset) if self._needs_all else partition.is_written(last_offset)

    def _partition(self, topic: Topic, index: int) -> Partition | ErrorCode:
        name = topic if isinstance(topic, str) else self._node.metadata.image.topic_names.get(topic)
        if name is None:
            return ErrorCode.unknown_topic_id
        if name in INTERNAL_TOPICS:
            # Only coordinators write there.
            return ErrorCode.invalid_topic_exception
        partitions, topic_partition = self._node.partitions, TopicPartition(name, index)
        partition = partitions.get(topic_partition)
        if partition is None:
            return partitions.error_of_missing(topic_partition)
        return partition if partition.is_leader else ErrorCode.not_leader_or_follower

    # --- answering -----------------------------------------------------------------------------------------------

    def refuse_all(self, error: ErrorCode) -> Body:
        for topic, partitions in self._request.topics:
            self._topics.append((topic, [ProducedPartition(index, error) for index, _records in partitions]))
        return self._encode()

    def result(self) -> Body | Parked:
        if self._request.acks == 0:
            self._check_unanswered()
            return None
        if not self._waiting:
            return self._encode()
        return Parked(self._when_committed())

    def _check_unanswered(self) -> None:
        """Raises Unanswered, as Apache Kafka closes the connection: its client asks anew who leads."""
        if not self._has_refused:
            return
        for topic, results in self._topics:
            for result in results:
                if result.error_code is not _NONE:
                    raise Unanswered(f"acks=0: {topic}-{result.partition}: {result.error_code.name}")

    def _when_committed(self) -> asyncio.Future[Body]:
        """The answer, when all batches are committed or the request's time is over."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Body] = loop.create_future()
        remaining = len(self._waiting)

        def finish() -> None:
            if not done.done():
                done.set_result(self._encode())

        def committed(waiting: _Waiting, future: asyncio.Future[ErrorCode]) -> None:
            nonlocal remaining
            remaining -= 1
            if not future.cancelled() and (error := future.result()) is not ErrorCode.none:
                self._fail(waiting, error)
            if remaining == 0:
                timer.cancel()
                finish()

        def expire() -> None:
            for waiting in self._waiting:
                if self._is_met(waiting.partition, waiting.offset):
                    continue
                has_enough = not self._needs_all or waiting.partition.has_enough_replicas
                self._fail(
                    waiting,
                    ErrorCode.request_timed_out if has_enough else ErrorCode.not_enough_replicas_after_append,
                )
            finish()

        timer = loop.call_later(max(0, self._request.timeout_ms) / 1000, expire)
        for waiting in self._waiting:
            partition, offset = waiting.partition, waiting.offset
            future = partition.when_committed(offset) if self._needs_all else partition.when_written(offset)
            future.add_done_callback(partial(committed, waiting))
        return done

    def _fail(self, waiting: _Waiting, error: ErrorCode) -> None:
        self._has_refused = True
        results = self._topics[waiting.topic_index][1]
        results[waiting.partition_index] = ProducedPartition(results[waiting.partition_index].partition, error)

    def _encode(self) -> bytes:
        endpoints = self._hint() if self._has_refused and self._version >= _CURRENT_LEADER else ()
        return encode_produce_response(self._version, ProduceResponse(self._topics, node_endpoints=endpoints))

    def _hint(self) -> Sequence[NodeEndpoint]:
        """Say who leads what this broker does not."""
        image = self._node.metadata.image
        hints = LeaderHints(image)
        for topic, results in self._topics:
            name = topic if isinstance(topic, str) else image.topic_names.get(topic, "")
            for number, result in enumerate(results):
                if result.error_code in WRONG_BROKER:
                    leader = hints.of(TopicPartition(name, result.partition))
                    results[number] = result._replace(current_leader=leader)
        return hints.endpoints


def _writable(records: Records) -> bytearray | memoryview:
    """The log writes offsets into what it appends. The frame is ours: nothing is copied unless it is read-only."""
    if isinstance(records, memoryview) and not records.readonly:
        return records
    return bytearray(records)
