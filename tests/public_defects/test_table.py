"""Claims about the table of public defects itself."""

from __future__ import annotations

from pathlib import Path

from tests.public_defects.scenario import APACHE, APACHE_TV1, EINMAL, EINMAL_TV1, Elsewhere
from tests.public_defects.table import SCENARIOS, SECTIONS

ROOT = Path(__file__).parents[2]


def test_the_tests_that_rows_refer_to_exist() -> None:
    rows = [row for rows in SECTIONS.values() for row in rows if isinstance(row, Elsewhere)]
    assert [row.test for row in rows if not (ROOT / row.test).exists()] == []


def test_einmal_shows_no_defect_that_apache_kafka_does_not_show() -> None:
    for ours, theirs in ((EINMAL, APACHE), (EINMAL_TV1, APACHE_TV1)):
        assert [each.name for each in SCENARIOS if ours in each.seen and each.seen[ours] != each.seen.get(theirs)] == []
