import pytest

from einmal.log.aborted_index import ENTRY_SIZE, AbortedEntry, AbortedIndex
from einmal.types import Offset, ProducerId
from einmal.wire.fetch import AbortedTransaction


def entry(producer_id: int, first: int, last: int, last_stable: int) -> AbortedEntry:
    return AbortedEntry(ProducerId(producer_id), Offset(first), Offset(last), Offset(last_stable))


def index_of(*entries: AbortedEntry) -> AbortedIndex:
    index = AbortedIndex()
    for each in entries:
        index.append(each)
    return index


def collected(index: AbortedIndex, first: int, end: int) -> tuple[list[int], bool]:
    found: list[AbortedTransaction] = []
    is_complete = index.collect(Offset(first), Offset(end), found)
    return [transaction.first_offset for transaction in found], is_complete


def test_an_entry_has_34_bytes_in_apache_kafkas_order() -> None:
    data = index_of(entry(7, 10, 20, 21)).encode()
    assert len(data) == ENTRY_SIZE == 34
    fields = ((0, 2), (7, 8), (10, 8), (20, 8), (21, 8))
    assert data == b"".join(number.to_bytes(size, "big") for number, size in fields)


def test_a_transaction_that_ended_before_the_read_is_left_out() -> None:
    assert collected(index_of(entry(1, 0, 9, 10)), 10, 20) == ([], False)
    assert collected(index_of(entry(1, 0, 9, 10)), 9, 20) == ([0], False)


def test_a_transaction_that_begins_at_the_end_of_the_read_is_left_out() -> None:
    assert collected(index_of(entry(1, 20, 30, 31)), 10, 20) == ([], True)
    assert collected(index_of(entry(1, 19, 30, 31)), 10, 20) == ([19], True)


def test_a_last_stable_offset_below_the_end_means_that_later_segments_have_to_be_looked_at() -> None:
    # Another transaction was open from 5 on when this one was aborted: it may be aborted later.
    assert collected(index_of(entry(1, 0, 15, 5)), 0, 10) == ([0], False)
    assert collected(index_of(entry(1, 0, 15, 5), entry(2, 5, 30, 31)), 0, 10) == ([0, 5], True)


def test_what_was_encoded_in_parts_is_decoded_whole() -> None:
    index = index_of(entry(1, 0, 15, 5), entry(2, 5, 30, 31))
    assert AbortedIndex.decode(index.encode()[:ENTRY_SIZE] + index.encode(1)).encode() == index.encode()


def test_truncation_forgets_markers_at_and_above() -> None:
    index = index_of(entry(1, 0, 15, 5), entry(2, 5, 30, 31))
    index.truncate_to(Offset(30))
    assert len(index) == 1


@pytest.mark.parametrize("data", [bytes(33), b"\x00\x01" + bytes(32)])
def test_another_version_or_a_torn_entry_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        AbortedIndex.decode(data)
