"""Draw the most frequent words of a topic of counts. Reads ``WORD COUNT`` lines from stdin, writes SVG to stdout."""

from examples.program import lines, run
from examples.svg import Drawing

_WORDS = 20
_ROW = 20
_LEFT = 110
_WIDTH = 560


def main() -> None:
    # The topic has every change of a count: the last record of a word is its current count.
    counts = {word: int(count) for word, count in map(str.split, lines())}
    top = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:_WORDS]
    title = f"{sum(counts.values()):,} words, {len(counts):,} different ones: the {len(top)} most frequent"
    drawing = Drawing(720, 56 + _ROW * len(top), title)
    for row, (word, count) in enumerate(top):
        y = 44 + _ROW * row
        length = round(count / top[0][1] * _WIDTH, 1)
        drawing.text(_LEFT - 8, y + 13, word, anchor="end")
        drawing.bar(_LEFT, y + 2, length, _ROW - 4)
        drawing.text(_LEFT + length - 6, y + 14, str(count), size=11, anchor="end", fill="#ffffff")
    print(drawing)


if __name__ == "__main__":
    run(main)
