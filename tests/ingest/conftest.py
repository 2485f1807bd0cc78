"""The broker of ours that the whole run shares."""

from __future__ import annotations

import pytest

from tests.interop.einmal_broker import EinmalBroker
from tests.suite.shared import shared


@pytest.fixture(scope="session")
def servers() -> str:
    broker: EinmalBroker = shared("einmal")
    return broker.bootstrap
