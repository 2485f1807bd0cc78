"""What keeps batches out that were sent behind a refused one."""

from __future__ import annotations

import pytest

from einmal.broker.front.produce.refused_batches import PARTITIONS_MAX, RefusedBatches
from einmal.types import SEQUENCE_MAX, ErrorCode, ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tests.broker.nodes import batch

PRODUCER = ProducerIdAndEpoch(ProducerId(7), ProducerEpoch(3))
NOT_LEADER = ErrorCode.not_leader_or_follower
NONE = ErrorCode.none


def of(sequence: int, *, producer: ProducerIdAndEpoch = PRODUCER, records: int = 1) -> bytes:
    return batch(*[b"a"] * records, producer=producer, sequence=sequence)


def refused(records: bytes, error: ErrorCode = NOT_LEADER) -> RefusedBatches:
    batches = RefusedBatches()
    batches.refuse("t", 0, records, error)
    return batches


def test_what_continues_a_refused_batch_is_refused_and_continued_in_its_turn() -> None:
    batches = refused(of(5, records=3))
    assert [batches.error_behind("t", 0, of(sequence)) for sequence in (8, 9, 10)] == [NOT_LEADER] * 3
    assert batches.error_behind("t", 0, of(5, records=3)) is NONE
    assert not batches


def test_after_the_last_sequence_comes_zero() -> None:
    assert refused(of(SEQUENCE_MAX)).error_behind("t", 0, of(0)) is NOT_LEADER


@pytest.mark.parametrize(
    "records",
    [
        pytest.param(of(5), id="the same again"),
        pytest.param(of(7), id="a gap"),
        pytest.param(of(6, producer=PRODUCER._replace(producer_epoch=ProducerEpoch(4))), id="another epoch"),
        pytest.param(of(6, producer=PRODUCER._replace(producer_id=ProducerId(8))), id="another producer"),
        pytest.param(batch(b"a"), id="no producer"),
        pytest.param(b"no batch", id="no batch"),
        pytest.param(None, id="nothing"),
    ],
)
def test_a_batch_outside_the_sequence_is_checked_alone_and_ends_the_refusals(records: bytes | None) -> None:
    batches = refused(of(5))
    assert batches.error_behind("t", 0, records) is NONE
    assert batches.error_behind("t", 0, of(6)) is NONE


def test_partitions_are_apart() -> None:
    batches = refused(of(5))
    assert batches.error_behind("t", 1, of(6)) is NONE
    assert batches.error_behind("u", 0, of(6)) is NONE
    assert batches.error_behind("t", 0, of(6)) is NOT_LEADER


@pytest.mark.parametrize(
    ("records", "error"),
    [
        pytest.param(of(5), ErrorCode.message_too_large, id="not to be sent again"),
        pytest.param(batch(b"a"), NOT_LEADER, id="no producer"),
        pytest.param(b"no batch", ErrorCode.corrupt_message, id="no batch"),
    ],
)
def test_nothing_waits_behind_a_batch_without_a_sequence(records: bytes, error: ErrorCode) -> None:
    assert not refused(records, error)


def test_no_more_partitions_are_remembered_than_allowed() -> None:
    batches = RefusedBatches()
    for partition in range(PARTITIONS_MAX + 1):
        batches.refuse("t", partition, of(5), NOT_LEADER)
    remembered = [batches.error_behind("t", partition, of(6)) for partition in range(PARTITIONS_MAX + 1)]
    assert remembered == [NONE] + [NOT_LEADER] * PARTITIONS_MAX


@pytest.mark.parametrize("name", ["", "..", "a b", "x" * 250, "x" * 32_767])
def test_a_name_that_no_topic_can_have_is_not_remembered(name: str) -> None:
    batches = RefusedBatches()
    batches.refuse(name, 0, of(5), ErrorCode.unknown_topic_or_partition)
    assert not batches
