"""Draw the counts over time, and what happened. Reads the log of ``move`` from stdin, writes SVG to stdout."""

import json

from examples.program import lines, run
from examples.svg import BLUE, FAINT, GREEN, GREY, INK, RED, Drawing

_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 690, 52, 300
_CURVES = (("ordered in A", GREY), ("copied to B", BLUE), ("billed in A", RED), ("billed in B", GREEN))


def main() -> None:
    log = json.loads("".join(lines()))
    samples, events = log["samples"], log["events"]
    seconds, most = samples[-1][0], max(max(each[1:]) for each in samples)

    def x(second: float) -> float:
        return _LEFT + second / seconds * (_RIGHT - _LEFT)

    def y(count: int) -> float:
        return _BOTTOM - count / most * (_BOTTOM - _TOP)

    kills = [second for second, what in events if "kill" in what]
    bills = samples[-1][3] + samples[-1][4]
    drawing = Drawing(720, 360, f"{samples[-1][1]:,} orders, {bills:,} bills in two clusters, {len(kills)} kills")
    for count in range(0, most + 1, 500):
        drawing.line(_LEFT, y(count), _RIGHT, y(count))
        drawing.text(_LEFT - 8, y(count) + 4, f"{count:,}", anchor="end")
    for second in range(0, int(seconds) + 1, 10):
        drawing.text(x(second), _BOTTOM + 18, f"{second} s", anchor="middle")
    drawing.line(_LEFT, _BOTTOM + 30, _RIGHT, _BOTTOM + 30, FAINT)
    for second in kills:
        drawing.bar(round(x(second), 1) - 1, _BOTTOM + 26, 3, 8, BLUE)
    for second, what in events:
        if "moved" in what:
            drawing.line(x(second), _TOP, x(second), _BOTTOM + 34, INK)
            drawing.text(x(second) - 6, _TOP + 10, "billing moves", anchor="end")
    for number, (words, colour) in enumerate(_CURVES):
        drawing.curve(((x(sample[0]), y(sample[number + 1])) for sample in [*samples[::4], samples[-1]]), stroke=colour)
        drawing.bar(_LEFT + number * 130, _BOTTOM + 41, 12, 8, colour)
        drawing.text(_LEFT + number * 130 + 18, _BOTTOM + 49, words)
    drawing.text(_LEFT + 4 * 130, _BOTTOM + 49, "ticks: kill -9")
    print(drawing)


if __name__ == "__main__":
    run(main)
