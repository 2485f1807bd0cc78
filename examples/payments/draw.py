"""Draw payments and alerts. Reads both topics from stdin, as ``einmal topic consume --format json`` prints them."""

import json
from datetime import datetime

from examples.program import lines, run
from examples.svg import Drawing

_ROW = 18
_LEFT, _RIGHT = 90, 690
_TOP = 56
_BANDS = {"many payments": "#f6b3ad", "large amount": "#ffd58f"}
_SIZES = {500_00: 10, 50_00: 5, 0: 2.5}
"""Size of a dot by minimum amount in cents."""


def main() -> None:
    records = [json.loads(line) for line in lines()]
    payments = [json.loads(each["value"]) for each in records if each["topic"] == "payments"]
    alerts = [json.loads(each["value"]) for each in records if each["topic"] == "payment-alerts"]
    minutes = [_minutes(each["at"]) for each in payments]
    first = min(minutes) // 60 * 60
    scale = (_RIGHT - _LEFT) / (-(-max(minutes) // 60) * 60 - first)

    def x(minute: float) -> float:
        return round(_LEFT + (minute - first) * scale, 1)

    rows = {card: _TOP + _ROW * row for row, card in enumerate(sorted({each["card"] for each in payments}))}
    drawing = Drawing(720, _TOP + _ROW * len(rows) + 60, f"{len(payments):,} synthetic payments, {len(alerts)} alerts")
    for alert in sorted(alerts, key=lambda each: (each["card"], each["since"])):
        left = x(_minutes(alert["since"]))
        width, y = round(10 * scale, 1), rows[alert["card"]]
        drawing.bar(left, y, width, _ROW - 2, _BANDS[alert["reason"]])
        is_many = alert["reason"] == "many payments"
        drawing.text(left + width + 4, y + 6, str(alert["payments"] if is_many else alert["largest"] // 100), size=9)
    for card, y in rows.items():
        drawing.text(_LEFT - 10, y + 13, card, anchor="end")
    for least, size in _SIZES.items():
        centres = [
            (x(minute), rows[each["card"]] + _ROW / 2 - 1)
            for minute, each in zip(minutes, payments, strict=True)
            if least == max(limit for limit in _SIZES if each["cents"] >= limit)
        ]
        drawing.dots(sorted(centres), size=size)
    _legend(drawing, _TOP + _ROW * len(rows), [(x(first + hour), (first + hour) // 60) for hour in range(0, 181, 60)])
    print(drawing)


def _legend(drawing: Drawing, y: float, hours: list[tuple[float, float]]) -> None:
    for x, hour in hours:
        drawing.line(x, _TOP - 8, x, y + 4)
        drawing.text(x, y + 18, f"{hour % 24:02.0f}:00", anchor="middle")
    left = _LEFT
    for reason, colour in _BANDS.items():
        drawing.bar(left, y + 32, 14, 14, colour)
        drawing.text(left + 20, y + 44, f"alert: {reason}")
        left += 160
    for words, size in (("under 50", 2.5), ("50 to 500", 5), ("above", 10)):
        drawing.dots([(left, y + 39)], size=size)
        drawing.text(left + 10, y + 44, words)
        left += 90


def _minutes(at: str) -> float:
    return datetime.fromisoformat(at).timestamp() / 60


if __name__ == "__main__":
    run(main)
