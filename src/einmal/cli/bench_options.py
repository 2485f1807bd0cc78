"""Which options of ``einmal bench`` belong to which cases.

An option without effect is an error, before anything starts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from einmal.bench.run import FAILOVER, PIPELINE

_ALONE: Final = (FAILOVER, PIPELINE)
_OPTIONS_OF_PIPELINE: Final = ("--connector", "--trigger", "--workload", "--spark")
_HINTS: Final[Mapping[str, Mapping[str, str]]] = {
    FAILOVER: dict.fromkeys(
        ("-b", "--beside", "--command-config", *_OPTIONS_OF_PIPELINE),
        "it starts three brokers of its own; --scale and -X apply",
    ),
    PIPELINE: {
        "--beside": "measure each broker in a run of its own with -b HOST:PORT",
        "--command-config": "measure a listener without security",
    },
    "": dict.fromkeys(_OPTIONS_OF_PIPELINE, f"the option belongs to: einmal bench {PIPELINE}"),
}
"""For each case that runs alone, and for the others: the options that it does not support, and what to do instead."""


class WrongUsage(NamedTuple):
    error: str
    hint: str


def wrong_usage_of(cases: Sequence[str], known: Collection[str], given: Collection[str]) -> WrongUsage | None:
    """The first problem. ``known``: the cases of one broker. ``given``: the options, without their values."""
    alone = [name for name in cases if name in _ALONE]
    if unknown := [name for name in cases if name not in known and name not in _ALONE]:
        hint = f"there are {', '.join(known)}; and {' and '.join(_ALONE)}, which run alone"
        return WrongUsage(f"no case {', '.join(unknown)}", hint)
    if alone and len(cases) > 1:
        return WrongUsage(f"{alone[0]} runs alone", "measure the other cases in a run of their own")
    (kind,) = alone or ("",)
    for option in given:
        if hint := _HINTS[kind].get(option, ""):
            subject = f"{kind} does" if kind else "the cases of one broker do"
            return WrongUsage(f"{subject} not support {option}", hint)
    if "-X" in given and "-b" in given:
        return WrongUsage("-X excludes -b", "-X configures a fresh broker; a running one keeps its settings")
    return None
