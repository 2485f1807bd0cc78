"""Claims about which cluster a command connects to, and how it reports an unreachable one."""

from __future__ import annotations

import pytest
import typer

from einmal.cli.clients import BROKERS_VARIABLES, config_of, for_each
from einmal.client.errors import error_for
from einmal.types import ErrorCode
from tests.cli.running import Cli


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in BROKERS_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_the_option_wins_over_the_environment_and_that_over_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert config_of(None)["bootstrap.servers"] == "127.0.0.1:9092"
    monkeypatch.setenv("REDPANDA_BROKERS", "c:1")
    assert config_of(None)["bootstrap.servers"] == "c:1"
    monkeypatch.setenv("KAFKA_BROKERS", "a:1")
    assert config_of(None)["bootstrap.servers"] == "a:1"
    assert config_of("b:1")["bootstrap.servers"] == "b:1"


def test_settings_are_kafka_s() -> None:
    assert config_of(None, ["client.id=me", "linger.ms = 3"]).items() >= {"client.id": "me", "linger.ms": "3"}.items()
    with pytest.raises(typer.BadParameter, match="is not KEY=VALUE"):
        config_of(None, ["client.id"])


def test_an_unreachable_broker_is_reported_with_its_address() -> None:
    failed = Cli("127.0.0.1:1")("topic", "list", "-X", "default.api.timeout.ms=300", status=1)
    assert "127.0.0.1:1" in failed.errors[0]
    assert failed.errors[1].startswith("hint: check that the broker runs")


def test_an_unknown_setting_is_reported_with_the_nearest_name() -> None:
    failed = Cli("127.0.0.1:1")("topic", "list", "-X", "client.idd=x", status=1)
    assert failed.errors[1] == "hint: did you mean 'client.id'?"


def test_a_name_that_no_host_can_have_is_a_broker_that_cannot_be_reached() -> None:
    failed = Cli("no..host:9092")("topic", "list", "-X", "default.api.timeout.ms=300", status=1)
    assert failed.errors[0].startswith("error: NETWORK_EXCEPTION (13)")


@pytest.mark.parametrize(
    ("code", "is_alike", "tried"),
    [
        (ErrorCode.transactional_id_authorization_failed, False, 2),
        (ErrorCode.topic_authorization_failed, False, 2),
        (ErrorCode.cluster_authorization_failed, True, 1),
        (ErrorCode.invalid_request, True, 2),
        (ErrorCode.network_exception, False, 1),
    ],
)
def test_a_failure_ends_a_series_where_the_others_would_fail_like_it(
    code: ErrorCode, is_alike: bool, tried: int
) -> None:
    names: list[str] = []

    def act(name: str) -> str:
        names.append(name)
        raise error_for(code, name)

    outcomes = for_each(["a", "b"], act, is_alike=is_alike)
    assert (names, outcomes.done) == (["a", "b"][:tried], {})
    assert outcomes.of["b"] is None or tried == 2
