"""Draw lines in the topic over time, and the kills. Reads the log of ``kills`` from stdin, writes SVG to stdout."""

import json

from examples.program import lines, run
from examples.svg import BLUE, FAINT, RED, Drawing

_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 690, 52, 300


def main() -> None:
    log = json.loads("".join(lines()))
    samples, kills = log["samples"], log["kills"]
    seconds, most = samples[-1]

    def x(second: float) -> float:
        return _LEFT + second / seconds * (_RIGHT - _LEFT)

    def y(count: int) -> float:
        return _BOTTOM - count / most * (_BOTTOM - _TOP)

    drawing = Drawing(720, 360, f"{most:,} lines in the topic, {len(kills)} kills")
    for count in range(0, most + 1, 20_000):
        drawing.line(_LEFT, y(count), _RIGHT, y(count))
        drawing.text(_LEFT - 8, y(count) + 4, f"{count:,}", anchor="end")
    for second in range(0, int(seconds) + 1, 10):
        drawing.text(x(second), _BOTTOM + 18, f"{second} s", anchor="middle")
    drawing.line(_LEFT, _BOTTOM + 30, _RIGHT, _BOTTOM + 30, FAINT)
    for second in kills:
        drawing.bar(round(x(second), 1) - 1, _BOTTOM + 26, 3, 8, RED)
    drawing.curve(((x(second), y(count)) for second, count in [*samples[::3], samples[-1]]), stroke=BLUE)
    drawing.bar(_LEFT, _BOTTOM + 41, 12, 8, BLUE)
    drawing.text(_LEFT + 18, _BOTTOM + 49, "lines that a reader of the topic sees")
    drawing.bar(_LEFT + 300, _BOTTOM + 41, 12, 8, RED)
    drawing.text(_LEFT + 318, _BOTTOM + 49, "kill -9 of the ingester")
    print(drawing)


if __name__ == "__main__":
    run(main)
