"""Two-phase commit (KIP-939) on the wire: what is offered to whom, and both pairs of a kept transaction."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from einmal.security.acl import Acl, AclOperation, PatternType, Permission, ResourceType
from einmal.transactions.transaction import NO_TIMEOUT_MS
from einmal.types import ErrorCode, ProducerEpoch, ProducerId, ProducerIdAndEpoch
from tests.broker.acl_requests import Request
from tests.broker.acl_side import einmal_side, errors_of, prepare
from tests.broker.nodes import Client, running_node
from tests.broker.test_transaction_handlers import DESCRIBE, FIND_COORDINATOR, ID, INIT, SMALL, TransactionalClient

ENABLED = SMALL | {"transaction.two.phase.commit.enable": "true"}
NOBODY = ProducerIdAndEpoch(ProducerId(-1), ProducerEpoch(-1))


async def init(
    client: Client, *, two_phase: bool = True, keep: bool = False, who: ProducerIdAndEpoch = NOBODY
) -> tuple[ErrorCode, ProducerIdAndEpoch, ProducerIdAndEpoch]:
    """Error, the client's pair, and that of the kept transaction."""
    fields = {
        "transactional_id": ID,
        "transaction_timeout": 60_000,
        "producer_id": who.producer_id,
        "producer_epoch": who.producer_epoch,
        "enable2_pc": two_phase,
        "keep_prepared_txn": keep,
    }
    while True:
        answer = await client.call(INIT, 6, fields)
        if answer.error_code is not ErrorCode.coordinator_load_in_progress:
            break
        await asyncio.sleep(0.005)
    return (
        answer.error_code,
        ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch),
        ProducerIdAndEpoch(answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch),
    )


async def find_coordinator(client: Client) -> None:
    answer = await client.call(FIND_COORDINATOR, 3, {"key": ID, "key_type": 1})
    while answer.error_code is not ErrorCode.none:
        answer = await client.call(FIND_COORDINATOR, 3, {"key": ID, "key_type": 1})


async def newest_version(client: Client) -> int:
    answer = await client.call(18, 3, {"client_software_name": "t", "client_software_version": "1"})
    return {each.api_key: int(each.max_version) for each in answer.api_keys}[INIT]


async def test_init_producer_id_6_is_offered_only_where_two_phase_commit_is_enabled(tmp_path: Path) -> None:
    async with running_node(tmp_path / "off", SMALL) as node, Client.connect(node) as client:
        await find_coordinator(client)
        assert await newest_version(client) == 5
        with pytest.raises(asyncio.IncompleteReadError):
            await init(client, two_phase=False)
    async with running_node(tmp_path / "on", ENABLED) as node, Client.connect(node) as client:
        await find_coordinator(client)
        assert await newest_version(client) == 6
        assert (await init(client))[0] is ErrorCode.none


async def test_a_prepared_transaction_survives_a_restart_and_is_ended_by_the_instance_that_keeps_it(
    tmp_path: Path,
) -> None:
    async with running_node(tmp_path, ENABLED) as node, Client.connect(node) as client:
        await client.create_topic("t", 2)
        await find_coordinator(client)
        error, who, none = await init(client)
        assert (error, none) == (ErrorCode.none, NOBODY)
        assert await TransactionalClient(client, node).add(who, 0, 1) == {0: ErrorCode.none, 1: ErrorCode.none}
    async with running_node(tmp_path, ENABLED) as node, Client.connect(node) as client:
        error, first, ongoing = await init(client, keep=True)
        assert (error, ongoing) == (ErrorCode.none, who)
        assert first == (who.producer_id, who.producer_epoch + 1)
    async with running_node(tmp_path, ENABLED) as node, Client.connect(node) as client:
        transactional = TransactionalClient(client, node)
        error, second, ongoing = await init(client, keep=True)
        assert (error, ongoing, second.producer_epoch) == (ErrorCode.none, who, first.producer_epoch + 1)
        for fenced in (who, first):
            assert (await transactional.end(fenced, True))[0] is ErrorCode.producer_fenced
        assert await transactional.add(second, 0) == {0: ErrorCode.invalid_txn_state}
        assert await transactional.listed() == {ID: "Ongoing"}
        error, following = await transactional.end(second, True)
        assert (error, following) == (ErrorCode.none, (who.producer_id, second.producer_epoch + 1))
        while (await transactional.listed())[ID] == "PrepareCommit":  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        assert await transactional.listed() == {ID: "CompleteCommit"}
        assert await init(client, keep=True) == (
            ErrorCode.none,
            (who.producer_id, following.producer_epoch + 1),
            NOBODY,
        )


async def test_describe_transactions_shows_that_a_transaction_has_no_timeout(tmp_path: Path) -> None:
    async with running_node(tmp_path, ENABLED) as node, Client.connect(node) as client:
        await client.create_topic("t", 2)
        await find_coordinator(client)
        _error, who, _none = await init(client)
        await TransactionalClient(client, node).add(who, 0)
        await init(client, two_phase=False, keep=True)
        (described,) = (await client.call(DESCRIBE, 0, {"transactional_ids": [ID]})).transaction_states
        assert described.transaction_timeout // timedelta(milliseconds=1) == NO_TIMEOUT_MS
        assert (described.producer_id, described.producer_epoch) == who, "the pair that its records have"


def _may(operation: AclOperation) -> Acl:
    return Acl(ResourceType.TRANSACTIONAL_ID, ID, PatternType.LITERAL, "", "*", operation, Permission.ALLOW)


async def test_two_phase_commit_needs_a_permission_of_its_own(tmp_path: Path) -> None:
    write, two_phase_commit = _may(AclOperation.WRITE), _may(AclOperation.TWO_PHASE_COMMIT)
    new = {"producer_id": -1, "producer_epoch": -1}

    def asking(*, two_phase: bool, keep: bool) -> Request:
        flags = {"enable2_pc": two_phase, "keep_prepared_txn": keep}
        return Request(
            INIT, 6, lambda name, _: {"transactional_id": name, "transaction_timeout": 60_000, **new, **flags}
        )

    refused = {ErrorCode.transactional_id_authorization_failed}
    async with einmal_side(tmp_path, transaction_two_phase_commit_enable="true") as side:
        await prepare(side, ["open"], ["open"], "open")
        await side.set_acls([write])
        assert errors_of(await side.ask(asking(two_phase=True, keep=False), ID)) == refused
        assert errors_of(await side.ask(asking(two_phase=True, keep=True), ID)) == refused
        assert not errors_of(await side.ask(asking(two_phase=False, keep=True), ID)) & refused
        await side.set_acls([two_phase_commit])
        assert errors_of(await side.ask(asking(two_phase=True, keep=False), ID)) == refused
        await side.set_acls([write, two_phase_commit])
        assert not errors_of(await side.ask(asking(two_phase=True, keep=True), ID)) & refused
