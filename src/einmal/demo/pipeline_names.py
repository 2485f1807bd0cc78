"""Names that the demo and its Spark driver use: apart from the driver, so that the demo needs no Spark itself."""

from __future__ import annotations

from typing import Final

SENTENCES: Final = "sentences"
EXACTLY_ONCE: Final = "counts"
CONTROL: Final = "counts-at-least-once"
GUARANTEES: Final = {EXACTLY_ONCE: "exactly_once_v2", CONTROL: "at_least_once"}

AFTER_END_TXN: Final = "right after EndTxn"
BETWEEN_TASKS: Final = "between tasks"


def transactional_id(topic: str) -> str:
    """The name of the query that writes to ``topic``."""
    return f"demo-{topic}"
