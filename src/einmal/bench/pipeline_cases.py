"""The requested measurements of a pipeline, checked before a broker or Spark starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from einmal.bench.load import BenchRefused
from einmal.bench.workloads import WORKLOADS

_UNITS: Final = {"millisecond": 0.001, "second": 1.0, "minute": 60.0}


@dataclass(frozen=True, slots=True)
class PipelineCases:
    """``connector``: the directory with the jars of Spark's own connector, to compare with. ``triggers``: as in Spark
    ("1 second"); then the overhead of exactly-once is measured at each. ``workloads``: names; none stands for the usual
    ones, and the latency. ``master``: Spark's; None stands for this machine.

    Raises BenchRefused for what cannot be measured.
    """

    connector: Path | None = None
    triggers: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    master: str | None = None

    def __post_init__(self) -> None:
        if self.triggers and (self.workloads or self.connector is not None):
            raise BenchRefused(
                "--trigger excludes --workload and --connector\n"
                "hint: it compares exactly_once_v2 with at_least_once on the workload '100 B'; measure the others in a "
                "run of their own"
            )
        for trigger in self.triggers:
            trigger_seconds(trigger)
        if unknown := [name for name in self.workloads if name not in WORKLOADS]:
            names = ", ".join(map(repr, WORKLOADS))
            raise BenchRefused(f"no workload {', '.join(map(repr, unknown))}\nhint: there are {names}")
        if self.connector is not None and not self.jars:
            raise BenchRefused(f"no jars in {self.connector}\nhint: make bench-pipeline fetches them with Maven")

    @property
    def jars(self) -> list[str]:
        """Paths of the jars of Spark's own connector."""
        return [] if self.connector is None else sorted(str(jar) for jar in self.connector.glob("*.jar"))


def trigger_seconds(trigger: str) -> float:
    """Raises BenchRefused."""
    number, _, unit = trigger.partition(" ")
    length = _UNITS.get(unit.removesuffix("s"))
    if length is None or not number.isdecimal() or int(number) == 0:
        raise BenchRefused(
            f"invalid trigger {trigger!r}\nhint: it is like '100 milliseconds', '1 second' or '30 seconds'"
        )
    return int(number) * length
