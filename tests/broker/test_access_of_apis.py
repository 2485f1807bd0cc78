"""Every API asks for access: without ACLs nothing is revealed and nothing done, and nodes are nobody but nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from einmal.broker.front.apis import APIS, On, entries_on
from einmal.broker.node import Node
from einmal.security.principal import USER, Principal
from einmal.types import ErrorCode
from tests.broker.acl_requests import (
    CLUSTER_REQUESTS,
    CONTROLLER_REQUESTS,
    EVERYTHING,
    GROUP_REQUESTS,
    NO_ID,
    NOBODYS,
    OPEN,
    TOPIC_DELETIONS,
    TOPIC_REQUESTS,
    TRANSACTION_REQUESTS,
    Request,
)
from tests.broker.acl_side import NoNode, Side, einmal_side, errors_of, normalized, prepare, secured_node

AUTHORIZATION_ERRORS: Final = {
    ErrorCode.topic_authorization_failed,
    ErrorCode.group_authorization_failed,
    ErrorCode.cluster_authorization_failed,
    ErrorCode.transactional_id_authorization_failed,
}
ALICE: Final = Principal(USER, "alice")
UNASKED: Final = {17: "comes before authentication", 18: "is answered before authentication", 36: "is authentication"}
"""APIs that ask for nothing, by their keys."""
ASKING: Final = (
    *TOPIC_REQUESTS,
    *TOPIC_DELETIONS,
    *GROUP_REQUESTS,
    *TRANSACTION_REQUESTS,
    *CLUSTER_REQUESTS,
    *CONTROLLER_REQUESTS,
)
FILTERED: Final = {
    3: "Metadata without topics has brokers, and no operations",
    16: "ListGroups leaves out what the sender may not see",
    60: "DescribeCluster has brokers, and no operations",
}
"""APIs that deny by leaving out, in requests about the cluster."""


@pytest.fixture
async def side(tmp_path: Path) -> AsyncIterator[Side]:
    """A broker with the resources of the matrix, and no ACLs."""
    async with einmal_side(tmp_path) as side:
        await prepare(side, [OPEN, NOBODYS], [OPEN, NOBODYS], OPEN)
        await side.set_acls([])
        yield side


def test_every_api_has_requests_in_the_acl_matrix() -> None:
    """To add an API, add its requests to ``acl_requests.py``."""
    assert {entry.key for entry in APIS} - {request.api_key for request in ASKING} - UNASKED.keys() == {66}
    assert 66 in {request.api_key for request in EVERYTHING}, "ListTransactions is about all that may be seen"


def named(request: Request) -> str:
    return f"{request.api_key}-{request.version}{'-' if request.about else ''}{request.about.replace(' ', '-')}"


async def test_without_acls_every_request_is_denied_whether_its_resource_exists_or_not(side: Side) -> None:
    for request in ASKING:
        of_controllers = request in CONTROLLER_REQUESTS
        answers = [await side.ask(request, name, of_controllers=of_controllers) for name in (NOBODYS, OPEN)]
        if request in CLUSTER_REQUESTS and request.api_key in FILTERED:
            continue
        codes = [errors_of(answer) for answer in answers]
        if request.about == "by id" or request.api_key in (8, 9, 20) and request.about:
            assert codes[0] & AUTHORIZATION_ERRORS, named(request)
            continue
        for code in codes:
            assert code and code <= AUTHORIZATION_ERRORS | {ErrorCode.none}, (named(request), answers)
            assert code & AUTHORIZATION_ERRORS, (named(request), answers)


async def test_without_acls_nothing_is_listed(side: Side) -> None:
    for request in EVERYTHING:
        text = repr(await side.ask(request))
        assert NOBODYS not in text and (OPEN not in text or request.api_key in (9, 65)), named(request)


# --- nodes ---------------------------------------------------------------------------------------------------------


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """A node whose listeners for brokers and controllers authenticate. Alice may do everything."""
    async with secured_node(tmp_path, super_users=str(ALICE)) as node:
        yield node


async def ask_as_alice(node: Node, listener: str, request: Request) -> Any:
    connection = NoNode(node, listener, ALICE)
    answer = await connection.call(request.api_key, request.version, request.fields(OPEN, NO_ID))
    return normalized(answer, {})


OF_NODES: Final = (
    *(("CONTROLLER", request) for request in CONTROLLER_REQUESTS if request.api_key != 60),
    *(("INTERNAL", request) for request in CLUSTER_REQUESTS if request.api_key in (1, 24)),
    *(("PLAINTEXT", request) for request in CLUSTER_REQUESTS if request.api_key in (1, 24)),
)


def test_all_apis_of_controllers_only_are_among_the_requests_of_nodes() -> None:
    of_clients = {entry.key for entry in entries_on(On.BROKERS)}
    only = {entry.key for entry in entries_on(On.CONTROLLERS)} - of_clients
    assert only <= {request.api_key for _listener, request in OF_NODES}


@pytest.mark.parametrize(
    ("listener", "request_"), OF_NODES, ids=[f"{listener}-{named(request)}" for listener, request in OF_NODES]
)
async def test_a_super_user_that_is_no_node_acts_as_none(
    node: Node, listener: str, request_: Request, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await ask_as_alice(node, listener, request_)
    assert errors_of(answer) == {ErrorCode.cluster_authorization_failed}
    assert "only a broker of this cluster may send" in caplog.text


async def test_a_client_with_every_acl_does_not_commit_by_a_marker(node: Node) -> None:
    marker = {"producer_id": 1, "producer_epoch": 0, "transaction_result": True, "coordinator_epoch": 0}
    topics = [{"name": OPEN, "partition_indexes": [0]}]
    request = Request(27, 1, lambda _n, _: {"markers": [{**marker, "topics": topics}]})
    for listener in ("PLAINTEXT", "INTERNAL"):
        answer = await ask_as_alice(node, listener, request)
        assert errors_of(answer) == {ErrorCode.cluster_authorization_failed}
