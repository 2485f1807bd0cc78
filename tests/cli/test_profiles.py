"""Claims about connection profiles: the file, what wins over them, and what is never shown."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest
import typer

from einmal.cli.clients import BROKERS_VARIABLES, config_of
from einmal.cli.profiles import Profiles, choose, path, profile_names, read, write
from tests.cli.running import invoke

SECRET = "canary-31"


@pytest.fixture(autouse=True)
def _own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in (*BROKERS_VARIABLES, "EINMAL_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    choose(None)


def einmal(*words: str, status: int = 0) -> str:
    """Both streams of the command."""
    result = invoke(words)
    assert result.exit_code == status, result.output
    return result.output


def test_a_profile_is_made_listed_used_and_deleted() -> None:
    einmal("profile", "create", "first", "-b", "a:1", "-X", "sasl.username=me")
    einmal("profile", "create", "second", "-b", "b:1")
    assert [line.split() for line in einmal("profile", "list").splitlines()[1:]] == [
        ["first", "a:1", "no"],
        ["second", "b:1", "yes"],
    ]
    einmal("profile", "use", "first")
    assert config_of(None).items() >= {"bootstrap.servers": "a:1", "sasl.username": "me"}.items()
    einmal("profile", "rm", "first")
    assert read() == Profiles(None, {"second": {"bootstrap.servers": "b:1"}})
    assert config_of(None)["bootstrap.servers"] == "127.0.0.1:9092"


def test_only_the_owner_can_read_the_file_and_another_mode_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    einmal("profile", "create", "p", "-b", "a:1")
    assert path().stat().st_mode & 0o777 == 0o600
    path().chmod(0o640)
    read()
    assert capsys.readouterr().err == f"warning: {path()} can be read by others: chmod 600 {path()}\n"
    einmal("profile", "use", "p")
    assert path().stat().st_mode & 0o777 == 0o600


def test_secrets_are_never_printed_and_references_are() -> None:
    settings = ["-X", f"sasl.password={SECRET}", "-X", "ssl.key.password=${env:KEY_PASSWORD}"]
    printed = einmal("profile", "create", "p", "-b", "a:1", *settings)
    for form in ("text", "wide", "json", "yaml"):
        printed += einmal("profile", "show", "p", "--format", form) + einmal("profile", "list", "--format", form)
    assert SECRET not in printed
    assert "[hidden]" in printed
    assert "${env:KEY_PASSWORD}" in printed
    assert SECRET in path().read_text()


def test_options_settings_the_file_and_the_environment_win_over_a_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("P_PASSWORD", SECRET)
    write(Profiles("p", {"p": {"bootstrap.servers": "profile:1", "sasl.password": "${env:P_PASSWORD}"}}))
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=file:1\n")
    assert config_of(None).items() >= {"bootstrap.servers": "profile:1", "sasl.password": SECRET}.items()
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("KAFKA_BROKERS", "environment:1")
    assert config_of(None)["bootstrap.servers"] == "environment:1"
    assert capsys.readouterr().err == "warning: the environment overrides bootstrap.servers of profile 'p'\n"
    assert config_of(None, command_config=file)["bootstrap.servers"] == "file:1"
    assert config_of(None, ["bootstrap.servers=x:1"], file)["bootstrap.servers"] == "x:1"
    assert config_of("option:1", ["bootstrap.servers=x:1"], file)["bootstrap.servers"] == "option:1"


def test_the_option_wins_over_the_variable_and_that_over_the_profile_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("used", "variable", "option")
    write(Profiles("used", {name: {"bootstrap.servers": f"{name}:1"} for name in names}))
    assert config_of(None)["bootstrap.servers"] == "used:1"
    monkeypatch.setenv("EINMAL_PROFILE", "variable")
    assert config_of(None)["bootstrap.servers"] == "variable:1"
    choose("option")
    assert config_of(None)["bootstrap.servers"] == "option:1"
    choose(None)
    monkeypatch.setenv("EINMAL_PROFILE", "")
    assert config_of(None)["bootstrap.servers"] == "127.0.0.1:9092"


def test_every_command_takes_it_and_the_next_one_does_not_have_it() -> None:
    write(Profiles(None, {"p": {"bootstrap.servers": "127.0.0.1:1", "bootstrap.timeout.ms": "50"}}))
    assert "127.0.0.1:1" in einmal("topic", "list", "--profile", "p", status=1)
    assert config_of(None, kind="ConsumerSettings")["bootstrap.servers"] == "127.0.0.1:1"
    einmal("topic", "list", "-b", "127.0.0.1:1", "-X", "bootstrap.timeout.ms=50", status=1)
    assert config_of(None)["bootstrap.servers"] == "127.0.0.1:9092"


def test_settings_of_other_clients_are_left_out_and_misspelt_ones_refused() -> None:
    einmal("profile", "create", "p", "-b", "a:1", "-X", "acks=1")
    assert "acks" not in config_of(None)
    assert config_of(None, kind="ProducerSettings")["acks"] == "1"
    assert "no client has the setting 'sasl.pasword'" in einmal(
        "profile", "create", "q", "-b", "a:1", "-X", "sasl.pasword=x", status=2
    )


def test_a_file_of_kafka_s_tools_becomes_a_profile(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=a:1\nsecurity.protocol=SSL\nkey.serializer=x\n")
    assert f"warning: {file}: unknown setting 'key.serializer'" in einmal(
        "profile", "create", "p", "--command-config", str(file)
    )
    assert read().settings == {"p": {"bootstrap.servers": "a:1", "security.protocol": "SSL"}}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("use", "q"), "has no profile 'q'; there are: p"),
        (("create", "p", "-b", "a:1"), "profile 'p' exists"),
        (("create", "a.b", "-b", "a:1"), "'a.b' is no name of a profile"),
        (("create", "q"), "a profile needs bootstrap servers"),
    ],
)
def test_wrong_usage_has_status_2_and_a_reason(words: tuple[str, ...], why: str) -> None:
    einmal("profile", "create", "p", "-b", "a:1")
    before = path().read_text()
    assert why in " ".join(einmal("profile", *words, status=2).split())
    assert path().read_text() == before


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("profile = ", "is not TOML"),
        ("other = 1", "may have profile"),
        ("[profiles.p]\nacks = 1", "'acks' must be a text, in quotes"),
        ("[profiles]\np = 1", "must be a text, in quotes"),
        ('profile = "gone"', "has no profile 'gone'"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused(text: str, why: str) -> None:
    path().parent.mkdir(parents=True, exist_ok=True)
    path().write_text(text)
    path().chmod(0o600)
    with pytest.raises(typer.BadParameter, match=why):
        config_of(None)


def test_a_file_written_by_hand_may_have_tables_for_dots() -> None:
    path().parent.mkdir(parents=True, exist_ok=True)
    path().write_text('[profiles.p]\nbootstrap.servers = "a:1"\n[profiles.p.sasl]\nusername = "me"\n')
    assert read().settings == {"p": {"bootstrap.servers": "a:1", "sasl.username": "me"}}
    assert profile_names("") == ["p"]


def test_any_text_survives() -> None:
    texts = {f"name.{number}": text for number, text in enumerate(('"', "\\n", "\x00\x1f\x7f", "ü \U0001f600", "'''"))}
    write(Profiles("p", {"p": texts}))
    assert read().settings["p"] == texts
    assert tomllib.loads(path().read_text())["profiles"]["p"] == texts
    with pytest.raises(typer.BadParameter, match="is not UTF-8") as failed:
        write(Profiles("p", {"p": {"a": "\udc80", "sasl.password": "hunter2"}}))
    assert "hunter2" not in str(failed.value)
    assert read().settings["p"] == texts
    assert os.listdir(path().parent) == [path().name]


def test_a_link_to_the_file_remains_one(tmp_path: Path) -> None:
    """As tools that keep dotfiles elsewhere make it."""
    target = tmp_path / "dotfiles" / "profiles.toml"
    target.parent.mkdir()
    path().parent.mkdir()
    path().symlink_to(target)
    einmal("profile", "create", "p", "-b", "a:1")
    assert path().is_symlink()
    assert "[profiles.p]" in target.read_text()
    assert list(target.parent.iterdir()) == [target]


def test_a_file_that_cannot_be_replaced_leaves_no_copy_with_secrets() -> None:
    path().mkdir(parents=True)
    with pytest.raises(typer.BadParameter, match="cannot be written"):
        write(Profiles("p", {"p": {"sasl.password": SECRET}}))
    assert list(path().parent.iterdir()) == [path()]
