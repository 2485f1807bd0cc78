"""Log levels of a running broker (KIP-412). Codes and messages are those of Apache Kafka 4.4."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from einmal.broker.front.broker_loggers import describe_loggers
from einmal.broker.node import Node
from einmal.types import ErrorCode
from tests.broker.nodes import Client, running_node, until

DESCRIBE_CONFIGS, ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS = 32, 33, 44
TOPIC, BROKER_LOGGER = 2, 8
SET, DELETE, APPEND, SUBTRACT = range(4)
SERVER: Final = "einmal.broker.front.connections.server"
CONNECTIONS: Final = "einmal.broker.front.connections"

Change = tuple[str, int, str | None]
Answer = tuple[ErrorCode, str | None]


@pytest.fixture(autouse=True)
def _levels() -> Iterator[None]:
    """Those of this process, which has other tests."""
    loggers = [logging.root, *(logging.getLogger(name) for name in (SERVER, CONNECTIONS))]
    before = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path) as node:
        logging.root.setLevel(logging.INFO)
        yield node


@pytest.fixture
async def client(node: Node) -> AsyncIterator[Client]:
    async with Client.connect(node) as client:
        yield client


async def described(client: Client, *names: str, broker: str = "1") -> dict[str, str]:
    (result,) = await answers(client, broker, names or None)
    assert result.error_code is ErrorCode.none
    return {config.name: config.value for config in result.configs}


async def answers(client: Client, broker: str, names: Sequence[str] | None) -> Any:
    resource = {"resource_type": BROKER_LOGGER, "resource_name": broker, "configuration_keys": names}
    return (await client.call(DESCRIBE_CONFIGS, 4, {"resources": [resource]})).results


async def altered(client: Client, *changes: Change, broker: str = "1", validate_only: bool = False) -> Answer:
    configs = [{"name": name, "config_operation": operation, "value": value} for name, operation, value in changes]
    resource = {"resource_type": BROKER_LOGGER, "resource_name": broker, "configs": configs}
    fields = {"resources": [resource], "validate_only": validate_only}
    (result,) = (await client.call(INCREMENTAL_ALTER_CONFIGS, 1, fields)).responses
    return result.error_code, result.error_message


async def test_all_loggers_are_described_with_the_levels_that_hold(client: Client) -> None:
    (result,) = await answers(client, "1", None)
    levels = {config.name: config.value for config in result.configs}
    assert levels["root"] == levels[SERVER] == levels["einmal.broker"] == "INFO"
    assert not any(name.startswith("asyncio") for name in levels)
    assert {(each.config_source, each.read_only, each.is_sensitive) for each in result.configs} == {(6, False, False)}
    assert await described(client, SERVER, "no.such.logger") == {SERVER: "INFO"}
    assert (await answers(client, "1", []))[0].configs == result.configs


class _Keys(list[str]):
    """Those of a request, which may be 100,000."""

    def __contains__(self, key: object) -> bool:
        raise AssertionError("for each logger all keys are looked through")


def test_keys_of_a_request_are_not_looked_through_for_each_logger() -> None:
    assert [config.name for config in describe_loggers(_Keys(["root", "no.such"]))] == ["root"]


async def test_a_level_is_that_of_a_package_until_the_logger_has_its_own(client: Client) -> None:
    assert await altered(client, (CONNECTIONS, SET, "FATAL")) == (ErrorCode.none, None)
    assert await described(client, SERVER) == {SERVER: "FATAL"}
    for level in ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL"):
        assert await altered(client, (SERVER, SET, level)) == (ErrorCode.none, None)
        assert await described(client, SERVER, CONNECTIONS) == {SERVER: level, CONNECTIONS: "FATAL"}
    assert await altered(client, (SERVER, DELETE, None), (CONNECTIONS, DELETE, "")) == (ErrorCode.none, None)
    assert await described(client, SERVER) == {SERVER: "INFO"}
    assert await altered(client, ("root", SET, "ERROR")) == (ErrorCode.none, None)
    assert await described(client, SERVER) == {SERVER: "ERROR"}


async def closed_by_the_broker(node: Node) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
    writer.write(b"\x00\x00\x00\x08GETGETGE")
    assert await reader.read() == b""
    writer.close()


async def test_a_changed_level_changes_what_the_log_has(
    node: Node, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    def closed() -> list[str]:
        return [record.getMessage() for record in caplog.records if getattr(record, "event", "") == "connection_closed"]

    await altered(client, (SERVER, SET, "ERROR"))
    await closed_by_the_broker(node)
    assert await described(client, SERVER) == {SERVER: "ERROR"}
    await altered(client, (SERVER, DELETE, None))
    assert closed() == []
    await closed_by_the_broker(node)
    await until(lambda: len(closed()) == 1)
    changed = [record.getMessage() for record in caplog.records if getattr(record, "event", "") == "log_level_changed"]
    assert changed == [f"the log level of {SERVER} is now {level}" for level in ("ERROR", "INFO")]


async def test_a_change_that_silences_the_log_is_logged(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    for level in ("FATAL", "ERROR", "INFO"):
        await altered(client, ("root", SET, level))
    assert await described(client, "root") == {"root": "INFO"}
    changed = [record.getMessage() for record in caplog.records if getattr(record, "event", "") == "log_level_changed"]
    assert changed == [f"the log level of root is now {level}" for level in ("FATAL", "INFO")]


REFUSED: Final[dict[str, tuple[Change, ErrorCode, str]]] = {
    "unknown": (("no.such", SET, "DEBUG"), ErrorCode.invalid_config, "Logger no.such does not exist!"),
    "unknown deleted": (("no.such", DELETE, None), ErrorCode.invalid_config, "Logger no.such does not exist!"),
    "no level": (
        (SERVER, SET, "debug"),
        ErrorCode.invalid_config,
        f"Cannot set the log level of {SERVER} to debug as it is not a supported log level. "
        "Valid log levels are DEBUG, ERROR, FATAL, INFO, TRACE, WARN",
    ),
    "root deleted": (
        ("root", DELETE, None),
        ErrorCode.invalid_request,
        "Removing the log level of the root logger is not allowed",
    ),
    "append": (
        (SERVER, APPEND, "DEBUG"),
        ErrorCode.invalid_request,
        "APPEND operation is not allowed for the BROKER_LOGGER resource",
    ),
    "subtract": (
        (SERVER, SUBTRACT, "DEBUG"),
        ErrorCode.invalid_request,
        "SUBTRACT operation is not allowed for the BROKER_LOGGER resource",
    ),
    "null": ((SERVER, SET, None), ErrorCode.invalid_request, f"Null value not supported for: {SERVER}"),
    "operation": ((SERVER, 9, "DEBUG"), ErrorCode.invalid_request, f"Unknown operations type 9 for: {SERVER}"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_a_refused_change_is_refused_with_all_others_of_its_request(client: Client, case: str) -> None:
    change, code, message = REFUSED[case]
    assert await altered(client, (CONNECTIONS, SET, "DEBUG"), change) == (code, message)
    assert await described(client, SERVER, CONNECTIONS) == {SERVER: "INFO", CONNECTIONS: "INFO"}


async def test_a_change_that_is_only_validated_changes_nothing(client: Client) -> None:
    assert await altered(client, (SERVER, SET, "DEBUG"), validate_only=True) == (ErrorCode.none, None)
    assert (await altered(client, ("no.such", SET, "DEBUG"), validate_only=True))[0] is ErrorCode.invalid_config
    assert await described(client, SERVER) == {SERVER: "INFO"}


@pytest.mark.parametrize("broker", ["2", "", "x"])
async def test_another_brokers_loggers_are_refused(client: Client, broker: str) -> None:
    code, message = await altered(client, (SERVER, SET, "DEBUG"), broker=broker)
    assert (code, message) == (ErrorCode.invalid_request, f"Unexpected node id. Expected 1, but received {broker}")
    (result,) = await answers(client, broker, None)
    assert (result.error_code, len(result.configs)) == (ErrorCode.invalid_request, 0)
    assert await described(client, SERVER) == {SERVER: "INFO"}


async def test_alter_configs_knows_no_loggers(client: Client) -> None:
    """As in Apache Kafka: it would return all others to their defaults."""
    resource = {"resource_type": BROKER_LOGGER, "resource_name": "1", "configs": [{"name": SERVER, "value": "DEBUG"}]}
    (result,) = (await client.call(ALTER_CONFIGS, 2, {"resources": [resource]})).responses
    assert result.error_code is ErrorCode.invalid_request
    assert await described(client, SERVER) == {SERVER: "INFO"}


async def test_topics_and_loggers_change_in_one_request(client: Client) -> None:
    await client.create_topic("t")
    of_topic = {"name": "retention.ms", "config_operation": SET, "value": "7"}
    of_logger = {"name": SERVER, "config_operation": SET, "value": "WARN"}
    resources = [
        {"resource_type": BROKER_LOGGER, "resource_name": "1", "configs": [of_logger]},
        {"resource_type": TOPIC, "resource_name": "t", "configs": [of_topic]},
    ]
    answer = await client.call(INCREMENTAL_ALTER_CONFIGS, 1, {"resources": resources})
    assert [(each.resource_type, each.error_code) for each in answer.responses] == [
        (BROKER_LOGGER, ErrorCode.none),
        (TOPIC, ErrorCode.none),
    ]
    assert await described(client, SERVER) == {SERVER: "WARN"}
