"""Claims about the settings of commands that connect: where they come from, which wins, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from einmal.cli.clients import config_of


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KAFKA_BROKERS", raising=False)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "client.properties"
    path.write_text(text)
    return path


def test_an_option_wins_over_a_setting_the_file_and_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_BROKERS", "environment:1")
    monkeypatch.setenv("KAFKA_SASL_USERNAME", "environment")
    file = written(tmp_path, "bootstrap.servers=file:1\nsasl.username=file\n")
    assert config_of(None)["bootstrap.servers"] == "environment:1"
    assert config_of(None)["sasl.username"] == "environment"
    assert config_of(None, command_config=file)["bootstrap.servers"] == "file:1"
    assert config_of(None, ["sasl.username=x"], file)["sasl.username"] == "x"
    assert config_of("option:1", ["bootstrap.servers=x:1"], file)["bootstrap.servers"] == "option:1"


def test_references_are_resolved_in_the_file_and_in_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "canary-9")
    (tmp_path / "secrets").write_text("key=canary-10\n")
    file = written(tmp_path, f"sasl.password=${{file:{tmp_path}/secrets:key}}\n")
    assert config_of(None, command_config=file)["sasl.password"] == "canary-10"
    assert config_of(None, ["sasl.password=${env:SECRET}"], file)["sasl.password"] == "canary-9"
    with pytest.raises(typer.BadParameter, match="the environment has no MISSING"):
        config_of(None, ["sasl.password=${env:MISSING}"])


def test_settings_of_another_client_are_left_out_and_unknown_ones_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, "acks=1\nisolation.level=read_committed\nkey.serializer=x\nsasl.pasword=y\n")
    found = config_of(None, command_config=file)
    assert {"acks", "isolation.level", "key.serializer"}.isdisjoint(found)
    assert found["sasl.pasword"] == "y", "the client rejects a misspelt security setting"
    assert capsys.readouterr().err == f"warning: {file}: unknown setting 'key.serializer' is ignored\n"
    assert config_of(None, None, file, "ProducerSettings")["acks"] == "1"


def test_a_file_that_cannot_be_read_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter, match="No such file or directory"):
        config_of(None, command_config=tmp_path / "missing")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(typer.BadParameter, match="it is not UTF-8"):
        config_of(None, command_config=tmp_path / "binary")
