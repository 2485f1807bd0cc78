"""Of a test with many variants, the first so many represent the others in ``make test``; ``make test-long`` runs those.

``@pytest.mark.representatives(2)``: the order is that of the parameters.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import pytest

_COUNTED: Final = pytest.StashKey[Counter[str]]()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Before ``-m`` selects, and before the order is shuffled."""
    marker = item.get_closest_marker("representatives")
    if marker is None or item.get_closest_marker("long") is not None:
        return
    counted = item.session.stash.setdefault(_COUNTED, Counter())
    test = item.nodeid.partition("[")[0]
    counted[test] += 1
    if counted[test] > marker.args[0]:
        item.add_marker(pytest.mark.long)
