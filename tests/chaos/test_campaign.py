"""Claims about the phases of a campaign, its draw of faults, and its report."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest

from einmal.chaos.campaign import RandomFaults
from einmal.chaos.report import CampaignReport, differences
from einmal.chaos.waiting import Stalled, holds_within, wait_until


@dataclass(kw_only=True)
class CountingReport(CampaignReport):
    checked: int = 0


class Recorded(RandomFaults[CountingReport]):
    """Notes its phases. Every third "rare" fault finds nothing to kill."""

    def __init__(self, seed: int, *, stalls: bool = False) -> None:
        super().__init__(CountingReport(), seed, {"often": 3, "rare": 1}, (0.0, 0.0))
        self.phases: list[str] = []
        self._stalls = stalls
        self._rare = 0

    def start(self) -> None:
        self.phases.append("start")

    def inject(self, fault: str) -> str:
        self.phases.append(fault)
        self._rare += fault == "rare"
        return "" if fault == "rare" and self._rare % 3 == 0 else fault

    def await_progress(self) -> None:
        self.phases.append("progress")
        if self._stalls and len(self.phases) > 4:
            raise Stalled("no progress")

    def recovered(self, fault: str) -> None:
        self.phases.append(f"after {fault}")

    def finish(self) -> None:
        self.phases.append("finish")

    def check(self) -> None:
        self.report.checked += 1

    def close(self) -> None:
        self.phases.append("close")


def test_seed_determines_the_faults() -> None:
    runs = [Recorded(seed) for seed in (1, 1, 2)]
    for each in runs:
        each.run(50)
    assert runs[0].phases == runs[1].phases != runs[2].phases
    assert runs[0].report.kills["often"] > runs[0].report.kills["rare"] > 0


def test_each_fault_is_followed_by_progress_and_the_end_is_undisturbed() -> None:
    campaign = Recorded(3)
    assert campaign.run(1).kills.total() == campaign.report.checked == 1
    (fault,) = campaign.report.kills
    assert campaign.phases == ["start", "progress", fault, "progress", f"after {fault}", "finish", "close"]


def test_faults_without_a_victim_do_not_count() -> None:
    campaign = Recorded(1)
    assert campaign.run(40).kills.total() == 40
    faults = Counter(each for each in campaign.phases if each in ("often", "rare"))
    assert faults["often"] == campaign.report.kills["often"]
    assert faults["rare"] - campaign.report.kills["rare"] == faults["rare"] // 3 > 0


def test_campaign_that_stalls_ends_its_processes() -> None:
    campaign = Recorded(1, stalls=True)
    with pytest.raises(Stalled):
        campaign.run(10)
    assert campaign.phases[-2:] == ["progress", "close"]
    assert campaign.report.checked == 0


def test_report_shows_its_figures_and_the_first_wrong_entries(capsys: pytest.CaptureFixture[str]) -> None:
    report = CountingReport(checked=2)
    report.note("broker", "leader")
    report.wrong += [f"entry {number}" for number in range(30)]
    text = str(report)
    assert "kills {'broker': 1}, seconds 0.0, checked 2" in text
    assert "WRONG: entry 19\n30 wrong" in text
    assert "kill 1: broker leader" in capsys.readouterr().err


def test_differences_are_what_is_missing_and_what_occurs_too_often() -> None:
    assert differences("rows", [2, 1], [1, 2]) == []
    assert differences("rows", [1, 1, 4], [1, 2, 3]) == ["rows: 2 missing: 2, 3", "rows: 2 too many: 1, 4"]
    assert differences("rows", [], range(9)) == ["rows: 9 missing: 0, 1, 2, 3, 4"]


def test_condition_that_never_holds_ends_with_the_state() -> None:
    answers = iter([False, False, True])
    assert holds_within(60.0, lambda: next(answers), pause_s=0.0)
    assert not holds_within(0.0, lambda: False, pause_s=0.0)
    with pytest.raises(Stalled, match="not within 0 s: at 7"):
        wait_until(lambda: False, 0.0, lambda: "at 7", pause_s=0.0)
