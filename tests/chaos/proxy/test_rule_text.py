"""Claims about rules as text: they are what the same calls in a test make, and any other text is refused."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einmal.chaos.proxy.frames import RequestFrame
from einmal.chaos.proxy.rule_text import parse_rule
from einmal.chaos.proxy.rules import Disturbance, Filter, RequestFault
from einmal.types import ErrorCode
from tests.chaos.proxy.requests import request

END_TXN = 26
PRODUCE = 0


@pytest.mark.parametrize(
    ("text", "matching", "fault"),
    [
        ("on(EndTxn).drop_answer().once()", Filter(frozenset({"EndTxn"})), RequestFault(Disturbance.DROP_ANSWER)),
        (" on().drop_request() ", Filter(), RequestFault(Disturbance.DROP_REQUEST)),
        (
            'on("Produce", Fetch, client_id="shop").disconnect(after=True)',
            Filter(frozenset({"Produce", "Fetch"}), "shop"),
            RequestFault(Disturbance.DISCONNECT_AFTER),
        ),
        (
            "on(InitProducerId, transactional_id='a-1').error(CONCURRENT_TRANSACTIONS).times(2)",
            Filter(frozenset({"InitProducerId"}), transactional_id="a-1"),
            RequestFault(Disturbance.ERROR, error=ErrorCode.concurrent_transactions),
        ),
        (
            "on(Fetch, broker=1).delay(0.5).probability(0.1, seed=7)",
            Filter(frozenset({"Fetch"}), broker=1),
            RequestFault(Disturbance.DELAY, 0.5),
        ),
        ("on(Fetch).reorder(2)", Filter(frozenset({"Fetch"})), RequestFault(Disturbance.REORDER, 2)),
    ],
)
def test_a_text_is_the_rule_that_the_same_calls_make(text: str, matching: Filter, fault: RequestFault) -> None:
    rule = parse_rule(text)
    assert (rule.matching, rule.fault) == (matching, fault)


def end_txn() -> RequestFrame:
    return request(END_TXN, 3, transactional_id="t", producer_id=1, producer_epoch=0, committed=True)


@pytest.mark.parametrize(
    ("limits", "hit"),
    [("", [1, 2, 3, 4]), (".once()", [1]), (".times(2)", [1, 2]), (".nth(3)", [3]), (".probability(0)", [])],
)
def test_limits_of_a_text_apply(limits: str, hit: list[int]) -> None:
    rule = parse_rule(f"on(EndTxn).duplicate(){limits}")
    assert [number for number in range(1, 5) if rule.applies(end_txn())] == hit


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "on(EndTxn).drop_answer().once()"),
        ("EndTxn", "is no rule"),
        ("on(EndTxn)", "a fault"),
        ("drop_answer()", "is no rule"),
        ("off(EndTxn).drop_answer()", "is no rule"),
        ("on(EndTxn).drop_answer().once", "is no rule"),
        ("on(EndTxn).drop_answer(); on(Fetch).delay(1)", "is no rule"),
        ("on(EndTxm).drop_answer()", "did you mean EndTxn?"),
        ("on(EndTxn).drop_answers()", "did you mean drop_answer?"),
        ("on(EndTxn).once()", "unknown fault 'once'"),
        ("on(EndTxn)._rule(1)", "unknown fault '_rule'"),
        ("on(EndTxn).drop_answer().applies(1)", "unknown limit 'applies'"),
        ("on(EndTxn).error(FENCED)", "unknown error code 'FENCED'"),
        ("on(EndTxn).error()", "missing a required argument: 'code'"),
        ("on(EndTxn).error(7)", "code=7 is not str"),
        ("on(EndTxn).delay(soon)", "seconds='soon' is not float"),
        ("on(EndTxn).delay(-1)", "delay(-1)"),
        ("on(EndTxn).delay(1e999)", "seconds=inf"),
        ("on(EndTxn).delay({[]})", "neither a name nor a value"),
        (f"on(EndTxn).delay(1{'0' * 400})", "is not float"),
        ("on(EndTxn).disconnect(after=1)", "after=1 is not bool"),
        ("on(EndTxn).disconnect(True)", "positional"),
        ("on(EndTxn).drop_answer().times(0)", "times(0)"),
        ("on(EndTxn).drop_answer().times(1.5)", "count=1.5 is not int"),
        ("on(EndTxn).drop_answer().nth(0)", "nth(0)"),
        ("on(EndTxn).drop_answer().probability(2)", "probability(2)"),
        ("on(EndTxn, broker=first).drop_answer()", "broker='first' is not int or nothing"),
        ("on(1).drop_answer()", "apis=1 is not str"),
        ("on(*EndTxn).drop_answer()", "neither a name nor a value"),
        ("on(EndTxn, **broker).drop_answer()", "on: got an unexpected keyword argument"),
        ("on(open('x')).drop_answer()", "neither a name nor a value"),
        ("(lambda: on)().drop_answer()", "is no rule"),
        ("on(EndTxn).drop_answer()" + ".once()" * 20_000, "is no rule"),
    ],
)
def test_any_other_text_is_refused_with_what_is_wrong(text: str, named: str) -> None:
    with pytest.raises(ValueError, match=".") as refused:
        parse_rule(text)
    assert named in str(refused.value)


@given(st.text() | st.from_regex(r"on\(\w*\)(\.\w{1,10}\([\w=., {}\[\]()'-]{0,12}\)){0,3}", fullmatch=True))
def test_no_text_is_more_than_refused(text: str) -> None:
    with suppress(ValueError):
        parse_rule(text)
