"""``einmal mirror FILE.properties`` runs what MirrorMaker's file declares."""

from __future__ import annotations

from pathlib import Path

import pytest

from einmal.client import Admin, Consumer, NewTopic, Producer
from tests.interop.einmal_broker import EinmalBroker
from tests.suite import warm

pytestmark = pytest.mark.system


def test_the_flow_of_mirrormakers_file_is_copied(brokers: tuple[EinmalBroker, EinmalBroker], tmp_path: Path) -> None:
    source, target = brokers
    (tmp_path / "mm2.properties").write_text(
        f"clusters = A, B\nA.bootstrap.servers = {source.bootstrap}\nB.bootstrap.servers = {target.bootstrap}\n"
        "A->B.enabled = true\nA->B.topics = orders\ntasks.max = 2\n"
    )
    with Admin({"bootstrap.servers": source.bootstrap}) as admin:
        admin.create_topics([NewTopic("orders", num_partitions=1)])
    with Producer({"bootstrap.servers": source.bootstrap}) as producer:
        producer.send("orders", "paid")
    done = warm.run(["einmal", "mirror", "mm2.properties", "--available-now"], cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "warning: mm2.properties: tasks.max has no effect: one process copies a flow" in done.stderr
    with Consumer(
        {"bootstrap.servers": target.bootstrap, "auto.offset.reset": "earliest", "group.id": "g"}
    ) as consumer:
        consumer.subscribe(["A.orders"])
        records = consumer.poll(30_000)
    assert [each.value for each in records] == [b"paid"]
    failover = ["einmal", "mirror", "failover", "A->B", "-f", "mm2.properties", "--group", "x"]
    unknown = warm.run(failover, cwd=tmp_path, timeout=300)
    assert (unknown.returncode, unknown.stdout) == (3, "")
    assert "error: group 'x' has no offset in the flow's topics\nhint: groups that have one: none; " in unknown.stderr
