"""An executor that is cut off from the driver, also while an answer is on its way: its attempts are at work no more."""

from __future__ import annotations

import contextlib
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from einmal.chaos.waiting import holds_within
from einmal.commit_protocol.claims import Task
from einmal.local.namespaces import MACHINE, Namespaces, NamespacesMissing
from einmal.sinks.kafka import open_transaction
from einmal.sinks.kafka.claim_service import ClaimService
from einmal.sinks.kafka.open_transaction import OpenTransaction, OwnClaimant, TopicTable
from tests.security.certificates import shared_identity
from tests.suite.patience import patient

pytestmark = [pytest.mark.system, pytest.mark.long]

ATTEMPT: Final = 2
NOTICED_S: Final = 45.0
_CLAIM: Final = f"""
import pickle, sys
from einmal.commit_protocol.claims import Task
from einmal.sinks.kafka.claim_client import ClaimClient
address, token = pickle.load(sys.stdin.buffer)
with ClaimClient(address, token, Task(0, 2), {ATTEMPT}) as client:
    client.topic("a")
    client.claim([0])
"""


@pytest.fixture
def network() -> Iterator[Namespaces]:
    try:
        made = Namespaces(1)
    except NamespacesMissing as error:
        pytest.skip(str(error))
    with contextlib.closing(made):
        yield made


def test_an_attempt_whose_answers_are_not_acknowledged_any_more_is_not_at_work(
    network: Namespaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_transaction, "_WAIT_STEP_S", 1.0)
    host = network.host(MACHINE)
    service = ClaimService(shared_identity(), host, host)
    transaction = OpenTransaction(TopicTable(lambda _: 1), add=lambda _: None, reported=lambda _: None)
    service.begin(transaction)
    # It has the partition, so the other one is answered again and again: ask later.
    holder = OwnClaimant(transaction, Task(0, 1), 1)
    holder.topic("a")
    holder.claim([0])
    command = [*network.command(1), sys.executable, "-c", _CLAIM]
    with subprocess.Popen(command, stdin=subprocess.PIPE, cwd=Path(__file__).parents[3]) as client:
        assert client.stdin is not None
        client.stdin.write(pickle.dumps((service.address, transaction.token)))
        client.stdin.close()
        try:
            assert holds_within(patient(30), lambda: ATTEMPT in transaction._waiting)
            network.cut(1, MACHINE)
            assert transaction._at_work[ATTEMPT]
            assert holds_within(patient(NOTICED_S), lambda: not transaction._at_work[ATTEMPT])
        finally:
            client.kill()
    service.close()
