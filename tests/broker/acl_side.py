"""A broker of the ACL matrix: its ACLs, its resources, and the answers to requests of the matrix' principal."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, cast
from uuid import UUID

from einmal.broker.config import STANDARD_AUTHORIZER
from einmal.broker.front.produce.refused_batches import RefusedBatches
from einmal.broker.front.routing.router import Deferred
from einmal.broker.node import Node
from einmal.broker.rpc.authentication import Authentication
from einmal.security.acl import WILDCARD, Acl, AclOperation, PatternType, Permission, ResourceType
from einmal.security.principal import ANONYMOUS, Principal
from einmal.security.sasl.mechanisms import PLAIN
from einmal.security.sasl.server_mechanisms import PlainServerExchange
from einmal.security.secret import Secret
from einmal.types import ErrorCode
from einmal.wire.messages import encode_request_header, response_body_position
from tests.broker.acl_requests import NO_ID, Fields, Request
from tests.broker.nodes import Client, running_node
from tests.ports import loopback_ports
from tests.suite.patience import patient
from tests.wire.mapped import decode_response, encode_request

_CHUNK: Final = 500


class Admin(Protocol):
    """Asks as somebody who may do everything."""

    async def call(self, api_key: int, version: int, fields: Fields) -> Any: ...


@dataclass
class Side:
    """One broker, and connections of the matrix' principal to its listeners of clients and of controllers.

    ``password``: of alice, who is that principal; None: the listener has no SASL, and it is ANONYMOUS.
    ``of_controllers``: asks on the listener of controllers where ``ports`` has none.
    """

    admin: Admin
    ports: tuple[int, ...]
    stack: AsyncExitStack
    password: str | None = None
    of_controllers: Callable[[int, int, Fields], Awaitable[Any]] | None = None
    topic_ids: dict[str, UUID] = field(default_factory=dict)
    _clients: dict[int, Client] = field(default_factory=dict)
    _acl_sets: Iterator[int] = field(default_factory=itertools.count)

    async def ask(self, request: Request, name: str = "", *, of_controllers: bool = False) -> Any:
        """The normalized answer to the matrix' principal about the resource of this name."""
        fields = request.fields(name, self.topic_ids.get(name, NO_ID))
        try:
            if of_controllers and self.of_controllers is not None:
                answer = await self.of_controllers(request.api_key, request.version, fields)
            else:
                port = self.ports[of_controllers]
                client = self._clients.get(port) or await self._connect(port)
                answer = await client.call(request.api_key, request.version, fields)
        except (asyncio.IncompleteReadError, ConnectionError):
            self._clients.pop(port, None)
            return "the connection is closed"
        return normalized(answer, {topic_id: name for name, topic_id in self.topic_ids.items()})

    async def _connect(self, port: int) -> Client:
        client = self._clients[port] = await self.stack.enter_async_context(Client.connect_to(port))
        if self.password is not None:
            assert (await client.call(17, 1, {"mechanism": "PLAIN"})).error_code is ErrorCode.none
            token = f"\0alice\0{self.password}".encode()
            assert (await client.call(36, 2, {"auth_bytes": token})).error_code is ErrorCode.none
        return client

    async def set_acls(self, acls: Sequence[Acl]) -> None:
        """These ACLs hold, and no others, once it returns. An empty principal is the matrix' own."""
        every = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
        await self.admin.call(31, 2, {"filters": [every]})
        # Broker and controller each learn the ACLs by replaying them, the last ones last.
        sentinel = f"sentinel-{next(self._acl_sets)}"
        last = [topic_acl(sentinel, AclOperation.ALTER)]
        for start in range(0, len(acls), _CHUNK):
            await self._create_acls(acls[start:][:_CHUNK])
        await self._create_acls(last)
        async with asyncio.timeout(patient(20)):
            for probe in (_AT_BROKER, _AT_CONTROLLER):
                while ErrorCode.topic_authorization_failed in errors_of(await self.ask(probe, sentinel)):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

    async def _create_acls(self, acls: Sequence[Acl]) -> None:
        answer = await self.admin.call(30, 2, {"creations": [self._created(acl) for acl in acls]})
        assert {each.error_code for each in answer.results} <= {ErrorCode.none}, answer

    def _created(self, acl: Acl) -> Fields:
        own = "User:ANONYMOUS" if self.password is None else "User:alice"
        return {
            "resource_type": acl.resource_type,
            "resource_name": acl.resource_name,
            "resource_pattern_type": acl.pattern_type,
            "principal": acl.principal or own,
            "host": acl.host,
            "operation": acl.operation,
            "permission_type": acl.permission,
        }


