"""Claims about batches: when they are sent, in which order, what a retry is, and what a failure leaves behind."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from einmal.client.cores.producer_batch import WINDOW, ProducerBatch, check_size, record_size
from einmal.client.cores.producer_core import MAYBE_WRITTEN, Appended, BatchOutcome, ProduceLimits, ProducerCore
from einmal.client.errors import (
    ClientClosed,
    KafkaError,
    LocalError,
    RecordTooLarge,
    RetriableError,
    TransactionAborted,
    UnknownOutcome,
)
from einmal.types import ErrorCode, Header, ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition
from einmal.wire.record_batch import NewRecord, encode_batch, read_header
from tests.client.model_log import ModelLog

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)
FIRST = ProducerIdAndEpoch(ProducerId(7), ProducerEpoch(0))
NODE = 1


def limits(**changes: Any) -> ProduceLimits:
    return ProduceLimits(linger_ms=0, batch_size=1, delivery_timeout_ms=1_000, retry_backoff_ms=100)._replace(**changes)


def core_of(**changes: Any) -> ProducerCore:
    """A core with an identity that the brokers know."""
    core = ProducerCore(limits(**changes))
    core.begin_identity(FIRST)
    for partition in (T0, T1):
        core._partition(partition).is_known = True
    return core


def send(core: ProducerCore, value: bytes, now: int = 0, to: TopicPartition = T0) -> None:
    core.append(to, NewRecord(None, value, 1_000), record_size(None, value, ()), value, now)


def drain(core: ProducerCore, now: int = 0, in_flight: int = 0) -> list[ProducerBatch]:
    requests = core.drain(now, lambda _: NODE, lambda _: in_flight)
    return requests.get(NODE, [])


def drain_all(core: ProducerCore, now: int = 0) -> list[ProducerBatch]:
    drained = []
    while batches := drain(core, now):
        drained += batches
    return drained


def sequences(batches: list[ProducerBatch]) -> list[int]:
    return [read_header(batch.data).base_sequence for batch in batches]


# --- accumulating ------------------------------------------------------------------------------------------------


def test_records_wait_for_linger_and_then_go_together() -> None:
    core = core_of(linger_ms=5, batch_size=10_000)
    send(core, b"a", now=0)
    send(core, b"b", now=4)
    assert drain(core, now=4) == []
    assert core.next_deadline(4) == 5
    (batch,) = drain(core, now=5)
    assert batch.tickets == [b"a", b"b"]


def test_a_full_batch_does_not_wait_for_linger() -> None:
    core = core_of(linger_ms=1_000, batch_size=202)
    filled = [core.append(T0, NewRecord(None, b"x" * 50, 0), 70, None, 0) for _ in range(3)]
    assert filled == [Appended.TO_A_NEW_BATCH, Appended.TO_A_BATCH, Appended.AND_FILLED_ONE]
    assert len(drain(core)) == 1


def test_flush_makes_everything_ready() -> None:
    core = core_of(linger_ms=1_000, batch_size=10_000)
    send(core, b"a")
    send(core, b"b", to=T1)
    core.flush()
    assert [batch.topic_partition for batch in drain(core)] == [T0, T1]


def test_nothing_is_sealed_before_there_is_a_producer_id() -> None:
    core = ProducerCore(limits())
    send(core, b"a")
    assert drain(core) == []
    core.begin_identity(FIRST)
    (batch,) = drain(core)
    assert read_header(batch.data).producer_id == FIRST.producer_id


def test_a_request_has_one_batch_per_partition_and_stays_under_its_size() -> None:
    core = core_of(max_request_size=200)
    for partition in range(4):
        send(core, b"x" * 40, to=TopicPartition("t", partition))
    first, second = drain(core), drain(core)
    assert (len(first), len(second)) == (1, 1)
    assert first[0].topic_partition != second[0].topic_partition


def test_partitions_take_turns() -> None:
    core = core_of(max_request_size=100)
    for value in (b"a", b"b"):
        for partition in (T0, T1):
            send(core, value * 40, to=partition)
    order = [drain(core)[0].topic_partition for _ in range(4)]
    assert order == [T0, T1, T0, T1]


def test_a_node_with_the_most_requests_in_flight_gets_no_more() -> None:
    core = core_of(max_in_flight=2)
    send(core, b"a")
    assert drain(core, in_flight=2) == []
    assert len(drain(core, in_flight=1)) == 1


def test_memory_is_given_back_when_records_are_settled() -> None:
    core = core_of()
    for value in (b"a" * 10, b"b" * 20):
        send(core, value)
    assert core.buffered_bytes == record_size(None, b"x" * 30, ()) * 2 - 30
    for batch in drain_all(core):
        core.accepted(batch, 0, -1)
    assert core.buffered_bytes == 0
    assert core.is_empty


def test_record_size_is_never_less_than_the_encoded_record() -> None:
    header = Header("ü" * 40, b"v" * 300)
    record = NewRecord(b"k" * 500, b"v" * 70_000, 0, (header,))
    encoded = len(encode_batch([record])) - 61
    assert encoded <= record_size(record.key, record.value, record.headers)


def test_a_record_over_the_request_size_is_refused_at_once() -> None:
    check_size("t", 1_000 - 61, 1_000, 1_000)
    for limits, limit, option in (((1_060, 9_000), 1_060, "max.request.size"), ((9_000, 999), 999, "buffer.memory")):
        with pytest.raises(RecordTooLarge) as refused:
            check_size("t", 1_000, *limits)
        text = str(refused.value)
        assert text.startswith(f"MESSAGE_TOO_LARGE (10): a record is larger than the producer's {option}")
        assert "t: a record of 1000 bytes" in text
        assert f"{option} is {limit}" in text
        assert f"Raise {option}" in text
        assert "max.message.bytes" not in text


@pytest.mark.parametrize(
    ("code", "message", "limit", "option"),
    [
        (ErrorCode.message_too_large, None, "max.message.bytes of the topic is smaller", "max.message.bytes"),
        (ErrorCode.message_too_large, "max.message.bytes=70", "max.message.bytes=70", "max.message.bytes"),
        (ErrorCode.record_list_too_large, None, "segment.bytes of the topic is smaller", "segment.bytes"),
        (ErrorCode.record_list_too_large, "segment.bytes=70", "segment.bytes=70", "segment.bytes"),
    ],
)
def test_a_batch_over_a_limit_of_the_topic_names_the_limit_its_size_and_the_setting(
    code: ErrorCode, message: str | None, limit: str, option: str
) -> None:
    core = core_of()
    send(core, b"v" * 90)
    (batch,) = drain_all(core)
    (outcome,) = core.refused(batch, code, message, 0)
    assert isinstance(outcome.error, RecordTooLarge)
    text = str(outcome.error)
    assert f"{batch.topic_partition}, 1 record(s) in a batch of {len(batch.data)} bytes: {limit}" in text
    assert f"Raise {option} of the topic" in text
    assert "max.request.size" not in text
    assert ("max.message.bytes" in text) == (option == "max.message.bytes")


# --- sequences, retries, order -------------------------------------------------------------------------------------


def test_sequences_count_records() -> None:
    core = core_of(batch_size=10_000)
    for _ in range(3):
        send(core, b"a")
    send_later = drain(core)
    send(core, b"b")
    assert sequences(send_later + drain(core)) == [0, 3]


def test_at_most_five_batches_of_a_partition_are_unsettled() -> None:
    core = core_of(max_in_flight=100)
    for index in range(8):
        send(core, b"%d" % index)
    batches = drain_all(core)
    assert sequences(batches) == list(range(WINDOW))
    # An answer to a later one does not open the window: the broker would forget the first.
    core.accepted(batches[3], 3, -1)
    assert drain_all(core) == []
    core.accepted(batches[0], 0, -1)
    assert sequences(drain_all(core)) == [5]


@pytest.mark.parametrize("settled", [0, 1, 7])
def test_the_sixth_batch_waits_until_the_oldest_of_five_is_settled(settled: int) -> None:
    """A broker remembers five batches (Kafka's protocol, not a choice of ours): of six it could repeat the first."""
    core = core_of(max_in_flight=100)
    for index in range(settled + 6):
        send(core, b"%d" % index)
    for _ in range(settled):
        core.accepted(drain(core)[0], 0, -1)
    unsettled = drain_all(core)
    assert [batch.tickets for batch in unsettled] == [[b"%d" % (settled + place)] for place in range(5)]
    for batch in unsettled[1:]:
        core.accepted(batch, 0, -1)
    assert drain_all(core) == [], "the oldest still counts, and so do the places of those behind it"
    core.refused(unsettled[0], ErrorCode.not_enough_replicas, None, 0)
    assert drain_all(core, now=500) == unsettled[:1], "a retry takes its own place in the window"
    core.accepted(unsettled[0], 0, -1)
    assert [batch.tickets for batch in drain_all(core, now=500)] == [[b"%d" % (settled + 5)]]


def test_until_the_broker_knows_the_producer_one_batch_is_unsettled() -> None:
    core = ProducerCore(limits())
    core.begin_identity(FIRST)
    for value in (b"a", b"b", b"c"):
        send(core, value)
    (first,) = drain_all(core)
    core.refused(first, ErrorCode.not_enough_replicas, None, 0)
    assert drain_all(core, now=20) == [first]
    core.accepted(first, 0, -1)
    assert len(drain_all(core, now=20)) == 2


def test_a_retry_sends_the_identical_bytes_after_its_pause() -> None:
    core = core_of()
    send(core, b"a")
    (batch,) = drain(core)
    data = batch.data
    assert core.refused(batch, ErrorCode.not_leader_or_follower, None, 100) == []
    assert drain(core, now=109) == []
    assert core.next_deadline(100) == 110
    (again,) = drain(core, now=110)
    assert (again is batch, again.data) == (True, data)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.not_leader_or_follower,
        ErrorCode.request_timed_out,
        ErrorCode.network_exception,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.concurrent_transactions,
        ErrorCode.kafka_storage_error,
    ],
)
def test_what_passes_by_itself_is_retried(code: ErrorCode) -> None:
    core = core_of()
    send(core, b"a")
    (batch,) = drain(core)
    assert core.refused(batch, code, None, 0) == []
    assert drain(core, now=500) == [batch]


