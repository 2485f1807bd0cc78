"""Two brokers, and mirror.toml with a flow of the topic orders from the first to the second."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.einmal_broker import EinmalBroker


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[tuple[EinmalBroker, EinmalBroker]]:
    source, target = EinmalBroker(tmp_path / "A"), EinmalBroker(tmp_path / "B")
    source.start()
    target.start()
    (tmp_path / "mirror.toml").write_text(
        f'clusters = ["A", "B"]\nA.bootstrap.servers = "{source.bootstrap}"\n'
        f'B.bootstrap.servers = "{target.bootstrap}"\n["A->B"]\ntopics = "orders"\n'
    )
    yield source, target
    source.stop()
    target.stop()
