"""Apache Kafka's kafka-acls, librdkafka and kafka-python manage the ACLs of our broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import kafka.admin as other
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tests.interop.apache_kafka import KafkaUnavailable
from tests.interop.apache_tools import ApacheTools
from tests.interop.einmal_broker import EinmalBroker

pytestmark = pytest.mark.interop

ACLS: Final = "AclCommand"
PATIENCE_S: Final = 120.0
OPEN: Final = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    broker = EinmalBroker(tmp_path_factory.mktemp("authorized"), OPEN)
    broker.start()
    yield broker.bootstrap
    broker.stop()


@pytest.fixture(scope="module")
def tools(bootstrap: str) -> Iterator[ApacheTools]:
    try:
        tools = ApacheTools(bootstrap)
    except KafkaUnavailable as reason:
        pytest.skip(str(reason))
    yield tools
    tools.close()


def test_kafka_acls_adds_lists_and_removes(tools: ApacheTools, tmp_path: Path) -> None:
    who = ("--allow-principal", "User:alice")
    tools(ACLS, "--add", *who, "--producer", "--topic", "orders", "--transactional-id", "writer")
    tools(
        ACLS, "--add", *who, "--consumer", "--topic", "orders-", "--resource-pattern-type", "prefixed", "--group", "g"
    )
    tools(ACLS, "--add", "--deny-principal", "User:bob", "--deny-host", "10.0.0.1", "--operation", "All", "--cluster")
    found = tools(ACLS, "--list")
    assert "resourceType=TOPIC, name=orders, patternType=LITERAL" in found
    assert "principal=User:alice, host=*, operation=WRITE, permissionType=ALLOW" in found
    assert "resourceType=GROUP, name=g, patternType=PREFIXED" in found
    assert "resourceType=CLUSTER, name=kafka-cluster, patternType=LITERAL" in found
    assert "principal=User:bob, host=10.0.0.1, operation=ALL, permissionType=DENY" in found
    matching = tools(ACLS, "--list", "--topic", "orders-eu", "--resource-pattern-type", "match")
    assert "name=orders-, patternType=PREFIXED" in matching
    assert "name=orders, " not in matching
    assert "name=orders," in tools(ACLS, "--list", "--principal", "User:alice", "--topic", "orders")
    tools(ACLS, "--remove", "--force", *who, "--operation", "Write", "--topic", "orders")
    assert "operation=WRITE" not in tools(ACLS, "--list", "--topic", "orders")
    for resource in (("--topic", "orders"), ("--topic", "orders-", "--group", "g"), ("--transactional-id", "writer")):
        tools(ACLS, "--remove", "--force", *resource, "--resource-pattern-type", "any")
    tools(ACLS, "--remove", "--force", "--cluster")
    assert "principal=" not in tools(ACLS, "--list")


def test_librdkafkas_admin_client_creates_describes_and_deletes(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})

    def binding(name: str, principal: str = "User:carol") -> AclBinding:
        allow = AclPermissionType.ALLOW
        return AclBinding(
            ResourceType.TOPIC, name, ResourcePatternType.LITERAL, principal, "*", AclOperation.READ, allow
        )

    def results(answers: dict[Any, Any]) -> list[Any]:
        return [each.result(PATIENCE_S) for each in answers.values()]

    assert results(admin.create_acls([binding("a"), binding("b")])) == [None, None]
    any_: Any = None
    every = AclBindingFilter(
        ResourceType.ANY, any_, ResourcePatternType.ANY, "User:carol", any_, AclOperation.ANY, AclPermissionType.ANY
    )
    assert set(admin.describe_acls(every).result(PATIENCE_S)) == {binding("a"), binding("b")}
    (refused,) = admin.create_acls([binding("c", "carol")]).values()
    with pytest.raises(KafkaException, match="not a principal"):
        refused.result(PATIENCE_S)
    assert [set(each) for each in results(admin.delete_acls([every]))] == [{binding("a"), binding("b")}]
    assert admin.describe_acls(every).result(PATIENCE_S) == []


def test_kafka_python_creates_describes_and_deletes(bootstrap: str) -> None:
    admin = other.KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        pattern = other.ResourcePattern(other.ResourceType.GROUP, "readers", other.ACLResourcePatternType.PREFIXED)
        own = other.ACL("User:dan", "*", other.ACLOperation.READ, other.ACLPermissionType.ALLOW, pattern)
        assert admin.create_acls([own])["failed"] == []
        every = other.ACLFilter(
            "User:dan",
            None,
            other.ACLOperation.ANY,
            other.ACLPermissionType.ANY,
            other.ResourcePatternFilter(other.ResourceType.ANY, None, other.ACLResourcePatternType.ANY),
        )
        found, error = admin.describe_acls(every)
        assert found == [own], error
        ((_filter, deleted, _error),) = admin.delete_acls([every])
        assert deleted == [own]
        assert admin.describe_acls(every)[0] == []
    finally:
        admin.close()
