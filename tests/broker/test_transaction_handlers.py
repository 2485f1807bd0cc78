"""The transaction APIs on the wire: versions, batched forms, precise errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from einmal.broker.coordinators.producer_ids import ProducerIds
from einmal.broker.front.handlers.describe_transactions import described
from einmal.broker.node import Node
from einmal.transactions.states import TransactionState
from einmal.transactions.transaction import Transaction
from einmal.types import (
    ErrorCode,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionVersion,
)
from einmal.wire import produce
from einmal.wire.api.describe_transactions import API, DescribeTransactionsResponse
from einmal.wire.messages import response_body_position
from tests.broker.nodes import Client, batch, running_node, until
from tests.wire.mapped import APIS, request_of

FIND_COORDINATOR, INIT, ADD_PARTITIONS, ADD_OFFSETS, END, MARKERS = 10, 22, 24, 25, 26, 27
DESCRIBE, LIST = 65, 66
ID = "orders"
SMALL = {"transaction.state.log.num.partitions": 3, "offsets.topic.num.partitions": 3}


class TransactionalClient:
    def __init__(self, client: Client, node: Node) -> None:
        self.client = client
        self.node = node

    async def init(
        self, id: str | None = ID, *, version: int = 5, **fields: Any
    ) -> tuple[ErrorCode, ProducerIdAndEpoch]:
        values = {
            "transactional_id": id,
            "transaction_timeout": 60_000,
            "producer_id": -1,
            "producer_epoch": -1,
            **fields,
        }
        answer = await self.client.call(INIT, version, values)
        return answer.error_code, ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)

    async def begin(self, id: str = ID) -> ProducerIdAndEpoch:
        while True:
            error, who = await self.init(id)
            if error is ErrorCode.none:
                return who
            assert error in (ErrorCode.concurrent_transactions, ErrorCode.coordinator_load_in_progress)
            await asyncio.sleep(0.005)

    async def add(
        self, who: ProducerIdAndEpoch, *partitions: int, topic: str = "t", version: int = 3
    ) -> dict[int, ErrorCode]:
        answer = await self.client.call(
            ADD_PARTITIONS,
            version,
            {
                "v3_and_below_transactional_id": ID,
                "v3_and_below_producer_id": who.producer_id,
                "v3_and_below_producer_epoch": who.producer_epoch,
                "v3_and_below_topics": [{"name": topic, "partitions": partitions}],
            },
        )
        (result,) = answer.results_by_topic_v3_and_below
        return {each.partition_index: each.partition_error_code for each in result.results_by_partition}

    async def end(
        self, who: ProducerIdAndEpoch, committed: bool, *, version: int = 5
    ) -> tuple[ErrorCode, ProducerIdAndEpoch]:
        answer = await self.client.call(
            END,
            version,
            {
                "transactional_id": ID,
                "producer_id": who.producer_id,
                "producer_epoch": who.producer_epoch,
                "committed": committed,
            },
        )
        return answer.error_code, ProducerIdAndEpoch(
            ProducerId(getattr(answer, "producer_id", -1)), ProducerEpoch(getattr(answer, "producer_epoch", -1))
        )

    async def listed(self, *states: str, version: int = 1, **filters: Any) -> dict[str, str]:
        fields = {"state_filters": states, "producer_id_filters": (), "duration_filter": -1, **filters}
        answer = await self.client.call(LIST, version, fields)
        assert answer.error_code is ErrorCode.none
        return {each.transactional_id: each.transaction_state for each in answer.transaction_states}


async def ask_itself(node: Node, api_key: int, version: int, fields: dict[str, Any]) -> Any:
    """As another broker would ask."""
    request = request_of(api_key, fields)
    return await node.peers.ask(node.config.node_id, APIS[api_key], version, request, timeout_ms=5_000)


@asynccontextmanager
async def a_client(directory: Path, settings: dict[str, Any] | None = None) -> AsyncIterator[TransactionalClient]:
    """Of a node with topic ``t`` of two partitions, and the coordinators' topics."""
    async with running_node(directory, SMALL | (settings or {})) as node, Client.connect(node) as client:
        await client.create_topic("t", 2)
        for key_type in (0, 1):
            await client.call(FIND_COORDINATOR, 3, {"key": ID, "key_type": key_type})
        yield TransactionalClient(client, node)