def topic_acl(name: str, operation: AclOperation) -> Acl:
    return Acl(ResourceType.TOPIC, name, PatternType.LITERAL, "", WILDCARD, operation, Permission.ALLOW)


_ASKED: Final = {"partition_index": 0, "timestamp": -1}
_AT_BROKER: Final = Request(
    2, 7, lambda topic, _: {"replica_id": -1, "topics": [{"name": topic, "partitions": [_ASKED]}]}
)
_AT_CONTROLLER: Final = Request(
    37, 3, lambda topic, _: {"topics": [{"name": topic, "count": 3}], "timeout": 1_000, "validate_only": True}
)


@asynccontextmanager
async def einmal_side(directory: Path, **settings: str) -> AsyncIterator[Side]:
    """Ours. Its admin is the node itself, which needs no ACL. ``settings``: further ones, in snake case."""
    async with secured_node(directory, **settings) as node, AsyncExitStack() as stack:
        yield Side(NodeItself(node), (node.port,), stack, of_controllers=NoNode(node, "CONTROLLER").call)


@asynccontextmanager
async def secured_node(directory: Path, super_users: str = "", **others: str) -> AsyncIterator[Node]:
    """A node with an authorizer, whose listeners for brokers and controllers authenticate."""
    brokers, controllers = loopback_ports(2)
    secret = _secret_in(directory)
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "listeners": f"PLAINTEXT://127.0.0.1:0,INTERNAL://127.0.0.1:{brokers},CONTROLLER://127.0.0.1:{controllers}",
        "inter.broker.listener.name": "INTERNAL",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"1@127.0.0.1:{controllers}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INTERNAL:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
        "einmal.cluster.secret.file": str(secret),
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": super_users,
        "num.partitions": "4",
        "offsets.topic.num.partitions": "3",
        "transaction.state.log.num.partitions": "3",
        "group.initial.rebalance.delay.ms": "0",
        **{name.replace("_", "."): value for name, value in others.items()},
    }
    async with running_node(directory / "data", settings) as node:
        yield node


class NoNode:
    """A connection to any listener of a client that has authenticated there, and is no node of the cluster."""

    number = 1
    refused_batches = RefusedBatches()

    def __init__(self, node: Node, listener: str, principal: Principal = ANONYMOUS) -> None:
        self._router = node.servers[listener].router
        self.authentication = Authentication()
        exchange = PlainServerExchange({principal.name: Secret("x")})
        exchange.next(f"\0{principal.name}\0x".encode())
        self.authentication.begin(PLAIN, exchange, is_bare=False)
        self.authentication.succeed(0, None)

    def when_lost(self, key: object, callback: object) -> None:
        """It is not lost."""

    async def call(self, api_key: int, version: int, fields: Fields) -> Any:
        header = encode_request_header(api_key, version, 0, "no-node")
        frame = bytearray(header + encode_request(api_key, version, fields))
        result = self._router.dispatch(frame, "127.0.0.1", cast(Any, self))
        if isinstance(result, Deferred):
            result = self._router.encode(result.header, await result.body())
        answer = b"".join(result)[4:]
        return decode_response(api_key, version, answer, response_body_position(api_key, version, answer))


