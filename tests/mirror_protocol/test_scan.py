from __future__ import annotations

import pytest

from einmal.mirror_protocol.scan import DataHeader, GroupCommit, MalformedScan, MarkerHeader, PartitionScan
from einmal.types import ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition

PLACE = TopicPartition("orders", 0)
OFFSETS = TopicPartition("__consumer_offsets", 0)


def producer(epoch: int = 0, producer_id: int = 1) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(ProducerId(producer_id), ProducerEpoch(epoch))


def scanned(*headers: DataHeader | MarkerHeader, position: int = 0, is_copied: bool = True) -> PartitionScan:
    scan = PartitionScan(PLACE if is_copied else OFFSETS, position, position, is_copied)
    for header in headers:
        scan.take(header)
    return scan


def test_a_part_extends_from_the_first_record_to_the_last_before_the_marker() -> None:
    scan = scanned(
        DataHeader(0, 1, producer()),
        DataHeader(2, 2, producer(0, 2)),
        DataHeader(3, 5, producer()),
        MarkerHeader(6, producer(), committed=True),
    )
    (part,) = scan.decided
    assert (part.first, part.last, part.marker) == (0, 5, 6)
    assert [each.first for each in scan.unfinished()] == [2, 0]


def test_an_aborted_part_is_nothing_to_copy() -> None:
    scan = scanned(DataHeader(0, 1, producer()), MarkerHeader(2, producer(), committed=False))
    assert scan.decided == []
    assert not scan.has_content(3)


def test_a_marker_of_a_later_epoch_shows_that_no_other_transaction_has_the_name() -> None:
    old = scanned(DataHeader(0, 1, producer(3)), MarkerHeader(2, producer(3), committed=True))
    new = scanned(DataHeader(0, 1, producer(3)), MarkerHeader(2, producer(4), committed=True))
    assert [part.is_unique for part in (*old.decided, *new.decided)] == [False, True]


def test_a_repeated_marker_changes_nothing() -> None:
    scan = scanned(
        DataHeader(0, 1, producer()), MarkerHeader(2, producer(), committed=True), MarkerHeader(3, producer(), True)
    )
    assert len(scan.decided) == 1
    assert scan.scanned == 4


def test_a_batch_that_begins_before_the_position_counts_from_the_position_on() -> None:
    scan = scanned(DataHeader(0, 9, None), position=5)
    assert scan.plain == (5, 9)
    assert scanned(DataHeader(0, 4, None), position=5).plain is None


def test_records_outside_of_transactions_are_content_until_they_are_copied() -> None:
    scan = scanned(DataHeader(2, 3, None), DataHeader(7, 8, None))
    assert [scan.has_content(cut) for cut in (2, 3)] == [False, True]
    scan.advance(8)
    assert (scan.position, scan.plain) == (8, (8, 8))
    scan.advance(9)
    assert scan.plain is None


@pytest.mark.parametrize(
    "headers",
    [
        (DataHeader(0, 0, producer(2)), DataHeader(1, 1, producer(1))),
        (DataHeader(0, 0, producer(2)), MarkerHeader(1, producer(1), committed=True)),
        (DataHeader(3, 2, None),),
    ],
    ids=["an earlier epoch in a transaction", "a marker of an earlier epoch", "an end before the beginning"],
)
def test_headers_that_no_broker_writes_are_refused(headers: tuple[DataHeader | MarkerHeader, ...]) -> None:
    with pytest.raises(MalformedScan, match="orders-0"):
        scanned(*headers)


def test_a_transaction_without_a_marker_is_decided_with_the_producers_next_one() -> None:
    scan = scanned(
        DataHeader(0, 1, producer(7)),
        DataHeader(2, 2, None),
        DataHeader(3, 3, producer(8)),
        MarkerHeader(4, producer(9), committed=True),
    )
    (part,) = scan.decided
    assert (part.first, part.last, part.producer, part.is_unique) == (0, 3, producer(8), True)
    assert [(each.producer, each.first, each.last) for each in scan.unmarked] == [(producer(7), 0, 1)]


# --- offsets of groups ----------------------------------------------------------------------------------------------


def commit(offset: int | None, group: str = "g") -> GroupCommit:
    return GroupCommit(group, PLACE, offset)


def test_offsets_of_other_groups_are_nothing_to_copy() -> None:
    scan = scanned(
        DataHeader(0, 4, None),
        DataHeader(5, 5, producer()),
        MarkerHeader(6, producer(), committed=True),
        is_copied=False,
    )
    assert not scan.has_content(7)
    assert scan.decided == []


def test_offsets_come_in_the_order_of_their_records_not_of_their_markers() -> None:
    scan = scanned(
        DataHeader(0, 0, producer(), (commit(1),)),
        DataHeader(1, 1, None, (commit(2),)),
        MarkerHeader(2, producer(), committed=True),
        is_copied=False,
    )
    assert [each.offset for each in scan.commits_below(3)] == [1, 2]
    assert [each.offset for each in scan.commits_below(1)] == [1]


def test_an_offset_that_is_deleted_later_is_not_translated_before() -> None:
    scan = scanned(
        DataHeader(0, 0, None, (commit(1), commit(1, "other"))),
        DataHeader(1, 1, None, (commit(None),)),
        is_copied=False,
    )
    assert list(scan.commits_below(1)) == [commit(1, "other")]
    assert list(scan.commits_below(2)) == [commit(1), commit(1, "other"), commit(None)]