def test_batches_behind_a_refused_one_are_sent_again_behind_it() -> None:
    core = core_of()
    for value in (b"a", b"b", b"c"):
        send(core, value)
    first, second, third = drain_all(core)
    core.refused(first, ErrorCode.not_enough_replicas, None, 0)
    core.refused(second, ErrorCode.out_of_order_sequence_number, None, 0)
    core.refused(third, ErrorCode.out_of_order_sequence_number, None, 0)
    assert drain_all(core, now=20) == [first, second, third]


def test_a_later_batch_does_not_overtake_one_that_waits_for_its_retry() -> None:
    core = core_of()
    send(core, b"a")
    (first,) = drain(core)
    core.lost(first, was_sent=True, now=0)
    send(core, b"b")
    assert drain(core, now=1) == []
    assert [batch.tickets for batch in drain_all(core, now=10)] == [[b"a"], [b"b"]]


def test_a_new_leader_is_tried_at_once() -> None:
    core = core_of()
    send(core, b"a")
    send(core, b"b", to=T1)
    first, other = drain(core)
    core.refused(first, ErrorCode.not_leader_or_follower, None, 0)
    core.refused(other, ErrorCode.not_leader_or_follower, None, 0)
    core.retry_now(T0)
    assert drain(core, now=0) == [first]


