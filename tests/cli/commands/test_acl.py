"""Claims about ``einmal acl``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from einmal.broker.config import STANDARD_AUTHORIZER
from einmal.cli.commands.acl import AclVerb
from einmal.metadata.acls import TEXT_LENGTH_MAX
from einmal.security.acl import OPERATIONS, AclOperation, ResourceType
from tests.cli.broker_process import BrokerProcess
from tests.cli.running import Cli

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    """Commands against a broker with an authorizer."""
    settings = [f"authorizer.class.name={STANDARD_AUTHORIZER}", "super.users=User:ANONYMOUS"]
    options = [option for setting in settings for option in ("-X", setting)]
    with BrokerProcess(tmp_path_factory.mktemp("authorized"), *options).wait_until_ready() as broker:
        yield Cli(broker.bootstrap)


@pytest.fixture(autouse=True)
def _clean(cli: Cli) -> Iterator[None]:
    yield
    cli("acl", "remove", "User:alice", "User:bob", "--yes")


def listed(cli: Cli, *options: str) -> list[dict[str, Any]]:
    document = cli("acl", "list", *options, "--format", "json").document
    assert isinstance(document, list)
    return document


def test_added_acl_is_printed_and_listed(cli: Cli) -> None:
    added = cli("acl", "add", "User:alice", "-o", "read", "-t", "orders", "--host", "10.0.0.1", "--deny")
    heads, row = added.lines
    assert heads.split() == [
        "PRINCIPAL",
        "PERMISSION",
        "OPERATION",
        "RESOURCE-TYPE",
        "RESOURCE-NAME",
        "PATTERN",
        "HOST",
    ]
    assert row.split() == ["User:alice", "deny", "read", "topic", "orders", "literal", "10.0.0.1"]
    assert cli("acl", "list").lines == added.lines


def test_producer_and_consumer_are_what_kafka_acls_allows_them(cli: Cli) -> None:
    options = ("--topic", "t", "--group", "g", "--transactional-id", "x", "--producer", "--consumer")
    cli("acl", "add", "User:alice", *options)
    found = {(each["resource_type"], each["operation"]) for each in listed(cli)}
    of_topic = {("topic", operation) for operation in ("read", "describe", "write", "create")}
    assert found == {*of_topic, ("group", "read"), ("transactional-id", "write"), ("transactional-id", "describe")}


def test_acls_are_found_by_principal_resource_and_match(cli: Cli) -> None:
    cli("acl", "add", "User:alice", "User:bob", "-o", "read", "-t", "tea", "--pattern", "prefixed")
    cli("acl", "add", "User:alice", "-o", "alter", "--cluster")
    assert len(listed(cli)) == 3
    assert len(listed(cli, "User:alice")) == 2
    assert len(listed(cli, "User:alice", "--cluster")) == 1
    assert listed(cli, "-t", "teapot") == []
    assert len(listed(cli, "-t", "teapot", "--pattern", "match")) == 2


def test_removal_asks_for_confirmation_and_prints_what_it_removed(cli: Cli) -> None:
    cli("acl", "add", "User:alice", "-o", "read", "-o", "write", "-t", "tea")
    cli("acl", "remove", "User:alice", "-o", "read", stdin="n\n", status=1)
    assert len(listed(cli)) == 2
    removed = cli("acl", "remove", "User:alice", "-o", "read", "--yes", "--format", "json").document
    assert [each["operation"] for each in removed] == ["read"]
    assert [each["operation"] for each in listed(cli)] == ["write"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("add", "User:alice", "-o", "read"), "name a resource"),
        (("add", "User:alice", "-t", "tea"), "name an --operation for topic 'tea'"),
        (("add", "User:alice", "-g", "tea", "--producer"), "name an --operation for group 'tea'"),
        (("remove",), "name a PRINCIPAL, or a resource"),
    ],
)
def test_incomplete_command_is_refused(cli: Cli, arguments: tuple[str, ...], message: str) -> None:
    assert message in "\n".join(cli("acl", *arguments, status=2).errors)


def test_cluster_without_an_authorizer_is_named(cluster: str) -> None:
    errors = Cli(cluster)("acl", "list", status=1).errors
    assert errors[0].startswith("error: SECURITY_DISABLED (54)")
    assert "authorizer.class.name" in errors[1]


def test_a_refused_acl_hides_none_that_was_added(cli: Cli) -> None:
    """A host with such a name is refused by the broker."""
    refused = "x" * (TEXT_LENGTH_MAX + 1)
    options = ("-o", "read", "-t", "orders", "--host", refused, "--host", "10.0.0.1", "--format", "json")
    added = cli("acl", "add", "User:alice", *options, status=1)
    assert [each["host"] for each in added.document] == ["10.0.0.1"]
    assert added.document == listed(cli, "User:alice")
    assert added.errors[0].startswith("error: INVALID_REQUEST")


@pytest.mark.parametrize("verb", [["add", "-o", "read"], ["remove", "-y"], ["list"]], ids=lambda verb: verb[0])
def test_a_principal_without_a_type_is_refused_before_anything_is_done(verb: list[str], cli: Cli) -> None:
    """A search for one would find nothing, and leave the ACLs of User:alice as they are without a word."""
    cli("acl", "add", "User:alice", "-o", "read", "-t", "orders")
    for principal in ("alice", "User:", ":alice"):
        result = cli("acl", *verb, "User:bob", principal, "-t", "orders", status=2)
        assert "as User:alice" in " ".join(result.errors)
    assert [each["principal"] for each in listed(cli)] == ["User:alice"]


OF_TYPES: Final = {
    ResourceType.TOPIC: ("--topic", "x"),
    ResourceType.GROUP: ("--group", "x"),
    ResourceType.TRANSACTIONAL_ID: ("--transactional-id", "x"),
    ResourceType.CLUSTER: ("--cluster",),
}


def test_only_operations_that_the_type_of_resource_has_can_be_added(cli: Cli) -> None:
    """As kafka-acls.sh checks it; brokers accept all, and the ACL would allow nothing."""
    for kind, resource in OF_TYPES.items():
        for verb in AclVerb:
            is_supported = verb is AclVerb.ALL or AclOperation[verb.name] in OPERATIONS[kind]
            result = cli("acl", "add", "User:alice", "-o", verb, *resource, status=0 if is_supported else 2)
            if not is_supported:
                message = " ".join(" ".join(result.errors).replace("│", " ").split())
                assert f"has no operation {verb}; supported by ResourceType" in message, message
        assert len(listed(cli, *resource)) == len(OPERATIONS[kind]) + 1
    refused = cli("acl", "add", "User:bob", "-o", "write", "-t", "x", "-g", "x", status=2)
    assert "delete, describe, describe-configs, read" in " ".join(refused.errors)
    assert listed(cli, "User:bob") == []
