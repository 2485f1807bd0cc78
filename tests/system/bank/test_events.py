"""Claims about a reader of the bank's topic, by hand-made histories, sound ones and others."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.system.bank.events import PARTITIONS, Event, TopicHalf


def read(*places: tuple[int, int, int], partitions: int = PARTITIONS) -> TopicHalf:
    """What a reader knows that has read events of these numbers, indexes and counts in each partition."""
    half = TopicHalf("reader")
    for partition in range(partitions):
        for number, index, count in places:
            half.read(partition, Event(number, index, count, f"{number}-{partition}-{index}", partition, 10**number))
    return half


def test_whole_transactions_in_their_order_are_sound() -> None:
    half = read((1, 0, 2), (1, 1, 2), (2, 0, 1))
    assert half.anomalies == []
    assert half.has(2) and not half.has(3)
    assert half.last_number() == 2


def test_the_sum_up_to_a_transaction_has_nothing_of_later_ones() -> None:
    half = read((1, 0, 1), (2, 0, 1))
    assert half.total(1) == 10 * PARTITIONS
    assert half.total(2) == 110 * PARTITIONS


def test_a_transaction_is_waited_for_until_every_partition_has_all_of_it() -> None:
    assert not read((1, 0, 2)).has(1)
    assert not read((1, 0, 1), partitions=PARTITIONS - 1).has(1)


@pytest.mark.parametrize(
    ("places", "torn"),
    [
        pytest.param([(1, 0, 1), (3, 0, 1)], 2, id="missing"),
        pytest.param([(1, 0, 1), (1, 0, 1)], 1, id="repeated"),
        pytest.param([(1, 0, 2), (2, 0, 1)], 1, id="without its last event"),
        pytest.param([(1, 1, 2)], 1, id="without its first event"),
    ],
)
def test_a_transaction_that_is_not_there_once_and_whole_is_found(
    places: Sequence[tuple[int, int, int]], torn: int
) -> None:
    half = read(*places)
    assert list(half.torn) == [torn]
    assert len(half.anomalies) == PARTITIONS
