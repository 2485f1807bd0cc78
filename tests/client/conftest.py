"""Brokers for the client's tests: Apache Kafka of both transaction versions, and ours. Started when first asked for."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from tests.interop.conftest import Node, NodeFactory, node_of

__all__ = ["node_of"]

_names = itertools.count()

NameFactory = Callable[[str], str]


@pytest.fixture(
    params=[
        pytest.param(("apache", 2), id="apache-TV2", marks=pytest.mark.interop),
        pytest.param(("apache", 1), id="apache-TV1", marks=pytest.mark.interop),
        pytest.param(("einmal", 2), id="einmal", marks=pytest.mark.system),
    ]
)
def node(request: pytest.FixtureRequest, node_of: NodeFactory) -> Node:
    """Each broker in turn; skipped with its reason where Java or Maven is missing."""
    kind, transaction_version = request.param
    return node_of(kind, transaction_version)


@pytest.fixture
def bootstrap(node: Node) -> str:
    """Its address."""
    return node.bootstrap


@pytest.fixture
def name() -> NameFactory:
    """Makes names that no other test uses: of topics, groups, transactional ids."""
    return lambda what: f"client-{what}-{next(_names)}"
