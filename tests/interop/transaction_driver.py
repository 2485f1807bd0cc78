"""A driver and its writers: the parts of the pipeline's protocol, one request at a time, with nothing hidden.

Each method is one request and gives back what the broker answered; only those named ``..._at_last`` repeat a request
while the answer is retriable. Assumes a cluster of one node, so that every coordinator and leader is at one address.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Self

from einmal.types import ErrorCode, IsolationLevel
from tests.interop import raw
from tests.interop.raw import Identity, ReadBatch, make_batch, read_batches
from tests.interop.topics import RETRIABLE, Broker, at_last, wait_for_coordinators, wait_for_leaders

NOBODY: Final = Identity(-1, -1)
_FETCH_BYTES: Final = 1_000_000


class Dialect(NamedTuple):
    """The request versions by which a broker recognises the transaction version of a client."""

    name: str
    produce: int
    txn_offset_commit: int
    end_txn: int


OVERDUE_MS: Final = 12_000
"""Of a transaction that is to be overdue: a client that stands still for some seconds must be in time to write."""

TV1: Final = Dialect("TV1", produce=11, txn_offset_commit=4, end_txn=4)
TV2: Final = Dialect("TV2", produce=12, txn_offset_commit=5, end_txn=5)


class Identified(NamedTuple):
    """An answer to InitProducerId or EndTxn; ``identity`` is what the answer carries (NOBODY where nothing)."""

    error: ErrorCode
    identity: Identity


class Written(NamedTuple):
    error: ErrorCode
    base_offset: int


class Writer:
    """One connection of its own that produces to one topic under any identity."""

    def __init__(self, broker: Broker, transactional_id: str | None, topic: str, dialect: Dialect) -> None:
        self._connection = broker.connect()
        self._transactional_id = transactional_id
        self._topic = topic
        self._dialect = dialect

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def write(
        self, identity: Identity, partition: int, base_sequence: int, values: Sequence[str], *, version: int = 0
    ) -> Written:
        return self.send(partition, make_batch(identity, base_sequence, values), version=version)

    def send(self, partition: int, batch: bytes, *, version: int = 0) -> Written:
        return self.send_all({partition: batch}, version=version)[partition]

    def send_all(self, batches: dict[int, bytes], *, version: int = 0) -> dict[int, Written]:
        """One Produce request with a batch for each partition."""
        answer = self._connection.call(
            raw.PRODUCE,
            version or self._dialect.produce,
            transactional_id=self._transactional_id,
            acks=-1,
            timeout=60_000,
            topic_data=[
                {
                    "name": self._topic,
                    "partition_data": [{"index": index, "records": records} for index, records in batches.items()],
                }
            ],
        )
        (topic,) = answer.responses
        return {each.index: Written(each.error_code, each.base_offset) for each in topic.partition_responses}

    def send_all_at_last(self, batches: dict[int, bytes]) -> dict[int, Written]:
        """Repeat the whole request while any answer is retriable: what got in is a duplicate then."""
        return at_last(
            lambda: self.send_all(batches),
            lambda results: not any(written.error in RETRIABLE for written in results.values()),
        )

    def write_at_last(self, identity: Identity, partition: int, base_sequence: int, values: Sequence[str]) -> Written:
        """Repeat the identical batch while the answer is retriable."""
        batch = make_batch(identity, base_sequence, values)
        return at_last(lambda: self.send(partition, batch), lambda written: written.error not in RETRIABLE)


class TransactionDriver:
    """Owns a transactional id and one topic; ``identity`` is the newest that a successful answer carried."""

    def __init__(
        self, broker: Broker, transactional_id: str, topic: str, dialect: Dialect, *, timeout_ms: int = 60_000
    ) -> None:
        self.broker = broker
        self.transactional_id = transactional_id
        self.topic = topic
        self.dialect = dialect
        self.timeout_ms = timeout_ms
        self.identity = NOBODY
        self.connection = broker.connect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def writer(self, transactional_id: str | None = "") -> Writer:
        """A new connection; under ``transactional_id``, or the present one."""
        signed = self.transactional_id if transactional_id == "" else transactional_id
        return Writer(self.broker, signed, self.topic, self.dialect)

    def reconnect(self) -> None:
        """After a restart of the broker: wait until it has loaded what it knew."""
        self.connection.close()
        self.connection = self.broker.connect()
        wait_for_leaders(self.connection, self.topic)
        wait_for_coordinators(self.connection)

    # --- the transaction ------------------------------------------------------------------------------------

    def init(self, claimed: Identity = NOBODY) -> Identified:
        """InitProducerId, with or without id and epoch (KIP-360)."""
        answer = self.connection.call(
            raw.INIT_PRODUCER_ID,
            5,
            transactional_id=self.transactional_id,
            transaction_timeout=self.timeout_ms,
            producer_id=claimed.producer_id,
            producer_epoch=claimed.producer_epoch,
        )
        return self._adopt(Identified(answer.error_code, Identity(answer.producer_id, answer.producer_epoch)))

    def init_at_last(self, claimed: Identity = NOBODY) -> Identity:
        answer = at_last(lambda: self.init(claimed), lambda answer: answer.error not in RETRIABLE)
        assert answer.error == ErrorCode.none, answer
        return answer.identity

    def move_epoch_to(self, epoch: int) -> Identity:
        """By InitProducerId without id, many requests under way at a time."""
        while (left := epoch - self.identity.producer_epoch) > 0:
            answer = self.connection.repeat(
                min(left, 500),
                raw.INIT_PRODUCER_ID,
                5,
                transactional_id=self.transactional_id,
                transaction_timeout=self.timeout_ms,
                producer_id=-1,
                producer_epoch=-1,
            )
            assert answer.error_code == ErrorCode.none
            self.identity = Identity(answer.producer_id, answer.producer_epoch)
        assert self.identity.producer_epoch == epoch
        return self.identity

    def add(self, *partitions: int, identity: Identity | None = None) -> ErrorCode:
        """AddPartitionsToTxn for partitions of the topic."""
        signed = identity or self.identity
        answer = self.connection.call(
            raw.ADD_PARTITIONS_TO_TXN,
            3,
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=signed.producer_id,
            v3_and_below_producer_epoch=signed.producer_epoch,
            v3_and_below_topics=[{"name": self.topic, "partitions": list(partitions)}],
        )
        (topic,) = answer.results_by_topic_v3_and_below
        errors = {each.partition_error_code for each in topic.results_by_partition}
        assert len(errors) == 1, errors
        return ErrorCode(errors.pop())

    def open(self, *partitions: int) -> None:
        """Make the partitions writable in the transaction: with TV1 by asking, with TV2 the first batch does it."""
        if self.dialect is TV1:
            error = at_last(lambda: self.add(*partitions), lambda error: error not in RETRIABLE)
            assert error == ErrorCode.none, error

    def end(self, *, commit: bool, identity: Identity | None = None) -> Identified:
        signed = identity or self.identity
        answer = self.connection.call(
            raw.END_TXN,
            self.dialect.end_txn,
            transactional_id=self.transactional_id,
            producer_id=signed.producer_id,
            producer_epoch=signed.producer_epoch,
            committed=commit,
        )
        carried = Identity(getattr(answer, "producer_id", -1), getattr(answer, "producer_epoch", -1))
        return self._adopt(Identified(answer.error_code, carried))

    def end_at_last(self, *, commit: bool, identity: Identity | None = None) -> Identity:
        """End the transaction and give back the identity of the next one.

        Under TV2 the answer brings it; under TV1 it takes an InitProducerId with the old one, which also waits until
        the markers are written.
        """
        answer = at_last(lambda: self.end(commit=commit, identity=identity), lambda it: it.error not in RETRIABLE)
        assert answer.error == ErrorCode.none, answer
        return self.identity if self.dialect is TV2 else self.init_at_last(identity or self.identity)

    def commit_offsets(
        self,
        group: str,
        offsets: dict[int, int],
        *,
        identity: Identity | None = None,
        topic: str | None = None,
        metadata: str = "",
    ) -> ErrorCode:
        """TxnOffsetCommit as no member of the group: generation -1 and an empty member id."""
        signed = identity or self.identity
        answer = self.connection.call(
            raw.TXN_OFFSET_COMMIT,
            self.dialect.txn_offset_commit,
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=signed.producer_id,
            producer_epoch=signed.producer_epoch,
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            topics=[
                {
                    "name": topic or self.topic,
                    "partitions": [
                        {"partition_index": index, "committed_offset": offset, "committed_metadata": metadata}
                        for index, offset in offsets.items()
                    ],
                }
            ],
        )
        errors = {each.error_code for topic in answer.topics for each in topic.partitions}
        assert len(errors) == 1, errors
        return ErrorCode(errors.pop())

    def commit_offsets_at_last(self, group: str, offsets: dict[int, int]) -> ErrorCode:
        return at_last(lambda: self.commit_offsets(group, offsets), lambda error: error not in RETRIABLE)

    def add_offsets(self, group: str) -> ErrorCode:
        answer = self.connection.call(
            raw.ADD_OFFSETS_TO_TXN,
            3,
            transactional_id=self.transactional_id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.producer_epoch,
            group_id=group,
        )
        return ErrorCode(answer.error_code)

    def open_offsets(self, group: str) -> None:
        if self.dialect is TV1:
            error = at_last(lambda: self.add_offsets(group), lambda error: error not in RETRIABLE)
            assert error == ErrorCode.none, error

    def _adopt(self, answer: Identified) -> Identified:
        if answer.error == ErrorCode.none and answer.identity != NOBODY:
            self.identity = answer.identity
        return answer

    # --- what can be seen from outside ----------------------------------------------------------------------

    def state(self) -> tuple[str, Identity, list[int]]:
        """DescribeTransactions: state, identity, partitions of the topic."""
        found = self.connection.describe_transaction(self.transactional_id)
        assert found.error_code == ErrorCode.none, found
        return found.state, found.identity, sorted(index for topic, index in found.partitions if topic == self.topic)

    def settled(self) -> tuple[str, Identity, list[int]]:
        """The state once no marker is outstanding."""
        return at_last(self.state, lambda state: not state[0].startswith("Prepare"))

    def producers(self, partition: int) -> list[Any]:
        """DescribeProducers of one partition."""
        answer = self.connection.call(
            raw.DESCRIBE_PRODUCERS, 0, topics=[{"name": self.topic, "partition_indexes": [partition]}]
        )
        return list(answer.topics[0].partitions[0].active_producers)

    def end_offset(self, partition: int, isolation: IsolationLevel) -> int:
        """ListOffsets, latest: the high watermark, or the last stable offset for READ_COMMITTED."""
        answer = self.connection.call(
            raw.LIST_OFFSETS,
            7,
            replica_id=-1,
            isolation_level=isolation,
            topics=[{"name": self.topic, "partitions": [{"partition_index": partition, "timestamp": -1}]}],
        )
        return int(answer.topics[0].partitions[0].offset)

    def read_log(self, partition: int, isolation: IsolationLevel) -> tuple[list[ReadBatch], list[Identity]]:
        """All batches that a reader may see, markers too, and the aborted (producer id, first offset) pairs."""
        batches: list[ReadBatch] = []
        aborted: list[Identity] = []
        offset = 0
        while offset < self.end_offset(partition, isolation):
            data = self._fetch(partition, offset, isolation)
            fetched = read_batches(data.records or b"")
            assert fetched, "nothing below the end offset"
            batches += fetched
            aborted += [Identity(each.producer_id, each.first_offset) for each in data.aborted_transactions or ()]
            offset = fetched[-1].next_offset
        return batches, aborted

    def _fetch(self, partition: int, offset: int, isolation: IsolationLevel) -> Any:
        answer = self.connection.call(
            raw.FETCH,
            12,
            replica_id=-1,
            max_wait=0,
            min_bytes=0,
            max_bytes=_FETCH_BYTES,
            isolation_level=isolation,
            session_epoch=-1,
            topics=[
                {
                    "topic": self.topic,
                    "partitions": [
                        {"partition": partition, "fetch_offset": offset, "partition_max_bytes": _FETCH_BYTES}
                    ],
                }
            ],
        )
        data = answer.responses[0].partitions[0]
        assert data.error_code == ErrorCode.none, data.error_code
        return data

    def written(self, partition: int) -> list[str]:
        """What a read_uncommitted reader sees."""
        batches, _ = self.read_log(partition, IsolationLevel.READ_UNCOMMITTED)
        return [value for batch in batches if not batch.is_control for value in batch.values]

    def committed(self, partition: int) -> list[str]:
        """What a read_committed reader sees once every marker of this driver is written."""
        self.settled()
        batches, aborted = self.read_log(partition, IsolationLevel.READ_COMMITTED)
        values: list[str] = []
        skipping: dict[int, bool] = {}
        for batch in batches:
            producer_id = batch.identity.producer_id
            if batch.is_control:
                skipping[producer_id] = False
            elif (producer_id, batch.base_offset) in aborted:
                skipping[producer_id] = True
            if not batch.is_control and not skipping.get(producer_id):
                values += batch.values
        return values

    def fetch_offsets(self, group: str, partition: int, *, require_stable: bool = True) -> tuple[ErrorCode, int]:
        answer = self.connection.call(
            raw.OFFSET_FETCH,
            7,
            group_id=group,
            topics=[{"name": self.topic, "partition_indexes": [partition]}],
            require_stable=require_stable,
        )
        found = answer.topics[0].partitions[0]
        return found.error_code, found.committed_offset
