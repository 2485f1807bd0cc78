"""What the topics contain in the end: an independent count of outputs, positions and state. Knows nothing of kills.

Every function returns what is wrong, in words; nothing is right.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from einmal.chaos.report import differences
from tests.spark.campaign.pipelines import SOURCES, closing_number, expected, is_in, key_of

_COPY: Final = re.compile(r"(?P<number>\d+):(?P<draw>[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})", re.ASCII)
_MISSED_MAX: Final = 8
"""Of moments that come at all, a third does not come in time on a busy machine."""

Outputs = Sequence[tuple[str, str]]
"""(key, value), in order per partition, so per key too."""


def moments_that_never_came(missed: Mapping[str, int], came: Collection[str]) -> list[str]:
    """Nobody was killed there: the driver waits for something that the pipelines no longer do."""
    never = sorted(moment for moment, count in missed.items() if count >= _MISSED_MAX and moment not in came)
    return [f"the moment {moment!r} was waited for {missed[moment]} times, and never came" for moment in never]


def wrong_with_input(topic: str, numbers: Iterable[int], count: int) -> list[str]:
    """The conductor's own writing: without this the rest would mean nothing."""
    wanted = (str(number) for number in (*range(count), closing_number(count)) if is_in(topic, number))
    return differences(topic, map(str, numbers), wanted)


def wrong_with_output(name: str, outputs: Outputs, count: int) -> list[str]:
    """The multiset is f(input); and what keeps the input's order per key has it."""
    if name == "state":
        return wrong_with_chain(outputs, count)
    if name != "copy":
        return differences(name, (value for _, value in outputs), expected(name, count).elements())
    whole = [(key, found) for key, value in outputs if (found := _COPY.fullmatch(value))]
    numbers = [int(found["number"]) for key, found in whole if key == key_of(int(found["number"]))]
    wrong = differences(name, map(str, numbers), expected(name, count).elements())
    if len(numbers) < len(outputs):
        wrong.append(f"{name}: {len(outputs) - len(numbers)} outputs are torn, or have the key of another one")
    if len({found["draw"] for _, found in whole}) < len(whole):
        wrong.append(f"{name}: outputs have the same draw")
    last: dict[str, int] = {}
    for number in numbers:
        key = key_of(number)
        if number < last.get(key, -1):
            wrong.append(f"{name}: {number} after {last[key]}")
        last[key] = number
    return wrong


def wrong_with_chain(outputs: Outputs, count: int) -> list[str]:
    """Each output begins with the state that the one before it ended with, and accounts for its numbers, in order."""
    wrong = []
    last: dict[str, list[Any]] = {}
    seen: dict[str, list[int]] = {}
    for key, value in outputs:
        row = json.loads(value)
        if row["before"] != last.get(key, [0, 0, 0.0]):
            wrong.append(f"state: {key} began with {row['before']}, the output before had said {last.get(key)}")
        if row["after"][0] - row["before"][0] != len(row["numbers"]):
            wrong.append(f"state: {key} counted {row['before'][0]} to {row['after'][0]} for {len(row['numbers'])}")
        last[key] = row["after"]
        seen.setdefault(key, []).extend(row["numbers"])
    numbers = [number for each in seen.values() for number in each]
    wanted = map(str, (*range(count), closing_number(count)))
    wrong += differences("state", map(str, numbers), wanted)
    wrong += [f"state: {key} out of order" for key, each in seen.items() if each != sorted(each)]
    return wrong


def wrong_with_state(state: Mapping[str, list[Any]], outputs: Outputs) -> list[str]:
    """Spark's state store equals the last output of each key."""
    said = {key: json.loads(value)["after"] for key, value in outputs}
    keys = sorted(said.keys() | state.keys())
    return [
        f"state: {key} has {state.get(key)}, its last output said {said.get(key)}"
        for key in keys
        if state.get(key) != said.get(key)
    ]


Offsets = dict[str, dict[int, int]]
"""By topic and partition."""


def offsets_in(sources: Iterable[Mapping[str, Mapping[str, int]]]) -> Offsets:
    """The offsets in the positions of a query's sources; keys with an ``@`` name the cluster and the topics' ids."""
    return {
        topic: {int(partition): offset for partition, offset in each.items()}
        for source in sources
        for topic, each in source.items()
        if not topic.startswith("@")
    }


def wrong_with_positions(
    positions: Mapping[str, Mapping[str, Offsets]],
    ends: Offsets,
    sources: Mapping[str, Sequence[str]] = SOURCES,
) -> list[str]:
    """``positions``: by pipeline, and by who keeps them ("commit record", "group", "checkpoint"). ``sources``: the
    topics of each pipeline."""
    wrong = []
    for name, topics in sources.items():
        wanted = {topic: ends[topic] for topic in topics}
        for who, found in positions[name].items():
            if found != wanted:
                wrong.append(f"{name}: the {who} is at {found}, the input ends at {wanted}")
    return wrong
