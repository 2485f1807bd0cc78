"""Properties of traces of any exchanges: nothing is lost, nothing is invented, time runs downwards."""

from __future__ import annotations

from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from einmal.trace import svg, text
from einmal.trace.exchanges import Exchange, ExchangePart
from einmal.trace.story import story
from einmal.trace.transactions import transactions
from tests.trace.making import asked

_ERRORS = st.sampled_from([None, None, None, "CONCURRENT_TRANSACTIONS", "PRODUCER_FENCED"])


@st.composite
def _exchange(draw: st.DrawFn) -> Exchange:
    api = draw(
        st.sampled_from(["InitProducerId", "AddPartitionsToTxn", "Produce", "EndTxn", "TxnOffsetCommit", "Fetch"])
    )
    took = draw(st.one_of(st.none(), st.floats(0, 5)))
    offset = draw(st.integers(0, 20))
    part = ExchangePart(
        draw(st.sampled_from("tu")),
        draw(st.integers(0, 1)),
        records=draw(st.integers(1, 3)),
        first_offset=offset if api == "Produce" and took is not None else None,
        last_stable_offset=offset if api == "Fetch" else None,
    )
    fields = {} if api == "Fetch" else {"transactional_id": draw(st.sampled_from(["a", "b"]))}
    return asked(
        api,
        draw(st.floats(0, 20)),
        1.0 if api == "Fetch" and took is None else took,
        broker=draw(st.sampled_from([None, 1, 2])),
        parts=(part,),
        group="g",
        committed=draw(st.booleans()) if api == "EndTxn" else None,
        error=None if took is None else draw(_ERRORS),
        **fields,
    )


_EXCHANGES = st.lists(_exchange(), max_size=25).map(lambda each: sorted(each, key=lambda one: one.sent_at))


@given(_EXCHANGES)
def test_each_request_belongs_to_one_transaction_at_most_and_each_write_to_one(exchanges: list[Exchange]) -> None:
    found = [id(each) for traced in transactions(exchanges) for each in traced.exchanges]
    assert len(found) == len(set(found))
    assert set(found) <= {id(each) for each in exchanges}
    assert set(found) >= {id(each) for each in exchanges if each.api in ("Produce", "EndTxn", "TxnOffsetCommit")}


@given(_EXCHANGES)
def test_rows_are_in_the_order_of_time_and_what_did_not_happen_comes_last(exchanges: list[Exchange]) -> None:
    for traced in transactions(exchanges):
        diagram = story(traced, exchanges)
        times = [row.at for row in diagram.rows]
        happened = [at for at in times if at is not None]
        assert happened == sorted(happened)
        assert times == happened + [None] * (len(times) - len(happened))
        lanes = range(len(diagram.lanes))
        assert all(row.source in lanes and row.target in lanes and row.source != row.target for row in diagram.rows)
        for bar in diagram.bars:
            assert 0 <= bar.first <= bar.last < len(diagram.rows)
        for moment in diagram.moments:
            if moment.earliest is not None and moment.latest is not None:
                assert moment.earliest <= moment.latest


@given(_EXCHANGES)
def test_every_diagram_can_be_drawn(exchanges: list[Exchange]) -> None:
    for traced in transactions(exchanges):
        diagram = story(traced, exchanges)
        ElementTree.fromstring(svg.drawn(diagram))
        assert len(text.drawn(diagram).splitlines()) > len(diagram.rows)
