"""Claims about retries: what is looked up again, what is repeated, and what comes out at the deadline."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from einmal.client.aio.network.cluster import Cluster
from einmal.client.aio.network.coordinators import TRANSACTION, CoordinatorRequest
from einmal.client.aio.network.results import error_code
from einmal.client.apis import ApiKey
from einmal.client.config import AdminSettings, parse
from einmal.client.errors import ClientClosed, Disconnected, RequestRefused, RetriableError, UnknownOutcome
from einmal.seams import SystemClock, TcpNetwork
from einmal.types import ErrorCode, Instant
from einmal.wire.api.end_txn import API as END_TXN
from einmal.wire.api.end_txn import EndTxnRequest
from einmal.wire.messages import RequestHeader
from tests.broker.nodes import running_node, until
from tests.client.aio.scripted_broker import ScriptedBroker, Session
from tests.suite.patience import patient

LONG_MS = 1_000_000
ENDING = EndTxnRequest("id", 1, 0, True)


class LeapingClock:
    """Runs with the system's clock until ``leap``: no call is late before, whatever the machine does."""

    def __init__(self) -> None:
        self._system = SystemClock()
        self._ahead_ms = 0

    def leap(self) -> None:
        """Whatever has a deadline is late now."""
        self._ahead_ms = 2 * LONG_MS

    def now(self) -> Instant:
        now = self._system.now()
        return Instant(now.wall_ms + self._ahead_ms, now.monotonic_ms + self._ahead_ms)


class Script:
    """Answers FindCoordinator and Metadata; EndTxn with the given codes in turn, None: hang up after it arrived."""

    def __init__(self, *codes: ErrorCode | None) -> None:
        self.codes = list(codes)
        self.hides_coordinator = False
        """Once nothing but hanging up is left to do, FindCoordinator finds nobody."""
        self.broker: ScriptedBroker | None = None
        self.clock = LeapingClock()
        self.late_after: tuple[ApiKey, int] | None = None
        """So many requests of this kind come before the deadline of the call."""

    def __call__(self, session: Session, header: RequestHeader, _request: bytes) -> None:
        assert self.broker is not None
        if self.late_after is not None and count(self.broker, self.late_after[0]) >= self.late_after[1]:
            self.clock.leap()
        host, port = self.broker.bootstrap.split(":")
        if header.api_key == ApiKey.METADATA:
            session.answer(header, self.broker.metadata())
        elif header.api_key == ApiKey.FIND_COORDINATOR:
            code = ErrorCode.coordinator_not_available if self.hides_coordinator else ErrorCode.none
            found = {"key": "id", "node_id": 1, "host": host, "port": int(port), "error_code": code}
            session.answer(header, {"coordinators": [found]})
        else:
            next_code = self.codes.pop(0) if len(self.codes) > 1 else self.codes[0]
            if next_code is None:
                self.hides_coordinator = self.codes == [None]
                session.transport.close()
            else:
                session.answer(header, {"error_code": next_code})


@asynccontextmanager
async def cluster_of(script: Script) -> AsyncIterator[tuple[Cluster, ScriptedBroker]]:
    async with asyncio.timeout(patient(20)), ScriptedBroker(script) as broker:
        script.broker = broker
        config = {"bootstrap.servers": broker.bootstrap, "retry.backoff.ms": 5, "reconnect.backoff.ms": 5}
        settings = parse(AdminSettings, config, {})
        cluster = Cluster(settings, network=TcpNetwork(), clock=script.clock, source=random.Random(1))
        try:
            yield cluster, broker
        finally:
            await cluster.close()


async def end_txn(cluster: Cluster, timeout_ms: int = LONG_MS, **options: Any) -> Any:
    request = CoordinatorRequest(
        kind=TRANSACTION,
        key="id",
        api=END_TXN,
        request=ENDING,
        error_of=error_code,
        **options,
    )
    return await cluster.coordinators.call(request, deadline=cluster.deadline(timeout_ms))


def count(broker: ScriptedBroker, api_key: ApiKey) -> int:
    return sum(request.api_key == api_key for request in broker.requests)


async def test_a_loading_coordinator_is_retried_and_not_looked_up_again() -> None:
    loading = ErrorCode.coordinator_load_in_progress
    async with cluster_of(Script(loading, loading, ErrorCode.none)) as (cluster, broker):
        answer = await end_txn(cluster)
        assert (answer.response.error_code, answer.was_repeated) == (ErrorCode.none, False)
        assert (count(broker, ApiKey.END_TXN), count(broker, ApiKey.FIND_COORDINATOR)) == (3, 1)


async def test_a_broker_that_is_not_the_coordinator_makes_the_client_look_it_up() -> None:
    async with cluster_of(Script(ErrorCode.not_coordinator, ErrorCode.none)) as (cluster, broker):
        await end_txn(cluster)
        assert count(broker, ApiKey.FIND_COORDINATOR) == 2


