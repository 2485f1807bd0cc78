"""Settings of one listener, under the prefix ``listener.name.<name>.``."""

from __future__ import annotations

import pytest

from einmal.broker.config import BrokerConfig, ConfigError, broker_config
from einmal.security.secret import Secret


def checked(values: dict[str, str]) -> BrokerConfig:
    config, unknown = broker_config(values)
    assert not unknown
    config.check_roles()
    return config


def test_a_listeners_own_value_holds_above_that_of_all_listeners() -> None:
    values = {
        "listeners": "PLAINTEXT://:1,SSL://:2",
        "ssl.client.auth": "requested",
        "ssl.key.password": "of all",
        "listener.name.ssl.ssl.client.auth": "required",
        "listener.name.ssl.ssl.key.password": "its own",
    }
    config = checked(values)
    own = config.of_listener("SSL")
    assert (own.ssl_client_auth, own.ssl_key_password) == ("required", Secret("its own"))
    assert (config.ssl_client_auth, config.ssl_key_password) == ("requested", Secret("of all"))
    assert config.of_listener("PLAINTEXT") is config
    assert "its own" not in repr(config) and "of all" not in repr(config)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("listener.name.internal.ssl.client.auth", "no listener has this name"),
        ("listener.name.SSL.ssl.client.auth", "<name in lower case>"),
        ("listener.name.ssl.num.partitions", "the same for all listeners"),
        ("listener.name.ssl.ssl.client", "TLS of OpenSSL has no such setting"),
        ("listener.name.ssl.ssl.client.auth", "is one of none, requested, required"),
    ],
)
def test_a_listeners_setting_that_would_be_dropped_is_refused(key: str, message: str) -> None:
    value = "required" if "no listener" in message or "lower" in message else "7"
    with pytest.raises(ConfigError, match=message):
        checked({"listeners": "SSL://:2", key: value})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ssl.client.auth": "required"}, "ssl.client.auth=required protects nothing.*SSL or SASL_SSL"),
        ({"sasl.enabled.mechanisms": "PLAIN"}, "sasl.enabled.mechanisms protects nothing.*SASL_PLAINTEXT or SASL_SSL"),
        ({"listener.name.clients.ssl.client.auth": "required"}, "has no effect: set SSL or SASL_SSL for CLIENTS"),
        (
            {"listener.name.clients.sasl.enabled.mechanisms": "SCRAM-SHA-512"},
            "has no effect: set SASL_PLAINTEXT or SASL_SSL for CLIENTS",
        ),
        ({"listener.name.clients.plain.sasl.jaas.config": "x"}, "clients.plain.sasl.jaas.config has no effect"),
    ],
)
def test_a_protection_that_the_listeners_protocol_does_not_have_prevents_a_start(
    settings: dict[str, str], message: str
) -> None:
    """Whoever sets it relies on it, and anybody could connect."""
    listeners = {"listeners": "CLIENTS://:1", "listener.security.protocol.map": "CLIENTS:PLAINTEXT"}
    with pytest.raises(ConfigError, match=message):
        checked({**listeners, **settings})


def test_the_listener_of_controllers_elsewhere_has_settings_too() -> None:
    values = {
        "process.roles": "broker",
        "controller.quorum.voters": "9@c:1",
        "listeners": "PLAINTEXT://:1,INTERNAL://b:2",
        "inter.broker.listener.name": "INTERNAL",
        "listener.security.protocol.map": "INTERNAL:SASL_PLAINTEXT,CONTROLLER:SASL_SSL",
        "einmal.cluster.secret.file": "/secret",
        "listener.name.controller.ssl.truststore.location": "/ca.pem",
    }
    assert checked(values).of_listener("CONTROLLER").ssl_truststore_location == "/ca.pem"
