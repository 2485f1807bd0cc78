"""Claims about rules: which requests match, and how often a fault occurs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einmal.chaos.proxy.rules import Disturbance, RequestFault, Rule, Rules, Trigger, filter_of
from einmal.types import ErrorCode
from tests.chaos.proxy.requests import filled_request, request

END_TXN = 26
HEARTBEAT = 12


def on(rules: Rules, *apis: str, **values: object) -> Trigger:
    return Trigger(filter_of(apis, **values), rules.add)  # type: ignore[arg-type]


def faults_of(rules: Rules, count: int, api_key: int = END_TXN) -> list[int]:
    """The numbers, counted from 1, of the requests that got a fault."""
    return [number for number in range(1, count + 1) if rules.decide(filled_request(api_key, 3))]


def test_a_rule_without_a_limit_applies_to_every_request_of_its_api_and_to_no_other() -> None:
    rules = Rules()
    on(rules, "EndTxn").drop_answer()
    assert faults_of(rules, 3) == [1, 2, 3]
    assert faults_of(rules, 3, HEARTBEAT) == []


def test_limits_choose_among_the_matching_requests() -> None:
    once, twice, third = Rules(), Rules(), Rules()
    on(once, "EndTxn").drop_answer().once()
    on(twice).drop_request().times(2)
    on(third, "EndTxn", "Heartbeat").disconnect().nth(3)
    assert faults_of(once, 4) == [1]
    assert faults_of(twice, 4) == [1, 2]
    assert faults_of(third, 4) == [3]


def test_nth_and_times_limit_each_other() -> None:
    rules = Rules()
    on(rules, "EndTxn").drop_answer().nth(2).times(1)
    assert faults_of(rules, 4) == [2]


def test_the_first_rule_that_applies_is_the_only_one() -> None:
    rules = Rules()
    on(rules, "EndTxn").delay(1).once()
    on(rules, "EndTxn").error("NOT_COORDINATOR").once()
    decided = [rules.decide(filled_request(END_TXN, 3)) for _ in range(3)]
    refused = RequestFault(Disturbance.ERROR, error=ErrorCode.not_coordinator)
    assert decided == [RequestFault(Disturbance.DELAY, 1), refused, None]


def test_cleared_rules_do_not_apply() -> None:
    rules = Rules()
    on(rules).drop_answer()
    rules.clear()
    assert faults_of(rules, 2) == []


def test_filters_look_at_client_id_broker_and_transactional_id() -> None:
    sent = [
        request(END_TXN, 3, client_id="a", broker=1, transactional_id="x"),
        request(END_TXN, 3, client_id="b", broker=1, transactional_id="x"),
        request(END_TXN, 3, client_id="a", broker=2, transactional_id="x"),
        request(END_TXN, 3, client_id="a", broker=1, transactional_id="y"),
    ]
    for values, expected in (
        ({"client_id": "a"}, [0, 2, 3]),
        ({"broker": 1}, [0, 1, 3]),
        ({"transactional_id": "x"}, [0, 1, 2]),
        ({"client_id": "a", "broker": 1, "transactional_id": "x"}, [0]),
    ):
        rules = Rules()
        on(rules, **values).drop_answer()
        assert [index for index, each in enumerate(sent) if rules.decide(each)] == expected


@pytest.mark.parametrize(
    ("api_key", "version"),
    [(0, 3), (0, 12), (22, 4), (24, 0), (24, 3), (24, 4), (25, 3), (26, 5), (28, 3)],
)
def test_every_api_of_a_transaction_shows_its_transactional_id(api_key: int, version: int) -> None:
    assert filled_request(api_key, version).transactional_ids == {"name"}


def test_unknown_names_are_refused_with_the_nearest_one() -> None:
    with pytest.raises(ValueError, match="unknown API 'EndTransaction'"):
        on(Rules(), "EndTransaction")
    with pytest.raises(ValueError, match="unknown API 'endtxn'; did you mean EndTxn"):
        on(Rules(), "endtxn")
    with pytest.raises(ValueError, match="unknown error code 'NOT_COORDINATR'; did you mean NOT_COORDINATOR"):
        on(Rules(), "EndTxn").error("NOT_COORDINATR")
    with pytest.raises(ValueError, match="nth"):
        on(Rules()).drop_answer().nth(0)
    with pytest.raises(ValueError, match="probability"):
        on(Rules()).drop_answer().probability(2)
    with pytest.raises(ValueError, match="times"):
        on(Rules()).drop_answer().times(0)
    for seconds in (-1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="not a duration"):
            on(Rules()).delay_answer(seconds)


@given(
    st.lists(st.sampled_from((END_TXN, HEARTBEAT)), max_size=40),
    st.none() | st.integers(1, 5),
    st.none() | st.integers(1, 5),
    st.none() | st.tuples(st.floats(0, 1), st.integers(0, 9)),
)
def test_counts_agree_with_the_requests(
    keys: list[int], times: int | None, nth: int | None, draw: tuple[float, int] | None
) -> None:
    def run() -> tuple[Rule, list[bool]]:
        rules = Rules()
        rule = on(rules, "EndTxn").drop_answer()
        if times is not None:
            rule.times(times)
        if nth is not None:
            rule.nth(nth)
        if draw is not None:
            rule.probability(*draw)
        return rule, [rules.decide(filled_request(key, 3)) is not None for key in keys]

    rule, fired = run()
    matching = [index for index, key in enumerate(keys) if key == END_TXN]
    chosen = [index for index, is_fired in enumerate(fired) if is_fired]
    assert rule.matched == len(matching)
    assert rule.fired == len(chosen) <= min(len(matching), len(matching) if times is None else times)
    assert set(chosen) <= set(matching if nth is None else matching[nth - 1 : nth])
    if draw is None or draw[0] == 1:
        eligible = matching if nth is None else matching[nth - 1 : nth]
        assert chosen == eligible[:times]
    assert run()[1] == fired
