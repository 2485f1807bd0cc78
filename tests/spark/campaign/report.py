"""The report of the campaign, and its text: who was killed when, and the verdict."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass, field

from einmal.chaos.report import CampaignReport
from tests.spark.campaign.pipelines import NAMES, SOURCES, output_topic
from tests.spark.campaign.plan import BROKERS, DRIVER, EXECUTOR, MOMENTS, PYTHON_WORKER, SPARK_WORKER, Kill

_WIDTH = 17


@dataclass(kw_only=True)
class PipelinesReport(CampaignReport):
    seed: int
    killed: list[Kill] = field(default_factory=list)
    drivers: int = 0
    missed: Counter[str] = field(default_factory=Counter)
    """Moments that did not come, and how often; their victims died at any time."""
    restarts: list[str] = field(default_factory=list)
    """Why the sink itself started queries again."""
    ends: list[str] = field(default_factory=list)
    """Why queries ended; the program started them again."""
    waits: list[float] = field(default_factory=list)
    records: dict[str, int] = field(default_factory=dict)
    commits: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        victims = [DRIVER, EXECUTOR, PYTHON_WORKER, SPARK_WORKER, "broker"]
        cells = Counter((kill.moment, "broker" if kill.victim in BROKERS else kill.victim) for kill in self.killed)
        lines = ["", "kills by moment  " + "".join(f"{victim:>15}" for victim in victims) + f"{'all':>8}"]
        for moment in MOMENTS:
            row = [cells[moment, victim] for victim in victims]
            lines.append(f"{moment:<{_WIDTH}}" + "".join(f"{number:>15}" for number in row) + f"{sum(row):>8}")
        totals = [sum(cells[moment, victim] for moment in MOMENTS) for victim in victims]
        lines.append(f"{'all':<{_WIDTH}}" + "".join(f"{number:>15}" for number in totals) + f"{sum(totals):>8}")
        by_part = Counter(kill.victim for kill in self.killed if kill.is_of_a_broker)
        lines.append("brokers by part  " + ", ".join(f"{number} {part}" for part, number in sorted(by_part.items())))
        by_pipeline = Counter(kill.pipeline for kill in self.killed)
        lines.append("by pipeline      " + ", ".join(f"{by_pipeline[name]} {name}" for name in NAMES))
        waits = self.waits or [0.0]
        lines.append(
            f"goes on after    median {statistics.median(waits):.1f} s, longest {max(waits):.1f} s; "
            f"{self.drivers} drivers"
        )
        missed = ", ".join(f"{self.missed[moment]} {moment}" for moment in MOMENTS if self.missed[moment])
        lines.append(f"did not come     {missed or 'none'}: the victim died at any time")
        for what, every in (("sink restarts", self.restarts), ("ended, again", self.ends)):
            for why, number in Counter(map(_first_line, every)).most_common():
                lines.append(f"{what:<{_WIDTH}}{number} x {why}")
        for name in NAMES:
            read = " + ".join(str(self.records.get(topic, 0)) for topic in SOURCES[name])
            written = self.records.get(output_topic(name), 0)
            lines.append(f"{name:<{_WIDTH}}{read} records read, {written} written, {self.commits[name]} transactions")
        lines += [f"WRONG            {each}" for each in self.wrong]
        verdict = (
            f"{len(self.wrong)} wrong"
            if self.wrong
            else "0 wrong: output = f(input), positions = outputs, state = output"
        )
        lines.append(f"verdict          {len(self.killed)} kills in {self.seconds:.0f} s, seed {self.seed}: {verdict}")
        return "\n".join(lines)


def _first_line(text: str) -> str:
    return text.partition("\n")[0][:160]
