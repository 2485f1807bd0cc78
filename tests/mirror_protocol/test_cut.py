from __future__ import annotations

import itertools
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from einmal.mirror_protocol.cut import Cut, Probe, find_whole, largest_cut
from einmal.mirror_protocol.scan import DataHeader, GroupCommit, Header, MarkerHeader, PartitionScan, TransactionPart
from einmal.types import ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition

P, Q, R = (TopicPartition(name, 0) for name in "pqr")
OFFSETS = TopicPartition("__consumer_offsets", 0)
NOTHING_PREPARED: dict[ProducerId, ProducerEpoch] = {}


def producer(epoch: int = 0, producer_id: int = 1) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(ProducerId(producer_id), ProducerEpoch(epoch))


def scans(**headers: Iterable[Header]) -> dict[TopicPartition, PartitionScan]:
    found = {}
    for name, each in headers.items():
        place = OFFSETS if name == "offsets" else TopicPartition(name, 0)
        found[place] = PartitionScan(place, 0, 0, is_copied=name != "offsets")
        for header in each:
            found[place].take(header)
        found[place].end = found[place].scanned
    return found


def part(first: int, last: int, epoch: int = 0, producer_id: int = 1, *, tv2: bool = True) -> list[Header]:
    """A committed part, with its marker behind it."""
    marker = producer(epoch + 1 if tv2 else epoch, producer_id)
    return [DataHeader(first, last, producer(epoch, producer_id)), MarkerHeader(last + 1, marker, committed=True)]


def cut_after(
    found: dict[TopicPartition, PartitionScan],
    before: dict[TopicPartition, int],
    preparing: dict[ProducerId, ProducerEpoch] | None = NOTHING_PREPARED,
) -> Cut:
    find_whole(found, Probe(before, preparing))
    return largest_cut(found)


# --- which transactions are whole -----------------------------------------------------------------------------------


def test_a_transaction_with_a_marker_below_the_first_ends_is_whole() -> None:
    found = scans(p=part(0, 1), q=part(0, 4))
    assert cut_after(found, {P: 3, Q: 0}) == {P: 3, Q: 6}


def test_a_transaction_whose_markers_are_all_behind_the_first_ends_may_have_unknown_parts() -> None:
    found = scans(p=part(0, 1), q=part(0, 4))
    assert cut_after(found, {P: 2, Q: 5}) == {P: 0, Q: 0}


def test_a_prepared_transaction_is_awaited() -> None:
    found = scans(p=part(0, 1, epoch=5))
    # Under TV2 the record of the prepared transaction has the epoch after that of its data.
    assert cut_after(found, {P: 3}, {ProducerId(1): ProducerEpoch(6)}) == {P: 0}
    assert cut_after(found, {P: 3}, {ProducerId(1): ProducerEpoch(7)}) == {P: 3}


def test_an_undecided_transaction_is_awaited() -> None:
    found = scans(p=[DataHeader(0, 0, None), DataHeader(1, 2, producer()), DataHeader(3, 3, None)])
    assert cut_after(found, {P: 4}) == {P: 1}


def test_below_tv2_transactions_of_one_epoch_stay_together() -> None:
    found = scans(
        p=[*part(0, 1, tv2=False), *part(3, 3, tv2=False)],
        q=[*part(0, 1, tv2=False), DataHeader(3, 3, producer(0, 2))],
        r=[DataHeader(0, 0, producer(0, 2)), *part(1, 1, tv2=False)],
    )
    # Another producer's open transaction excludes the part in r, and with it all others of that epoch.
    assert cut_after(found, {P: 9, Q: 9, R: 9}) == {P: 0, Q: 0, R: 0}


def test_below_tv2_a_marker_between_the_two_ends_leaves_a_producer_unknown() -> None:
    found = scans(p=[*part(0, 1, tv2=False), *part(3, 3, tv2=False)])
    assert cut_after(found, {P: 4}) == {P: 0}
    assert cut_after(found, {P: 5}) == {P: 5}


def test_below_tv2_what_one_probe_has_found_is_separate_from_what_the_next_one_finds() -> None:
    found = scans(p=part(0, 1, tv2=False), q=[])
    find_whole(found, Probe({P: 3, Q: 0}, {}))
    for header in [*part(3, 4, tv2=False), DataHeader(6, 6, producer())]:
        found[P].take(header)
    assert cut_after(found, {P: 5, Q: 0}) == {P: 3, Q: 0}


