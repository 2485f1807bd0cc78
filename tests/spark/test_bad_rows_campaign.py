"""The campaign of bad rows in short. ``make bad-row-kills`` is the whole of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sinks.postgres.server import running
from tests.spark.bad_rows_campaign.conductor import BadRowsCampaign
from tests.spark.bad_rows_campaign.rows import clean, is_bad, repaired, sent


@pytest.mark.parametrize("number", [99, 199, 299, 399, 499, 999_999])
def test_every_kind_of_bad_row_can_be_repaired(number: int) -> None:
    assert is_bad(number) and sent(number) != clean(number)
    assert repaired(sent(number)) == clean(number)


@pytest.mark.spark
@pytest.mark.long
def test_each_bad_row_is_one_dead_letter_and_a_repair_makes_the_sink_whole_whatever_is_killed(
    bootstrap: str, tmp_path: Path
) -> None:
    with running() as server:
        report = BadRowsCampaign(bootstrap, server, tmp_path, rows=1_000, seed=7).run(3)
    assert report.wrong == []
    assert report.dead_letters == report.replayed == 10
    assert report.kills.total() >= 4
