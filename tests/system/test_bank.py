"""Claims about a bank whose accounts are in a topic and in PostgreSQL, in short: see ``make bank-kills``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.system.bank.campaign import BankCampaign
from tests.system.bank.writer import DATABASE_FIRST, TOPIC_FIRST, TWO_PHASE

pytestmark = [pytest.mark.system, pytest.mark.slow]

_SEED: Final = 3
_BETWEEN: Final = ("between",)


@pytest.mark.parametrize("kills", [3, pytest.param(8, marks=pytest.mark.long)])
def test_sums_are_equal_at_every_moment_under_two_phase_commit_whatever_is_killed(tmp_path: Path, kills: int) -> None:
    report = BankCampaign(tmp_path, _SEED).run(kills)
    assert report.wrong == [], report
    assert report.torn == {}
    assert sum(report.kills.values()) == kills
    assert report.compared > kills


@pytest.mark.long
def test_a_writer_that_dies_between_the_two_commits_leaves_no_difference_under_two_phase_commit(tmp_path: Path) -> None:
    report = BankCampaign(tmp_path, _SEED, TWO_PHASE, steps=_BETWEEN).run(2)
    assert report.wrong == [], report
    assert report.kills == {"writer between": 2}


@pytest.mark.long
@pytest.mark.parametrize("mode", [DATABASE_FIRST, TOPIC_FIRST])
def test_without_it_each_death_between_the_two_commits_leaves_a_difference(tmp_path: Path, mode: str) -> None:
    report = BankCampaign(tmp_path, _SEED, mode, steps=_BETWEEN).run(2)
    assert report.torn == {"writer between": 2}, report
    assert report.differing > 0
