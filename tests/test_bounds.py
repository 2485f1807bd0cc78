"""Our bounds of settings beside Apache Kafka's; ``list_bounds`` itself refuses a difference without a reason."""

from __future__ import annotations

import json

import pytest
from tools import list_bounds
from tools.list_bounds import FACTS, PROBED, REASONS, accepts, rows

from tests.suite.cases import each_case

REFUSED = [
    (kind, row.name, number)
    for kind, settings in json.loads(FACTS.read_text()).items()
    for row in rows(kind)
    for number in settings.get(row.name, {}).get("refused", ())
]


@each_case("kind, name, number", REFUSED)
def test_we_accept_no_small_number_that_apache_kafka_refuses(kind: str, name: str, number: int) -> None:
    assert number in PROBED
    assert not accepts(kind, name, number)


def test_a_difference_needs_a_reason_and_a_reason_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    for reasons in ({}, {**REASONS["topic"], "segment.ms": "none"}, {**REASONS["topic"], "no.such.setting": "none"}):
        monkeypatch.setattr(list_bounds, "REASONS", {"topic": reasons})
        with pytest.raises(SystemExit):
            list(rows("topic"))