def test_nothing_goes_to_a_new_leader_before_the_former_one_has_answered_for_what_is_ahead() -> None:
    core = core_of()
    for value in (b"a", b"b", b"c"):
        send(core, value)
    (first,) = core.drain(0, lambda _: 1, lambda _: 0)[1]
    (second,) = core.drain(0, lambda _: 1, lambda _: 0)[1]
    core.refused(first, ErrorCode.not_leader_or_follower, None, 0)
    core.retry_now(T0)
    assert core.drain(0, lambda _: 2, lambda _: 0) == {2: [first]}
    assert core.drain(0, lambda _: 2, lambda _: 0) == {}
    core.refused(second, ErrorCode.not_leader_or_follower, None, 0)
    core.retry_now(T0)
    assert core.drain(0, lambda _: 2, lambda _: 0) == {2: [second]}
    assert [batch.tickets for batch in core.drain(0, lambda _: 2, lambda _: 0)[2]] == [[b"c"]]


def test_retries_come_soon_at_first_and_then_ever_later() -> None:
    core = core_of(delivery_timeout_ms=1_000_000, retry_backoff_max_ms=200)
    send(core, b"a")
    now, pauses = 0, []
    for _ in range(10):
        (batch,) = drain(core, now)
        core.refused(batch, ErrorCode.not_leader_or_follower, None, now)
        pauses.append(batch.retry_at_ms - now)
        now = batch.retry_at_ms
    assert pauses == [10, 15, 22, 33, 50, 75, 113, 170, 200, 200]


