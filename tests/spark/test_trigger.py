from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from einmal.spark import OptionError, write_stream


def trigger_of(**given: Any) -> dict[str, Any]:
    frame: Any = SimpleNamespace(isStreaming=True, sparkSession=SimpleNamespace(_jvm=None))
    return write_stream(frame).trigger(**given)._trigger


def test_a_trigger_is_sparks_and_once_is_available_now() -> None:
    assert trigger_of(processingTime="1 second") == {"processingTime": "1 second"}
    assert trigger_of(availableNow=True) == {"availableNow": True}
    assert trigger_of(once=True) == {"availableNow": True}


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"continuous": "1 second"},
        {"realTime": "5 minutes"},
        {"once": False},
        {"availableNow": "yes"},
        {"processingTime": 5},
        {"processingTime": " "},
        {"processingTime": "1 second", "availableNow": True},
    ],
)
def test_a_trigger_that_cannot_be_is_refused_with_those_that_can(given: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match='hint: processingTime="1 second"'):
        trigger_of(**given)
