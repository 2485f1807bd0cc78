"""Claims about a client whose brokers lie: whatever they answer, it ends in a result or in a KafkaError, in time."""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
import resource
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from einmal.client.aio import Admin, Consumer, Producer
from einmal.client.errors import KafkaError
from einmal.types import TopicPartition
from tests.client.mutating_network import MutatingNetwork
from tests.interop.conftest import NodeFactory
from tests.suite.patience import patient

TOPIC = "lying"
SETTINGS: dict[str, Any] = {
    "default.api.timeout.ms": 400,
    "request.timeout.ms": 300,
    "bootstrap.timeout.ms": 300,
    "reconnect.backoff.ms": 1,
    "reconnect.backoff.max.ms": 5,
    "retry.backoff.ms": 1,
    "retry.backoff.max.ms": 5,
}
WRITING: dict[str, Any] = {**SETTINGS, "max.block.ms": 400, "delivery.timeout.ms": 400, "linger.ms": 0}
READING: dict[str, Any] = {**SETTINGS, "auto.offset.reset": "earliest", "fetch.max.wait.ms": 20}
PLACE = TopicPartition(TOPIC, 0)


async def ask_admin(config: dict[str, Any], network: MutatingNetwork) -> None:
    async with Admin(config, network=network) as admin:
        calls: list[Callable[[], Awaitable[Any]]] = [
            admin.describe_cluster,
            admin.list_topics,
            lambda: admin.describe_topics([TOPIC]),
            lambda: admin.create_topics([TOPIC], if_not_exists=True),
            lambda: admin.delete_topics(["no such topic"]),
            lambda: admin.describe_configs([TOPIC]),
            lambda: admin.alter_configs(TOPIC, {"retention.ms": "-1"}),
            lambda: admin.list_offsets({PLACE: -1}),
            lambda: admin.delete_records({PLACE: 0}),
            lambda: admin.describe_producers([PLACE]),
            admin.list_transactions,
            lambda: admin.describe_transactions(["lying"]),
            admin.list_groups,
            lambda: admin.describe_groups(["lying"]),
            lambda: admin.list_group_offsets("lying"),
        ]
        for call in network.source.sample(calls, 4):
            try:
                await call()
            except KafkaError:
                continue


async def produce(config: dict[str, Any], network: MutatingNetwork) -> None:
    async with Producer({**config, **WRITING}, network=network) as producer:
        await asyncio.gather(*(producer.send(TOPIC, bytes(8)) for _ in range(5)), return_exceptions=True)


async def transact(config: dict[str, Any], network: MutatingNetwork) -> None:
    async with Producer({**config, **WRITING, "transactional.id": "lying"}, network=network) as producer:
        for _ in range(2):
            async with producer.transaction() as transaction:
                transaction.send(TOPIC, b"v").add_done_callback(lambda done: done.cancelled() or done.exception())
                await transaction.send_offsets({PLACE: 1}, "lying")


async def read_assigned(config: dict[str, Any], network: MutatingNetwork) -> None:
    async with Consumer({**config, **READING}, network=network) as consumer:
        consumer.assign([PLACE])
        for _ in range(5):
            await consumer.poll(50)


async def read_in_group(config: dict[str, Any], network: MutatingNetwork) -> None:
    async with Consumer({**config, **READING, "group.id": "lying"}, network=network) as consumer:
        consumer.subscribe([TOPIC])
        for _ in range(5):
            await consumer.poll(100)
        await consumer.commit()


USES = [ask_admin, produce, transact, read_assigned, read_in_group]


async def run(seed: int, bootstrap: str, wrong: list[str]) -> int:
    def unexpected(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, KafkaError):
            wrong.append(f"seed {seed}: {context['message']}: {''.join(traceback.format_exception(error))}")

    asyncio.get_running_loop().set_exception_handler(unexpected)
    network = MutatingNetwork(seed, random.Random(seed).choice((0.05, 0.2, 0.5)))
    use = USES[seed % len(USES)]
    try:
        async with asyncio.timeout(patient(15)):
            await use({"bootstrap.servers": bootstrap, **SETTINGS}, network)
    except KafkaError:
        pass
    except Exception as error:  # noqa: BLE001 - what must not come out is what this test looks for.
        wrong.append(f"seed {seed} {use.__name__}: {''.join(traceback.format_exception(error))}")
    return network.changed


@pytest.mark.system
@pytest.mark.parametrize("seeds", [range(15), pytest.param(range(15, 60), marks=pytest.mark.long)], ids=str)
def test_answers_that_lie_end_in_kafka_errors(node_of: NodeFactory, seeds: range) -> None:
    bootstrap = node_of("einmal", 2).bootstrap
    wrong: list[str] = []
    changed = 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # In these short times a busy machine gives few answers.
    for seed in itertools.count(seeds.start):
        if seed >= seeds.stop and (changed > len(seeds) or seed >= seeds.stop + 10 * len(seeds)):
            break
        changed += asyncio.run(run(seed, bootstrap, wrong))
        gc.collect()
    assert not wrong, f"{len(wrong)} of {len(seeds)}:\n" + "\n".join(wrong[:5])
    assert changed > len(seeds)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000
