"""Which options of ``einmal bench`` belong to which cases.

An option without effect is an error, before anything starts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from einmal.bench.run import CLIENT, FAILOVER, PIPELINE, PRICE

_ALONE: Final = (FAILOVER, PIPELINE)
_OPTIONS_OF_PIPELINE: Final = ("--connector", "--trigger", "--workload", "--spark")
_HINTS: Final[Mapping[str, Mapping[str, str]]] = {
    FAILOVER: dict.fromkeys(
        ("-b", "--brokers", "--tls", "--beside", "--command-config", "--java", *_OPTIONS_OF_PIPELINE),
        "it starts three brokers of its own; --scale and -X apply",
    ),
    PIPELINE: {
        "--beside": "measure each broker in a run of its own with -b HOST:PORT",
        **dict.fromkeys(("--tls", "--command-config"), "measure a listener without security"),
        "--java": "the Java producer: einmal bench client price --java FOLDER",
    },
    "": dict.fromkeys(_OPTIONS_OF_PIPELINE, f"the option belongs to: einmal bench {PIPELINE}"),
}
"""For each case that runs alone, and for the others: the options that it does not support, and what to do instead."""

_EXCLUDES: Final = (
    ("-X", "-b", "-X configures fresh brokers; running ones keep their settings"),
    ("--brokers", "-b", "--brokers starts fresh brokers; name all of a running cluster in -b"),
    *(("--java", other, "measure a listener without security") for other in ("--tls", "--command-config")),
    ("--tls", "--command-config", "--tls is for listeners with any certificate; set security.protocol in the file"),
)
"""An option, another that it excludes, and what to do instead."""


class WrongUsage(NamedTuple):
    error: str
    hint: str


def wrong_usage_of(cases: Sequence[str], known: Collection[str], given: Collection[str]) -> WrongUsage | None:
    """The first problem. ``known``: the cases of brokers. ``given``: the options, without their values."""
    alone = [name for name in cases if name in _ALONE]
    if unknown := [name for name in cases if name not in known and name not in _ALONE]:
        hint = f"there are {', '.join(known)}; and {' and '.join(_ALONE)}, which run alone"
        return WrongUsage(f"no case {', '.join(unknown)}", hint)
    if alone and len(cases) > 1:
        return WrongUsage(f"{alone[0]} runs alone", "measure the other cases in a run of their own")
    (kind,) = alone or ("",)
    for option in given:
        if hint := _HINTS[kind].get(option, ""):
            subject = f"{kind} does" if kind else "the cases of brokers do"
            return WrongUsage(f"{subject} not support {option}", hint)
    if "--java" in given and not {*cases} <= {CLIENT, PRICE}:
        cases_of_java = f"{CLIENT} and {PRICE}"
        return WrongUsage(f"--java belongs to the cases {cases_of_java}", f"einmal bench {CLIENT} --java FOLDER")
    for one, other, hint in _EXCLUDES:
        if one in given and other in given:
            return WrongUsage(f"{one} excludes {other}", hint)
    return None
