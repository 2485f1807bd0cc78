"""Draw the transaction's states into docs/states.md, from the table that the coordinator uses.

Usage: python tools/draw_states.py [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path

from einmal.transactions.states import VALID_PREVIOUS, TransactionState

PAGE = Path(__file__).parent.parent / "docs" / "states.md"


def draw() -> str:
    moves = [
        f"    {previous.kafka_name} --> {state.kafka_name}"
        for state in TransactionState
        for previous in sorted(VALID_PREVIOUS[state])
        if previous is not state
    ]
    lines = [
        "# States of a transaction",
        "",
        "Drawn from `src/einmal/transactions/states.py` by `tools/draw_states.py`; a test holds them together.",
        "",
        "```mermaid",
        "stateDiagram-v2",
        "    [*] --> Empty",
        *moves,
        "```",
        "",
        "| state | id | may be entered from |",
        "|---|---|---|",
    ]
    for state in TransactionState:
        names = ", ".join(previous.kafka_name for previous in sorted(VALID_PREVIOUS[state]))
        lines.append(f"| {state.kafka_name} | {state.value} | {names} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    if "--check" in sys.argv[1:]:
        if PAGE.read_text() != draw():
            sys.exit(f"{PAGE.name} is out of date: run python tools/draw_states.py")
        return
    PAGE.write_text(draw())


if __name__ == "__main__":
    main()