async def test_a_lost_answer_is_remembered_with_the_next_one() -> None:
    async with cluster_of(Script(None, ErrorCode.producer_fenced)) as (cluster, _broker):
        answer = await end_txn(cluster)
        assert (answer.response.error_code, answer.was_repeated) == (ErrorCode.producer_fenced, True)


async def test_at_the_deadline_a_request_without_any_answer_is_of_unknown_outcome() -> None:
    script = Script(None, None, None)
    script.late_after = ApiKey.END_TXN, 2
    async with cluster_of(script) as (cluster, _broker):
        with pytest.raises(UnknownOutcome, match="END_TXN for 'id'"):
            await end_txn(cluster)


async def test_a_coordinator_that_cannot_be_found_again_leaves_the_outcome_unknown() -> None:
    script = Script(None)
    script.late_after = ApiKey.FIND_COORDINATOR, 3
    async with cluster_of(script) as (cluster, broker):
        with pytest.raises(UnknownOutcome):
            await end_txn(cluster)
        assert script.hides_coordinator
        assert count(broker, ApiKey.END_TXN) == 1


@pytest.mark.parametrize("code", [ErrorCode.coordinator_not_available, ErrorCode.request_timed_out])
async def test_a_coordinator_that_did_not_wait_for_its_log_may_have_decided(code: ErrorCode) -> None:
    async with cluster_of(Script(code, ErrorCode.producer_fenced)) as (cluster, _broker):
        assert (await end_txn(cluster)).was_repeated


async def test_at_the_deadline_a_request_that_was_only_refused_is_retriable() -> None:
    script = Script(ErrorCode.coordinator_load_in_progress)
    script.late_after = ApiKey.END_TXN, 2
    async with cluster_of(script) as (cluster, _broker):
        with pytest.raises(RetriableError, match="COORDINATOR_LOAD_IN_PROGRESS"):
            await end_txn(cluster)


async def test_a_version_that_the_broker_does_not_speak_is_refused_and_not_retried() -> None:
    async with cluster_of(Script(ErrorCode.none)) as (cluster, broker):
        with pytest.raises(RequestRefused, match="UNSUPPORTED_VERSION"):
            await end_txn(cluster, at_least=6)
        assert count(broker, ApiKey.END_TXN) == 0


async def test_concurrent_callers_share_one_connection() -> None:
    async with cluster_of(Script(ErrorCode.none)) as (cluster, broker):
        await asyncio.gather(*(cluster.any_connection() for _ in range(5)))
        assert len(broker.sessions) == 1


def features(epoch: int, level: int | None) -> dict[str, Any]:
    """As of ApiVersions; ``level``: of transaction.version, None: unknown yet."""
    known = [] if level is None else [{"name": "transaction.version", "max_version_level": level}]
    return {"finalized_features_epoch": epoch, "finalized_features": known}


async def test_a_broker_whose_metadata_is_older_does_not_change_the_transaction_version() -> None:
    """One that has just started knows none: transactions would fall back to version 1."""
    async with cluster_of(Script(ErrorCode.none)) as (cluster, broker):
        seen = []
        for told in (features(7, 2), features(-1, None), features(6, 1), features(8, 1)):
            broker.features = told
            await reconnect(cluster, broker)
            seen.append(cluster.transaction_version)
        assert seen == [2, 2, 2, 1]


async def reconnect(cluster: Cluster, broker: ScriptedBroker) -> None:
    for session in broker.sessions:
        session.transport.abort()
    before = len(broker.sessions)
    while len(broker.sessions) == before:
        await asyncio.sleep(0.001)
        with suppress(Disconnected):
            await cluster.any_connection()


async def test_a_closed_cluster_raises_client_closed() -> None:
    async with cluster_of(Script(ErrorCode.none)) as (cluster, _broker):
        await cluster.close()
        with pytest.raises(ClientClosed):
            await cluster.any_connection()


async def test_a_topic_that_may_be_created_lets_no_other_one_be_created(tmp_path: Path) -> None:
    """A pipeline's commit topic has settings of its own, and the same client looks at topics that may be created."""
    async with running_node(tmp_path) as node:
        settings = parse(AdminSettings, {"bootstrap.servers": f"127.0.0.1:{node.port}"}, {})
        cluster = Cluster(settings, network=TcpNetwork(), clock=SystemClock(), source=random.Random(1))
        try:
            for name, may_create in (("must-not", False), ("may", True), ("must-not-either", False)):
                cluster.want_topic(name, may_create=may_create)
            await cluster.refresh_soon()
            await until(lambda: "may" in node.metadata.image.topics)
        finally:
            await cluster.close()
        assert not {"must-not", "must-not-either"} & node.metadata.image.topics.keys()
