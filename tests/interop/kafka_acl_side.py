"""Apache Kafka with its StandardAuthorizer, as the reference of the ACL matrix."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from einmal.broker.config import STANDARD_AUTHORIZER
from tests.broker.acl_side import Side
from tests.broker.nodes import Client
from tests.interop.apache_kafka import ApacheKafka
from tests.ports import loopback_ports

_PASSWORD: Final = "of-the-matrix"
_PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule required"


@asynccontextmanager
async def kafka_side(directory: Path) -> AsyncIterator[Side]:
    """Raises KafkaUnavailable. Brokers, and the admin, are ANONYMOUS there, a super user."""
    (controllers,) = loopback_ports(1)
    jaas = f'{_PLAIN} username="admin" password="{_PASSWORD}" user_admin="{_PASSWORD}" user_alice="{_PASSWORD}";'
    settings = {
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:admin;User:ANONYMOUS",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_PLAINTEXT,CLIENT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.controller.plain.sasl.jaas.config": jaas,
        "listener.name.client.plain.sasl.jaas.config": jaas,
    }
    node = ApacheKafka(
        directory, settings=settings, listeners={"CLIENT": "SASL_PLAINTEXT"}, controller_ports={1: controllers}
    )
    node.start()
    try:
        async with AsyncExitStack() as stack:
            admin = await stack.enter_async_context(Client.connect_to(node.port))
            yield Side(admin, (node.ports["CLIENT"], controllers), stack, _PASSWORD)
    finally:
        node.stop()
