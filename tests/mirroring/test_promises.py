"""``einmal mirror explain``: what a flow promises of the topics that the source has."""

from __future__ import annotations

from pathlib import Path

import pytest

from einmal.mirror_protocol.flow import Flow
from einmal.mirroring.promises import NOT, promises
from einmal.mirroring.source import SourceReader
from tests.interop.einmal_broker import EinmalBroker
from tests.mirroring.test_incomplete import create

pytestmark = pytest.mark.system


def test_topics_that_look_like_the_targets_are_named(tmp_path: Path) -> None:
    broker = EinmalBroker(tmp_path)
    broker.start()
    reader = SourceReader({"bootstrap.servers": broker.bootstrap})
    try:
        assert ("topics", NOT) in {
            (each.subject, each.verdict) for each in promises(Flow(source="A", target="B"), reader)
        }
        create(broker.bootstrap, "orders")
        assert "topics from B" not in {promise.subject for promise in promises(Flow(source="A", target="B"), reader)}
        create(broker.bootstrap, "B.team.events", "C.B.payments", "Bother")
        texts = {promise.subject: promise.text for promise in promises(Flow(source="A", target="B"), reader)}
        assert texts["topics"] == "2 of the source match: Bother, orders"
        assert "by the 'B.' in their names: B.team.events, C.B.payments. Where" in texts["topics from B"]
    finally:
        reader.close()
        broker.stop()
