"""Why a guarantee holds, or does not: what ``einmal explain`` shows beside every hop. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class HopVerdict(StrEnum):
    HOLDS = "holds"
    IF = "if"
    """It holds under a condition, which the reason states."""
    NOT = "not"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Reason:
    verdict: HopVerdict
    text: str
    hint: str = ""
