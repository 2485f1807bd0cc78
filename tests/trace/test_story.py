"""Claims about diagrams of exchanges made by hand: lost answers, fenced producers, transactions that nobody ends."""

from __future__ import annotations

from dataclasses import fields, replace
from xml.etree import ElementTree

from einmal.trace import svg, text
from einmal.trace.diagram import Diagram, Tone
from einmal.trace.exchanges import Exchange, ExchangePart
from einmal.trace.story import story
from einmal.trace.transactions import LearntOutcome, transactions
from einmal.trace.words import NO_READER
from tests.trace.making import asked, ended, fetched, produced


def last(*exchanges: Exchange) -> Diagram:
    return story(transactions(exchanges)[-1], exchanges)


def labels(diagram: Diagram, tone: Tone) -> list[str]:
    return [row.label for row in diagram.rows if row.tone is tone]


def test_a_lost_answer_leaves_the_producer_without_the_outcome_until_the_next() -> None:
    lost = (asked("InitProducerId", 0), produced(1, 5), ended(2, None))
    unknown = last(*lost)
    assert unknown.outcome == "unknown" and "does not know" in unknown.verdict
    assert labels(unknown, Tone.WRONG) == ["no answer to EndTxn"]
    again = last(*lost, ended(3))
    assert again.outcome == "committed"
    coordinator, producer = again.moments
    # The first request may have been the one that decided.
    assert (coordinator.earliest, coordinator.latest) == (2000.0, 3001.0)
    assert producer.latest == 3001.0


def test_a_reader_knows_what_a_producer_with_a_lost_answer_does_not() -> None:
    diagram = last(produced(1, 5), ended(2, None), fetched(3, 7, marker=True))
    assert diagram.outcome == "unknown"
    assert labels(diagram, Tone.KNOWS) == ["readable: t-0 (commit marker at 6)"]
    _, producer, reader = diagram.moments
    assert (producer.latest, reader.latest) == (None, 2001.0)


def test_what_a_reader_may_see_lies_between_the_request_and_the_fetch_that_shows_it() -> None:
    diagram = last(produced(0, 5), ended(1), fetched(1.5, 5), fetched(2, 7, took=0.5, marker=True))
    *_, reader = diagram.moments
    # The answer of the Fetch at 1.5 is as old as its request at most.
    assert (reader.earliest, reader.latest) == (1500.0, 2500.0)
    assert labels(diagram, Tone.ANSWER)[-1] == "readable: t-0 only below 5"


def test_an_open_transaction_shows_that_nobody_ends_it() -> None:
    diagram = last(produced(0, 5), fetched(1, 5))
    assert diagram.outcome == "not_ended" and "open" in diagram.verdict
    assert [(row.at, row.label) for row in diagram.rows if row.tone is Tone.WRONG] == [(None, "no EndTxn")]
    assert [bar.is_released for bar in diagram.bars] == [False]


def test_the_next_producer_of_an_id_ends_what_is_open() -> None:
    first, second = transactions([produced(0, 5), asked("InitProducerId", 1), produced(2, 8), ended(3)])
    (replaced,) = (each for each in (first, second) if each.outcome is LearntOutcome.NOT_ENDED)
    diagram = story(replaced, [])
    assert "but by the next one with this id" in diagram.verdict
    assert diagram.rows[-1].label.startswith("producer 7")
    assert labels(diagram, Tone.WRONG) == []


def test_a_reader_shows_that_a_coordinator_has_aborted_by_itself() -> None:
    diagram = last(produced(0, 5), fetched(1, 5), fetched(60, 7, marker=False))
    assert "ended without an EndTxn" in diagram.verdict
    *_, reader = diagram.moments
    assert (reader.earliest, reader.latest) == (1000.0, 60001.0)
    assert labels(diagram, Tone.KNOWS) == ["readable: t-0 (abort marker at 6)"]


def test_a_refused_end_is_no_outcome() -> None:
    diagram = last(produced(0, 5), ended(1, error="PRODUCER_FENCED"))
    assert diagram.outcome == "unknown"
    assert labels(diagram, Tone.WRONG) == ["PRODUCER_FENCED · 1.0 ms"]


