"""Draw events over time and the kills. Reads the log of ``kills`` from stdin, writes SVG to stdout."""

import json

from examples.program import lines, run
from examples.svg import BLUE, FAINT, GREY, RED, Drawing

_LEFT, _RIGHT = 64, 690
_TOP, _BOTTOM = 52, 300
_KILLED = {"shop": GREY, "relay": BLUE, "at-least-once relay": RED}


def main() -> None:
    log = json.loads("".join(lines()))
    samples, kills = log["samples"], log["kills"]
    seconds, most = samples[-1][0], max(max(each[1:]) for each in samples)

    def x(second: float) -> float:
        return _LEFT + second / seconds * (_RIGHT - _LEFT)

    def y(count: int) -> float:
        return _BOTTOM - count / most * (_BOTTOM - _TOP)

    _, placed, once, repeated = samples[-1]
    drawing = Drawing(
        720, 378, f"{placed:,} events in the outbox, {once:,} and {repeated:,} relayed, {len(kills)} kills"
    )
    for count in range(0, most + 1, 1_000):
        drawing.line(_LEFT, y(count), _RIGHT, y(count))
        drawing.text(_LEFT - 8, y(count) + 4, f"{count:,}", anchor="end")
    for second in range(0, int(seconds) + 1, 10):
        drawing.text(x(second), _BOTTOM + 18, f"{second} s", anchor="middle")
    for row, (name, colour) in enumerate(_KILLED.items()):
        top = _BOTTOM + 26 + row * 12
        drawing.line(_LEFT, top + 4, _RIGHT, top + 4, FAINT)
        for second, killed in kills:
            if killed == name:
                drawing.bar(round(x(second), 1) - 1, top, 3, 8, colour)
    for number, colour in ((3, RED), (1, GREY), (2, BLUE)):
        drawing.curve(((x(sample[0]), y(sample[number])) for sample in samples[::4]), stroke=colour)
    legend = (("kill -9 of the shop; outbox", GREY), ("of the relay; relayed once", BLUE), ("at least once", RED))
    for number, (words, colour) in enumerate(legend):
        drawing.bar(_LEFT + number * 220, _BOTTOM + 65, 12, 8, colour)
        drawing.text(_LEFT + number * 220 + 18, _BOTTOM + 73, words)
    print(drawing)


if __name__ == "__main__":
    run(main)
