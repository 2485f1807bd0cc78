"""A real Prometheus scrapes three brokers under load: the queries of the dashboards have data, and alerts fire.

promtool provokes each alert with series of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from einmal.types import ErrorCode, ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tests.broker.boards import ALERTS, elsewhere, queries
from tests.broker.cluster import Cluster, running_cluster
from tests.broker.nodes import Client, batch
from tests.interop.prometheus import Prometheus, program, promtool, scraping
from tests.suite.patience import patient
from tests.suite.shared import Unavailable

pytestmark = [pytest.mark.interop, pytest.mark.slow]

FIND_COORDINATOR, OFFSET_COMMIT, CREATE_TOPICS, INIT, END = 10, 8, 19, 22, 26
GROUP: Final = "readers"
ONE: Final = 'instance="a",job="einmal"'
PROVOKED: Final[Mapping[str, Mapping[str, str]]] = {
    "EinmalBrokerDown": {f"up{{{ONE}}}": "0x30"},
    "EinmalNothingScraped": {},
    "EinmalBrokersFewer": {f"kafka_brokers{{{ONE}}}": "3x15 2x14"},
    "EinmalNoActiveController": {f"kafka_controller_kafkacontroller_activecontrollercount{{{ONE}}}": "0x30"},
    "EinmalPartitionsOffline": {f"kafka_controller_kafkacontroller_offlinepartitionscount{{{ONE}}}": "1x30"},
    "EinmalPartitionsBelowMinIsr": {f"kafka_server_replicamanager_underminisrpartitioncount{{{ONE}}}": "2x30"},
    "EinmalPartitionsUnderReplicated": {f"kafka_server_replicamanager_underreplicatedpartitions{{{ONE}}}": "2x30"},
    "EinmalUncleanElection": {
        f"kafka_controller_controllerstats_uncleanleaderelections_total{{{ONE}}}": "0x25 1x5",
    },
    "EinmalLogOffline": {f"kafka_log_logmanager_offlinelogdirectorycount{{{ONE}}}": "1x30"},
    "EinmalReadersHeldBack": {f'einmal_txn_lso_held_seconds{{{ONE},topic="t",partition="0"}}': "0+60x30"},
    "EinmalTransactionsLate": {
        f"kafka_server_replicamanager_partitionswithlatetransactionscount{{{ONE}}}": "1x30",
    },
    "EinmalEndsSlow": {
        f'einmal_txn_phase_seconds_bucket{{{ONE},phase="markers",le="5.0"}}': "0x30",
        f'einmal_txn_phase_seconds_bucket{{{ONE},phase="markers",le="10.0"}}': "0+10x30",
        f'einmal_txn_phase_seconds_bucket{{{ONE},phase="markers",le="+Inf"}}': "0+10x30",
    },
    "EinmalZombies": {f'einmal_producer_fenced_total{{{ONE},cause="partition"}}': "0+2x30"},
    "EinmalSequencesWithGaps": {f'einmal_out_of_order_sequence_total{{{ONE},topic="t"}}': "0+2x30"},
    "EinmalThreadBusy": {f"kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent{{{ONE}}}": "0.05x30"},
    "EinmalFewDescriptors": {f"process_open_fds{{{ONE}}}": "95x30", f"process_max_fds{{{ONE}}}": "100x30"},
}
"""For each alert the series that make it fire, in promtool's notation, a value each minute."""


@pytest.fixture(autouse=True)
def _programs() -> None:
    try:
        program("prometheus")
        program("promtool")
    except Unavailable as error:
        pytest.skip(str(error))


def test_promtool_accepts_the_rules() -> None:
    assert f"{len(PROVOKED)} rules found" in promtool("check", "rules", str(ALERTS))