@pytest.mark.parametrize("code", sorted(MAYBE_WRITTEN))
def test_an_error_after_a_possible_write_leaves_the_outcome_open(code: ErrorCode) -> None:
    core = core_of()
    send(core, b"a")
    (batch,) = drain(core)
    core.refused(batch, code, None, 0)
    (outcome,) = core.expire(1_000)
    assert isinstance(outcome.error, UnknownOutcome)


def test_a_known_duplicate_counts_as_written() -> None:
    core = core_of()
    send(core, b"a")
    (batch,) = drain(core)
    assert core.refused(batch, ErrorCode.duplicate_sequence_number, None, 0) == [BatchOutcome(batch)]


# --- failure, expiry, new identities --------------------------------------------------------------------------------


def test_a_failed_batch_stops_the_producer_until_it_has_a_new_epoch() -> None:
    core = core_of()
    for value in (b"a", b"b"):
        send(core, value)
    first, second = drain_all(core)
    (outcome,) = core.refused(first, ErrorCode.message_too_large, "too big", 0)
    assert isinstance(outcome.error, KafkaError)
    assert "too big" in str(outcome.error)
    send(core, b"c")
    assert drain(core, now=500) == []
    core.refused(second, ErrorCode.out_of_order_sequence_number, None, 0)
    following = core.next_identity()
    assert following == ProducerIdAndEpoch(FIRST.producer_id, ProducerEpoch(1))
    assert core.begin_identity(following) == []
    again = drain_all(core, now=500)
    assert [batch.tickets for batch in again] == [[b"b"], [b"c"]]
    assert sequences(again) == [0, 1]
    assert {read_header(batch.data).producer_epoch for batch in again} == {1}


def test_a_batch_that_may_be_written_is_not_sent_under_a_new_epoch() -> None:
    core = core_of()
    for value in (b"a", b"b"):
        send(core, value)
    first, second = drain_all(core)
    core.lost(second, was_sent=True, now=0)
    core.refused(first, ErrorCode.invalid_record, None, 0)
    following = core.next_identity()
    assert following is not None
    (outcome,) = core.begin_identity(following)
    assert outcome.batch is second
    assert isinstance(outcome.error, UnknownOutcome)


def test_after_the_last_epoch_a_new_producer_id_is_needed() -> None:
    core = core_of()
    core.begin_identity(ProducerIdAndEpoch(FIRST.producer_id, ProducerEpoch(32_766)))
    assert core.next_identity() is None


@pytest.mark.parametrize(("was_sent", "kind"), [(True, UnknownOutcome), (False, RetriableError)])
def test_expiry_shows_whether_the_records_may_be_written(was_sent: bool, kind: type[KafkaError]) -> None:
    core = core_of()
    send(core, b"a")
    (batch,) = drain(core)
    core.lost(batch, was_sent=was_sent, now=0)
    assert core.expire(999) == []
    (outcome,) = core.expire(1_000)
    assert isinstance(outcome.error, kind)


def test_a_batch_that_expires_in_flight_is_unknown_and_its_late_answer_is_ignored() -> None:
    core = core_of()
    send(core, b"a")
    (batch,) = drain(core)
    (outcome,) = core.expire(1_000)
    assert isinstance(outcome.error, UnknownOutcome)
    assert core.in_flight == 1
    assert core.accepted(batch, 0, -1) == []
    assert core.in_flight == 0


