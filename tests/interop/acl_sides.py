"""The two brokers of the ACL matrix, Apache Kafka and ours, under the same ACLs and with the same resources.

The principal of the matrix is alice on Apache Kafka, authenticated by SASL; on ours it is ANONYMOUS.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol
from uuid import UUID

from einmal.broker.node import Node
from einmal.security.acl import CLUSTER_NAME, WILDCARD, Acl, AclOperation, PatternType, Permission, ResourceType
from einmal.security.authorizer import StandardAuthorizer
from einmal.security.principal import ANONYMOUS
from einmal.types import ErrorCode
from tests.broker.nodes import Client, running_node
from tests.interop.acl_requests import NO_ID, Fields, Request
from tests.interop.apache_kafka import ApacheKafka
from tests.ports import loopback_ports

_PASSWORD: Final = "of-the-matrix"
_PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule required"
_CHUNK: Final = 500
_SENTINEL: Final = "sentinel"


class Side(Protocol):
    """``admin`` may do everything; ``sender`` and ``to_controllers`` are of the matrix' principal."""

    principal: str
    admin: Client
    topic_ids: dict[str, UUID]

    async def set_acls(self, acls: Sequence[Acl]) -> None:
        """These ACLs hold, and no others, once it returns; their principal is replaced."""

    async def ask(self, request: Request, name: str, *, of_controllers: bool = False) -> Any:
        """The answer to the matrix' principal."""


@dataclass
class _Common:
    """``ports``: of the listeners of clients and of controllers."""

    principal: str
    admin: Client
    ports: tuple[int, int]
    stack: AsyncExitStack
    topic_ids: dict[str, UUID] = field(default_factory=dict)
    _clients: dict[int, Client] = field(default_factory=dict)

    async def ask(self, request: Request, name: str, *, of_controllers: bool = False) -> Any:
        fields = request.fields(name, self.topic_ids.get(name, NO_ID))
        port = self.ports[of_controllers]
        try:
            client = self._clients.get(port) or await self._connect(port)
            return await client.call(request.api_key, request.version, fields)
        except (asyncio.IncompleteReadError, ConnectionError):
            self._clients.pop(port, None)
            return "the connection is closed"

    async def _connect(self, port: int) -> Client:
        client = self._clients[port] = await self.stack.enter_async_context(Client.connect_to(port))
        await self.authenticate(client)
        return client

    async def authenticate(self, client: Client) -> None:
        """Nothing to do on a listener without SASL."""


class KafkaSide(_Common):
    async def authenticate(self, client: Client) -> None:
        assert (await client.call(17, 1, {"mechanism": "PLAIN"})).error_code is ErrorCode.none
        token = f"\0alice\0{_PASSWORD}".encode()
        assert (await client.call(36, 2, {"auth_bytes": token})).error_code is ErrorCode.none

    async def set_acls(self, acls: Sequence[Acl]) -> None:
        every = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
        await self.admin.call(31, 2, {"filters": [every]})
        for start in range(0, len(acls), _CHUNK):
            answer = await self.admin.call(30, 2, {"creations": [self._created(acl) for acl in acls[start:][:_CHUNK]]})
            assert {each.error_code for each in answer.results} == {ErrorCode.none}
        # Broker and controller each learn the ACLs by replaying them, a little later.
        sentinel = f"{_SENTINEL}-{len(self.topic_ids)}-{id(acls)}"
        names = (AclOperation.DESCRIBE, AclOperation.ALTER)
        last = [
            Acl(ResourceType.TOPIC, sentinel, PatternType.LITERAL, "", WILDCARD, each, Permission.ALLOW)
            for each in names
        ]
        await self.admin.call(30, 2, {"creations": [self._created(acl) for acl in last]})
        await self._until_decided(sentinel)

    async def _until_decided(self, sentinel: str) -> None:
        at_broker = Request(
            2,
            7,
            lambda topic, _: {
                "replica_id": -1,
                "topics": [{"name": topic, "partitions": [{"partition_index": 0, "timestamp": -1}]}],
            },
        )
        at_controller = Request(
            37, 3, lambda topic, _: {"topics": [{"name": topic, "count": 3}], "timeout": 1, "validate_only": True}
        )
        async with asyncio.timeout(20):
            for probe in (at_broker, at_controller):
                while "29" in str(normalized(await self.ask(probe, sentinel), {})):
                    await asyncio.sleep(0.01)

    def _created(self, acl: Acl) -> Fields:
        return {
            "resource_type": acl.resource_type,
            "resource_name": acl.resource_name,
            "resource_pattern_type": acl.pattern_type,
            "principal": acl.principal or self.principal,
            "host": acl.host,
            "operation": acl.operation,
            "permission_type": acl.permission,
        }


