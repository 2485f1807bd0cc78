"""What all tests share: property tests have no time limit per example, for a busy machine is no bug.

Where several processes share the tests, what takes long is given out first, so that nobody works alone at the end.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("einmal", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("einmal")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
