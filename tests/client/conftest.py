"""Brokers for the client's tests: Apache Kafka of both transaction versions, and ours. Started when first asked for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.interop.conftest import Node, NodeFactory, node_of, own_node_of
from tests.suite.shared import unique

__all__ = ["node_of", "own_node_of"]

NameFactory = Callable[[str], str]


NODES = [
    pytest.param(("apache", 2), id="apache-TV2", marks=pytest.mark.interop),
    pytest.param(("apache", 1), id="apache-TV1", marks=[pytest.mark.interop, pytest.mark.long]),
    pytest.param(("einmal", 2), id="einmal", marks=pytest.mark.system),
]

OWN_NODES = [
    pytest.param(("apache", 2), id="apache-TV2", marks=[pytest.mark.interop, pytest.mark.long]),
    pytest.param(("apache", 1), id="apache-TV1", marks=[pytest.mark.interop, pytest.mark.long]),
    pytest.param(("einmal", 2), id="einmal", marks=pytest.mark.system),
]


@pytest.fixture(params=NODES)
def node(request: pytest.FixtureRequest, node_of: NodeFactory) -> Node:
    """Each broker in turn; skipped with its reason where Java or Maven is missing."""
    return node_of(*request.param)


@pytest.fixture(params=OWN_NODES)
def own_node(request: pytest.FixtureRequest, own_node_of: NodeFactory) -> Node:
    """As ``node``, for a test that kills it. Apache Kafka starts so slowly that only the long run does that to it."""
    return own_node_of(*request.param)


@pytest.fixture
def bootstrap(node: Node) -> str:
    """Its address."""
    return node.bootstrap


@pytest.fixture
def name() -> NameFactory:
    """Makes names that no other test uses: of topics, groups, transactional ids."""
    return lambda what: unique(f"client-{what}")
