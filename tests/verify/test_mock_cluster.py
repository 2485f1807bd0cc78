"""Claims about librdkafka's mock cluster, a control: its transactions do not hold, and no verdict is that they do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import confluent_kafka
import pytest

from einmal.verify.clients.processes import library
from einmal.verify.workload_run import WorkloadRun
from einmal.workloads.ledger import Ledger
from tests.cli.running import invoke
from tests.suite.patience import patient
from tests.suite.shared import unique

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.time_limit(120)]

_ENOUGH = 60
_LOOK_S = 0.2


@pytest.fixture
def bootstrap() -> Iterator[str]:
    """The mock cluster lives in a client."""
    quiet = logging.getLogger(__name__)
    quiet.disabled = True
    config = {"bootstrap.servers": "unused", "test.mock.num.brokers": 3}
    owner = confluent_kafka.Producer(config, logger=quiet)
    yield ",".join(f"{each.host}:{each.port}" for each in owner.list_topics(timeout=patient(10)).brokers.values())
    owner.flush()


async def test_aborted_records_are_read_there(bootstrap: str) -> None:
    clients = library("confluent-kafka", {"bootstrap.servers": bootstrap})
    run = WorkloadRun("appends", Ledger(unique("mock")), clients, "7")
    run.start()
    try:
        while run.acknowledged < _ENOUGH:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)
        await run.stop()
        await run.finish()
    finally:
        await run.cancel()
    assert "G1a" in {each.kind for each in run.anomalies()}


def test_the_command_has_no_verdict_where_topics_cannot_be_made(bootstrap: str) -> None:
    result = invoke(["verify", "-b", bootstrap, "--client", "confluent-kafka", "--time", "1s"])
    assert result.exit_code == 2
    assert "CREATE_TOPICS" in result.output and "verdict" not in result.output