def test_an_unsent_batch_that_expires_leaves_no_hole() -> None:
    core = core_of()
    send(core, b"a")
    (outcome,) = core.expire(1_000)
    assert isinstance(outcome.error, RetriableError)
    assert core.error is None


def test_a_transaction_stops_at_any_failure() -> None:
    core = core_of(transactional_id="id")
    send(core, b"a")
    assert len(core.expire(1_000)) == 1
    assert core.error is not None
    send(core, b"b", now=1_000)
    assert drain(core, now=1_000) == []


def test_an_abort_settles_what_waits_and_lets_what_is_in_flight_come_back() -> None:
    core = core_of(transactional_id="id")
    send(core, b"a")
    (in_flight,) = drain(core)
    send(core, b"b")
    (outcome,) = core.fail_waiting(TransactionAborted())
    assert outcome.batch.tickets == [b"b"]
    assert not core.is_empty
    core.refused(in_flight, ErrorCode.not_leader_or_follower, None, 0)
    assert drain(core, now=500) == []
    assert len(core.fail_waiting(TransactionAborted())) == 1
    assert core.is_empty


@pytest.mark.parametrize("transactional_id", [None, "x"])
def test_a_batch_that_cannot_be_encoded_fails_alone_and_leaves_no_hole(transactional_id: str | None) -> None:
    core = core_of(transactional_id=transactional_id)
    core.append(T0, NewRecord(None, b"v", 1, (Header("caf\udce9", b"x"),)), 100, b"unencodable", 0)
    assert drain(core) == []
    (outcome,) = core.take_unencodable()
    assert outcome.batch.tickets == [b"unencodable"]
    assert isinstance(outcome.error, LocalError)
    assert core.is_empty
    assert core.buffered_bytes == 0
    assert core.take_unencodable() == []
    # Its transaction lacks the record.
    assert (core.error is None) == (transactional_id is None)
    if core.error is not None:
        core.forget_error()
    send(core, b"next")
    assert sequences(drain(core)) == [0]


def test_without_idempotence_there_are_no_sequences_and_failures_leave_no_hole() -> None:
    core = ProducerCore(limits(is_idempotent=False))
    send(core, b"a")
    (batch,) = drain(core)
    header = read_header(batch.data)
    assert (header.producer_id, header.base_sequence) == (-1, -1)
    core.refused(batch, ErrorCode.invalid_record, None, 0)
    assert core.error is None


def test_at_most_once_a_batch_that_the_broker_may_have_is_not_sent_again() -> None:
    core = ProducerCore(limits(is_idempotent=False, sends_once=True))
    endings: tuple[Callable[[ProducerBatch], list[BatchOutcome]], ...] = (
        lambda batch: core.lost(batch, was_sent=True, now=0),
        lambda batch: core.refused(batch, ErrorCode.not_leader_or_follower, None, 0),
    )
    for maybe_written in endings:
        send(core, b"a")
        (batch,) = drain(core)
        (outcome,) = maybe_written(batch)
        assert isinstance(outcome.error, UnknownOutcome)
        assert core.is_empty
    send(core, b"b")
    (batch,) = drain(core)
    assert core.lost(batch, was_sent=False, now=0) == []
    assert drain(core, now=500) == [batch]
    assert core.refused(batch, ErrorCode.not_enough_replicas, None, 500) == []
    assert drain(core, now=900) == [batch], "what is certainly not there may be sent again"


def test_only_an_idempotent_producer_without_transactions_asks_for_an_identity_itself() -> None:
    assert ProducerCore(limits()).lacks_identity
    assert not core_of().lacks_identity
    assert not ProducerCore(limits(is_idempotent=False)).lacks_identity
    assert not ProducerCore(limits(transactional_id="id")).lacks_identity


def test_an_identity_is_renewed_once_nothing_is_in_flight() -> None:
    core = core_of()
    for value in (b"a", b"b"):
        send(core, value)
    first, second = drain_all(core)
    assert not core.must_renew_identity
    core.refused(first, ErrorCode.message_too_large, None, 0)
    assert not core.must_renew_identity
    following = core.next_identity()
    assert following is not None
    assert (core.identity_granted(following), core.identity) == ([], FIRST), "a batch is in flight under the old one"
    core.refused(second, ErrorCode.out_of_order_sequence_number, None, 0)
    assert core.must_renew_identity
    core.identity_granted(following)
    assert (core.identity, core.must_renew_identity) == (following, False)


