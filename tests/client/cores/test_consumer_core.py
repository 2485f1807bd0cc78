"""Claims about positions: what is fetched, what comes out, and what a seek or an error leaves behind."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from uuid import UUID

import google_crc32c
import pytest

from einmal.client.cores.consumer_core import ConsumerCore, LogTruncated, TopicRecreated
from einmal.client.cores.fetch_core import Advice, FetchTicket
from einmal.client.cores.fetched import CorruptData
from einmal.client.cores.partition_reading import Reset
from einmal.client.errors import InvalidState, KafkaError, NoOffset, OffsetOutOfRange
from einmal.client.records import OffsetAndMetadata
from einmal.types import ErrorCode, IsolationLevel, TopicPartition
from einmal.wire.fetch import FetchedPartition
from einmal.wire.record_batch import NewRecord, encode_batch
from tests.client.cores.test_fetched import LogWriter

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)


def core_at(*partitions: TopicPartition, reset: Reset | None = Reset.EARLIEST) -> ConsumerCore:
    core = ConsumerCore(IsolationLevel.READ_COMMITTED, reset)
    core.assign(partitions or (T0,))
    for each in partitions or (T0,):
        core.seek(each, 0)
    return core


def begin(core: ConsumerCore, now: int = 0) -> list[FetchTicket]:
    tickets = core.fetches.fetchable(now)
    for ticket in tickets:
        core.fetches.fetch_begun(ticket)
    return tickets


def answer(log: LogWriter, ticket: FetchTicket, size: int = 1_000_000) -> FetchedPartition:
    if ticket.offset >= log.end:
        return FetchedPartition(0, high_watermark=log.end, last_stable_offset=log.end)
    data, aborted = log.fetch(ticket.offset, size)
    return FetchedPartition(
        0, high_watermark=log.end, last_stable_offset=log.end, aborted_transactions=aborted, records=data
    )


def refusal(code: ErrorCode) -> FetchedPartition:
    return FetchedPartition(0, error_code=code)


def log_of(*values: Sequence[bytes]) -> LogWriter:
    log = LogWriter()
    for each in values:
        log.write(each)
    return log


def taken(core: ConsumerCore, most: int = 100) -> list[bytes | None]:
    return [record.value for record in core.take(most)]


def test_records_come_out_in_order_and_the_position_follows() -> None:
    core, log = core_at(), log_of([b"a", b"b"], [b"c"])
    (ticket,) = begin(core)
    core.fetches.fetched(ticket, answer(log, ticket), 0)
    assert taken(core, 2) == [b"a", b"b"]
    assert core.position(T0) == 2
    assert taken(core) == [b"c"]
    assert core.positions() == {T0: OffsetAndMetadata(3, 0)}


def test_markers_and_aborted_records_move_the_position_past_them() -> None:
    core, log = core_at(), LogWriter()
    log.write([b"aborted"], 1)
    log.mark(1, committed=False)
    (ticket,) = begin(core)
    core.fetches.fetched(ticket, answer(log, ticket), 0)
    assert taken(core) == []
    assert core.position(T0) == 2
    assert core.lag(T0) == 0


def test_a_batch_that_begins_before_the_position_is_cut() -> None:
    core, log = core_at(), log_of([b"a", b"b", b"c"])
    core.seek(T0, 2)
    (ticket,) = begin(core)
    core.fetches.fetched(ticket, answer(log, ticket), 0)
    assert taken(core) == [b"c"]


@pytest.mark.parametrize("base_offset", [-(2**63), -1, 0, 1, 2**63 - 2, 2**63 - 1])
def test_offsets_that_cannot_follow_are_damage_and_asked_for_again_later(base_offset: int) -> None:
    """No CRC covers them: the position went back, or beyond what a request can ask for, for ever."""
    core = core_at()
    core.seek(T0, 5)
    (ticket,) = begin(core)
    data = bytearray(encode_batch([NewRecord(None, b"a", 0), NewRecord(None, b"b", 0)]))
    struct.pack_into(">q", data, 0, base_offset)
    core.fetches.fetched(ticket, FetchedPartition(0, high_watermark=9, last_stable_offset=9, records=bytes(data)), 100)
    with pytest.raises(CorruptData):
        core.take(1)
    assert core.position(T0) == 5
    assert not core.fetches.fetchable(99)
    assert [again.offset for again in core.fetches.fetchable(100)] == [5]


def test_one_fetch_per_partition_is_under_way_and_two_pieces_are_kept() -> None:
    core, log = core_at(), log_of([b"a"], [b"b"], [b"c"])
    size = log.starts[1][1]
    for _ in range(2):
        (ticket,) = begin(core)
        assert core.fetches.fetchable(0) == []
        core.fetches.fetched(ticket, answer(log, ticket, size), 0)
    assert core.fetches.fetchable(0) == []
    assert taken(core, 1) == [b"a"]
    (ticket,) = begin(core)
    assert ticket.offset == 2


def test_an_answer_to_a_fetch_before_a_seek_is_dropped() -> None:
    core, log = core_at(), log_of([b"a"], [b"b"])
    (ticket,) = begin(core)
    core.seek(T0, 1)
    core.fetches.fetched(ticket, answer(log, ticket), 0)
    assert taken(core) == []
    (again,) = begin(core)
    core.fetches.fetched(again, answer(log, again), 0)
    assert taken(core) == [b"b"]


def test_an_answer_to_a_former_life_of_a_partition_is_dropped() -> None:
    core, log = core_at(), log_of([b"a"])
    (ticket,) = begin(core)
    core.assign([])
    core.assign([T0])
    core.seek(T0, 0)
    core.fetches.fetched(ticket, answer(log, ticket), 0)
    assert taken(core) == []


def test_a_partition_that_stays_assigned_keeps_its_position_and_its_records() -> None:
    core, log = core_at(T0), log_of([b"a"], [b"b"])
    (ticket,) = begin(core)
    core.fetches.fetched(ticket, answer(log, ticket), 0)
    assert taken(core, 1) == [b"a"]
    core.assign([T0, T1])
    assert taken(core) == [b"b"]
    assert core.without_position(0) == [T1]


def test_paused_partitions_are_neither_fetched_nor_given() -> None:
    core, log = core_at(), log_of([b"a"])
    (ticket,) = begin(core)
    core.fetches.fetched(ticket, answer(log, ticket), 0)
    core.pause([T0])
    assert (core.fetches.fetchable(0), taken(core)) == ([], [])
    core.resume([T0])
    assert taken(core) == [b"a"]


def test_what_was_fetched_waits_until_all_of_it_is_taken_or_its_partition_is_paused() -> None:
    core, log = core_at(), log_of([b"a", b"b"])
    (ticket,) = begin(core)
    assert not core.fetches.has_fetched
    core.fetches.fetched(ticket, answer(log, ticket), 0)
    assert core.fetches.has_fetched, "nothing is unpacked yet"
    assert taken(core, 1) == [b"a"]
    assert core.fetches.has_fetched, "a record is left"
    core.pause([T0])
    assert not core.fetches.has_fetched
    core.resume([T0])
    assert taken(core) == [b"b"]
    assert not core.fetches.has_fetched


def test_partitions_take_turns() -> None:
    core, log = core_at(T0, T1), log_of([b"a", b"b", b"c"])
    for ticket in begin(core):
        core.fetches.fetched(ticket, answer(log, ticket), 0)
    given = [core.take(1)[0].partition for _ in range(4)]
    assert given == [0, 1, 0, 1]


def test_the_group_s_offsets_come_first_and_the_reset_fills_in() -> None:
    core = ConsumerCore(IsolationLevel.READ_COMMITTED, Reset.LATEST)
    core.assign([T0, T1])
    core.committed_found({T0: OffsetAndMetadata(7), T1: None})
    assert core.position(T0) == 7
    assert core.to_reset(0) == {T1: Reset.LATEST}
    core.reset_found(T1, Reset.LATEST, 40, 2)
    assert core.position(T1) == 40


def test_a_seek_wins_over_a_reset_that_is_under_way() -> None:
    core = core_at()
    core.seek_by([T0], Reset.LATEST)
    core.seek(T0, 3)
    core.reset_found(T0, Reset.LATEST, 40, -1)
    assert core.position(T0) == 3


def test_without_a_reset_a_missing_offset_is_an_error() -> None:
    core = ConsumerCore(IsolationLevel.READ_COMMITTED, None)
    core.assign([T0])
    core.committed_found({T0: None})
    with pytest.raises(NoOffset, match=r"auto\.offset\.reset"):
        core.take(1)


@pytest.mark.parametrize("bad", [T0, T1], ids=["first", "last"])
@pytest.mark.parametrize("kind", ["no offset", "lookup", "fetch", "damage"])
def test_a_partition_that_cannot_be_read_holds_back_no_other_however_slowly_it_is_polled(
    kind: str, bad: TopicPartition
) -> None:
    """Its error comes back before every poll, and half of all polls return records nevertheless."""
    good = T1 if bad is T0 else T0
    log, damaged = log_of(*[[b"%d" % number] for number in range(5)]), damaged_records()
    core = ConsumerCore(IsolationLevel.READ_COMMITTED, None)
    core.assign([T0, T1])
    core.seek(good, 0)
    if kind in ("fetch", "damage"):
        core.seek(bad, 0)
    read: list[bytes | None] = []
    outcomes: list[str] = []
    for now in range(0, 1_000, 50):
        for ticket in begin(core, now):
            told = answer(log, ticket, 100)
            if ticket.topic_partition == bad:
                told = damaged if kind == "damage" else refusal(ErrorCode.topic_authorization_failed)
            core.fetches.fetched(ticket, told, now + 1)
        if kind == "no offset":
            core.committed_found(dict.fromkeys(core.without_position(now)), now + 1)
        elif kind == "lookup":
            core.lookup_failed(bad, now + 1, NoOffset(detail=str(bad)))
        try:
            read += [record.value for record in core.take(1)]
            outcomes.append("read")
        except KafkaError:
            outcomes.append("raised")
    assert read == [b"0", b"1", b"2", b"3", b"4"]
    assert outcomes.index("raised") <= 1, "the error is reported at once"
    assert outcomes.count("raised") >= 5, "it is reported again while it lasts"


def damaged_records() -> FetchedPartition:
    """A batch whose CRC is right and whose records are not."""
    data = bytearray(encode_batch([NewRecord(None, b"v", 0, ())]))
    data[61:] = bytes(len(data) - 61)
    data[17:21] = struct.pack(">I", google_crc32c.value(bytes(data[21:])))
    return FetchedPartition(0, high_watermark=1, last_stable_offset=1, records=bytes(data))


# --- a topic that was deleted and created again (KIP-516) ----------------------------------------------------------

OLD, NEW = UUID(int=1), UUID(int=2)


def reading(log: LogWriter, reset: Reset | None, *, fetches: bool) -> ConsumerCore:
    """A consumer of topic OLD, at the end of a log of three records."""
    core = ConsumerCore(IsolationLevel.READ_COMMITTED, reset)
    core.assign([T0])
    core.lookup_begun([T0], {"t": OLD})
    core.committed_found({T0: OffsetAndMetadata(0 if fetches else 3, 7)})
    assert core.topic_to_fetch(T0, OLD) == OLD
    if fetches:
        (ticket,) = begin(core)
        core.fetches.fetched(ticket, answer(log, ticket), 0)
        assert len(core.take(10)) == 3
    return core


def refuse_topic(core: ConsumerCore, code: ErrorCode) -> None:
    (ticket,) = begin(core)
    assert core.fetches.fetched(ticket, refusal(code), 0) is Advice.REFRESH_METADATA


@pytest.mark.parametrize("code", [ErrorCode.unknown_topic_id, ErrorCode.unknown_topic_or_partition])
@pytest.mark.parametrize("reset", [Reset.EARLIEST, Reset.LATEST])
def test_a_topic_that_was_created_again_is_read_from_its_first_record(reset: Reset, code: ErrorCode) -> None:
    core = reading(log_of([b"a", b"b", b"c"]), reset, fetches=True)
    refuse_topic(core, code)
    assert not core.is_of_former_topic(T0, OLD), "it may only be the broker that lags behind"
    assert core.is_of_former_topic(T0, NEW)
    assert core.positions() == {}, "the position in the old topic is not committed for the new one"
    assert core.to_reset(0) == {T0: Reset.EARLIEST}
    core.lookup_begun([T0], {"t": NEW})
    core.reset_found(T0, Reset.EARLIEST, 0, 0)
    assert core.topic_to_fetch(T0, NEW) == NEW
    (ticket,) = begin(core)
    core.fetches.fetched(ticket, answer(log_of([b"first"], [b"x", b"y", b"z"]), ticket), 0)
    assert taken(core)[0] == b"first"


def test_a_topic_that_was_created_again_is_an_error_where_nothing_chooses_a_position() -> None:
    core = reading(log_of([b"a", b"b", b"c"]), None, fetches=True)
    refuse_topic(core, ErrorCode.unknown_topic_id)
    assert core.is_of_former_topic(T0, NEW)
    for now in (0, 10):
        assert core.without_position(now) == [T0]
        core.committed_found({T0: OffsetAndMetadata(3)}, now + 10)
        assert core.position(T0) is None, "an offset of the old topic is not one of the new topic"
        with pytest.raises(TopicRecreated):
            core.take(1)
    core.seek(T0, 1)
    assert core.position(T0) == 1


def test_a_position_from_which_nothing_was_read_yet_is_looked_up_again() -> None:
    core = reading(log_of([b"a", b"b", b"c"]), Reset.LATEST, fetches=False)
    refuse_topic(core, ErrorCode.unknown_topic_id)
    assert core.is_of_former_topic(T0, NEW)
    assert core.without_position(0) == [T0]


def test_a_position_that_the_application_has_chosen_is_kept_until_something_was_read_there() -> None:
    core = core_at()
    core.seek(T0, 2)
    assert core.topic_to_fetch(T0, OLD) == OLD
    refuse_topic(core, ErrorCode.unknown_topic_id)
    assert not core.is_of_former_topic(T0, NEW)
    assert (core.position(T0), core.topic_to_fetch(T0, NEW)) == (2, NEW)


def test_records_that_the_application_did_not_get_are_read_once_more() -> None:
    core, log = core_at(T0, T1), log_of([b"a", b"b", b"c"])
    for ticket in begin(core):
        core.fetches.fetched(ticket, answer(log, ticket), 0)
    assert len(core.take(1)) == 1
    rest = core.take(5)
    core.take_back(rest[1:])
    assert sum(offset.offset for offset in core.positions().values()) == 2


def refuse_as_out_of_range(core: ConsumerCore, advice: Advice) -> FetchTicket:
    (ticket,) = begin(core)
    assert core.fetches.fetched(ticket, refusal(ErrorCode.offset_out_of_range), 0) is advice
    return ticket


def test_an_offset_out_of_range_is_believed_when_another_broker_was_asked_who_leads() -> None:
    core = core_at()
    ticket = refuse_as_out_of_range(core, Advice.ASK_ANOTHER)
    assert (core.to_reset(0), core.fetches.fetchable(0)) == ({}, [])
    core.fetches.fetch_failed(ticket, 0)
    refuse_as_out_of_range(core, Advice.NOTHING)
    assert core.to_reset(0) == {T0: Reset.EARLIEST}


def test_a_leader_that_has_the_offset_clears_the_one_before_it() -> None:
    log = log_of([b"a"])
    core = core_at()
    ticket = refuse_as_out_of_range(core, Advice.ASK_ANOTHER)
    core.fetches.fetch_abandoned(ticket)
    (again,) = begin(core)
    core.fetches.fetched(again, answer(log, again), 0)
    refuse_as_out_of_range(core, Advice.ASK_ANOTHER)


def test_out_of_range_resets_or_raises() -> None:
    core = core_at(reset=None)
    core.fetches.fetch_failed(refuse_as_out_of_range(core, Advice.ASK_ANOTHER), 0)
    refuse_as_out_of_range(core, Advice.NOTHING)
    with pytest.raises(OffsetOutOfRange, match="t-0 at 0"):
        core.take(1)


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (ErrorCode.not_leader_or_follower, Advice.REFRESH_METADATA),
        (ErrorCode.unknown_topic_or_partition, Advice.REFRESH_METADATA),
        (ErrorCode.fenced_leader_epoch, Advice.REFRESH_METADATA),
        (ErrorCode.unknown_leader_epoch, Advice.NOTHING),
        (ErrorCode.offset_not_available, Advice.NOTHING),
    ],
)
def test_what_passes_is_fetched_again_after_a_pause(code: ErrorCode, advice: Advice) -> None:
    core = core_at()
    (ticket,) = begin(core)
    assert core.fetches.fetched(ticket, refusal(code), 100) is advice
    assert core.fetches.fetchable(99) == []
    assert len(core.fetches.fetchable(100)) == 1
    assert taken(core) == []


def test_a_damaged_batch_raises_and_the_position_stays_before_it() -> None:
    core, log = core_at(), log_of([b"a" * 50])
    log.data[80] ^= 1
    (ticket,) = begin(core)
    core.fetches.fetched(ticket, answer(log, ticket), 0)
    with pytest.raises(CorruptData):
        core.take(1)
    assert core.position(T0) == 0


def poisoned(value: bytes) -> bytes:
    """A batch whose CRC is right and whose only record is garbage."""
    batch = bytearray(encode_batch([NewRecord(None, value, 0)]))
    batch[61:] = b"\xff" * (len(batch) - 61)
    batch[17:21] = google_crc32c.value(bytes(batch[21:])).to_bytes(4, "big")
    return bytes(batch)


@pytest.mark.parametrize("damage", ["crc", "records"])
def test_records_before_a_damaged_batch_are_returned_and_no_poll_skips_it(damage: str) -> None:
    core, log = core_at(), log_of([b"a"], [b"b"])
    if damage == "crc":
        log.write([b"c" * 50])
        log.data[-5] ^= 1
    else:
        log._add(poisoned(b"c" * 50), 1)
    log.write([b"d"])

    def read(most: int) -> list[bytes | None]:
        for ticket in begin(core):
            core.fetches.fetched(ticket, answer(log, ticket), 0)
        return taken(core, most)

    assert read(100) == [b"a", b"b"]
    for _ in range(3):
        with pytest.raises(CorruptData):
            read(100)
        assert core.position(T0) == 2
    core.seek(T0, 3)
    assert read(100) == [b"d"]


def test_a_damaged_partition_loses_no_record_of_another() -> None:
    core = core_at(T0, T1)
    good, bad = log_of([b"a"]), LogWriter()
    bad._add(poisoned(b"b"), 1)
    for ticket in begin(core):
        core.fetches.fetched(ticket, answer(good if ticket.topic_partition == T0 else bad, ticket), 0)
    assert taken(core) == [b"a"]
    with pytest.raises(CorruptData):
        taken(core)


def test_a_permanent_error_is_raised() -> None:
    core = core_at()
    (ticket,) = begin(core)
    core.fetches.fetched(ticket, refusal(ErrorCode.topic_authorization_failed), 0)
    with pytest.raises(KafkaError, match="TOPIC_AUTHORIZATION_FAILED"):
        core.take(1)


def test_only_assigned_partitions_can_be_moved() -> None:
    with pytest.raises(InvalidState, match="t-1 is not assigned"):
        core_at(T0).seek(T1, 0)


# --- leader epochs (KIP-320) ---------------------------------------------------------------------------------------


def ticket_at(core: ConsumerCore, offset: int, leader_epoch: int) -> FetchTicket:
    core.seek(T0, offset, leader_epoch=leader_epoch)
    (ticket,) = core.fetches.fetchable(0)
    return ticket


def test_a_new_leader_is_asked_where_our_epoch_ends() -> None:
    core = core_at()
    ticket = ticket_at(core, 10, leader_epoch=3)
    assert core.must_validate(T0, 3) is None
    assert core.must_validate(T0, 5) == 3
    core.fetches.validation_begun(ticket)
    assert core.fetches.fetchable(0) == []
    core.validated(ticket, 5, end_epoch=3, end_offset=10)
    assert core.position(T0) == 10
    assert core.must_validate(T0, 5) is None
    assert core.fetches.fetchable(0) == [ticket]


def test_a_leader_before_the_one_that_the_position_is_from_is_not_asked() -> None:
    core = core_at()
    ticket_at(core, 10, leader_epoch=3)
    assert [core.is_ahead_of(T0, epoch) for epoch in (-1, 2, 3, 4)] == [False, True, False, False]
    ticket_at(core, 10, leader_epoch=-1)
    assert not core.is_ahead_of(T0, 2)


def test_a_leader_that_could_not_be_asked_is_asked_again() -> None:
    core = core_at()
    ticket = ticket_at(core, 10, leader_epoch=3)
    core.fetches.validation_begun(ticket)
    core.fetches.fetch_failed(ticket, 50)
    assert (core.fetches.fetchable(49), core.fetches.next_retry(0)) == ([], 50)
    assert core.fetches.fetchable(50) == [ticket]
    assert core.must_validate(T0, 5) == 3


def test_a_truncated_log_moves_the_position_back_or_raises() -> None:
    core = core_at()
    core.validated(ticket_at(core, 10, leader_epoch=3), 5, end_epoch=3, end_offset=8)
    assert core.position(T0) == 8
    core = core_at(reset=None)
    core.validated(ticket_at(core, 10, leader_epoch=3), 5, end_epoch=3, end_offset=8)
    with pytest.raises(LogTruncated, match="t-0 ends at 8"):
        core.take(1)


def test_what_was_fetched_of_the_former_leader_beyond_the_new_ones_epoch_is_fetched_again() -> None:
    core, log = core_at(), log_of([b"a"], [b"b"])
    (ticket,) = begin(core)
    core.fetches.fetched(ticket, answer(log, ticket), 0)
    assert taken(core, 1) == [b"a"]
    (ticket,) = core.fetches.fetchable(0)
    core.validated(ticket, 5, end_epoch=0, end_offset=1)
    assert core.take(10) == []
    (again,) = core.fetches.fetchable(0)
    assert again.offset == 1


def test_a_truncation_does_not_skip_what_an_iterator_has_not_given_yet() -> None:
    core, log = core_at(), log_of([b"a", b"b", b"c"])
    (ticket,) = begin(core)
    core.fetches.fetched(ticket, answer(log, ticket), 0)
    given = core.one_by_one(core.take(100))
    assert next(given).value == b"a"
    (ticket,) = core.fetches.fetchable(0)
    core.validated(ticket, 5, end_epoch=0, end_offset=2)
    assert core.position(T0) == 1


def test_an_answer_of_a_former_leader_is_not_looked_at() -> None:
    core, log = core_at(), log_of([b"a"])
    (ticket,) = begin(core)
    core.fetches.fetch_abandoned(ticket)
    (again,) = begin(core)
    core.fetches.fetched(ticket, answer(log, ticket), 0)
    assert core.take(10) == []
    core.fetches.fetched(again, answer(log, again), 0)
    assert taken(core) == [b"a"]


def test_a_new_leader_is_fetched_from_at_once() -> None:
    core = core_at()
    (ticket,) = begin(core)
    core.fetches.fetched(ticket, refusal(ErrorCode.not_leader_or_follower), 1_000)
    assert core.fetches.fetchable(0) == []
    core.fetches.leader_changed(T0)
    assert core.fetches.fetchable(0) == [ticket]


def test_a_record_that_an_iterator_has_not_given_yet_is_not_committed() -> None:
    core, log = core_at(), log_of([b"a", b"b", b"c"])
    log.write([b"aborted"], 1)
    log.mark(1, committed=False)
    (ticket,) = begin(core)
    core.fetches.fetched(ticket, answer(log, ticket), 0)
    given = core.one_by_one(core.take(100))
    assert [next(given).value, core.position(T0)] == [b"a", 1]
    assert [next(given).value, core.positions()] == [b"b", {T0: OffsetAndMetadata(2, 0)}]
    assert [next(given).value, core.position(T0)] == [b"c", 5]


def test_records_that_an_iterator_was_left_with_are_read_once_more() -> None:
    core, log = core_at(), log_of([b"a", b"b"])
    (ticket,) = begin(core)
    core.fetches.fetched(ticket, answer(log, ticket), 0)
    assert next(core.one_by_one(core.take(100))).value == b"a"
    core.take_back()
    (ticket,) = begin(core)
    core.fetches.fetched(ticket, answer(log, ticket), 0)
    assert taken(core) == [b"b"]


def test_an_iterator_gives_nothing_that_a_seek_has_overtaken() -> None:
    core, log = core_at(T0, T1), log_of([b"a", b"b"])
    for ticket in begin(core):
        core.fetches.fetched(ticket, answer(log, ticket), 0)
    given = core.one_by_one(core.take(100))
    assert next(given).topic == "t"
    core.seek(T0, 1)
    assert {record.partition for record in given} == {1}
    assert core.position(T0) == 1
