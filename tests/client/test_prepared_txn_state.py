"""The text form of a prepared transaction, as the Java client has it."""

from __future__ import annotations

import pytest

from einmal.client import PreparedTxnState
from einmal.client.errors import InvalidState
from einmal.types import EPOCH_MAX, ProducerEpoch, ProducerId, ProducerIdAndEpoch


@pytest.mark.parametrize(("producer_id", "epoch"), [(0, 0), (42, 100), (2**63 - 1, EPOCH_MAX)])
def test_a_state_survives_its_text(producer_id: int, epoch: int) -> None:
    state = PreparedTxnState(ProducerIdAndEpoch(ProducerId(producer_id), ProducerEpoch(epoch)))
    assert str(state) == f"{producer_id}:{epoch}"
    assert PreparedTxnState.parse(str(state)) == state
    assert state.has_transaction


def test_no_transaction_is_the_empty_text() -> None:
    assert str(PreparedTxnState()) == ""
    assert PreparedTxnState.parse("") == PreparedTxnState()
    assert not PreparedTxnState().has_transaction


@pytest.mark.parametrize(
    "text",
    [
        "42",
        ":",
        "42:",
        ":1",
        "-1:-1",
        "42:-1",
        "4 2:1",
        "42:1 ",
        "42:1\n",
        "42:32767",
        "42:99999",
        "9" * 19 + ":1",
        "٤:١",
        "a:b",
    ],
)
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidState, match="is no prepared transaction"):
        PreparedTxnState.parse(text)