def test_a_transaction_with_an_error_leaves_its_identity_to_the_coordinator() -> None:
    core = core_of(transactional_id="id")
    send(core, b"a")
    core.expire(1_000)
    assert not core.must_renew_identity


def test_without_a_producer_id_there_is_no_next_identity() -> None:
    assert ProducerCore(limits()).next_identity() is None


@pytest.mark.parametrize("error", [RetriableError(), UnknownOutcome()])
def test_an_identity_is_asked_for_again_after_what_passes_by_itself(error: KafkaError) -> None:
    core = ProducerCore(limits())
    send(core, b"a")
    assert core.identity_refused(error) is None
    assert not core.is_empty


def test_records_fail_with_what_refuses_an_identity_for_good() -> None:
    core = ProducerCore(limits())
    send(core, b"a")
    error = KafkaError(ErrorCode.cluster_authorization_failed)
    settled = core.identity_refused(error)
    assert settled is not None
    assert [(outcome.batch.tickets, outcome.error) for outcome in settled] == [([b"a"], error)]
    assert core.is_empty


def test_once_a_transaction_cannot_commit_its_other_records_fail_too() -> None:
    core = core_of(transactional_id="id")
    for value in (b"a", b"b"):
        send(core, value)
    assert core.fail_rest(TransactionAborted()) == []
    (first,) = drain(core)
    core.refused(first, ErrorCode.message_too_large, None, 0)
    (outcome,) = core.fail_rest(TransactionAborted())
    assert isinstance(outcome.error, TransactionAborted)
    assert core.is_empty


def test_without_a_transaction_other_records_are_sent_under_the_next_epoch() -> None:
    core = core_of()
    for value in (b"a", b"b"):
        send(core, value)
    (first,) = drain(core)
    core.refused(first, ErrorCode.message_too_large, None, 0)
    assert core.fail_rest(TransactionAborted()) == []


def test_closing_shows_which_records_may_be_written() -> None:
    core = core_of()
    for topic_partition, value in ((T0, b"in flight"), (T1, b"lost"), (TopicPartition("t", 2), b"waiting")):
        send(core, value, to=topic_partition)
        for batch in drain(core) if value != b"waiting" else []:
            if value == b"lost":
                core.lost(batch, was_sent=True, now=0)
    errors = {outcome.batch.tickets[0]: outcome.error for outcome in core.left_at_close()}
    assert isinstance(errors[b"in flight"], UnknownOutcome)
    assert isinstance(errors[b"lost"], UnknownOutcome)
    assert isinstance(errors[b"waiting"], ClientClosed)


def test_sequences_wrap_at_the_end() -> None:
    core = core_of()
    core._partition(T0).next_sequence = 2**31 - 1  # type: ignore[assignment]
    send(core, b"a")
    send(core, b"b")
    assert sequences(drain_all(core)) == [2**31 - 1, 0]


# --- against a model of the broker ----------------------------------------------------------------------------------


