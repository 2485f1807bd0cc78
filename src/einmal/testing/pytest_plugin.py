"""Fixtures of pytest: brokers, topics, and a proxy that injects faults. pytest loads this in every run.

So nothing is imported or started before a test needs it. Each process of pytest-xdist has brokers of its own.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from einmal.chaos.cluster_faults import ClusterFaults
    from einmal.testing.own_brokers import OwnBrokers
    from einmal.testing.proxy import ApplicationProxy

_OPTION: Final = "kafka_bootstrap_servers"
_VARIABLE: Final = "KAFKA_BOOTSTRAP_SERVERS"
_NODES: Final = 3
_NAME_MAX: Final = 100
_NOT_IN_A_NAME: Final = re.compile(r"[^a-zA-Z0-9_-]+")
_OF_ONE_BROKER: Final = frozenset(("bootstrap_servers", "einmal_broker", "einmal_topic", "kafka_proxy"))
_LAUNCHED: Final[pytest.StashKey[OwnBrokers]] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(_OPTION, f"address of the Kafka cluster of bootstrap_servers; {_VARIABLE} overrides it")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Launch the broker that a test will ask for, so that it starts while other tests run."""
    config = session.config
    if config.getoption("collectonly") or hasattr(config, "workerinput") or _configured(config):
        return
    if any(_wants_one_broker(getattr(test, "fixturenames", ())) for test in session.items):
        from einmal.testing.own_brokers import OwnBrokers

        config.stash[_LAUNCHED] = OwnBrokers(1)


def pytest_unconfigure(config: pytest.Config) -> None:
    launched = config.stash.get(_LAUNCHED, None)
    if launched is not None:
        launched.close()


@pytest.fixture(scope="session")
def einmal_broker(request: pytest.FixtureRequest) -> Iterator[ClusterFaults]:
    """One broker for the session; ``bootstrap_servers`` is its address."""
    from einmal.testing.own_brokers import OwnBrokers

    launched = request.config.stash.get(_LAUNCHED, None)
    brokers = OwnBrokers(1) if launched is None else launched
    yield brokers.wait_until_ready()
    brokers.close()


@pytest.fixture(scope="session")
def _einmal_nodes() -> Iterator[ClusterFaults]:
    from einmal.testing.own_brokers import OwnBrokers

    brokers = OwnBrokers(_NODES)
    yield brokers.wait_until_ready()
    brokers.close()


@pytest.fixture
def einmal_cluster(_einmal_nodes: ClusterFaults) -> Iterator[ClusterFaults]:
    """Three brokers for the session, with ``kill_leader``, ``pause`` and more; before each test all of them serve."""
    yield _einmal_nodes
    if len(_einmal_nodes.serving) < _NODES:
        _einmal_nodes.restore()


@pytest.fixture
def bootstrap_servers(request: pytest.FixtureRequest) -> str:
    """The address of ``einmal_cluster`` in a test that uses it, else the configured one, else of ``einmal_broker``."""
    if "einmal_cluster" not in request.fixturenames and (configured := _configured(request.config)):
        return configured
    name = "einmal_cluster" if "einmal_cluster" in request.fixturenames else "einmal_broker"
    cluster: ClusterFaults = request.getfixturevalue(name)
    return cluster.bootstrap_servers


@pytest.fixture
def einmal_topic(request: pytest.FixtureRequest, bootstrap_servers: str) -> Iterator[str]:
    """The name of a new topic with one partition at ``bootstrap_servers``; on a configured cluster it is deleted."""
    from einmal.client import Admin, NewTopic

    stem = _NOT_IN_A_NAME.sub("-", request.node.name)[:_NAME_MAX]
    name = f"{stem}-{uuid.uuid4().hex[:8]}"
    with Admin({"bootstrap.servers": bootstrap_servers}) as admin:
        admin.create_topics([NewTopic(name, 1)])
    yield name
    if bootstrap_servers == _configured(request.config):
        with Admin({"bootstrap.servers": bootstrap_servers}) as admin:
            admin.delete_topics([name])


@pytest.fixture
def kafka_proxy(bootstrap_servers: str) -> Iterator[ApplicationProxy]:
    """A proxy in front of ``bootstrap_servers``, without faults at first; clients connect to its own address."""
    from einmal.testing.proxy import ApplicationProxy

    with ApplicationProxy(bootstrap_servers) as proxy:
        yield proxy


def _configured(config: pytest.Config) -> str:
    return os.environ.get(_VARIABLE) or str(config.getini(_OPTION) or "")


def _wants_one_broker(names: tuple[str, ...]) -> bool:
    return not _OF_ONE_BROKER.isdisjoint(names) and "einmal_cluster" not in names