async def test_an_idempotent_producer_needs_no_transactional_id_and_no_coordinator(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        plain = TransactionalClient(client, node)
        given = [await plain.init(None, version=version, transaction_timeout=-1) for version in range(6)]
        assert {error for error, _ in given} == {ErrorCode.none}
        assert {who.producer_epoch for _, who in given} == {0}
        assert len({who.producer_id for _, who in given}) == 6


async def test_half_an_identity_is_an_invalid_request(tmp_path: Path) -> None:
    async with a_client(tmp_path) as client:
        assert (await client.init(producer_id=5))[0] is ErrorCode.invalid_request
        assert (await client.init(producer_epoch=5))[0] is ErrorCode.invalid_request


async def test_before_its_topic_exists_there_is_no_coordinator(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        assert (await TransactionalClient(client, node).init())[0] is ErrorCode.not_coordinator


async def test_old_versions_get_invalid_producer_epoch_and_new_ones_producer_fenced(tmp_path: Path) -> None:
    async with a_client(tmp_path) as client:
        old = await client.begin()
        await client.begin()
        fenced, epoch = ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch
        identity: dict[str, Any] = {"producer_id": old.producer_id, "producer_epoch": 9}
        assert (await client.init(version=3, **identity))[0] is epoch
        assert (await client.init(version=4, **identity))[0] is fenced
        for version in range(4):
            assert await client.add(old, 0, version=version) == {0: fenced if version >= 2 else epoch}
        for version in range(6):
            assert (await client.end(old, True, version=version))[0] is (fenced if version >= 2 else epoch)
        for version in range(5):
            answer = await client.client.call(
                ADD_OFFSETS,
                version,
                {
                    "transactional_id": ID,
                    "producer_id": old.producer_id,
                    "producer_epoch": old.producer_epoch,
                    "group_id": "g",
                },
            )
            assert answer.error_code is (fenced if version >= 2 else epoch)


async def test_partitions_are_added_all_together_or_not_at_all(tmp_path: Path) -> None:
    async with a_client(tmp_path) as client:
        who = await client.begin()
        assert await client.add(who, 0, 7) == {
            0: ErrorCode.operation_not_attempted,
            7: ErrorCode.unknown_topic_or_partition,
        }
        assert await client.add(who, 0, topic="nowhere") == {0: ErrorCode.unknown_topic_or_partition}
        assert await client.listed() == {ID: "Empty"}
        assert await client.add(who, 0, 1) == {0: ErrorCode.none, 1: ErrorCode.none}
        assert await client.listed() == {ID: "Ongoing"}


@pytest.mark.parametrize("version", [4, 5])
async def test_a_leader_verifies_or_adds_for_many_transactions_at_once(tmp_path: Path, version: int) -> None:
    async with a_client(tmp_path) as client:
        who = await client.begin()
        assert await client.add(who, 0) == {0: ErrorCode.none}

        def of(partition: int, *, verify_only: bool, epoch: int = who.producer_epoch) -> dict[str, Any]:
            return {
                "transactional_id": ID,
                "producer_id": who.producer_id,
                "producer_epoch": epoch,
                "verify_only": verify_only,
                "topics": [{"name": "t", "partitions": [partition]}],
            }

        asked = [
            of(0, verify_only=True),
            of(1, verify_only=True),
            of(1, verify_only=True, epoch=who.producer_epoch + 1),
            of(1, verify_only=False),
            of(1, verify_only=True),
        ]
        answer = await ask_itself(client.node, ADD_PARTITIONS, version, {"transactions": asked})
        told = [
            each.topic_results[0].results_by_partition[0].partition_error_code for each in answer.results_by_transaction
        ]
        assert told == [
            ErrorCode.none,
            ErrorCode.transaction_abortable,
            ErrorCode.producer_fenced,
            ErrorCode.none,
            ErrorCode.none,
        ]


@pytest.mark.parametrize("version", [11, 12])
async def test_batches_behind_one_that_is_being_verified_keep_their_order(tmp_path: Path, version: int) -> None:
    async with a_client(tmp_path) as client:
        who = await client.begin()
        if version == 11:
            await client.add(who, 0)
        for sequence in range(5):
            data = batch(str(sequence).encode(), producer=who, sequence=sequence, transactional=True)
            request = produce.ProduceRequest(ID, -1, 10_000, [("t", [(0, data)])])
            client.client.send(0, version, b"".join(produce.encode_produce_request(version, request)))
        for offset in range(5):
            answer = await client.client.receive()
            position = response_body_position(0, version, answer)
            produced = produce.decode_produce_response(version, answer, position).topics[0][1][0]
            assert (produced.error_code, produced.base_offset) == (ErrorCode.none, offset)


def marker_of(who: ProducerIdAndEpoch, *, committed: bool = False, coordinator_epoch: int = 0) -> dict[str, Any]:
    """For partition 0 of ``t``, and for one of a topic that does not exist."""
    return {
        "producer_id": who.producer_id,
        "producer_epoch": who.producer_epoch,
        "transaction_result": committed,
        "topics": [{"name": "t", "partition_indexes": [0]}, {"name": "gone", "partition_indexes": [0]}],
        "coordinator_epoch": coordinator_epoch,
        "transaction_version": 0,
    }


async def write_marker(client: TransactionalClient, marker: dict[str, Any], version: int = 1) -> list[ErrorCode]:
    answer = await client.client.call(MARKERS, version, {"markers": [marker]})
    return [topic.partitions[0].error_code for topic in answer.markers[0].topics]


@pytest.mark.parametrize("version", [1, 2])
async def test_a_tool_can_abort_a_hanging_transaction_with_a_marker_of_its_own(tmp_path: Path, version: int) -> None:
    """KIP-664: open in the partition, and unknown to the coordinator."""
    async with a_client(tmp_path, {"transaction.partition.verification.enable": False}) as client:
        who = await client.begin()
        data = batch(b"x", producer=who, sequence=0, transactional=True)
        assert (await client.client.produce("t", data, version=9, name=ID)).error_code is ErrorCode.none
        committed = await client.client.fetch("t", 0, isolation_level=1)
        assert (committed.high_watermark, committed.last_stable_offset) == (1, 0)
        told = await write_marker(client, marker_of(who), version)
        assert told == [ErrorCode.none, ErrorCode.invalid_txn_state]
        committed = await client.client.fetch("t", 0, isolation_level=1)
        assert committed.last_stable_offset == committed.high_watermark == 2


async def test_a_client_cannot_tear_a_transaction_with_markers(tmp_path: Path) -> None:
    async with a_client(tmp_path) as client:
        who = await client.begin()
        await client.add(who, 0)
        data = batch(b"x", producer=who, sequence=0, transactional=True)
        assert (await client.client.produce("t", data, version=9, name=ID)).error_code is ErrorCode.none
        later = ProducerIdAndEpoch(who.producer_id, ProducerEpoch(32_000))
        assert (await write_marker(client, marker_of(who)))[0] is ErrorCode.invalid_txn_state
        assert (await write_marker(client, marker_of(later)))[0] is ErrorCode.invalid_txn_state
        forged = marker_of(who, committed=True)
        assert (await write_marker(client, forged))[0] is ErrorCode.cluster_authorization_failed
        committed = await client.client.fetch("t", 0, isolation_level=1)
        assert (committed.high_watermark, committed.last_stable_offset) == (1, 0)


async def test_a_marker_of_an_epoch_that_no_coordinator_has_had_fences_none(tmp_path: Path) -> None:
    async with a_client(tmp_path) as client:
        who = await client.begin()
        await client.add(who, 0)
        forged = marker_of(who, coordinator_epoch=2**31 - 1)
        answer = await ask_itself(client.node, MARKERS, 1, {"markers": [forged]})
        assert answer.markers[0].topics[0].partitions[0].error_code is ErrorCode.coordinator_not_available
        own = await ask_itself(client.node, MARKERS, 1, {"markers": [marker_of(who)]})
        assert own.markers[0].topics[0].partitions[0].error_code is ErrorCode.none


async def test_list_filters_by_a_pattern(tmp_path: Path) -> None:
    async with a_client(tmp_path) as client:
        await client.begin("orders-1")
        await client.begin("payments-1")

        async def listed(pattern: str | None) -> Any:
            fields = {"transactional_id_pattern": pattern, "duration_filter": -1}
            return await client.client.call(LIST, 2, fields)

        told = await listed("orders-[0-9]+")
        assert [each.transactional_id for each in told.transaction_states] == ["orders-1"]
        assert len((await listed(None)).transaction_states) == 2
        assert len((await listed("")).transaction_states) == 2
        # The whole id, as RE2 has it, in bounded time.
        assert not (await listed("orders")).transaction_states
        assert len((await listed(r"(?i)ORDERS-\d")).transaction_states) == 1
        assert not (await listed("(a*)*" * 20 + "b")).transaction_states
        for wrong in ("(", "(?=a)", r"(a)\1", "((a{100}){100}){100}", "\\pL" * 10_000, "a" * 513):
            assert (await listed(wrong)).error_code is ErrorCode.invalid_regular_expression


async def test_list_filters_by_state_producer_and_duration(tmp_path: Path) -> None:
    async with a_client(tmp_path) as client:
        idle = await client.begin("idle")
        who = await client.begin()
        await client.add(who, 0)
        assert await client.listed(version=0) == {ID: "Ongoing", "idle": "Empty"}
        assert await client.listed("Ongoing") == {ID: "Ongoing"}
        assert await client.listed(producer_id_filters=[idle.producer_id]) == {"idle": "Empty"}
        assert await client.listed("Ongoing", duration_filter=3_600_000) == {}
        answer = await client.client.call(
            LIST,
            1,
            {"state_filters": ["Ongoing", "Sleeping", "Dead"], "producer_id_filters": (), "duration_filter": -1},
        )
        assert answer.unknown_state_filters == ("Sleeping",)
        assert await client.listed("Dead") == {}


async def test_a_described_transaction_has_its_partitions_and_an_unknown_one_an_error(tmp_path: Path) -> None:
    async with a_client(tmp_path) as client:
        who = await client.begin()
        await client.add(who, 1, 0)
        answer = await client.client.call(DESCRIBE, 0, {"transactional_ids": [ID]})
        (state,) = answer.transaction_states
        assert state.error_code is ErrorCode.none
        assert state.transaction_state == "Ongoing"
        assert (state.producer_id, state.producer_epoch) == who
        assert [(topic.topic, topic.partitions) for topic in state.topics] == [("t", (0, 1))]
        answer = await client.client.call(DESCRIBE, 0, {"transactional_ids": ["nobody", ""]})
        errors = [each.error_code for each in answer.transaction_states]
        assert errors == [ErrorCode.transactional_id_not_found, ErrorCode.invalid_request]


def _entry(transaction: Transaction) -> bytes:
    """Its bytes in an answer that has nothing else."""
    response = DescribeTransactionsResponse(transaction_states=[described("x", transaction)])
    # Throttle time and length before it, no tagged fields after it.
    return API.encode_response(0, response)[5:-1]


def test_a_transaction_that_has_not_begun_has_the_start_time_minus_one() -> None:
    empty = Transaction(
        transactional_id="x",
        producer_id=ProducerId(7),
        producer_epoch=ProducerEpoch(3),
        timeout_ms=60_000,
        state=TransactionState.EMPTY,
        last_update_ms=5,
    )
    head = "0000027806" + b"Empty".hex()
    assert _entry(empty) == bytes.fromhex(head + "0000ea60" + "ff" * 8 + "000000000000000700030100")
    open_one = Transaction(
        transactional_id="x",
        producer_id=ProducerId(7),
        producer_epoch=ProducerEpoch(3),
        timeout_ms=60_000,
        state=TransactionState.ONGOING,
        partitions=(TopicPartition("t", 1),),
        last_update_ms=5,
        start_ms=4,
        client_version=TransactionVersion.TV_2,
    )
    head = "0000027808" + b"Ongoing".hex()
    topics = "020274020000000100"
    assert _entry(open_one) == bytes.fromhex(head + "0000ea60000000000000000400000000000000070003" + topics + "00")


@pytest.mark.parametrize("topic", ["__transaction_state", "__consumer_offsets"])
async def test_a_client_cannot_take_a_coordinators_partition_into_its_transaction(tmp_path: Path, topic: str) -> None:
    """A marker in the transaction log would be a record that its coordinator cannot load."""
    async with a_client(tmp_path) as client:
        who = await client.begin()
        assert await client.add(who, 0, 9, topic=topic) == dict.fromkeys((0, 9), ErrorCode.topic_authorization_failed)


async def test_no_marker_can_be_written_to_the_transaction_log(tmp_path: Path) -> None:
    async with a_client(tmp_path) as client:
        who = await client.begin()
        marker = {
            "producer_id": who.producer_id,
            "producer_epoch": who.producer_epoch,
            "transaction_result": True,
            "topics": [{"name": "__transaction_state", "partition_indexes": [0, 1, 2]}],
            "coordinator_epoch": 0,
        }
        answer = await ask_itself(client.node, MARKERS, 1, {"markers": [marker]})
        errors = [each.error_code for each in answer.markers[0].topics[0].partitions]
        assert errors == [ErrorCode.topic_authorization_failed] * 3


@pytest.mark.slow
async def test_a_transaction_log_that_could_not_be_opened_at_first_ends_its_transactions_later(tmp_path: Path) -> None:
    async with running_node(tmp_path, SMALL) as node, Client.connect(node) as connection:
        await connection.create_topic("t")
        await connection.call(FIND_COORDINATOR, 3, {"key": ID, "key_type": 1})
        client = TransactionalClient(connection, node)
        _error, who = await client.init(transaction_timeout=12_000)
        first = batch(b"a", producer=who, sequence=0, transactional=True)
        assert (await connection.produce("t", first, version=12, name=ID)).error_code is ErrorCode.none
    folders = [tmp_path / f"__transaction_state-{index}" for index in range(3)]
    for folder in folders:
        folder.rename(tmp_path / f"{folder.name}.away")
        folder.write_text("a file where a folder must be")
    async with running_node(tmp_path, SMALL) as node:
        for folder in folders:
            folder.unlink()
            (tmp_path / f"{folder.name}.away").rename(folder)
        await node._look_after_partitions()
        partition = node.partitions.get(TopicPartition("t", 0))
        assert partition is not None
        # Nobody asks for this id again.
        await until(lambda: partition.last_stable_offset == partition.log_end_offset == 2)


async def test_a_known_transactional_id_continues_while_no_controller_allocates_producer_ids(tmp_path: Path) -> None:
    async with running_node(tmp_path, SMALL) as node, Client.connect(node) as client:
        transactional = TransactionalClient(client, node)
        await client.call(FIND_COORDINATOR, 3, {"key": ID, "key_type": 1})
        who = await transactional.begin()

        async def never() -> range | ErrorCode:
            await asyncio.sleep(0.2)
            return ErrorCode.coordinator_not_available

        node.transactions.producer_ids = ProducerIds(never)
        for runtime in node.transactions.runtimes():
            runtime.start()
            await runtime.loaded()
        assert await transactional.init() == (ErrorCode.none, who._replace(producer_epoch=ProducerEpoch(1)))
        assert (await transactional.init("another"))[0] is ErrorCode.coordinator_load_in_progress
        assert (await transactional.init(None))[0] is ErrorCode.coordinator_load_in_progress
