"""One broker for all examples: each has topics of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples.readme import Reader
from tests.interop.einmal_broker import EinmalBroker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EinmalBroker]:
    broker = EinmalBroker(tmp_path_factory.mktemp("broker"))
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture
def reader(broker: EinmalBroker, tmp_path: Path) -> Reader:
    return Reader(tmp_path, broker.bootstrap)
