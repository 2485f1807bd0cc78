"""Result of a simulated schedule."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Result:
    """One seed's run: ``anomalies`` in words (empty: none), ``trace_digest`` over every event in order."""

    seed: int
    anomalies: tuple[str, ...]
    virtual_seconds: float
    trace_digest: str
