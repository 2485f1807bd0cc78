"""Draw the rows of both databases over time, and the kills. Reads the log of ``kills`` from stdin, writes SVG."""

import json
from itertools import groupby

from examples.program import lines, run
from examples.svg import BLUE, FAINT, GREY, RED, Drawing

_LEFT, _RIGHT, _TOP, _BOTTOM = 120, 690, 52, 290
_ROW = 16


def main() -> None:
    log = json.loads("".join(lines()))
    samples, kills = log["samples"], log["kills"]
    seconds, most = samples[-1][0], max(shop or 0 for _, shop, _ in samples)
    names = list(dict.fromkeys(sorted(name for _, name in kills)))

    def x(second: float) -> float:
        return _LEFT + float(second) / seconds * (_RIGHT - _LEFT)

    def y(count: int) -> float:
        return _BOTTOM - float(count) / most * (_BOTTOM - _TOP)

    drawing = Drawing(720, _BOTTOM + 62 + _ROW * len(names), f"{samples[-1][2]:,} rows in the copy, {len(kills)} kills")
    step = next(step for power in range(9) for step in (10**power, 2 * 10**power, 5 * 10**power) if most < 5 * step)
    for count in range(0, most + 1, step):
        drawing.line(_LEFT, y(count), _RIGHT, y(count))
        drawing.text(_LEFT - 8, y(count) + 4, f"{count:,}", anchor="end")
    for second in range(0, int(seconds) + 1, 30):
        drawing.text(x(second), _BOTTOM + 18, f"{second} s", anchor="middle")
    for column, colour in ((1, GREY), (2, BLUE)):
        # A database that is down has no rows to show.
        for is_up, part in groupby(samples, lambda sample, at=column: sample[at] is not None):
            if is_up:
                drawing.curve(((x(sample[0]), y(sample[column])) for sample in part), stroke=colour)
    for row, name in enumerate(names):
        middle = _BOTTOM + 36 + _ROW * row
        drawing.text(_LEFT - 8, middle + 4, name, anchor="end", size=11)
        drawing.line(_LEFT, middle, _RIGHT, middle, FAINT)
        for second, _ in (each for each in kills if each[1] == name):
            drawing.bar(round(x(second), 1) - 1, middle - 5, 3, 10, RED)
    below = _BOTTOM + 36 + _ROW * len(names)
    for left, colour, words in ((0, GREY, "rows in the shop"), (160, BLUE, "rows in the copy"), (320, RED, "kill -9")):
        drawing.bar(_LEFT + left, below, 12, 8, colour)
        drawing.text(_LEFT + left + 18, below + 8, words)
    print(drawing)


if __name__ == "__main__":
    run(main)
