"""Every defence counts: the simulator finds each deliberate defect, where the same schedule without it is innocent."""

from __future__ import annotations

import pytest

from tests.simulation import mutants
from tests.simulation.hunt import BROKER, DEFECTS, Defect, hunt

_QUICK = tuple(defect.name for defect in BROKER if defect.mutant is not mutants.without_generation_fencing)


def _parameter(defect: Defect) -> object:
    return pytest.param(defect, id=defect.name, marks=() if defect.name in _QUICK else pytest.mark.slow)


@pytest.mark.parametrize("defect", [_parameter(defect) for defect in DEFECTS])
def test_the_simulator_detects_a_disabled_defence(defect: Defect) -> None:
    assert hunt(defect) is not None


def test_there_are_many_defects_and_no_two_of_a_name() -> None:
    assert len({defect.name for defect in DEFECTS}) == len(DEFECTS) >= 25
