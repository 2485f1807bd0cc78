"""Claims about partitions that cannot be read: they hold back no other one, of a consumer or of an admin client."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

import pytest

from einmal.client import LATEST
from einmal.client.aio import Admin, Consumer
from einmal.client.apis import ApiKey
from einmal.client.cores.metadata_cache import NO_TOPIC_ID
from einmal.client.errors import KafkaError
from einmal.client.records import OffsetAndTimestamp
from einmal.types import ErrorCode, TopicPartition
from einmal.wire.messages import RequestHeader
from einmal.wire.record_batch import NewRecord, encode_batch
from tests.client.aio.scripted_broker import ScriptedBroker, Session
from tests.suite.patience import patient

GOOD, BAD = TopicPartition("good", 0), TopicPartition("bad", 0)
IDS: Final = {"good": UUID(int=1), "bad": UUID(int=2)}
HERE, ELSEWHERE = 1, 2
PRODUCER: Final = {
    "producer_id": 1,
    "producer_epoch": 0,
    "last_sequence": 0,
    "last_timestamp": 0,
    "coordinator_epoch": 0,
    "current_txn_start_offset": 0,
}
RECORDS: Final = encode_batch([NewRecord(None, b"v", 0, ()) for _ in range(3)])


@dataclass(frozen=True)
class Fault:
    """What is wrong with BAD. ``errors``: of one partition, by API. ``address``: of the broker that leads it."""

    topic: ErrorCode = ErrorCode.none
    partition: int = 0
    leader: int = HERE
    is_silent: bool = False
    errors: Mapping[ApiKey, ErrorCode] = field(default_factory=dict)


FAULTS: Final = {
    "unknown topic": Fault(topic=ErrorCode.unknown_topic_or_partition),
    "topic without permission": Fault(topic=ErrorCode.topic_authorization_failed),
    "topic with an invalid name": Fault(topic=ErrorCode.invalid_topic_exception),
    "unknown partition": Fault(partition=7),
    "no leader": Fault(leader=-1),
    "unknown leader": Fault(leader=9),
    "leader that is down": Fault(leader=ELSEWHERE),
    "leader that does not answer": Fault(leader=ELSEWHERE, is_silent=True),
    "no end: not leader": Fault(errors={ApiKey.LIST_OFFSETS: ErrorCode.not_leader_or_follower}),
    "no end: not available": Fault(errors={ApiKey.LIST_OFFSETS: ErrorCode.offset_not_available}),
    "no end: no permission": Fault(errors={ApiKey.LIST_OFFSETS: ErrorCode.topic_authorization_failed}),
    "no end: unknown error": Fault(errors={ApiKey.LIST_OFFSETS: ErrorCode.unknown_server_error}),
    "no offset: open transaction": Fault(errors={ApiKey.OFFSET_FETCH: ErrorCode.unstable_offset_commit}),
    "no offset: unknown topic": Fault(errors={ApiKey.OFFSET_FETCH: ErrorCode.unknown_topic_or_partition}),
    "no offset: no permission": Fault(errors={ApiKey.OFFSET_FETCH: ErrorCode.topic_authorization_failed}),
    "no records: no permission": Fault(errors={ApiKey.FETCH: ErrorCode.topic_authorization_failed}),
    "no records: unknown topic id": Fault(errors={ApiKey.FETCH: ErrorCode.unknown_topic_id}),
    "no records: broken disk": Fault(errors={ApiKey.FETCH: ErrorCode.kafka_storage_error}),
}


class TwoTopics(ScriptedBroker):
    """Leads partition 0 of topic good, which has three records, and of topic bad, where something is wrong."""

    def __init__(self, fault: Fault, elsewhere: int) -> None:
        super().__init__(self._answer_one)
        self._fault = fault
        self._elsewhere = elsewhere
        self._fetched = 0

    def _answer_one(self, session: Session, header: RequestHeader, _request: bytes) -> None:
        fields = {
            ApiKey.METADATA: self._metadata,
            ApiKey.FIND_COORDINATOR: lambda: {"coordinators": [self._broker()], **self._broker()},
            ApiKey.LIST_OFFSETS: lambda: self._each("topics", "name", "partitions", offset=0, timestamp=-1),
            ApiKey.DESCRIBE_PRODUCERS: lambda: self._each(
                "topics", "name", "partitions", api=ApiKey.DESCRIBE_PRODUCERS, active_producers=[PRODUCER]
            ),
            ApiKey.OFFSET_FETCH: self._offsets,
            ApiKey.FETCH: self._records,
        }[ApiKey(header.api_key)]()
        session.answer(header, fields)

    def _broker(self) -> dict[str, Any]:
        host, port = self.bootstrap.split(":")
        return {"node_id": HERE, "host": host, "port": int(port)}

    def _metadata(self) -> dict[str, Any]:
        brokers = [self._broker(), {"node_id": ELSEWHERE, "host": "127.0.0.1", "port": self._elsewhere}]
        good = {"partition_index": 0, "leader_id": HERE, "replica_nodes": [1], "isr_nodes": [1]}
        bad = {**good, "leader_id": self._fault.leader, "partition_index": self._fault.partition}
        topics: list[dict[str, Any]] = [{"name": "good", "topic_id": IDS["good"], "partitions": [good]}]
        if self._fault.topic is ErrorCode.none:
            topics.append({"name": "bad", "topic_id": IDS["bad"], "partitions": [bad]})
        else:
            topics.append({"name": "bad", "topic_id": NO_TOPIC_ID, "error_code": self._fault.topic})
        return {"brokers": brokers, "controller_id": HERE, "topics": topics}

    def _each(
        self, topics: str, name: str, partitions: str, api: ApiKey = ApiKey.LIST_OFFSETS, **fields: Any
    ) -> dict[str, Any]:
        error = self._fault.errors.get(api, ErrorCode.none)
        codes = {"good": ErrorCode.none, "bad": error}
        return {
            topics: [
                {name: each, partitions: [{"partition_index": 0, "error_code": code, **fields}]}
                for each, code in codes.items()
            ]
        }

    def _offsets(self) -> dict[str, Any]:
        error = self._fault.errors.get(ApiKey.OFFSET_FETCH, ErrorCode.none)
        codes = {"good": ErrorCode.none, "bad": error}
        topics = [
            {"name": each, "partitions": [{"partition_index": 0, "committed_offset": -1, "error_code": code}]}
            for each, code in codes.items()
        ]
        return {"groups": [{"group_id": "g", "topics": topics}], "topics": topics}

    def _records(self) -> dict[str, Any]:
        error = self._fault.errors.get(ApiKey.FETCH, ErrorCode.none)
        fields = {"high_watermark": 3, "last_stable_offset": 3}
        good = {"partition_index": 0, **fields, "records": None if self._fetched else RECORDS}
        bad = {"partition_index": 0, "error_code": error, **fields, "records": None}
        self._fetched += 1
        return {
            "responses": [
                {"topic": name, "topic_id": IDS[name], "partitions": [told]}
                for name, told in (("good", good), ("bad", bad))
            ]
        }


@asynccontextmanager
async def two_topics(fault: Fault) -> AsyncIterator[ScriptedBroker]:
    """The other broker's port is closed, or its connections are accepted and nothing is answered."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        if fault.is_silent:
            other.listen()
        async with asyncio.timeout(patient(20)), TwoTopics(fault, other.getsockname()[1]) as broker:
            yield broker