def _secret_in(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    secret = directory / "secret"
    secret.write_text("a secret of sixteen characters, and more")
    return secret


class NodeItself:
    """Asks a node as the node asks itself."""

    def __init__(self, node: Node, listener: str = "PLAINTEXT") -> None:
        self._router = node.servers[listener].router

    async def call(self, api_key: int, version: int, fields: Fields) -> Any:
        header = encode_request_header(api_key, version, 0, "admin")
        frame = await self._router.answer(bytearray(header + encode_request(api_key, version, fields)), "itself")
        return decode_response(api_key, version, frame, response_body_position(api_key, version, frame))


async def prepare(side: Side, topics: Sequence[str], groups: Iterable[str], transactional_id: str) -> None:
    """Create the topics, commit an offset for each of the groups, and begin a transaction with some topics."""
    admin = side.admin
    for start in range(0, len(topics), _CHUNK):
        wanted = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in topics[start:][:_CHUNK]]
        answer = await admin.call(19, 7, {"topics": wanted, "timeout": 60_000})
        assert {each.error_code for each in answer.topics} == {ErrorCode.none}, answer
        side.topic_ids |= {each.name: each.topic_id for each in answer.topics}
    for key_type in (0, 1):
        await _until_ready(admin, 10, 4, {"coordinator_keys": ["open"], "key_type": key_type})
    for group in groups:
        await _until_ready(admin, 8, 8, _commit(group, ["open"]))
    await _until_ready(admin, 8, 8, _commit("open", list(topics)))
    await _begin(admin, transactional_id, topics)


async def _begin(admin: Admin, transactional_id: str, topics: Sequence[str]) -> None:
    new = {"producer_id": -1, "producer_epoch": -1}
    fields = {"transactional_id": transactional_id, "transaction_timeout": 600_000, **new}
    producer = await _until_ready(admin, 22, 4, fields)
    added = {
        "v3_and_below_transactional_id": transactional_id,
        "v3_and_below_producer_id": producer.producer_id,
        "v3_and_below_producer_epoch": producer.producer_epoch,
        "v3_and_below_topics": [{"name": name, "partitions": [0]} for name in topics],
    }
    await _until_ready(admin, 24, 3, added)


def _commit(group: str, topics: Sequence[str]) -> Fields:
    partition = {"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}
    named = [{"name": name, "partitions": [partition]} for name in topics]
    return {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "topics": named}


async def _until_ready(admin: Admin, api_key: int, version: int, fields: Fields) -> Any:
    """The first answer without an error: coordinators, and new leaders, take a moment."""
    async with asyncio.timeout(patient(60)):
        while True:
            answer = await admin.call(api_key, version, fields)
            if not re.search(r"ErrorCode\.(?!none\b)", repr(answer)):
                return answer
            await asyncio.sleep(0.05)


_NAMES: Final = ("name", "topic", "group_id", "key", "transactional_id", "resource_name", "topic_name", "topic_id")
_IGNORED: Final = ("aborted_transactions", "configs", "node_endpoints", "nodes", "brokers")
"""Arrays that reveal no resource that the matrix is about."""
_COUNTED: Final = ("num_partitions", "replication_factor", "is_internal")


def normalized(value: Any, topic_names: Mapping[UUID, str]) -> Any:
    """All error codes of an answer, the names that it reveals, and authorized operations; lists in a fixed order."""
    if isinstance(value, str | bytes) or value is None:
        return value
    if isinstance(value, tuple | list):
        return sorted((normalized(each, topic_names) for each in value), key=repr)
    fields = getattr(value, "__dataclass_fields__", None)
    if fields is None:
        return ...
    kept: dict[str, Any] = {}
    for name in fields:
        found = getattr(value, name)
        if name.endswith("error_code") or name.endswith("authorized_operations") or name in _COUNTED:
            kept[name] = int(found)
        elif isinstance(found, UUID):
            kept[name] = topic_names.get(found, "unknown id")
        elif name in _NAMES:
            kept[name] = found
        elif isinstance(found, tuple) and name not in _IGNORED:
            kept[name] = normalized(found, topic_names)
    return kept


def errors_of(value: Any) -> set[int]:
    """All error codes of a normalized answer."""
    if isinstance(value, dict):
        own = {code for name, code in value.items() if name.endswith("error_code")}
        return own.union(*(errors_of(each) for each in value.values()))
    return set().union(*map(errors_of, value)) if isinstance(value, list) else set()