@dataclass
class World:
    """A producer, the logs it writes to, and a network that loses answers and delays requests."""

    source: random.Random
    core: ProducerCore = field(default_factory=lambda: ProducerCore(limits(batch_size=60, delivery_timeout_ms=400)))
    logs: dict[TopicPartition, ModelLog] = field(default_factory=lambda: {T0: ModelLog(), T1: ModelLog()})
    connection: list[ProducerBatch] = field(default_factory=list)
    delayed: list[list[tuple[TopicPartition, bytes]]] = field(default_factory=list)
    """What broken connections still carry to the broker, in order."""
    acknowledged: dict[bytes, tuple[TopicPartition, int]] = field(default_factory=dict)
    not_written: list[bytes] = field(default_factory=list)
    unknown: list[bytes] = field(default_factory=list)
    sent: dict[TopicPartition, list[bytes]] = field(default_factory=lambda: {T0: [], T1: []})
    now: int = 0

    def settle(self, outcomes: list[BatchOutcome]) -> None:
        for outcome in outcomes:
            for index, value in enumerate(outcome.batch.tickets):
                if outcome.error is None:
                    assert outcome.base_offset >= 0
                    self.acknowledged[value] = (outcome.batch.topic_partition, outcome.base_offset + index)
                elif isinstance(outcome.error, UnknownOutcome):
                    self.unknown.append(value)
                else:
                    self.not_written.append(value)
        if self.core.error is not None and not self.core.in_flight:
            following = self.core.next_identity()
            assert following is not None
            self.settle(self.core.begin_identity(following))

    def send(self) -> None:
        to = self.source.choice((T0, T1))
        value = b"%d" % sum(map(len, self.sent.values()))
        self.sent[to].append(value)
        send(self.core, value, self.now, to)

    def drain(self) -> None:
        for batches in self.core.drain(self.now, lambda _: NODE, lambda _: len(self.connection)).values():
            self.connection += batches
        for topic_partition in self.logs:
            sealed = [each for each in self.core.unsettled() if each.topic_partition == topic_partition and each.data]
            assert len(sealed) <= 5, "a broker remembers five batches of a producer"
            assert not sealed or sealed[-1].ordinal - sealed[0].ordinal < 5

    def answer(self) -> None:
        """The broker takes the oldest request of the connection and its answer arrives."""
        if not self.connection:
            return
        batch = self.connection.pop(0)
        refusal = self.source.choice((None, None, None, ErrorCode.not_enough_replicas, ErrorCode.invalid_record))
        code, offset = (refusal, -1) if refusal else self.logs[batch.topic_partition].append(batch.data)
        if code is ErrorCode.none:
            self.settle(self.core.accepted(batch, offset, -1))
        else:
            self.settle(self.core.refused(batch, code, None, self.now))

    def disconnect(self) -> None:
        """The broker gets the first of the requests without an answer, some at once and some later; no answer comes."""
        lost, self.connection = self.connection, []
        arriving = [(batch.topic_partition, batch.data) for batch in lost[: self.source.randint(0, len(lost))]]
        self.delayed.append(arriving)
        for _ in range(self.source.randint(0, len(arriving))):
            self.arrive_late(self.delayed[-1])
        for batch in lost:
            self.settle(self.core.lost(batch, was_sent=True, now=self.now))

    def arrive_late(self, connection: list[tuple[TopicPartition, bytes]] | None = None) -> None:
        self.delayed = [each for each in self.delayed if each or each is connection]
        if connection is None and self.delayed:
            connection = self.source.choice(self.delayed)
        if connection:
            topic_partition, data = connection.pop(0)
            self.logs[topic_partition].append(data)

    def tick(self) -> None:
        self.now += self.source.randrange(1, 60)
        self.settle(self.core.expire(self.now))

    def step(self) -> None:
        move = self.source.choices(
            (self.send, self.drain, self.answer, self.disconnect, self.arrive_late, self.tick), (6, 6, 6, 1, 1, 2)
        )[0]
        move()

    def come_to_rest(self) -> None:
        for _ in range(2_000):
            if self.core.is_empty and not self.connection:
                return
            self.drain()
            self.answer()
            self.tick()
        raise AssertionError("the producer does not come to rest")


@settings(max_examples=300, deadline=None)
@given(st.integers(min_value=0, max_value=2**32))
def test_whatever_the_broker_answers_acknowledged_records_are_there_once_and_in_order(seed: int) -> None:
    world = World(random.Random(seed))
    world.core.begin_identity(FIRST)
    for _ in range(250):
        world.step()
    world.come_to_rest()
    while world.delayed:
        world.arrive_late()
    for topic_partition, log in world.logs.items():
        assert len(log.values) == len(set(log.values)), "nothing is written twice"
        order = {value: place for place, value in enumerate(world.sent[topic_partition])}
        assert [order[value] for value in log.values] == sorted(order[value] for value in log.values)
    for value, (topic_partition, offset) in world.acknowledged.items():
        assert world.logs[topic_partition].values[offset] == value
    written = {value for log in world.logs.values() for value in log.values}
    assert not written.intersection(world.not_written), "what is reported as not written is not there"
    settled = [*world.acknowledged, *world.not_written, *world.unknown]
    assert sorted(settled) == sorted(value for sent in world.sent.values() for value in sent)
