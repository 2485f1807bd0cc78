"""The campaign in short. ``make postgres-kills`` is the whole of it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.sinks.postgres.campaign import KEYS, PostgresCampaign, wrong_with

_KILLS: Final = 6
_SEED: Final = 5


_COUNT: Final = 300
_APPENDED: Final = [(number,) for number in range(_COUNT)]
_UPSERTED: Final = [(number, number % KEYS) for number in range(_COUNT - KEYS, _COUNT)]


@pytest.mark.parametrize(("name", "rows"), [("append", _APPENDED), ("upsert", _UPSERTED)], ids=["append", "upsert"])
def test_a_loss_a_repeat_and_a_tear_in_a_table_are_red(name: str, rows: list[tuple[int, ...]]) -> None:
    assert wrong_with(name, reversed(rows), _COUNT) == []
    assert wrong_with(name, [], _COUNT)
    assert wrong_with(name, rows[1:], _COUNT)
    assert wrong_with(name, [*rows, rows[3]], _COUNT)
    assert wrong_with(name, [*rows[:3], (rows[3][0] - 1, *rows[3][1:]), *rows[4:]], _COUNT)
    assert wrong_with(name, [*rows[:3], (rows[3][0], *(None,) * (len(rows[3]) - 1), 1), *rows[4:]], _COUNT)


@pytest.mark.spark
@pytest.mark.long
def test_killed_pipelines_leave_what_their_position_demands(tmp_path: Path) -> None:
    report = PostgresCampaign(tmp_path, _SEED).run(_KILLS)
    assert report.wrong == [], report
    assert sum(report.kills.values()) == _KILLS
    assert min(report.batches.values()) > 0
