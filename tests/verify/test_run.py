"""Claims about verdicts of ``einmal verify`` on a real broker: the right workloads are green, each control is red."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

from einmal.chaos.connection_faults import ConnectionFaults
from einmal.chaos.proxy.rules import Disturbance
from einmal.client.aio import Admin
from einmal.evidence.environment import run_environment
from einmal.local.apache_kafka import KafkaJars
from einmal.spark.environment.java import use_java
from einmal.verify.clients.processes import CLIENTS, JAVA, JavaLibrary
from einmal.verify.evidence import Evidence
from einmal.verify.page import page
from einmal.verify.run import PREFIX, VerifyOptions, VerifyRun
from einmal.verify.verdict import RunVerdict
from einmal.workloads.controls import CONTROLS
from tests.interop.apache_kafka import KafkaUnavailable, classpath
from tests.interop.conftest import Node
from tests.interop.einmal_broker import EinmalBroker
from tests.security.secure_kafka import SecureKafka
from tests.suite.patience import as_slow, patient
from tests.suite.shared import shared, unique

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.time_limit(120)]

_SECONDS = 9.0
"""A group begins to read after three."""
_DISTURBED_S: Final = 15.0
_WORKLOADS: Final = ("appends", "bank")
PYTHONS_CLIENTS: Final = tuple(client for client in CLIENTS if client != JAVA)
_JVM_S: Final = 15.0
"""On a busy machine, until the clients in a new one have done something."""


@pytest.fixture
def bootstrap() -> str:
    broker: EinmalBroker = shared("einmal")
    return broker.bootstrap


async def verified(
    connection: str | Mapping[str, str],
    *,
    client: str = "einmal",
    control: str | None = None,
    workloads: Sequence[str] = _WORKLOADS,
    seconds: float = _SECONDS,
    disturbs_network: bool = False,
) -> Evidence:
    config = {"bootstrap.servers": connection} if isinstance(connection, str) else connection
    options = VerifyOptions(
        client=client,
        java=java_library() if client == JAVA else None,
        workloads=workloads,
        control=control,
        seconds=seconds + (_JVM_S if client == JAVA else 0.0),
        seed=7,
        config=config,
    )
    name = unique("run")
    network = ConnectionFaults(config) if disturbs_network else None
    try:
        evidence, left = await VerifyRun(options, name, None, network, lambda _line: None).run()
    finally:
        if network is not None:
            network.close()
    assert left == []
    async with Admin(config) as admin, asyncio.timeout(patient(10)):
        # Apache Kafka answers a deletion before every broker knows it.
        while await left_of(admin, f"{PREFIX}{name}-"):  # noqa: ASYNC110 - of another process.
            await asyncio.sleep(0.1)
    return evidence


def java_library() -> JavaLibrary:
    try:
        home = Path(classpath("broker")).parent
    except KafkaUnavailable as error:
        pytest.skip(str(error))
    return JavaLibrary(KafkaJars.locate(home, of_clients=True), use_java() / "bin" / "java")


async def left_of(admin: Admin, prefix: str) -> list[str]:
    """Topics and groups of a run."""
    names = [*await admin.list_topics(), *(group.group_id for group in await admin.list_groups())]
    return [each for each in names if each.startswith(prefix)]


async def test_right_workloads_hold_and_each_control_is_an_anomaly_with_a_counter_example(bootstrap: str) -> None:
    right, *wrong = await asyncio.gather(
        verified(bootstrap), *(verified(bootstrap, control=control) for control in CONTROLS)
    )
    assert right.verdict is RunVerdict.HOLDS, right.sentence
    assert all(part.acknowledged and part.read for part in right.workloads)
    kinds = {}
    for control, evidence in zip(CONTROLS, wrong, strict=True):
        assert evidence.verdict is RunVerdict.ANOMALY, (control, evidence.sentence)
        (part,) = evidence.workloads
        assert part.mistake
        shown = list(part.shown(evidence.began))
        kinds[control] = {each.kind for each in shown}
        # A transfer that was lost has left no operation.
        assert control == "offsets-first" or all(each.operations for each in shown)
        assert part.mistake in page(evidence, run_environment(["verify"], {}), [])
    assert "duplicate" in kinds["at-least-once"]
    assert kinds["offsets-first"] == {"lost-write"}
    assert "G1a" in kinds["read-uncommitted"]
    assert kinds["two-transactions"] & {"bank-sum", "torn-transaction", "duplicate"}


@pytest.mark.long
async def test_transactions_of_thousands_of_records_hold(bootstrap: str) -> None:
    evidence = await verified(bootstrap, workloads=["bulk"], seconds=as_slow(3.0))
    assert evidence.verdict is RunVerdict.HOLDS, evidence.sentence
    (part,) = evidence.workloads
    assert part.read >= part.written > 100 * part.acknowledged**0.5


@pytest.mark.representatives(1)
@pytest.mark.interop
@pytest.mark.parametrize("client", [each for each in CLIENTS if each != "einmal"])
async def test_workloads_hold_through_other_libraries(bootstrap: str, client: str) -> None:
    # A member of aiokafka that is late, as on a busy machine, commits offsets of partitions that are another's by then.
    # The bank of Java's clients, each of whose calls takes a while, has a test of its own.
    workloads = ["appends"] if client in ("aiokafka", JAVA) else _WORKLOADS
    evidence = await verified(bootstrap, client=client, workloads=workloads)
    assert evidence.verdict is RunVerdict.HOLDS, evidence.sentence
    assert all(part.acknowledged and part.read for part in evidence.workloads)
    assert evidence.client.startswith(f"{client} ")


@pytest.mark.interop
@pytest.mark.long
async def test_a_bank_holds_through_the_clients_of_java(bootstrap: str) -> None:
    evidence = await verified(bootstrap, client=JAVA, workloads=["bank"], seconds=30.0)
    assert evidence.verdict is RunVerdict.HOLDS, evidence.sentence


@pytest.mark.interop
@pytest.mark.long
async def test_network_faults_reach_the_clients_of_java_on_a_secured_cluster() -> None:
    settings = shared("secure-apache").settings("SCRAM-SHA-512")
    right, disturbed = await asyncio.gather(
        verified(settings, client=JAVA, workloads=["appends"]),
        verified(settings, client=JAVA, workloads=["appends"], seconds=30.0, disturbs_network=True),
    )
    assert right.verdict is RunVerdict.HOLDS, right.sentence
    assert disturbed.verdict is RunVerdict.HOLDS, disturbed.sentence
    assert disturbances(disturbed)


@pytest.mark.long
@pytest.mark.interop
async def test_workloads_hold_on_apache_kafka_and_a_control_is_red_there() -> None:
    node: Node = shared("apache")
    right, wrong = await asyncio.gather(verified(node.bootstrap), verified(node.bootstrap, control="read-uncommitted"))
    assert right.verdict is RunVerdict.HOLDS, right.sentence
    assert wrong.verdict is RunVerdict.ANOMALY, wrong.sentence


async def test_a_right_workload_holds_under_network_faults_and_a_control_does_not(bootstrap: str) -> None:
    right, wrong = await asyncio.gather(
        verified(bootstrap, workloads=["appends"], seconds=_DISTURBED_S, disturbs_network=True),
        verified(bootstrap, control="at-least-once", seconds=_DISTURBED_S, disturbs_network=True),
    )
    assert right.verdict is RunVerdict.HOLDS, right.sentence
    assert wrong.verdict is RunVerdict.ANOMALY, wrong.sentence
    assert disturbances(right)
    assert not any("answers" in each for each in right.not_tested)


@pytest.mark.long
@pytest.mark.interop
async def test_network_faults_reach_a_secured_cluster_of_apache_kafka_whatever_the_client() -> None:
    settings = shared("secure-apache").settings("SCRAM-SHA-512")
    runs = (
        verified(settings, client=client, workloads=["appends"], seconds=_DISTURBED_S, disturbs_network=True)
        for client in PYTHONS_CLIENTS
    )
    for evidence in await asyncio.gather(*runs):
        assert evidence.verdict is RunVerdict.HOLDS, (evidence.client, evidence.sentence)
        assert disturbances(evidence), evidence.client


def disturbances(evidence: Evidence) -> list[str]:
    return [each.text for each in evidence.faults if each.text.startswith((*Disturbance, "partition"))]


@pytest.mark.long
@pytest.mark.interop
async def test_workloads_hold_over_tls_with_passwords() -> None:
    node: SecureKafka = shared("secure-apache")
    settings = node.settings("SCRAM-SHA-512")
    runs = (verified(settings, client=client, workloads=["appends"]) for client in PYTHONS_CLIENTS)
    for evidence in await asyncio.gather(*runs):
        assert evidence.verdict is RunVerdict.HOLDS, (evidence.client, evidence.sentence)
