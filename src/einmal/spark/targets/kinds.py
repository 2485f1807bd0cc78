"""The sinks that take rows from Spark, by the word of their type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from einmal.options.values import OptionError
from einmal.sinks.kinds import new_sink
from einmal.spark.targets.target import Destination


def destination(kind: str, given: Mapping[str, Any]) -> Destination:
    """From the options of a query. Raises OptionError."""
    found = new_sink(kind, given)
    if not isinstance(found, Destination):
        raise OptionError(
            f"sink type {kind!r} takes no rows from Spark\n"
            f"hint: {type(found).__name__} must implement einmal.spark.targets.target.Destination"
        )
    return found