@pytest.mark.parametrize("group", [None, "g"])
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_a_consumer_reads_what_can_be_read(fault: Fault, group: str | None) -> None:
    """Within one poll whose timeout is much longer than the test's, unless that raises an error of the other one."""
    async with two_topics(fault) as broker:
        settings = {"group.id": group} if group else {}
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "auto.offset.reset": "earliest", **settings})
        consumer.assign([BAD, GOOD])
        read: list[str] = []
        while len(read) < 3:
            try:
                read += [record.topic for record in await consumer.poll(600_000)]
            except KafkaError as error:
                assert "bad" in error.detail
        assert read == ["good"] * 3
        assert await consumer.position(GOOD) == 3
        consumer._rebalancing = None
        await consumer.close()


ENDLESS: Final = {name: fault for name, fault in FAULTS.items() if not fault.errors or "no end" in name}


@pytest.mark.parametrize("fault", ENDLESS.values(), ids=ENDLESS)
async def test_offsets_of_other_partitions_are_listed_beside_an_error_that_names_the_one_without(fault: Fault) -> None:
    settings: dict[str, Any] = {"default_api_timeout_ms": 300}
    async with two_topics(fault) as broker, Admin(bootstrap_servers=broker.bootstrap, **settings) as admin:
        found = await admin.list_offsets_each({BAD: LATEST, GOOD: LATEST})
        assert isinstance(found[GOOD], OffsetAndTimestamp)
        assert isinstance(found[BAD], KafkaError)
        assert list(found) == [BAD, GOOD]
        with pytest.raises(KafkaError) as caught:
            await admin.list_offsets({GOOD: LATEST, BAD: LATEST})
        assert "bad-0" in caught.value.detail
        assert "good" not in caught.value.detail


NO_PRODUCERS: Final = {
    "no producers: not leader": Fault(errors={ApiKey.DESCRIBE_PRODUCERS: ErrorCode.not_leader_or_follower}),
    "no producers: no permission": Fault(errors={ApiKey.DESCRIBE_PRODUCERS: ErrorCode.topic_authorization_failed}),
}
UNSEEN: Final = {name: fault for name, fault in FAULTS.items() if not fault.errors} | NO_PRODUCERS


@pytest.mark.parametrize("fault", UNSEEN.values(), ids=UNSEEN)
async def test_producers_of_other_partitions_are_described_beside_the_error_of_the_one_without(fault: Fault) -> None:
    settings: dict[str, Any] = {"default_api_timeout_ms": 300}
    async with two_topics(fault) as broker, Admin(bootstrap_servers=broker.bootstrap, **settings) as admin:
        found, errors = await admin.describe_producers_each([BAD, GOOD])
        assert [each.topic_partition for each in found] == [GOOD]
        assert list(errors) == [BAD]
        with pytest.raises(KafkaError, match="bad-0"):
            await admin.describe_producers([GOOD, BAD])


async def test_one_request_goes_to_each_leader_however_many_partitions_it_has() -> None:
    async with two_topics(Fault()) as broker, Admin(bootstrap_servers=broker.bootstrap) as admin:
        await admin.list_offsets({GOOD: LATEST, BAD: LATEST})
        asked = [each.api_key for each in broker.requests]
        assert asked.count(ApiKey.LIST_OFFSETS) == 1
        assert asked.count(ApiKey.METADATA) == 1