def test_under_tv2_each_transaction_of_a_producer_is_its_own() -> None:
    found = scans(p=[*part(0, 1, epoch=0), *part(3, 4, epoch=1), DataHeader(6, 6, producer(2))])
    assert cut_after(found, {P: 4}) == {P: 3}


def test_without_the_transaction_log_each_part_stands_alone() -> None:
    found = scans(p=part(0, 1), q=[DataHeader(0, 1, producer())])
    assert cut_after(found, {P: 0, Q: 0}, None) == {P: 3, Q: 0}


# --- the largest cut ------------------------------------------------------------------------------------------------


def test_a_transaction_that_is_open_in_one_partition_holds_back_those_that_overlap_it() -> None:
    found = scans(
        p=[DataHeader(0, 0, None), *part(1, 2, producer_id=1)],
        q=[DataHeader(0, 0, producer(0, 1)), DataHeader(1, 1, producer(0, 2)), MarkerHeader(2, producer(1), True)],
    )
    assert cut_after(found, {P: 4, Q: 3}) == {P: 4, Q: 1}
    for scan in found.values():
        for each in scan.decided:
            each.whole = None
    found[Q].undecided[ProducerId(2)].first = 0
    assert cut_after(found, {P: 4, Q: 3}) == {P: 1, Q: 0}


def test_a_group_offset_waits_for_the_records_below_it_and_its_transaction_with_it() -> None:
    offsets: list[Header] = [
        DataHeader(0, 0, producer(), (GroupCommit("g", P, 4),)),
        MarkerHeader(1, producer(1), committed=True),
    ]
    open_after: list[Header] = [DataHeader(0, 1, None), DataHeader(2, 3, producer(0, 2)), DataHeader(4, 4, None)]
    found = scans(p=open_after, q=part(0, 0), offsets=offsets)
    before = {P: 5, Q: 2, OFFSETS: 2}
    assert cut_after(found, before) == {P: 2, Q: 0, OFFSETS: 0}
    found[P].take(MarkerHeader(5, producer(1, 2), committed=True))
    found[P].end = 6
    assert cut_after(found, {**before, P: 6}) == {P: 6, Q: 2, OFFSETS: 2}


def test_a_group_offset_beyond_the_end_of_its_partition_is_not_awaited() -> None:
    found = scans(p=[DataHeader(0, 1, None)], offsets=[DataHeader(0, 0, None, (GroupCommit("g", P, 10**9),))])
    assert cut_after(found, {P: 2, OFFSETS: 1}) == {P: 2, OFFSETS: 1}


def test_a_group_offset_waits_also_for_records_that_are_not_scanned_yet() -> None:
    found = scans(p=[DataHeader(0, 1, None)], offsets=[DataHeader(0, 0, None, (GroupCommit("g", P, 10**9),))])
    found[P].end = 3
    assert cut_after(found, {P: 2, OFFSETS: 1}) == {P: 2, OFFSETS: 0}


def test_a_limit_yields_to_a_transaction_that_is_longer() -> None:
    found = scans(p=[*part(0, 7), DataHeader(9, 9, None)], q=part(0, 0))
    find_whole(found, Probe({P: 10, Q: 2}, {}))
    assert largest_cut(found, 2) == {P: 8, Q: 2}
    assert largest_cut(found, 100) == {P: 10, Q: 2}


# --- by partition ---------------------------------------------------------------------------------------------------