def test_a_zombie_ends_no_transaction_of_its_successor_and_begins_none() -> None:
    def living(exchange: Exchange) -> Exchange:
        return replace(exchange, producer_epoch=1)

    late = asked("Produce", 5, parts=(ExchangePart("t", 0, error="INVALID_PRODUCER_EPOCH"),))
    exchanges = [
        living(asked("InitProducerId", 0)),
        living(produced(1, 5)),
        ended(2, error="PRODUCER_FENCED"),
        living(produced(3, 6)),
        living(ended(4)),
        late,
    ]
    (traced,) = transactions(exchanges)
    assert (traced.outcome, traced.producer_epoch, traced.asked_at) == (LearntOutcome.COMMITTED, 1, 4)
    (partition,) = traced.written().values()
    assert (partition.first_offset, partition.last_offset) == (5, 6)
    assert labels(story(traced, exchanges), Tone.WRONG) == [
        "PRODUCER_FENCED · 1.0 ms",
        "INVALID_PRODUCER_EPOCH · 1.0 ms",
    ]
    (still_open,) = transactions(exchanges[:4])
    assert still_open.outcome is LearntOutcome.NOT_ENDED


def test_a_transaction_whose_writes_are_all_refused_is_not_open() -> None:
    diagram = last(asked("Produce", 0, parts=(ExchangePart("t", 0, error="INVALID_PRODUCER_EPOCH"),)))
    assert diagram.verdict == "Transaction of id: not begun. Each of its writes was refused."


def test_only_the_ends_of_a_transaction_are_examined_at_each_of_its_requests() -> None:
    """Else a trace of some thousand requests in one transaction takes minutes."""
    examined = 0

    class Counted(Exchange):
        def __getattribute__(self, name: str) -> object:
            nonlocal examined
            examined += name == "parts"
            return super().__getattribute__(name)

    def counted(exchange: Exchange) -> Exchange:
        return Counted(**{each.name: getattr(exchange, each.name) for each in fields(exchange)})

    writes = [counted(produced(at, at)) for at in range(200)]
    assert len(transactions([*writes, counted(ended(200))])) == 1
    assert examined < 20 * len(writes)


def test_a_transaction_with_one_write_in_the_log_is_open() -> None:
    refused = ExchangePart("t", 1, error="NOT_LEADER_OR_FOLLOWER")
    for taken in (ExchangePart("t", 0, 1, 5), ExchangePart("t", 0, error="NOT_ENOUGH_REPLICAS_AFTER_APPEND")):
        diagram = last(asked("Produce", 0, parts=(refused, taken)))
        assert diagram.verdict == "Transaction of id: open. Nobody has asked to end it."


def test_the_last_transaction_is_not_one_that_the_next_instance_has_ended() -> None:
    diagram = last(produced(0, 5), asked("InitProducerId", 1), produced(2, 8), ended(3))
    assert diagram.outcome == "committed"


def test_leaders_have_a_lane_each_and_offsets_of_groups_their_coordinator() -> None:
    offsets = asked("TxnOffsetCommit", 1, broker=4, group="g", parts=(ExchangePart("in", 0),))
    diagram = last(produced(0, 5, broker=2), produced(0, 9, topic="u", broker=3), offsets, ended(2))
    lanes = [(each.title, each.subtitle) for each in diagram.lanes]
    assert lanes == [
        ("id", "producer"),
        ("broker 1", "coordinator"),
        ("broker 4", "group coordinator"),
        ("broker 2", "leader of t-0"),
        ("broker 3", "leader of u-0"),
    ]
    assert len(diagram.bars) == 2
    assert NO_READER in diagram.remarks


def test_a_partition_that_no_reader_fetched_is_named() -> None:
    diagram = last(produced(0, 5), produced(0, 9, topic="u"), ended(1), fetched(2, 7))
    assert "No read_committed reader showed the last stable offset of u-0." in diagram.remarks


def test_names_cannot_break_out_of_the_picture() -> None:
    name = '<script>"&\x1b'
    exchanges = [produced(0, 5, transactional_id=name), ended(1, transactional_id=name)]
    diagram = story(transactions(exchanges)[-1], exchanges)
    tree = ElementTree.fromstring(svg.drawn(diagram))
    assert not [each for each in tree.iter() if each.tag.endswith("script")]
    assert name.replace("\x1b", "\N{REPLACEMENT CHARACTER}") in "".join(tree.itertext())
    assert name in text.drawn(diagram)


def test_what_is_sent_once_an_end_is_answered_belongs_to_the_next_transaction() -> None:
    first, second = transactions([produced(0, 5), ended(1, took=1.0), produced(1.5, 6), produced(2.0, 8), ended(4)])
    assert [each.sent_at for each in first.exchanges] == [0, 1, 1.5]
    assert [each.sent_at for each in second.exchanges] == [2.0, 4]
