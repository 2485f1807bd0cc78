"""Which releases of Spark the source and the sink run on, and what the others lack."""

from __future__ import annotations

import re
from typing import Final

from einmal.extras import install_command
from einmal.spark.errors import SparkUnsupported

MINIMUM: Final = (4, 2)
TESTED: Final = ("4.2", "4.3")
_LACKS: Final = (
    ((4, 0), "has no data sources in Python"),
    ((4, 1), "cannot limit a batch of a Python source, nor write each partition by one task"),
    (MINIMUM, "cannot limit a batch of a Python source, nor end it for availableNow"),
)


def require_spark() -> None:
    """Raises SparkUnsupported for a PySpark that is too old, ModuleNotFoundError where there is none."""
    import pyspark

    if (problem := problem_of(pyspark.__version__)) is not None:
        raise SparkUnsupported(problem)


def problem_of(version: str) -> str | None:
    """Why einmal does not run on a release of Spark."""
    number = tuple(int(component) for component in re.findall(r"\d+", version)[:2])
    if number >= MINIMUM:
        return None
    lacks = next(what for below, what in _LACKS if number < below)
    return (
        f"einmal.spark runs on PySpark {' and '.join(TESTED)}; found {version}, which {lacks}\n"
        f"hint: {install_command('spark')}, in an environment of its own; older Sparks can read and write the same "
        "topics with their own Kafka connector, at least once"
    )