class EinmalSide(_Common):
    authorizer: StandardAuthorizer

    async def set_acls(self, acls: Sequence[Acl]) -> None:
        self.authorizer.replace(acl._replace(principal=acl.principal or self.principal) for acl in acls)


@asynccontextmanager
async def kafka_side(directory: Path) -> AsyncIterator[KafkaSide]:
    """Raises KafkaUnavailable. Brokers, and the admin, are ANONYMOUS there, a super user."""
    (controllers,) = loopback_ports(1)
    jaas = f'{_PLAIN} username="admin" password="{_PASSWORD}" user_admin="{_PASSWORD}" user_alice="{_PASSWORD}";'
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin;User:ANONYMOUS",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_PLAINTEXT,CLIENT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.controller.plain.sasl.jaas.config": jaas,
        "listener.name.client.plain.sasl.jaas.config": jaas,
        "auto.create.topics.enable": "true",
    }
    node = ApacheKafka(
        directory, settings=settings, listeners={"CLIENT": "SASL_PLAINTEXT"}, controller_ports={1: controllers}
    )
    node.start()
    try:
        async with AsyncExitStack() as stack:
            admin = await stack.enter_async_context(Client.connect_to(node.port))
            yield KafkaSide("User:alice", admin, (node.ports["CLIENT"], controllers), stack)
    finally:
        node.stop()


@asynccontextmanager
async def einmal_side(directory: Path) -> AsyncIterator[EinmalSide]:
    (controllers,) = loopback_ports(1)
    settings = {
        "process.roles": "broker,controller",
        "listeners": f"PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:{controllers}",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"1@127.0.0.1:{controllers}",
        "node.id": "1",
        "num.partitions": "4",
        "offsets.topic.num.partitions": "3",
        "transaction.state.log.num.partitions": "3",
        "group.initial.rebalance.delay.ms": "0",
    }
    async with running_node(directory, settings) as node, AsyncExitStack() as stack:
        admin = await stack.enter_async_context(Client.connect(node))
        side = EinmalSide(str(ANONYMOUS), admin, (node.port, controllers), stack)
        side.authorizer = _authorizer(node)
        yield side


def _authorizer(node: Node) -> StandardAuthorizer:
    """ACLs are set from outside: all who connect are the same principal, which may not create any."""
    authorizer = StandardAuthorizer()
    everything = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
    literal, allow = PatternType.LITERAL, Permission.ALLOW
    acls = [Acl(each, WILDCARD, literal, str(ANONYMOUS), WILDCARD, AclOperation.ALL, allow) for each in everything]
    acls.append(Acl(ResourceType.CLUSTER, CLUSTER_NAME, literal, str(ANONYMOUS), WILDCARD, AclOperation.ALL, allow))
    authorizer.replace(acls)
    node.access._authorizer = authorizer
    return authorizer


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


async def _begin(admin: Client, transactional_id: str, topics: Sequence[str]) -> None:
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


async def _until_ready(client: Client, api_key: int, version: int, fields: Fields) -> Any:
    """The first answer without an error: coordinators, and new leaders, take a moment."""
    async with asyncio.timeout(60):
        while True:
            answer = await client.call(api_key, version, fields)
            if not re.search(r"ErrorCode\.(?!none\b)", repr(answer)):
                return answer
            await asyncio.sleep(0.05)


_NAMES: Final = ("name", "topic", "group_id", "key", "transactional_id", "resource_name", "topic_name", "topic_id")
_INDEXES: Final = ("partition_index", "partition", "index", "partition_id", "producer_id")
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
        elif isinstance(found, tuple) and name not in ("configs", "supported_features", "finalized_features"):
            kept[name] = normalized(found, topic_names)
    return kept


def errors_of(value: Any) -> set[int]:
    """All error codes of a normalized answer."""
    if isinstance(value, dict):
        own = {code for name, code in value.items() if name.endswith("error_code")}
        return own.union(*(errors_of(each) for each in value.values()))
    return set().union(*map(errors_of, value)) if isinstance(value, list) else set()