def test_each_alert_fires_where_it_is_provoked_and_no_other_does(tmp_path: Path) -> None:
    scraped = f"kafka_controller_kafkacontroller_activecontrollercount{{{ONE}}}"

    def one(given: Mapping[str, str], expected: list[str]) -> dict[str, Any]:
        series = {scraped: "1x30", **given} if given else {}
        return {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "promql_expr_test": [
                {
                    "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                    "eval_time": "28m",
                    "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in expected],
                }
            ],
        }

    tests = [one(series, [name]) for name, series in PROVOKED.items()]
    quiet = {name: "0x30" for series in PROVOKED.values() for name in series if "_total" in name}
    tests.append(one({**quiet, f"up{{{ONE}}}": "1x30"}, []))
    file = tmp_path / "tests.json"
    file.write_text(json.dumps({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": tests}))
    assert "SUCCESS" in promtool("test", "rules", str(file))


# --- three brokers -----------------------------------------------------------------------------------------------


async def _until(claim: Callable[[], Any], seconds: float = 60) -> Any:
    """Wait until it is true, asked in a thread; what it is then."""
    async with asyncio.timeout(patient(seconds)):
        while not (result := await asyncio.to_thread(claim)):  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    return result


class _Load:
    """Transactions, a group, and what brokers refuse."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def prepare(self) -> None:
        node = next(iter(self._cluster.nodes.values()))
        async with Client.connect(node) as client:
            topic = {"name": "t", "num_partitions": 1, "replication_factor": 3, "configs": []}
            await client.call(CREATE_TOPICS, 7, {"topics": [topic], "timeout": 60_000, "validate_only": False})
            for key_type in (0, 1):
                await client.call(FIND_COORDINATOR, 3, {"key": GROUP, "key_type": key_type})
        await self._cluster.until(lambda: self._cluster.leader("t"), 60)
        await self._commit_an_offset()
        await self._transact("open", committed=None)

    async def run(self) -> None:
        number = 0
        while True:
            number += 1
            await self._transact("orders", committed=bool(number % 3))
            await self._refused(ProducerId(900_000 + number))
            await asyncio.sleep(0.05)

    async def _commit_an_offset(self) -> None:
        offset = {"partition_index": 0, "committed_offset": 0, "committed_leader_epoch": -1, "committed_metadata": ""}
        fields = {
            "group_id": GROUP,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [{"name": "t", "partitions": [offset]}],
        }
        await self._at_coordinator(OFFSET_COMMIT, 8, fields, lambda answer: answer.topics[0].partitions[0].error_code)

    async def _at_coordinator(self, api: int, version: int, fields: Any, error: Callable[[Any], ErrorCode]) -> Any:
        """Ask every node until one is the coordinator, and has an answer."""
        async with asyncio.timeout(patient(60)):
            while True:
                for node in list(self._cluster.nodes.values()):
                    async with Client.connect(node) as client:
                        answer = await client.call(api, version, fields)
                        if error(answer) is ErrorCode.none:
                            return answer
                await asyncio.sleep(0.05)

    async def _transact(self, name: str, *, committed: bool | None) -> None:
        """``committed`` None: it stays open."""
        identity = {"transactional_id": name, "transaction_timeout": 600_000, "producer_id": -1, "producer_epoch": -1}
        got = await self._at_coordinator(INIT, 5, identity, lambda answer: ErrorCode(answer.error_code))
        who = ProducerIdAndEpoch(got.producer_id, got.producer_epoch)
        async with Client.connect(self._leader()) as client:
            sent = batch(b"a", b"b", producer=who, sequence=0, transactional=True)
            await client.produce("t", sent, version=12, name=name)
            await client.fetch("t", 0)
        if committed is not None:
            values = {"transactional_id": name, "producer_id": who.producer_id, "producer_epoch": who.producer_epoch}
            fields = {**values, "committed": committed}
            await self._at_coordinator(END, 5, fields, lambda answer: ErrorCode(answer.error_code))

    def _leader(self) -> Any:
        return self._cluster.nodes[self._cluster.leader("t")]

    async def _refused(self, producer_id: ProducerId) -> None:
        old, new = (ProducerIdAndEpoch(producer_id, ProducerEpoch(epoch)) for epoch in (0, 1))
        async with Client.connect(self._leader()) as client:
            for producer, sequence in ((old, 0), (old, 0), (old, 9), (new, 0), (old, 1)):
                await client.produce("t", batch(b"c", producer=producer, sequence=sequence))


@asynccontextmanager
async def _under_load(cluster: Cluster) -> AsyncIterator[None]:
    load = _Load(cluster)
    await load.prepare()
    running = asyncio.ensure_future(load.run())
    try:
        yield
        assert not running.done(), running
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


def _without_pauses(folder: Path) -> Path:
    """The rules as they are, but that they fire at once."""
    rules = folder / "rules.yml"
    rules.write_text("".join(line for line in ALERTS.read_text().splitlines(True) if "        for: " not in line))
    return rules


@contextlib.contextmanager
def _scraped(cluster: Cluster, folder: Path) -> Iterator[Prometheus]:
    targets = []
    for node in cluster.nodes.values():
        assert node.monitoring is not None
        targets.append(str(node.monitoring.endpoint))
    with scraping(folder / "prometheus", targets, _without_pauses(folder)) as prometheus:
        yield prometheus


@pytest.mark.time_limit(240)
async def test_queries_have_data_and_a_stopped_broker_raises_alerts(tmp_path: Path) -> None:
    options: dict[str, Any] = {"metrics_listeners": "0", "secret": "between us, and nobody else"}
    async with running_cluster(tmp_path / "brokers", **options) as cluster, _under_load(cluster):
        with _scraped(cluster, tmp_path) as prometheus:
            await _until(lambda: len(prometheus.query("count_over_time(up[1m]) >= 5 and up == 1")) == 3)
            wanted = [*(query for _file, query in queries()), *sorted(elsewhere())]
            await _until(lambda: prometheus.query("rate(einmal_txn_phase_seconds_count[1m]) > 0"))
            empty = [query for query in wanted if not await asyncio.to_thread(prometheus.query, query)]
            assert empty == []
            assert len(await asyncio.to_thread(prometheus.query, "kafka_topic_partitions == 1")) >= 1
            lag = await asyncio.to_thread(prometheus.query, f'kafka_consumergroup_lag{{consumergroup="{GROUP}"}}')
            assert float(lag[0]["value"][1]) > 0
            calm = await asyncio.to_thread(prometheus.firing)
            assert calm <= {"EinmalZombies", "EinmalSequencesWithGaps", "EinmalThreadBusy"}, calm
            victim = next(each for each in cluster.nodes if each != cluster.leader("t"))
            running = set(cluster.nodes) - {victim}
            assert len(running) == 2
            # The load goes to the others only: it asks every node that is there.
            await cluster.stop(victim)
            await _until(lambda: {"EinmalBrokerDown", "EinmalPartitionsUnderReplicated"} <= prometheus.firing(), 90)
