"""Every defence counts: the simulator finds each deliberate defect, where the same schedule without it is innocent.

In ``make test`` those of a broker alone and one or two of each other kind; in ``make test-long`` all.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor

import pytest

from tests.simulation import cluster_mutants, two_phase_mutants
from tests.simulation.hunt import BROKER, DEFECTS, Defect, hunt, interpreted

_REPRESENTATIVES = (
    cluster_mutants.without_waiting_for_the_isr,
    cluster_mutants.without_keeping_the_fenced_out,
    cluster_mutants.without_comparing_logs_before_voting,
    cluster_mutants.without_new_epochs,
    cluster_mutants.without_confirmed_leadership,
    two_phase_mutants.without_comparing_the_state,
)
_BROKER = tuple(defect.name for defect in BROKER)


def _parameter(defect: Defect) -> object:
    is_shown = defect.name in _BROKER or defect.mutant in _REPRESENTATIVES
    return pytest.param(defect, id=defect.name, marks=pytest.mark.slow if is_shown else pytest.mark.long)


@pytest.fixture(scope="module")
def pool() -> Iterator[Executor]:
    with interpreted() as pool:
        yield pool


@pytest.mark.representatives(8)
@pytest.mark.parametrize("defect", [_parameter(defect) for defect in DEFECTS])
def test_the_simulator_detects_a_disabled_defence(defect: Defect, pool: Executor) -> None:
    assert pool.submit(hunt, defect.name).result() is not None


def test_there_are_many_defects_and_no_two_of_a_name() -> None:
    assert len({defect.name for defect in DEFECTS}) == len(DEFECTS) >= 25
