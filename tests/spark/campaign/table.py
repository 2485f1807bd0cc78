"""The campaign's report for people: who was killed when, and the verdict."""

from __future__ import annotations

import statistics
from collections import Counter

from tests.spark.campaign.conductor import Report
from tests.spark.campaign.pipelines import NAMES, SOURCES, output_topic
from tests.spark.campaign.plan import BROKERS, DRIVER, EXECUTOR, MOMENTS, PYTHON_WORKER, SPARK_WORKER

_WIDTH = 17


def in_words(report: Report, seed: int) -> str:
    victims = [DRIVER, EXECUTOR, PYTHON_WORKER, SPARK_WORKER, "broker"]
    cells = Counter((kill.moment, "broker" if kill.victim in BROKERS else kill.victim) for kill in report.kills)
    lines = ["", "kills by moment  " + "".join(f"{victim:>15}" for victim in victims) + f"{'all':>8}"]
    for moment in MOMENTS:
        row = [cells[moment, victim] for victim in victims]
        lines.append(f"{moment:<{_WIDTH}}" + "".join(f"{number:>15}" for number in row) + f"{sum(row):>8}")
    totals = [sum(cells[moment, victim] for moment in MOMENTS) for victim in victims]
    lines.append(f"{'all':<{_WIDTH}}" + "".join(f"{number:>15}" for number in totals) + f"{sum(totals):>8}")
    by_part = Counter(kill.victim for kill in report.kills if kill.is_of_a_broker)
    lines.append("brokers by part  " + ", ".join(f"{number} {part}" for part, number in sorted(by_part.items())))
    by_pipeline = Counter(kill.pipeline for kill in report.kills)
    lines.append("by pipeline      " + ", ".join(f"{by_pipeline[name]} {name}" for name in NAMES))
    waits = report.waits or [0.0]
    lines.append(
        f"goes on after    median {statistics.median(waits):.1f} s, longest {max(waits):.1f} s; "
        f"{report.drivers} drivers"
    )
    missed = ", ".join(f"{report.missed[moment]} {moment}" for moment in MOMENTS if report.missed[moment])
    lines.append(f"did not come     {missed or 'none'}: the victim died at any time")
    for what, every in (("sink restarts", report.restarts), ("ended, again", report.ends)):
        for why, number in Counter(map(_first_line, every)).most_common():
            lines.append(f"{what:<{_WIDTH}}{number} x {why}")
    for name in NAMES:
        read = " + ".join(str(report.records.get(topic, 0)) for topic in SOURCES[name])
        written = report.records.get(output_topic(name), 0)
        lines.append(f"{name:<{_WIDTH}}{read} records read, {written} written, {report.commits[name]} transactions")
    lines += [f"WRONG            {each}" for each in report.wrong]
    verdict = (
        f"{len(report.wrong)} wrong"
        if report.wrong
        else "0 wrong: output = f(input), positions = outputs, state = output"
    )
    lines.append(f"verdict          {len(report.kills)} kills in {report.took_s:.0f} s, seed {seed}: {verdict}")
    return "\n".join(lines)


def _first_line(text: str) -> str:
    return text.partition("\n")[0][:160]
