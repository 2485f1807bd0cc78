"""Brokers for the interop tests: Apache Kafka and ours, each started once per run, when first asked for.

Apache Kafka needs Java and Maven; where one is missing, its tests are skipped with a reason. Ours is never skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.interop.apache_kafka import ApacheKafka, KafkaUnavailable, in_the_long_run
from tests.interop.apache_tools import end_dumper
from tests.interop.cluster import Cluster, einmal_cluster
from tests.interop.einmal_broker import EinmalBroker
from tests.interop.topics import Broker, create_topic
from tests.interop.transaction_driver import TV1, TV2, Dialect, TransactionDriver
from tests.security.secure_kafka import SecureKafka
from tests.suite.shared import shared, unique

Node = ApacheKafka | EinmalBroker
NodeFactory = Callable[[str, int], Node]


@dataclass(frozen=True)
class Setting:
    """A running broker, and how a client speaks to it.

    The broker's own ``transaction.version`` and the client's version are two things: a TV1 client may speak to a
    TV2 broker.
    """

    node: Node
    dialect: Dialect

    @property
    def broker(self) -> Broker:
        return Broker(self.node.host, self.node.port)

    @property
    def broker_is_tv1(self) -> bool:
        return self.node.transaction_version == 1

    @property
    def is_apache(self) -> bool:
        return isinstance(self.node, ApacheKafka)

    def restart_after_kill(self) -> None:
        """For a setting of a test's own: see ``own_setting``."""
        self.node.kill()
        self.node.start()

    def driver(self, *, partitions: int = 6, timeout_ms: int = 60_000) -> TransactionDriver:
        """A driver with a new transactional id and a new topic."""
        name = unique("interop")
        create_topic(self.broker, name, partitions)
        return TransactionDriver(self.broker, f"id-of-{name}", name, self.dialect, timeout_ms=timeout_ms)


_SHARED: Final = {("apache", 1): "apache-TV1", ("apache", 2): "apache", ("einmal", 2): "einmal"}


@pytest.fixture(scope="session")
def node_of() -> NodeFactory:
    """Gives the node of a kind ("apache" or "einmal") and transaction version, which the whole run shares."""
    return lambda kind, transaction_version: shared(_SHARED[kind, transaction_version])


@pytest.fixture(scope="module")
def own_node_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeFactory]:
    """As ``node_of``, for tests that kill: nodes of the module's own."""
    nodes: dict[tuple[str, int], Node] = {}

    def get(kind: str, transaction_version: int) -> Node:
        if (kind, transaction_version) not in nodes:
            node = _make(kind, transaction_version, tmp_path_factory.mktemp(f"{kind}-{transaction_version}-"))
            node.start()
            nodes[kind, transaction_version] = node
        return nodes[kind, transaction_version]

    yield get
    for node in nodes.values():
        node.stop()


def _make(kind: str, transaction_version: int, directory: Path) -> Node:
    if kind == "einmal":
        return EinmalBroker(directory)
    try:
        return ApacheKafka(directory, transaction_version=transaction_version)
    except KafkaUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def apache_kafka(node_of: NodeFactory) -> Node:
    """Apache Kafka of the newest release; ``.bootstrap`` is its address."""
    return node_of("apache", 2)


@pytest.fixture(scope="session")
def secure_kafka() -> SecureKafka:
    """Apache Kafka with SASL_SSL, SSL with client certificates, and PLAINTEXT; the whole run shares it."""
    node: SecureKafka = shared("secure-apache")
    return node


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """``client_at_kill``: each of the module's CLIENTS in turn.

    What the broker keeps does not depend on the client, so all but the first are left to the long run.
    """
    if "client_at_kill" in metafunc.fixturenames:
        first, *others = metafunc.module.CLIENTS
        clients = [first, *(pytest.param(each, marks=pytest.mark.long) for each in others)]
        metafunc.parametrize("client_at_kill", clients, ids=[each.__name__ for each in (first, *others)])


@pytest.fixture(scope="module", autouse=True)
def _dumper_ends() -> Iterator[None]:
    yield
    end_dumper()


@pytest.fixture(scope="session", params=[*map(in_the_long_run, ("apache", "einmal"))])
def broker(request: pytest.FixtureRequest, node_of: NodeFactory) -> Node:
    """Each of the two brokers in turn, as its users find it; ``.bootstrap`` is its address.

    What other clients get from Apache Kafka changes with a release of theirs, not with a change of ours.
    """
    return node_of(request.param, 2)


@pytest.fixture(scope="module")
def _three_brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    # Not for the session: three idle brokers use more in a minute than to start them takes.
    cluster = einmal_cluster(tmp_path_factory.mktemp("three"), settings={"log.cleaner.backoff.ms": "100"})
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def three_brokers(_three_brokers: Cluster) -> Iterator[Cluster]:
    """Three of ours; each of them serves, before a test and after it."""
    yield _three_brokers
    for node_id in list(_three_brokers.dead):
        _three_brokers.start_node(node_id)


SETTINGS: Final = {
    "apache-TV1-broker": ("apache", 1, TV1),
    "apache-TV1-client": ("apache", 2, TV1),
    "apache-TV2": ("apache", 2, TV2),
    "einmal-TV1-client": ("einmal", 2, TV1),
    "einmal-TV2": ("einmal", 2, TV2),
}


def setting_named(name: str, node_of: NodeFactory) -> Setting:
    kind, transaction_version, dialect = SETTINGS[name]
    return Setting(node_of(kind, transaction_version), dialect)


@pytest.fixture(params=[*map(in_the_long_run, SETTINGS)])
def setting(request: pytest.FixtureRequest, node_of: NodeFactory) -> Setting:
    """Each broker under each transaction version; Apache Kafka, whose answers are the reference, in the long run."""
    return setting_named(request.param, node_of)


@pytest.fixture(params=[*map(in_the_long_run, SETTINGS)])
def own_setting(request: pytest.FixtureRequest, own_node_of: NodeFactory) -> Setting:
    """Each broker under each transaction version, for tests that kill it; Apache Kafka in the long run."""
    return setting_named(request.param, own_node_of)


@pytest.fixture(params=[in_the_long_run(name) for name in SETTINGS if "TV1" in name])
def setting_of_tv1(request: pytest.FixtureRequest, node_of: NodeFactory) -> Setting:
    """Each broker with a TV1 client; Apache Kafka in the long run."""
    return setting_named(request.param, node_of)


@pytest.fixture(params=[name for name in SETTINGS if "einmal" in name])
def own_setting_of_einmal(request: pytest.FixtureRequest, own_node_of: NodeFactory) -> Setting:
    """Our broker under each transaction version, for tests that kill it."""
    return setting_named(request.param, own_node_of)


@pytest.fixture
def driver(setting: Setting) -> Iterator[TransactionDriver]:
    """A driver with a topic of six partitions."""
    with setting.driver() as driver:
        yield driver
