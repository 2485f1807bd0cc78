"""The faults of a schedule: a list with times, drawn from the seed before anything runs.

A fault has a kind, a time and a duration; it chooses its target at that time, with randomness of its own (``draw``).
So a fault can be left out of the list, or be made shorter, without a change of the others: this is how a failing
schedule is shrunk.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum


class FaultKind(Enum):
    """Fault of a node (some of them: of several), of the links between nodes, of the cluster's leaders, or of a
    client."""

    CRASH = "crash"
    CRASH_LEADER = "crash-leader"
    CRASH_CONTROLLER = "crash-controller"
    CRASH_COORDINATOR = "crash-coordinator"
    CRASH_SEVERAL = "crash-several"
    CRASH_TWICE = "crash-twice"
    RESTART = "restart"
    ROLLING_RESTART = "rolling-restart"
    WIPE = "wipe"
    PAUSE = "pause"
    PAUSE_LEADER = "pause-leader"
    ISOLATE = "isolate"
    DEAFEN = "deafen"
    MUTE = "mute"
    SPLIT = "split"
    RING = "ring"
    BRIDGE = "bridge"
    SEVER = "sever"
    LAG = "lag"
    SLOW_DISK = "slow-disk"
    FULL_DISK = "full-disk"
    DAMAGE = "damage"
    SET_CLOCK = "set-clock"
    RESET = "reset"
    ELECT = "elect"
    REASSIGN = "reassign"
    PAUSE_CLIENT = "pause-client"
    REPLACE_CLIENT = "replace-client"
    KILL_CLIENT = "kill-client"
    CUT_CLIENT = "cut-client"
    LOSE_CLIENT = "lose-client"


@dataclass(frozen=True, slots=True)
class Fault:
    """``at`` and ``lasts`` in seconds after the clients have begun."""

    at: float
    kind: FaultKind
    lasts: float
    draw: int

    def __str__(self) -> str:
        return f"at {self.at:6.2f} s for {self.lasts:5.2f} s: {self.kind.value} (draw {self.draw})"


LATE: frozenset[FaultKind] = frozenset(
    {
        FaultKind.PAUSE,
        FaultKind.PAUSE_LEADER,
        FaultKind.ISOLATE,
        FaultKind.DEAFEN,
        FaultKind.MUTE,
        FaultKind.SPLIT,
        FaultKind.RING,
        FaultKind.BRIDGE,
        FaultKind.LAG,
        FaultKind.CUT_CLIENT,
    }
)
"""These delay requests, and let them arrive when no client waits for them any more."""

_SHORT = (0.05, 2.0)
_LONG = (0.3, 5.0)
_AT_ONCE = (0.0, 0.0)
_LASTING: dict[FaultKind, tuple[float, float]] = {
    FaultKind.CRASH: _LONG,
    FaultKind.CRASH_LEADER: _LONG,
    FaultKind.CRASH_CONTROLLER: _LONG,
    FaultKind.CRASH_COORDINATOR: _LONG,
    FaultKind.CRASH_SEVERAL: _SHORT,
    FaultKind.CRASH_TWICE: _SHORT,
    FaultKind.RESTART: _SHORT,
    FaultKind.ROLLING_RESTART: _AT_ONCE,
    FaultKind.WIPE: _SHORT,
    FaultKind.PAUSE: (0.2, 7.0),
    FaultKind.PAUSE_LEADER: (0.2, 7.0),
    FaultKind.SEVER: _SHORT,
    FaultKind.LAG: _LONG,
    FaultKind.SLOW_DISK: _LONG,
    FaultKind.FULL_DISK: _LONG,
    FaultKind.SET_CLOCK: _AT_ONCE,
    FaultKind.RESET: _AT_ONCE,
    FaultKind.ELECT: _AT_ONCE,
    FaultKind.REASSIGN: _AT_ONCE,
    FaultKind.PAUSE_CLIENT: (0.2, 9.0),
    FaultKind.REPLACE_CLIENT: (0.0, 8.0),
    FaultKind.KILL_CLIENT: (0.0, 1.0),
    FaultKind.CUT_CLIENT: (0.1, 4.0),
}


def draw_schedule(
    source: random.Random, kinds: tuple[FaultKind, ...], *, seconds: float, pause_max: float
) -> tuple[Fault, ...]:
    """Faults of these kinds, in sequence or overlapping; all are over at the end."""
    faults = []
    at = source.uniform(0.0, pause_max)
    while at < seconds:
        kind = source.choice(kinds)
        shortest, longest = _LASTING.get(kind, _LONG)
        lasts = min(source.uniform(shortest, longest), seconds - at)
        faults.append(Fault(round(at, 3), kind, round(lasts, 3), source.randrange(2**31)))
        at += source.uniform(0.05, pause_max)
    if source.random() < 0.5:
        # This one never returns: its open transaction must time out.
        faults.append(Fault(round(seconds, 3), FaultKind.LOSE_CLIENT, 0.0, source.randrange(2**31)))
    return tuple(faults)
