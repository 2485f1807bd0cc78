"""What all tests share: property tests have no time limit per example, for a busy machine is no bug.

Where several processes share the tests, what takes long is given out first, so that nobody works alone at the end.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("einmal", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("einmal")

_STARTED: Final = Path(__file__).parent / "started"


def pytest_configure(config: pytest.Config) -> None:
    # The process that only gives out tests starts those that run them.
    if hasattr(config, "workerinput") or config.getoption("dist", "no") == "no":
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_STARTED), os.environ.get("PYTHONPATH")]))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
