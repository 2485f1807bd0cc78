"""Draw how long orders waited. Reads both output topics from stdin, as ``topic consume --format json`` prints them.

One bar per five minutes until the shipment, and one for the orders that were not shipped in time.
"""

import json
from collections import Counter
from datetime import datetime, timedelta

from examples.program import lines, run
from examples.svg import BLUE, RED, Drawing

_STEP = 5
_BARS = 60 // _STEP
_LEFT, _BOTTOM, _HEIGHT, _WIDTH = 40, 330, 260, 44


def main() -> None:
    records = [json.loads(line) for line in lines()]
    shipped = [json.loads(each["value"]) for each in records if each["topic"] == "orders-shipped"]
    overdue = sum(each["topic"] == "orders-overdue" for each in records)
    waited = Counter(min(_BARS - 1, _waited(each) // timedelta(minutes=_STEP)) for each in shipped)
    scale = _HEIGHT / max(*waited.values(), overdue)
    title = f"{len(shipped):,} orders shipped within an hour, {overdue} were not"
    drawing = Drawing(_LEFT + _WIDTH * (_BARS + 2) + 20, 390, title)

    def bar(column: float, orders: int, fill: str) -> None:
        left, height = _LEFT + _WIDTH * column, round(orders * scale, 1)
        drawing.bar(left + 3, _BOTTOM - height, _WIDTH - 6, height, fill)
        drawing.text(left + _WIDTH / 2, _BOTTOM - height - 5, str(orders), size=11, anchor="middle")

    for index in range(_BARS):
        bar(index, waited[index], BLUE)
        drawing.text(_LEFT + _WIDTH * index, _BOTTOM + 16, str(index * _STEP), size=11, anchor="middle")
    bar(_BARS + 0.5, overdue, RED)
    drawing.line(_LEFT, _BOTTOM, _LEFT + _WIDTH * (_BARS + 2), _BOTTOM)
    drawing.text(_LEFT + _WIDTH * _BARS, _BOTTOM + 16, "60", size=11, anchor="middle")
    drawing.text(_LEFT + _WIDTH * (_BARS + 1), _BOTTOM + 16, "overdue", size=11, anchor="middle")
    drawing.text(_LEFT + _WIDTH * _BARS / 2, _BOTTOM + 40, "minutes from order to shipment", anchor="middle")
    print(drawing)


def _waited(order: dict[str, str]) -> timedelta:
    return datetime.fromisoformat(order["shipped_at"]) - datetime.fromisoformat(order["ordered_at"])


if __name__ == "__main__":
    run(main)
