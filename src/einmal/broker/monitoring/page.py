"""A page of samples in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from einmal.broker.monitoring.families import FAMILIES
from einmal.broker.resources.counts import Histogram

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def labels(**values: object) -> str:
    """The labels of a sample as they are in its line."""
    return "{" + ",".join(f'{name}="{str(value).translate(_ESCAPES)}"' for name, value in values.items()) + "}"


class Page:
    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {family.name: [] for family in FAMILIES}

    def add(self, name: str, value: float, labels: str = "", *, suffix: str = "") -> None:
        """Add a sample of a family. ``labels``: from the function of this name. ``suffix``: of a summary's sample."""
        self._lines[name].append(f"{name}{suffix}{labels} {value}\n")

    def add_histogram(self, name: str, histogram: Histogram, label: str, value: str) -> None:
        lines = self._lines[name]
        seen = 0
        for bound, count in zip((*histogram.bounds, "+Inf"), histogram.counts, strict=True):
            seen += count
            lines.append(f"{name}_bucket{labels(**{label: value}, le=bound)} {seen}\n")
        own = labels(**{label: value})
        lines += (f"{name}_sum{own} {histogram.total}\n", f"{name}_count{own} {seen}\n")

    def parts(self) -> Iterator[bytes]:
        """The page, by family. One without samples is left out."""
        for name, kind, about in FAMILIES:
            lines = self._lines[name]
            if lines:
                yield f"# HELP {name} {about}\n# TYPE {name} {kind}\n{''.join(lines)}".encode()
