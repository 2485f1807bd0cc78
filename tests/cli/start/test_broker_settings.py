"""Claims about where a broker's settings come from: file, environment, command line."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from einmal.broker.config import ConfigError
from einmal.cli.start.broker_settings import StartError, values_of
from tests.cli.broker_process import BrokerProcess
from tests.cli.running import Cli
from tests.ports import loopback_ports
from tests.suite import warm

TOML = """\
listeners = "PLAINTEXT://127.0.0.1:0"
num.partitions = 4
auto.create.topics.enable = false
super.users = ["User:a", "User:b"]
"max.connections" = 50
max.connections.per.ip = 20

[log]
retention.ms = -1
"""


def test_toml_has_the_keys_of_properties(tmp_path: Path) -> None:
    toml = tmp_path / "server.toml"
    toml.write_text(TOML)
    assert values_of(toml, {}, []) == {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "num.partitions": "4",
        "auto.create.topics.enable": "false",
        "super.users": "User:a,User:b",
        "max.connections": "50",
        "max.connections.per.ip": "20",
        "log.retention.ms": "-1",
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("num.partitions = 2026-01-01", "num.partitions is a time or date, and must be"),
        ("[num.partitions]", "num.partitions is a table, and must be"),
        ("listeners = [[1]]", "listeners is a list of something else"),
    ],
)
def test_a_value_of_a_wrong_type_is_named(tmp_path: Path, text: str, problem: str) -> None:
    toml = tmp_path / "server.toml"
    toml.write_text(text)
    with pytest.raises(ConfigError, match=problem):
        values_of(toml, {}, [])


@pytest.mark.parametrize("text", ["log.dirs = /data", "max.connections = 5\nmax.connections.per.ip = 2"])
def test_what_is_not_toml_gets_a_hint_about_quotes(tmp_path: Path, text: str) -> None:
    toml = tmp_path / "server.toml"
    toml.write_text(text)
    with pytest.raises(StartError, match=r"server\.toml: not TOML") as refused:
        values_of(toml, {}, [])
    assert '"max.connections" = 100' in refused.value.hint


@pytest.mark.parametrize(
    ("variable", "key"),
    [
        ("KAFKA_ADVERTISED_LISTENERS", "advertised.listeners"),
        ("KAFKA_LISTENER_NAME_MY__OWN_SSL_KEY_PASSWORD", "listener.name.my_own.ssl.key.password"),
        ("KAFKA_LISTENER_NAME_A___B_SSL_KEY_PASSWORD", "listener.name.a-b.ssl.key.password"),
        ("KAFKA_SSL_KEYSTORE_LOCATION", "ssl.keystore.location"),
        # Unknown settings stay, to be warned of.
        ("KAFKA_NUM_PARTITION", "num.partition"),
    ],
)
def test_the_environment_is_above_a_file_and_below_the_command_line(
    tmp_path: Path, variable: str, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    properties = tmp_path / "server.properties"
    properties.write_text(f"{key}=file\n")
    caplog.set_level(logging.INFO)
    assert values_of(properties, {variable: "environment"}, []) == {key: "environment"}
    assert variable in caplog.text and "=environment" not in caplog.text
    assert values_of(properties, {variable: "environment"}, [f"{key}=option"]) == {key: "option"}


@pytest.mark.parametrize(
    "variable",
    [
        *("KAFKA_BROKERS", "KAFKA_BOOTSTRAP_SERVERS", "KAFKA_HOME", "KAFKA_OPTS", "KAFKA_HEAP_OPTS", "HOME"),
        # Of the clients on the same machine.
        *("KAFKA_SASL_PASSWORD", "KAFKA_SASL_USERNAME", "KAFKA_SASL_MECHANISM", "KAFKA_SECURITY_PROTOCOL"),
    ],
)
def test_other_variables_are_no_settings(variable: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    properties = tmp_path / "server.properties"
    properties.write_text("")
    caplog.set_level(logging.INFO)
    assert (values_of(properties, {variable: "value"}, []), caplog.text) == ({}, "")


@pytest.mark.system
def test_a_broker_runs_by_toml_and_the_environment_and_reports_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toml = tmp_path / "server.toml"
    toml.write_text('num.partitions = 4\nlog.retention.ms = 5000\nlisteners = "PLAINTEXT://127.0.0.1:0"\n')
    monkeypatch.setenv("KAFKA_NUM_PARTITIONS", "3")
    monkeypatch.setenv("KAFKA_SERVICE_HOST", "10.0.0.1")
    (port,) = loopback_ports(1)
    advertised = f"PLAINTEXT://127.0.0.1:{port}"
    monkeypatch.setenv("KAFKA_ADVERTISED_LISTENERS", advertised)
    with BrokerProcess(tmp_path / "data", "--config", str(toml), port=port).wait_until_ready() as broker:
        cli = Cli(broker.bootstrap)
        config = cli("cluster", "config", "--format", "json").document
        status, errors = broker.stop()
    assert status == 0
    assert "KAFKA_ADVERTISED_LISTENERS, KAFKA_NUM_PARTITIONS, KAFKA_SERVICE_HOST" in errors
    assert "unknown setting service.host is ignored" in errors
    values = {each["key"]: each["value"] for each in config}
    wanted = ("num.partitions", "log.retention.ms", "advertised.listeners")
    assert [values[each] for each in wanted] == ["3", "5000", advertised]


@pytest.mark.system
def test_a_start_with_broken_toml_is_an_error_with_a_hint(tmp_path: Path) -> None:
    toml = tmp_path / "server.toml"
    toml.write_text("num.partitions = 2026-01-01")
    ended = warm.run(["einmal", "start", "-n", "1", "--config", str(toml)], timeout=180)
    assert ended.returncode == 1
    assert "num.partitions is a time or date" in ended.stderr
    assert "hint: " in ended.stderr and "Traceback" not in ended.stderr
