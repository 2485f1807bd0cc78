"""Claims about committed and pending offsets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from einmal.groups.offsets import Offsets
from einmal.groups.records import CommittedOffset, OffsetRecord
from einmal.types import ProducerId, TopicPartition

PARTITION = TopicPartition("t", 0)
PRODUCER = ProducerId(7)


def offset(value: int) -> CommittedOffset:
    return CommittedOffset(value, -1, "", 0)


def plain(value: int) -> OffsetRecord:
    return OffsetRecord("g", "t", 0, offset(value))


def pending(value: int, producer_id: ProducerId = PRODUCER) -> OffsetRecord:
    return OffsetRecord("g", "t", 0, offset(value), producer_id)


TOMBSTONE = OffsetRecord("g", "t", 0, None)


def test_a_pending_offset_is_not_committed_before_its_marker() -> None:
    offsets = Offsets()
    offsets.replay(plain(1))
    offsets.replay(pending(5))
    assert offsets.committed("g", PARTITION) == offset(1)
    assert offsets.is_unstable("g", PARTITION)
    offsets.replay_marker(PRODUCER, True)
    assert offsets.committed("g", PARTITION) == offset(5)
    assert not offsets.is_unstable("g", PARTITION)


def test_an_aborted_transaction_leaves_nothing() -> None:
    offsets = Offsets()
    offsets.replay(pending(5))
    offsets.replay_marker(PRODUCER, False)
    assert offsets.committed("g", PARTITION) is None
    assert not offsets.has_any("g")


def test_a_plain_commit_later_in_the_log_wins_over_an_earlier_one_whose_marker_comes_after_it() -> None:
    offsets = Offsets()
    offsets.replay(pending(5))
    offsets.replay(plain(9))
    offsets.replay_marker(PRODUCER, True)
    assert offsets.committed("g", PARTITION) == offset(9)


def test_of_two_transactions_the_later_record_wins_whatever_the_order_of_the_markers() -> None:
    offsets = Offsets()
    offsets.replay(pending(5, ProducerId(1)))
    offsets.replay(pending(6, ProducerId(2)))
    offsets.replay_marker(ProducerId(2), True)
    assert offsets.is_unstable("g", PARTITION)
    offsets.replay_marker(ProducerId(1), True)
    assert offsets.committed("g", PARTITION) == offset(6)
    assert not offsets.is_unstable("g", PARTITION)


def test_a_tombstone_takes_pending_offsets_along() -> None:
    offsets = Offsets()
    offsets.replay(pending(5))
    offsets.replay(TOMBSTONE)
    assert not offsets.has_pending("g")
    offsets.replay_marker(PRODUCER, True)
    assert offsets.committed("g", PARTITION) is None


def test_a_marker_of_another_producer_changes_nothing() -> None:
    offsets = Offsets()
    offsets.replay(pending(5))
    offsets.replay_marker(ProducerId(8), True)
    assert offsets.is_unstable("g", PARTITION)


EVENTS = st.lists(
    st.one_of(
        st.integers(0, 99).map(plain),
        st.tuples(st.integers(0, 99), st.integers(0, 2)).map(lambda pair: pending(pair[0], ProducerId(pair[1]))),
        st.just(TOMBSTONE),
        st.tuples(st.integers(0, 2).map(ProducerId), st.booleans()),
    ),
    max_size=25,
)


def replayed(events: list[OffsetRecord | tuple[ProducerId, bool]]) -> Offsets:
    offsets = Offsets()
    for event in events:
        if isinstance(event, OffsetRecord):
            offsets.replay(event)
        else:
            offsets.replay_marker(*event)
    return offsets


@given(EVENTS)
def test_compaction_of_the_settled_log_changes_no_offset(
    events: list[OffsetRecord | tuple[ProducerId, bool]],
) -> None:
    # Markers are kept by compaction; of the records of the one key only the last stays, when no aborted one is it.
    settled = [*events, *((ProducerId(producer_id), False) for producer_id in range(3))]
    records = [index for index, event in enumerate(settled) if isinstance(event, OffsetRecord)]
    alive = []
    for index in records:
        record = settled[index]
        assert isinstance(record, OffsetRecord)
        fate = next(
            (
                event[1]
                for event in settled[index:]
                if not isinstance(event, OffsetRecord) and event[0] == record.producer_id
            ),
            True,
        )
        if fate:
            alive.append(index)
    last = alive[-1:]
    compacted = [event for index, event in enumerate(settled) if index in last or not isinstance(event, OffsetRecord)]
    whole = replayed(settled).committed("g", PARTITION)
    assert replayed(compacted).committed("g", PARTITION) == whole
