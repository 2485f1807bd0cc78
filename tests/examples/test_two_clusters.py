"""Claims about examples/two_clusters, by its README's own commands."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.examples.readme import ROOT, Reader
from tests.interop.einmal_broker import EinmalBroker
from tests.spark.topics import values

pytestmark = [pytest.mark.system, pytest.mark.long]

EXAMPLE = ROOT / "examples" / "two_clusters"
_SECOND = "einmal start --port 9192 --data-dir build/examples/second"


def test_each_order_is_billed_once_in_one_cluster_or_the_other(
    reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = EinmalBroker(tmp_path / "second")
    second.start()
    try:
        monkeypatch.setitem(reader.environment, "SECOND_BROKERS", second.bootstrap)
        reader.follow(EXAMPLE / "README.md", skip=(_SECOND,))
        bills = [[json.loads(value)["order"] for value in values(servers, "moved-bills")]
                 for servers in (reader.bootstrap, second.bootstrap)]  # fmt: skip
    finally:
        second.stop()
    assert Counter(bills[0] + bills[1]) == Counter(range(1, 2_001))
    assert min(map(len, bills)) > 100
    events = json.loads((reader.folder / "build/examples/move.json").read_text())["events"]
    assert sum("kill" in what for _, what in events) > 3
    assert "2,000 bills in two clusters" in (reader.folder / "build/examples/move.svg").read_text()
