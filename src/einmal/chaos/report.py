"""The result of a campaign: its faults, and what is wrong."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Final

_EXAMPLES: Final = 5
_WRONG_SHOWN: Final = 20


@dataclass(kw_only=True)
class CampaignReport:
    """``kills``: by the name of the fault. ``seconds``: the whole campaign. ``wrong``: sentences; empty is good."""

    kills: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)

    def note(self, fault: str, details: str = "") -> None:
        """Count a fault, and show progress on stderr."""
        self.kills[fault] += 1
        sys.stderr.write(f"{time.strftime('%H:%M:%S')} kill {self.kills.total()}: {fault} {details}\n")

    def __str__(self) -> str:
        figures = [f"{name} {_figure(value)}" for name, value in vars(self).items() if name != "wrong"]
        wrong = [f"WRONG: {sentence}" for sentence in self.wrong[:_WRONG_SHOWN]]
        return "\n".join([", ".join(figures), *wrong, f"{len(self.wrong)} wrong"])


def _figure(value: object) -> str:
    return str(dict(value) if isinstance(value, Counter) else value)


def differences(name: str, values: Iterable[Hashable], wanted: Iterable[Hashable]) -> list[str]:
    """Sentences about what is missing in ``values``, and what occurs too often, each with a few examples."""
    seen, expected = Counter(values), Counter(wanted)
    return [
        f"{name}: {difference.total()} {kind}: {', '.join(map(str, sorted(difference, key=str)[:_EXAMPLES]))}"
        for kind, difference in (("missing", expected - seen), ("too many", seen - expected))
        if difference
    ]
