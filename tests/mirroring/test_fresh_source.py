"""A source in which nobody has used a transaction or a group yet has none of the internal topics: nothing waits."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

import pytest

from einmal.client import Admin, NewTopic, Producer
from einmal.client.aio.network.retry import Retry
from einmal.clusters.kafka_cluster import KafkaCluster, Seen
from einmal.mirror_protocol.flow import Flow
from einmal.mirror_protocol.progress import OFFSETS_TOPIC
from einmal.mirroring.run import MirrorProcess
from einmal.mirroring.source import SourceReader
from einmal.mirroring.status import status_of
from einmal.mirroring.target import TargetWriter
from einmal.mirroring.transaction_states import TRANSACTION_STATE
from einmal.types import ErrorCode
from tests.interop.einmal_broker import EinmalBroker

pytestmark = pytest.mark.system


def test_no_look_at_a_fresh_source_waits_for_an_internal_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[str] = []
    after_refusal, look = Retry.after_refusal, KafkaCluster.look

    async def noted_refusal(self: Retry, code: ErrorCode) -> None:
        waits.append(f"{self.what}: {code.name}")
        await after_refusal(self, code)

    def noted_look(self: KafkaCluster, topics: Iterable[str], settled: Collection[str] = ()) -> Seen:
        names = list(topics)
        waits.extend(name for name in names if name not in settled)
        return look(self, names, settled)

    monkeypatch.setattr(Retry, "after_refusal", noted_refusal)
    monkeypatch.setattr(KafkaCluster, "look", noted_look)
    brokers = [EinmalBroker(tmp_path / name) for name in ("A", "B")]
    try:
        for broker in brokers:
            broker.start()
        source, target = ({"bootstrap.servers": each.bootstrap} for each in brokers)
        with Admin(source) as admin, Producer(source) as producer:
            admin.create_topics([NewTopic("orders")])
            producer.send("orders", "v")
            producer.flush()
        flow = Flow(source="A", target="B")
        process = MirrorProcess(flow, source, target, notify=lambda notice: None, ends_when_idle=True)
        reader = SourceReader(source)
        writer = TargetWriter(target, flow.name, flow.transactional_id)
        try:
            process.run()
            status = status_of(flow, reader, writer)
            assert status.left_out == []
            assert [each.lag for each in status.partitions] == [0]
            assert reader.transactions.prepared() == {}
        finally:
            process.close()
            reader.close()
            writer.close()
    finally:
        for broker in brokers:
            broker.stop()
    assert [each for each in waits if TRANSACTION_STATE in each or OFFSETS_TOPIC in each] == []
