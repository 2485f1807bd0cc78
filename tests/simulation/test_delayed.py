"""Requests that come late, into the next transaction of their producer (KAFKA-17754): who is protected, who is not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from einmal.simulation.profile import delayed_profile_of
from einmal.simulation.run import simulate

_FOUND = (1, 7)
"""Seeds in which clients of the versions before 2 see an anomaly."""
_SEEDS = range(40)
_some_and_all = pytest.mark.parametrize(
    "seeds", [_FOUND, pytest.param(_SEEDS, marks=pytest.mark.long)], ids=["some", "all"]
)
_UNPROTECTED = frozenset({"G1a", "torn-transaction", "duplicate", "lost-write", "bank-sum"})


def _kinds(seed: int, transaction_version: int) -> frozenset[str]:
    profile = replace(delayed_profile_of(seed), transaction_version=transaction_version)
    return frozenset(anomaly.kind for anomaly in simulate(profile).anomalies)


@pytest.mark.parametrize("seed", range(2))
def test_delayed_requests_do_not_affect_clients_of_transaction_version_2(seed: int) -> None:
    assert _kinds(seed, 2) == frozenset()


@_some_and_all
@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.representatives(1)
def test_before_version_2_a_late_request_can_end_the_next_transaction(version: int, seeds: Iterable[int]) -> None:
    harmed = [kinds for seed in seeds if (kinds := _kinds(seed, version))]
    assert harmed
    assert all(kinds & _UNPROTECTED for kinds in harmed)


@_some_and_all
def test_the_same_schedules_do_not_affect_clients_of_transaction_version_2(seeds: Iterable[int]) -> None:
    assert [seed for seed in seeds if _kinds(seed, 2)] == []
