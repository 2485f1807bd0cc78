"""Claims about verbs that ask many partitions or topics: one without an answer is named, and hides no other."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from einmal.client import Admin, Consumer, Producer, TopicPartition
from tests.cli.running import Cli
from tests.interop.cluster import Cluster, einmal_cluster

pytestmark = pytest.mark.system

WIDE: Final = "wide"
"""Led by all brokers, each of which has the only replica of some of its partitions."""
PARTITIONS: Final = 6


@pytest.fixture(scope="module")
def broken() -> Iterator[tuple[Cli, set[int]]]:
    """A cluster of three brokers, one of which is down, and the partitions of ``wide`` without a leader. Group ``g``
    has positions in all of them."""
    folder = Path(tempfile.mkdtemp())
    cluster = einmal_cluster(folder)
    cluster.start()
    try:
        yield Cli(cluster.bootstrap), _break(cluster)
    finally:
        cluster.stop()
        shutil.rmtree(folder)


def _break(cluster: Cluster) -> set[int]:
    cluster.create_topic(WIDE, PARTITIONS, replicas=1)
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for index in range(PARTITIONS):
            producer.send(WIDE, b'{"a": 1}', partition=index).result()
    positions = {TopicPartition(WIDE, index): 1 for index in range(PARTITIONS)}
    with Consumer(bootstrap_servers=cluster.bootstrap, group_id="g") as consumer:
        consumer.assign(positions)
        consumer.commit(positions)
    coordinator = cluster.coordinator(0, "g")
    lost = next(each for each in cluster.nodes if each not in (coordinator, cluster.controller()))
    led = {index for index in range(PARTITIONS) if cluster.leader(WIDE, index) == lost}
    cluster.kill(lost)
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        while any(admin.describe_topics([WIDE])[WIDE].partitions[index].leader >= 0 for index in led):
            pass
    assert 0 < len(led) < PARTITIONS
    return led


VERBS: Final = {
    "group seek": ["group", "seek", "g", "--to", "earliest", "--yes"],
    "group seek, to a time": ["group", "seek", "g", "--to", "@0"],
    "group seek, by topic": ["group", "seek", "g", "--to", "latest", "--topic", WIDE, "--topic", "missing"],
    "group describe": ["group", "describe", "g"],
    "group lag": ["group", "lag", "g"],
    "topic describe": ["topic", "describe", WIDE],
    "topic describe, with content": ["topic", "describe", WIDE, "--content"],
    "txn doctor": ["txn", "doctor", "--topic", WIDE, "--topic", "missing"],
    "txn find-hanging": ["txn", "find-hanging", "--topic", WIDE, "--topic", "missing"],
    "txn describe-producers": ["txn", "describe-producers", "--topic", WIDE],
}
"""Each asks every partition of ``wide``; where it takes several topics, one that does not exist, too."""
STATUS: Final = {"group describe": 0, "group lag": 0, "topic describe": 0, "topic describe, with content": 0}
"""Where others have 1: the answer is not complete, but nothing else was asked for than to show it."""


@pytest.mark.representatives(4)
@pytest.mark.parametrize("verb", VERBS)
def test_partitions_without_an_answer_are_named_and_others_have_theirs(verb: str, broken: tuple[Cli, set[int]]) -> None:
    cli, led = broken
    done = cli(*VERBS[verb], "-X", "default.api.timeout.ms=5000", "--format", "json", status=STATUS.get(verb, 1))
    named = " ".join(done.errors) + json.dumps(done.document)
    for index in led:
        assert f"{WIDE}-{index}" in named or '"unknown"' in named, done
    assert ("missing" in named) is ("missing" in VERBS[verb])
    if verb.startswith("group") or verb.startswith("topic"):
        answered = {each["partition"] for each in _partitions(done.document) if _is_answered(each)}
        assert answered == set(range(PARTITIONS)) - led


def _partitions(document: Any) -> list[dict[str, Any]]:
    rows = document if isinstance(document, list) else document.get("partitions") or document["content"]
    return [each for each in rows if each.get("topic", WIDE) == WIDE]


def _is_answered(row: dict[str, Any]) -> bool:
    fields = ("new_offset", "last_stable_offset", "log_end_offset")
    return any(row.get(field) is not None for field in fields)


@pytest.mark.long
def test_a_group_is_moved_where_it_can_be(broken: tuple[Cli, set[int]]) -> None:
    cli, led = broken
    words = ("group", "seek", "g", "-X", "default.api.timeout.ms=5000", "--format", "json", "--yes", "--to")
    cli(*words, "earliest", status=1)
    done = cli(*words, "latest", status=1)
    moved = {(each["topic"], each["partition"]): each["status"] for each in done.document}
    assert moved == {(WIDE, index): "failed" if index in led else "moved" for index in range(PARTITIONS)}
    assert {each["current_offset"] for each in done.document if each["status"] == "moved"} == {0}
    assert None not in {each["error"] for each in done.document if each["status"] == "failed"}
    with Admin(bootstrap_servers=cli.bootstrap) as admin:
        found = {at.partition: each.offset for at, each in admin.list_group_offsets("g").items() if at.topic == WIDE}
    assert [offset for index, offset in found.items() if index not in led] == [1] * (PARTITIONS - len(led))
