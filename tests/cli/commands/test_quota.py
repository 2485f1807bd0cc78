"""Claims about ``einmal quota``."""

from __future__ import annotations

import pytest

from einmal.client import Admin
from tests.cli.running import Cli

pytestmark = pytest.mark.system


def test_quotas_are_set_listed_and_removed(cli: Cli, cluster: str) -> None:
    cli("quota", "set", "producer_byte_rate=1048576", "request_percentage=12.5", "--user", "alice")
    cli("quota", "set", "producer_byte_rate=1024", "--user", "alice", "--client-id", "<default>")
    cli("quota", "set", "connection_creation_rate=5", "--ip", "<default>")
    listed = cli("quota", "list", "--format", "json").document
    assert [tuple(row.values()) for row in listed] == [
        (None, None, "<default>", "connection_creation_rate", 5),
        ("alice", None, None, "producer_byte_rate", 1_048_576),
        ("alice", None, None, "request_percentage", 12.5),
        ("alice", "<default>", None, "producer_byte_rate", 1024),
    ]
    assert len(cli("quota", "list", "--user", "alice", "--client-id", "<default>", "--format", "json").document) == 1
    (removed,) = cli("quota", "remove", "request_percentage", "--user", "alice", "--format", "json").document
    assert (removed["quota"], removed["value"]) == ("request_percentage", 12.5)
    cli("quota", "remove", "--user", "alice")
    with Admin(bootstrap_servers=cluster) as admin:
        assert [each.entity for each in admin.describe_client_quotas({"user": "alice"})] == [
            {"user": "alice", "client-id": None}
        ]
        assert [each.values for each in admin.describe_client_quotas(types=["ip"])] == [{"connection_creation_rate": 5}]
    cli("quota", "remove", "--user", "alice", "--client-id", "<default>")
    cli("quota", "remove", "--ip", "<default>")
    assert cli("quota", "list", "--format", "json").document == []


def test_a_senseless_quota_is_refused(cli: Cli) -> None:
    refused = cli("quota", "set", "producer_byte_rate=-1", "--user", "alice", status=1)
    assert refused.errors[0].startswith("error: INVALID_REQUEST (42)")
    assert "greater than 0" in refused.errors[0]


@pytest.mark.parametrize(
    "arguments",
    [
        ("set", "producer_byte_rate=1"),
        ("set", "producer_byte_rate=fast", "--user", "a"),
        ("set", "producer_byte_rate", "--user", "a"),
        ("set", "producer_byte_rate=1", "producer_byte_rate=2", "--user", "a"),
        ("remove", "--user", "nobody"),
        ("remove", "producer_byte_rate", "--user", "nobody"),
    ],
)
def test_wrong_usage_of_quotas_ends_with_status_2(cli: Cli, arguments: tuple[str, ...]) -> None:
    cli("quota", *arguments, status=2)
