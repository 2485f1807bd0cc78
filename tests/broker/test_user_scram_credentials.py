"""Claims about DescribeUserScramCredentials and AlterUserScramCredentials: Kafka's errors, and no secret comes back."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from einmal.types import ErrorCode
from tests.broker.nodes import Client, running_node
from tests.broker.sasl_client import SHA_512, authenticate, sasl_node, scram

DESCRIBE, ALTER = 50, 51
UNACCEPTABLE, UNSUPPORTED = ErrorCode.unacceptable_credential, ErrorCode.unsupported_sasl_mechanism
TWICE, MISSING, OK = ErrorCode.duplicate_resource, ErrorCode.resource_not_found, ErrorCode.none


def upsertion(name: str, mechanism: int = 1, iterations: int = 4_096, **changes: Any) -> dict[str, Any]:
    salted = bytes(64 if mechanism == 2 else 32)
    told = {"name": name, "mechanism": mechanism, "iterations": iterations, "salt": b"salt", "salted_password": salted}
    return {**told, **changes}


async def alter(
    client: Client, *upsertions: dict[str, Any], delete: tuple[tuple[str, int], ...] = ()
) -> dict[str, ErrorCode]:
    deletions = [{"name": name, "mechanism": mechanism} for name, mechanism in delete]
    answer = await client.call(ALTER, 0, {"deletions": deletions, "upsertions": list(upsertions)})
    return {each.user: each.error_code for each in answer.results}


async def described(client: Client, *names: str) -> dict[str, Any]:
    """Mechanisms and iterations, or the error, by user."""
    answer = await client.call(DESCRIBE, 0, {"users": [{"name": name} for name in names] or None})
    assert answer.error_code is OK
    return {
        each.user: each.error_code
        if each.error_code is not OK
        else {info.mechanism: info.iterations for info in each.credential_infos}
        for each in answer.results
    }


async def test_credentials_are_created_changed_described_and_deleted(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        assert await described(client) == {}
        assert await alter(client, upsertion("alice"), upsertion("bob", 2, 16_384)) == {"alice": OK, "bob": OK}
        assert await alter(client, upsertion("alice", 2, 8_192)) == {"alice": OK}
        assert await described(client) == {"alice": {1: 4_096, 2: 8_192}, "bob": {2: 16_384}}
        assert await alter(client, upsertion("alice", iterations=5_000)) == {"alice": OK}
        assert await alter(client, delete=(("alice", 2), ("bob", 2))) == {"alice": OK, "bob": OK}
        assert await described(client) == {"alice": {1: 5_000}}
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        assert await described(client, "alice") == {"alice": {1: 5_000}}


async def test_describing_has_kafkas_errors(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await alter(client, upsertion("alice"))
        assert await described(client, "alice", "nobody", "alice") == {"alice": TWICE, "nobody": MISSING}


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        (upsertion(""), UNACCEPTABLE),
        (upsertion("x" * 2_000), UNACCEPTABLE),
        (upsertion("a", 0), UNSUPPORTED),
        (upsertion("a", 3), UNSUPPORTED),
        (upsertion("a", iterations=4_095), UNACCEPTABLE),
        (upsertion("a", iterations=16_385), UNACCEPTABLE),
        (upsertion("a", iterations=-1), UNACCEPTABLE),
        (upsertion("a", salt=b""), UNACCEPTABLE),
        (upsertion("a", salt=bytes(2_000)), UNACCEPTABLE),
        (upsertion("a", salted_password=b""), UNACCEPTABLE),
    ],
)
async def test_a_bad_credential_is_refused(tmp_path: Path, wanted: dict[str, Any], error: ErrorCode) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        assert await alter(client, wanted, upsertion("good")) == {wanted["name"]: error, "good": OK}
        assert await described(client) == {"good": {1: 4_096}}


async def test_a_user_is_changed_once_in_a_request(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await alter(client, upsertion("a"), upsertion("b"))
        found = await alter(client, upsertion("a"), upsertion("c"), upsertion("c", 2), delete=(("a", 1), ("b", 1)))
        assert found == {"a": TWICE, "b": OK, "c": TWICE}
        assert await described(client) == {"a": {1: 4_096}}
        assert await alter(client, delete=(("b", 1), ("", 1), ("a", 9))) == {
            "b": MISSING,
            "": UNACCEPTABLE,
            "a": UNSUPPORTED,
        }


async def test_a_new_user_authenticates_at_once_and_a_deleted_one_no_more(tmp_path: Path) -> None:
    salted = hashlib.pbkdf2_hmac("sha512", b"davids password", b"salt", 4_096)
    async with sasl_node(tmp_path) as node, Client.connect(node) as admin:
        await authenticate(admin, SHA_512, scram("alice", "alice's password"))
        assert await alter(admin, upsertion("david", 2, salted_password=salted)) == {"david": OK}
        async with Client.connect(node) as client:
            assert (await authenticate(client, SHA_512, scram("david", "davids password"))).error is OK
        assert await alter(admin, delete=(("david", 2),)) == {"david": OK}
        async with Client.connect(node) as client:
            outcome = await authenticate(client, SHA_512, scram("david", "davids password"))
            assert outcome.error is ErrorCode.sasl_authentication_failed
