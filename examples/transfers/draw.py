"""Draw accounts and wallets. Reads the output of ``audit`` from stdin, writes SVG to stdout."""

from examples.program import lines, run
from examples.svg import BLUE, FAINT, Drawing

_ROW = 28
_LEFT = 110
_WIDTH = 560


def main() -> None:
    *accounts, totals = map(str.rstrip, lines())
    drawing = Drawing(720, 92 + _ROW * len(accounts), "Every amount is in an account or in a wallet")
    for row, line in enumerate(accounts):
        name, *amounts = line.split()
        balance, wallet = map(int, amounts)
        y = 44 + _ROW * row
        stays = _WIDTH * balance / (balance + wallet)
        drawing.text(_LEFT - 8, y + 17, name, anchor="end")
        drawing.bar(_LEFT, y + 2, round(stays, 1), _ROW - 6, fill=FAINT)
        drawing.bar(round(_LEFT + stays, 1), y + 2, round(_WIDTH - stays, 1), _ROW - 6, fill=BLUE)
        drawing.text(_LEFT + 6, y + 17, f"{balance} in SQLite", size=11)
        drawing.text(_LEFT + _WIDTH - 6, y + 17, f"{wallet} in the topic", size=11, anchor="end", fill="#ffffff")
    drawing.text(_LEFT, 44 + _ROW * len(accounts) + 22, totals, size=12)
    print(drawing)


if __name__ == "__main__":
    run(main)