def overlapping(count: int) -> list[Header]:
    """Transactions of two producers in turn: each begins before the one before it writes for the last time."""
    found: list[Header] = [DataHeader(0, 0, producer(0, 1))]
    for number in range(1, count):
        offset, last = 3 * number - 2, number - 1
        found += [
            DataHeader(offset, offset, producer(number // 2, 1 + number % 2)),
            DataHeader(offset + 1, offset + 1, producer(last // 2, 1 + last % 2)),
            MarkerHeader(offset + 2, producer(last // 2 + 1, 1 + last % 2), committed=True),
        ]
    return found


def test_transactions_that_overlap_without_a_gap_are_awaited_unless_copied_by_partition() -> None:
    found = scans(p=overlapping(50), q=part(0, 3, producer_id=9))
    find_whole(found, Probe({P: 148, Q: 5}, {}))
    assert largest_cut(found) == {P: 0, Q: 5}
    # The last one is open from offset 145 on.
    assert largest_cut(found, splits=True) == {P: 145, Q: 5}


def test_the_rest_of_a_part_is_copied_later_and_a_later_cut_never_goes_back() -> None:
    found = scans(p=[DataHeader(0, 0, producer(0, 1)), DataHeader(1, 1, producer(0, 2))])
    found[P].take(DataHeader(2, 2, producer(0, 1)))
    found[P].take(MarkerHeader(3, producer(1, 1), committed=True))
    find_whole(found, Probe({P: 4}, None))
    assert largest_cut(found, splits=True) == {P: 1}
    found[P].advance(1)
    assert found[P].has_content(3)
    # Transactions can be read again, and the open one has ended.
    assert largest_cut(found)[P] == 1
    found[P].take(MarkerHeader(4, producer(1, 2), committed=True))
    assert cut_after(found, {P: 5}) == {P: 5}


def test_by_partition_a_group_offset_still_waits_for_the_records_below_it() -> None:
    offsets: list[Header] = [DataHeader(0, 0, None, (GroupCommit("g", P, 3),))]
    found = scans(p=[*part(0, 0), DataHeader(2, 2, producer(0, 2))], offsets=offsets)
    find_whole(found, Probe({P: 3, OFFSETS: 1}, None))
    assert largest_cut(found, splits=True) == {P: 2, OFFSETS: 0}


# --- every world ----------------------------------------------------------------------------------------------------


@st.composite
def worlds(draw: st.DrawFn) -> dict[TopicPartition, PartitionScan]:
    """Scans with whole and unfinished transactions, whose parts overlap in any way."""
    found = {place: PartitionScan(place, 0, draw(st.integers(0, 6))) for place in (P, Q, R)}
    for scan in found.values():
        scan.end = scan.scanned + draw(st.integers(0, 2))
    for number in range(draw(st.integers(0, 5))):
        parts = []
        for place in draw(st.lists(st.sampled_from([P, Q, R]), min_size=1, max_size=3, unique=True)):
            end = found[place].scanned
            if end == 0:
                continue
            first = draw(st.integers(0, end - 1))
            each = TransactionPart(place, producer(0, number), first, draw(st.integers(first, end - 1)), marker=end)
            if draw(st.booleans()):
                each.commits = [GroupCommit("g", draw(st.sampled_from([P, Q, R])), draw(st.integers(0, 8)))]
            parts.append(each)
        is_whole = draw(st.booleans())
        for each in parts:
            each.whole = tuple(parts) if is_whole else None
            found[each.partition].decided.append(each)
    return found


def is_consistent(found: dict[TopicPartition, PartitionScan], cut: Cut, *, splits: bool) -> bool:
    for scan in found.values():
        for each in scan.decided:
            is_below = each.last < cut[each.partition]
            if each.whole is None:
                if each.first < cut[each.partition]:
                    return False
                continue
            if not splits and any((other.last < cut[other.partition]) != is_below for other in each.whole):
                return False
            if not splits and not is_below and each.first < cut[each.partition]:
                return False
            needs = [(commit.partition, commit.offset or 0) for commit in each.commits]
            if is_below and any(cut[place] < min(end, found[place].end) for place, end in needs):
                return False
    return True


@given(worlds(), st.booleans())
def test_the_largest_cut_is_the_maximum_of_all_consistent_ones(
    found: dict[TopicPartition, PartitionScan], splits: bool
) -> None:
    if splits:
        for part in (part for scan in found.values() for part in scan.decided if part.whole):
            part.whole = (part,)
    every = [
        dict(zip(found, ends, strict=True))
        for ends in itertools.product(*(range(scan.scanned + 1) for scan in found.values()))
    ]
    consistent = [cut for cut in every if is_consistent(found, cut, splits=splits)]
    largest = largest_cut(found, splits=splits)
    assert largest in consistent
    if not splits:
        assert largest == {place: max(cut[place] for cut in consistent) for place in found}
