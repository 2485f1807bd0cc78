"""What each batch of a Produce comes to, without a socket."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from einmal.broker.front.produce.produce_verification import is_transactional
from einmal.broker.front.produce.produced_batches import Destinations, ProducedBatches
from einmal.broker.front.produce.refused_batches import RefusedBatches
from einmal.types import (
    BrokerId,
    ErrorCode,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TransactionVersion,
)
from einmal.wire.errors import Unanswered
from einmal.wire.produce import ProduceRequest, Records
from tests.broker.nodes import batch
from tests.broker.one_partition import TOPIC_ID, TP, OnePartition

PRODUCER = ProducerIdAndEpoch(ProducerId(7), ProducerEpoch(1))
NONE = ErrorCode.none


def produce(
    world: OnePartition,
    *parts: tuple[Any, int, Records | None],
    acks: int = -1,
    version: TransactionVersion | None = None,
) -> ProducedBatches:
    """Append each (topic, partition, records) as a topic of its own."""
    request = ProduceRequest(None, acks, 1_000, [(topic, [(index, records)]) for topic, index, records in parts])
    destinations = Destinations(cast(Any, SimpleNamespace(image=world.image)), world.partitions)
    batches = ProducedBatches(request, destinations, None if acks == 0 else RefusedBatches(), version)
    for topic, partitions in request.topics:
        batches.begin(topic)
        batches.append(partitions, world.clock.now())
    return batches


def errors(batches: ProducedBatches) -> list[ErrorCode]:
    return [result.error_code for _topic, results in batches.topics for result in results]


def test_each_partition_is_decided_alone() -> None:
    world = OnePartition()
    parts = [("t", 0, batch(b"a")), ("t", 1, batch(b"b")), (TOPIC_ID, 0, batch(b"c")), ("t", 0, None)]
    batches = produce(world, *parts, ("__consumer_offsets", 0, batch(b"d")))
    assert errors(batches) == [
        NONE,
        ErrorCode.unknown_topic_or_partition,
        NONE,
        ErrorCode.invalid_record,
        ErrorCode.invalid_topic_exception,
    ]
    assert [batches.topics[slot][1][0].base_offset for slot in (0, 2)] == [0, 1]
    assert batches.has_refused
    assert not batches.waiting


def test_a_follower_refuses() -> None:
    world = OnePartition()
    world.partition.follow(BrokerId(2), LeaderEpoch(4))
    assert errors(produce(world, ("t", 0, batch(b"a")))) == [ErrorCode.not_leader_or_follower]


@pytest.mark.parametrize(("acks", "waits"), [(-1, True), (1, False), (0, False)])
async def test_only_acks_all_waits_for_a_commit(acks: int, waits: bool) -> None:
    world = OnePartition()
    world.is_held = True
    batches = produce(world, ("t", 0, batch(b"a")), acks=acks)
    assert bool(batches.waiting) == waits
    assert errors(batches) == [NONE]


async def test_what_is_not_committed_in_time_is_timed_out() -> None:
    world = OnePartition()
    world.is_held = True
    batches = produce(world, ("t", 0, batch(b"a")))
    batches.expire()
    assert errors(batches) == [ErrorCode.request_timed_out]


def test_a_refusal_without_an_answer_closes_the_connection() -> None:
    world = OnePartition()
    produce(world, ("t", 0, batch(b"a")), acks=0).check_unanswered()
    with pytest.raises(Unanswered, match="t-1"):
        produce(world, ("t", 1, batch(b"a")), acks=0).check_unanswered()


# --- verification ------------------------------------------------------------------------------------------------


FIRST = batch(b"a", producer=PRODUCER, sequence=0, transactional=True)


def first_of_a_transaction(world: OnePartition) -> ProducedBatches:
    return produce(world, ("t", 0, FIRST), version=TransactionVersion.TV_2)


def append_verified(
    world: OnePartition, batches: ProducedBatches, verdict: ErrorCode, refusal: ErrorCode | None = None
) -> list[ErrorCode]:
    (items,) = batches.unverified.values()
    for item in items:
        batches.append_verified(item, verdict, refusal, world.clock.now())
    return errors(batches)


def test_the_first_batch_of_a_transaction_must_be_verified_and_no_other() -> None:
    world = OnePartition()
    others: list[tuple[Any, int, Records | None]] = [
        ("t", 0, batch(b"a")),
        ("t", 0, None),
        ("t", 0, FIRST[:20]),
        ("unknown", 0, FIRST),
    ]
    batches = produce(world, *others, ("t", 0, FIRST), version=TransactionVersion.TV_2)
    ((producer, (item,)),) = batches.unverified.items()
    assert (producer, item.slot, item.topic_partition, item.leader_epoch) == (PRODUCER, (4, 0), TP, 3)
    assert world.partition.log_end_offset == 1
    assert append_verified(world, batches, NONE) == [
        NONE,
        ErrorCode.invalid_record,
        ErrorCode.invalid_record,
        ErrorCode.unknown_topic_or_partition,
        NONE,
    ]
    assert batches.topics[4][1][0].base_offset == 1
    second = batch(b"b", producer=PRODUCER, sequence=1, transactional=True)
    assert not produce(world, ("t", 0, second), version=TransactionVersion.TV_2).unverified


def test_a_refused_verification_is_the_error_of_its_batch() -> None:
    world = OnePartition()
    batches = first_of_a_transaction(world)
    assert append_verified(world, batches, ErrorCode.producer_fenced) == [ErrorCode.producer_fenced]
    assert world.partition.log_end_offset == 0


def test_a_permission_withdrawn_while_a_batch_is_verified_refuses_it() -> None:
    world = OnePartition()
    batches = first_of_a_transaction(world)
    denied = ErrorCode.topic_authorization_failed
    assert append_verified(world, batches, NONE, denied) == [denied]


def test_a_verification_is_good_for_one_leadership() -> None:
    world = OnePartition()
    batches = first_of_a_transaction(world)
    world.partition.lead(world, LeaderEpoch(4))
    assert append_verified(world, batches, NONE) == [ErrorCode.not_leader_or_follower]


async def test_a_batch_lost_with_the_lead_is_not_acknowledged_by_what_a_later_lead_commits_at_its_offset() -> None:
    world = OnePartition()
    world.is_held = True
    batches = produce(world, ("t", 0, batch(b"lost")))
    world.partition.follow(BrokerId(2), LeaderEpoch(4))
    await world.partition.truncate_to(Offset(0))
    world.partition.lead(world, LeaderEpoch(5))
    world.is_held = False
    assert errors(produce(world, ("t", 0, batch(b"other")))) == [NONE]
    (waiting,) = batches.waiting
    assert world.partition.is_committed(waiting.offset)
    assert waiting.met.result() is ErrorCode.not_leader_or_follower


def test_a_request_is_transactional_by_any_of_its_batches() -> None:
    plain, transactional = batch(b"a"), batch(b"a", producer=PRODUCER, sequence=0, transactional=True)
    assert not is_transactional(ProduceRequest(None, 1, 0, [("t", [(0, plain), (1, None), (2, b"short")])]))
    assert is_transactional(ProduceRequest("x", 1, 0, [("t", [(0, plain)]), ("u", [(0, transactional)])]))
