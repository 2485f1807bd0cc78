"""Draw the state machines into docs/states.md, from the tables that the coordinator and the committer use.

Usage: python tools/draw_states.py [--check]
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from einmal.client.cores.transaction_core import VALID_MOVES, TxnPhase
from einmal.commit_protocol.committer import TRANSITIONS, WAITING, Phase, Transition
from einmal.commit_protocol.run_state import always
from einmal.transactions.states import VALID_PREVIOUS, TransactionState

PAGE = Path(__file__).parent.parent / "docs" / "states.md"


def draw() -> str:
    lines = [
        "# State machines",
        "",
        "Generated from the code by `tools/draw_states.py`; a test checks that the page is up to date.",
        "",
        *_transaction(),
        "",
        *_producer(),
        "",
        *_committer(),
    ]
    return "\n".join(lines) + "\n"


def _transaction() -> list[str]:
    moves = [
        f"    {previous.kafka_name} --> {state.kafka_name}"
        for state in TransactionState
        for previous in sorted(VALID_PREVIOUS[state])
        if previous is not state
    ]
    lines = [
        "## States of a transaction",
        "",
        "From `src/einmal/transactions/states.py`.",
        "",
        "```mermaid",
        "stateDiagram-v2",
        "    [*] --> Empty",
        *moves,
        "```",
        "",
        "A transaction of a two-phase commit stays Ongoing, without a timeout, until a client ends it.",
        "",
        "| state | id | valid predecessors |",
        "|---|---|---|",
    ]
    for state in TransactionState:
        names = ", ".join(previous.kafka_name for previous in sorted(VALID_PREVIOUS[state]))
        lines.append(f"| {state.kafka_name} | {state.value} | {names} |")
    return lines


def _producer() -> list[str]:
    phases = [phase for phase in TxnPhase if phase is not TxnPhase.FATAL_ERROR]
    moves = [
        f"    {phase.name} --> {following.name}"
        for phase in phases
        for following in TxnPhase
        if following in VALID_MOVES[phase] and following is not TxnPhase.FATAL_ERROR
    ]
    return [
        "## Phases of a transactional producer",
        "",
        "From `src/einmal/client/cores/transaction_core.py`. PREPARED is that of a [two-phase",
        "commit](two-phase-commit.md): its records are at the brokers, and the coordinator's state is Ongoing. The",
        "diagram omits FATAL_ERROR, which every phase may lead to.",
        "",
        "```mermaid",
        "stateDiagram-v2",
        f"    [*] --> {TxnPhase.UNINITIALIZED.name}",
        *moves,
        "```",
    ]


def _committer() -> list[str]:
    rows = [row for cell in TRANSITIONS.values() for row in cell]
    common = [row for row in rows if _is_common(row, rows)]
    own = [row for row in rows if row not in common]
    return [
        "## Phases of a pipeline's run",
        "",
        "From `src/einmal/commit_protocol/committer.py`. A run ends with Refused, RestartQuery or Dead. The diagram",
        "omits the moves to `OVER`; the table has them.",
        "",
        "```mermaid",
        "stateDiagram-v2",
        f"    [*] --> {Phase.NEW.name}",
        *_moves(own),
        "```",
        "",
        "For a phase and an event the first row applies whose guard holds. A pair without a row is forbidden.",
        "",
        "| phase | event | guard | next phase | effect |",
        "|---|---|---|---|---|",
        *(_line(row.phase.name, row) for row in own),
        *dict.fromkeys(_line("wherever an effect is under way, else", row) for row in common),
    ]


def _is_common(row: Transition, rows: Iterable[Transition]) -> bool:
    """Whether most of the phases with an effect under way have the same row."""
    same = [transition for transition in rows if (transition.event, transition.action) == (row.event, row.action)]
    return row.guard is always and 2 * len(same) > len(WAITING)


def _moves(rows: Iterable[Transition]) -> list[str]:
    events: dict[tuple[Phase, Phase], dict[str, None]] = {}
    for row in rows:
        if row.next_phase is not Phase.OVER:
            events.setdefault((row.phase, row.next_phase), {})[row.event.__name__] = None
    return [f"    {before.name} --> {after.name} : {', '.join(names)}" for (before, after), names in events.items()]


def _line(phase: str, row: Transition) -> str:
    guard = "" if row.guard is always else row.guard.__name__.replace("_", " ")
    effect = str(row.action.__annotations__["return"]).replace(" | ", " or ")
    return f"| {phase} | {row.event.__name__} | {guard} | {row.next_phase.name} | {effect} |"


def main() -> None:
    if "--check" in sys.argv[1:]:
        if PAGE.read_text() != draw():
            sys.exit(f"{PAGE.name} is out of date: run python tools/draw_states.py")
        return
    PAGE.write_text(draw())


if __name__ == "__main__":
    main()
