"""What each batch of a Produce comes to, without a socket or a loop that runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from einmal.broker.front.produce.produce_verification import (
    Unverified,
    Verified,
    by_producer,
    is_transactional,
    unverified,
)
from einmal.broker.front.produce.produced_batches import Destinations, ProducedBatches
from einmal.broker.front.produce.refused_batches import RefusedBatches
from einmal.types import (
    BrokerId,
    ErrorCode,
    LeaderEpoch,
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
    world: OnePartition, *parts: tuple[Any, int, Records | None], acks: int = -1, verdicts: Any = None
) -> ProducedBatches:
    """Append each (topic, partition, records) as a topic of its own."""
    request = ProduceRequest(None, acks, 1_000, [(topic, [(index, records)]) for topic, index, records in parts])
    destinations = Destinations(cast(Any, SimpleNamespace(image=world.image)), world.partitions)
    batches = ProducedBatches(request, destinations, None if acks == 0 else RefusedBatches())
    for topic, partitions in request.topics:
        batches.begin(topic)
        batches.append(partitions, verdicts or {}, world.clock.now())
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
    assert [batches.topics[place][1][0].base_offset for place in (0, 2)] == [0, 1]
    assert batches.has_refused
    assert not batches.waiting


def test_a_follower_refuses() -> None:
    world = OnePartition()
    world.partition.follow(BrokerId(2), LeaderEpoch(4))
    assert errors(produce(world, ("t", 0, batch(b"a")))) == [ErrorCode.not_leader_or_follower]


@pytest.mark.parametrize(("acks", "waits"), [(-1, True), (1, False), (0, False)])
def test_only_acks_all_waits_for_a_commit(acks: int, waits: bool) -> None:
    world = OnePartition()
    world.is_held = True
    batches = produce(world, ("t", 0, batch(b"a")), acks=acks)
    assert bool(batches.waiting) == waits
    assert errors(batches) == [NONE]


def test_what_is_not_committed_in_time_is_timed_out() -> None:
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


def first_of_a_transaction(world: OnePartition) -> tuple[bytes, Unverified]:
    data = batch(b"a", producer=PRODUCER, sequence=0, transactional=True)
    (item,) = unverified([(world.partition, data)], TransactionVersion.TV_2)
    return data, item


def test_the_first_batch_of_a_transaction_must_be_verified_and_no_other() -> None:
    world = OnePartition()
    data, item = first_of_a_transaction(world)
    assert (item.topic_partition, item.producer, item.leader_epoch) == (TP, PRODUCER, 3)
    assert by_producer([item, item]) == {PRODUCER: [item, item]}
    others: list[tuple[Any, Records | None]] = [
        (world.partition, batch(b"a")),
        (world.partition, None),
        (world.partition, data[:20]),
        (ErrorCode.unknown_topic_id, data),
    ]
    assert list(unverified(others, TransactionVersion.TV_2)) == []


def test_a_verdict_is_good_for_one_leadership() -> None:
    world = OnePartition()
    data, item = first_of_a_transaction(world)
    assert Verified(item, NONE).verification(world.partition) is item.guard
    assert Verified(item, ErrorCode.producer_fenced).verification(world.partition) is ErrorCode.producer_fenced
    batches = produce(world, ("t", 0, data), verdicts={TP: Verified(item, NONE)})
    assert errors(batches) == [NONE]
    world.partition.lead(world, LeaderEpoch(4))
    assert Verified(item, NONE).verification(world.partition) is ErrorCode.not_leader_or_follower


def test_a_request_is_transactional_by_any_of_its_batches() -> None:
    plain, transactional = batch(b"a"), batch(b"a", producer=PRODUCER, sequence=0, transactional=True)
    assert not is_transactional(ProduceRequest(None, 1, 0, [("t", [(0, plain), (1, None), (2, b"short")])]))
    assert is_transactional(ProduceRequest("x", 1, 0, [("t", [(0, plain)]), ("u", [(0, transactional)])]))
