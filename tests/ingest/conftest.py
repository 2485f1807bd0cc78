"""One broker for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.einmal_broker import EinmalBroker


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    broker = EinmalBroker(tmp_path_factory.mktemp("broker"))
    broker.start()
    yield broker.bootstrap
    broker.stop()
