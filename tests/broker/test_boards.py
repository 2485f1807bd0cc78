"""Dashboards and alerts name nothing that is not exported; ``tests/interop/test_prometheus.py`` asks a real one."""

from __future__ import annotations

import re
from pathlib import Path

from einmal.broker.monitoring.families import FAMILIES
from tests.broker.boards import ALERTS, elsewhere, exported, names, queries

PAGE = Path(__file__).parent.parent.parent / "docs" / "monitoring.md"


def test_dashboards_made_for_apache_kafka_find_their_metrics() -> None:
    assert elsewhere() - exported() == set()


def test_our_dashboards_and_alerts_find_their_metrics() -> None:
    asked = {name for _file, query in queries() for name in names(query)} | names(ALERTS.read_text())
    assert asked - exported() == set()
    assert len(list(queries())) >= 30


def test_each_alert_has_a_severity_and_a_runbook() -> None:
    alerts = re.split(r"\n {6}- alert: ", ALERTS.read_text())[1:]
    assert len(alerts) == 16
    for alert in alerts:
        assert re.search(r"severity: (critical|warning)", alert), alert
        assert re.search(r'summary: ".+"\n +runbook: ".+"', alert), alert


def test_the_page_has_every_family_with_its_type_and_meaning() -> None:
    rows = {tuple(cell.strip() for cell in line.split("|")[1:-1]) for line in PAGE.read_text().splitlines()}
    described = {(row[0].strip("`"), row[1], row[3]) for row in rows if len(row) == 4}
    missing = [family for family in FAMILIES if family not in described]
    assert missing == []
