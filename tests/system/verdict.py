"""What must hold of the topics, and of the clients' reports, after a run of ``load.py``.

Pure: values that a reader found, by offset, and the clients' reports. A claim that does not hold raises AssertionError
with what is wrong.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from tests.system.load import COPIES, PLAIN, TRANSACTIONS

Place = tuple[str, int, int]
"""Topic, partition, offset."""
Values = dict[Place, str]
Reports = Mapping[str, list[dict[str, Any]]]


def per_partition(values: Values, topic: str) -> dict[int, list[str]]:
    """The values of a topic in the order of their offsets."""
    partitions: dict[int, list[str]] = defaultdict(list)
    for place in sorted(values):
        if place[0] == topic:
            partitions[place[1]].append(values[place])
    return partitions


def doubled(values: Values, topic: str) -> list[str]:
    counts = Counter(value for place, value in values.items() if place[0] == topic)
    return [value for value, count in counts.items() if count > 1]


def judge_plain(values: Values, reports: Reports) -> int:
    """Everything acknowledged is where the acknowledgement said, once and in order. Returns how much that was."""
    wanted: dict[int, dict[str, list[str]]] = defaultdict(dict)
    acknowledged = 0
    for name, report in reports.items():
        if not name.startswith("idempotent"):
            continue
        seed = name.rpartition("-")[2]
        assert not [line for line in report if "failed" in line]
        for line in report:
            if "offset" in line:
                assert values.get((PLAIN, line["partition"], line["offset"])) == line["value"], f"lost: {line}"
                acknowledged += 1
        for partition, count in enumerate(report[-1]["wrote"]):
            wanted[partition][seed] = [f"{seed}:{partition}:{number}" for number in range(count)]
    for partition, found in per_partition(values, PLAIN).items():
        for seed, expected in wanted[partition].items():
            assert [value for value in found if value.startswith(f"{seed}:")] == expected
    assert doubled(values, PLAIN) == []
    assert acknowledged == sum(len(numbers) for seeds in wanted.values() for numbers in seeds.values())
    return acknowledged


def judge_transactions(values: Values, reports: Reports) -> Counter[str]:
    """Committed ones are there whole, aborted ones not at all, the others whole or not at all. Returns the outcomes."""
    visible = {value for place, value in values.items() if place[0] == TRANSACTIONS}
    outcomes: Counter[str] = Counter()
    for name, report in reports.items():
        if not name.startswith("transactional"):
            continue
        written = {line["transaction"]: line["values"] for line in report if "values" in line}
        known = {line["transaction"]: line["outcome"] for line in report if "outcome" in line}
        for number, expected in written.items():
            outcome = known[number]
            outcomes[outcome] += 1
            seen = [value for value in expected if value in visible]
            assert outcome != "committed" or seen == expected, f"{name}: lost of transaction {number}: {seen}"
            assert outcome != "aborted" or not seen, f"{name}: aborted and seen: {seen}"
            assert seen in ([], expected), f"{name}: transaction {number} is torn: {seen} of {expected}"
    assert doubled(values, TRANSACTIONS) == []
    for found in per_partition(values, TRANSACTIONS).values():
        for seed in {value.partition(":")[0] for value in found}:
            numbers = [tuple(map(int, value.split(":"))) for value in found if value.startswith(f"{seed}:")]
            assert numbers == sorted(numbers), "a writer's transactions are out of order"
    return outcomes


def judge_reader(values: Values, reports: Reports) -> int:
    """The records seen while the broker was dying are the present ones, each once and in order."""
    seen = 0
    for name, report in reports.items():
        if not name.startswith("reader"):
            continue
        last: dict[tuple[str, int], int] = {}
        for line in report:
            if "at" not in line:
                continue
            topic, partition, offset = line["at"]
            assert values.get((topic, partition, offset)) == line["value"], f"seen and gone: {line}"
            assert offset > last.get((topic, partition), -1), f"seen twice: {line}"
            last[topic, partition] = offset
            seen += 1
    return seen


def judge_copies(values: Values, copiers: int = 1) -> None:
    """Each copier's copies are the originals, each once and in order."""
    for topic in COPIES[:copiers]:
        copies = per_partition(values, topic)
        assert copies == per_partition(values, PLAIN), f"{topic}: a copy is missing, doubled or out of order"
