"""Draw what became of bad payments. Reads topics from stdin, as ``einmal topic consume --format json`` prints them."""

import json
from collections import Counter

from examples.program import lines, run
from examples.repaired_payments.generate import COUNT, KINDS, kind_of
from examples.svg import BLUE, FAINT, RED, Drawing

_LEFT, _ROW, _TOP = 230, 26, 64
_WIDTH = 720
TOPICS = ("card-payments-dlq", "card-payments-repair", "loaded-payments")


def main() -> None:
    records = [json.loads(line) for line in lines()]
    counts = {topic: Counter(map(kind, each)) for topic, each in by_topic(records).items()}
    loaded = counts["loaded-payments"]
    drawing = Drawing(_WIDTH, _TOP + _ROW * (len(KINDS) + 1) + 52, "Bad payments: dead letters, repaired and loaded")
    most = max(counts["card-payments-dlq"].values())
    scale = (_WIDTH - _LEFT - 120) / 2 / most
    for row, name in enumerate(KINDS):
        y = _TOP + _ROW * row
        letters = counts["card-payments-dlq"][name]
        drawing.text(_LEFT - 12, y + 14, name, anchor="end")
        drawing.bar(_LEFT, y, letters * scale, _ROW - 8, RED)
        drawing.text(_LEFT + letters * scale + 6, y + 14, str(letters))
        left = _LEFT + (_WIDTH - _LEFT) / 2
        drawing.bar(left, y, loaded[name] * scale, _ROW - 8, BLUE)
        drawing.text(left + loaded[name] * scale + 6, y + 14, str(loaded[name]))
    y = _TOP + _ROW * len(KINDS)
    drawing.line(16, y + 2, _WIDTH - 16, y + 2, FAINT)
    drawing.text(_LEFT - 12, y + 22, "good", anchor="end")
    drawing.text(_LEFT + (_WIDTH - _LEFT) / 2, y + 22, f"{loaded['good']:,}")
    drawing.text(_LEFT, _TOP - 10, "dead letters", fill=RED)
    drawing.text(_LEFT + (_WIDTH - _LEFT) / 2, _TOP - 10, "loaded in the end", fill=BLUE)
    drawing.text(16, y + 52, f"{loaded.total():,} of {COUNT:,} payments are loaded.")
    print(drawing)


def by_topic(records: list[dict[str, object]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {topic: [] for topic in TOPICS}
    for each in records:
        found[str(each["topic"])].append(str(each["value"]))
    return found


def kind(value: str) -> str:
    """Of a payment, by its id, which every kind still has."""
    number = int(value.partition('"id":')[2].partition(",")[0])
    return kind_of(number) or "good"


if __name__ == "__main__":
    run(main)
