"""Which tests of a battery are for the long run: ``in_the_long_run`` of its class."""

from __future__ import annotations

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        names = getattr(getattr(item, "cls", None), "in_the_long_run", ())
        if isinstance(item, pytest.Function) and item.originalname in names:
            item.add_marker(pytest.mark.long)
