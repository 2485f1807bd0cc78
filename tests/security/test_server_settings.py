"""Claims about settings by which clients of a listener authenticate: what is refused, and what is only warned of."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from einmal.broker.config import BrokerConfig, ConfigError, broker_config
from einmal.security.secret import Secret
from einmal.security.server_settings import JwtSettings, SaslServerSettings

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
BEARER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
JWKS = "sasl.oauthbearer.jwks.endpoint.url"


def config(settings: Mapping[str, str]) -> BrokerConfig:
    parsed, unknown = broker_config(
        {
            "listeners": "CLIENTS://:0",
            "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT",
            **{key.replace("@", "listener.name.clients."): value for key, value in settings.items()},
        }
    )
    assert not unknown
    parsed.check_roles()
    return parsed


def settings(**values: str) -> SaslServerSettings:
    return config(values).sasl_of("CLIENTS")


def test_a_listener_has_its_own_mechanisms() -> None:
    found = config({"sasl.enabled.mechanisms": "PLAIN", "@sasl.enabled.mechanisms": "SCRAM-SHA-512, SCRAM-SHA-256"})
    assert found.sasl_of("CLIENTS").mechanisms == ("SCRAM-SHA-512", "SCRAM-SHA-256")


@pytest.mark.parametrize("key", ["@plain.sasl.jaas.config", "@sasl.jaas.config", "sasl.jaas.config"])
def test_users_of_plain_are_those_of_its_login_module(key: str) -> None:
    module = f'{PLAIN} username="admin" password="x" user_alice="one" user_b-o.b="t\\"wo";'
    found = config({"sasl.enabled.mechanisms": "PLAIN", key: module}).sasl_of("CLIENTS")
    assert found.plain_users == {"alice": Secret("one"), "b-o.b": Secret('t"wo')}
    assert any("einmal.cluster.secret.file" in warning for warning in found.warnings)


def test_a_mechanism_has_its_own_session_lifetime() -> None:
    found = config(
        {
            "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
            "connections.max.reauth.ms": "1000",
            "@scram-sha-512.connections.max.reauth.ms": "2000",
        }
    ).sasl_of("CLIENTS")
    assert found.max_reauth_ms == {"SCRAM-SHA-256": 1_000, "SCRAM-SHA-512": 2_000}


def test_tokens_are_verified_as_the_settings_want() -> None:
    found = config(
        {
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            JWKS: "https://id.example.com/keys",
            "@oauthbearer.sasl.oauthbearer.expected.audience": "kafka, einmal",
            "sasl.oauthbearer.expected.issuer": "https://id.example.com",
            "sasl.oauthbearer.clock.skew.seconds": "5",
            "@oauthbearer.sasl.jaas.config": f"{BEARER};",
            "@oauthbearer.sasl.server.callback.handler.class": (
                "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
            ),
        }
    ).sasl_of("CLIENTS")
    wanted = JwtSettings("https://id.example.com/keys", ("kafka", "einmal"), "https://id.example.com", clock_skew_s=5)
    assert found.jwt == wanted
    assert not found.warnings


def test_tokens_for_any_audience_are_warned_of() -> None:
    found = config({"sasl.enabled.mechanisms": "OAUTHBEARER", JWKS: "file:///keys"}).sasl_of("CLIENTS")
    assert any("expected.audience" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({}, "nobody could authenticate there"),
        ({"sasl.enabled.mechanisms": "GSSAPI"}, "GSSAPI is not supported"),
        ({"sasl.enabled.mechanisms": "PLAIN"}, "no user has a password"),
        ({"sasl.enabled.mechanisms": "PLAIN", "sasl.jaas.config": f'{SCRAM} user_a="b";'}, "no user has a password"),
        ({"sasl.enabled.mechanisms": "PLAIN", "@plain.sasl.jaas.config": f'{SCRAM} user_a="b";'}, "login module of"),
        ({"sasl.enabled.mechanisms": "PLAIN", "sasl.jaas.config": "hunter2"}, "not one login module"),
        ({"sasl.enabled.mechanisms": "OAUTHBEARER"}, "no token could be verified"),
        ({"sasl.enabled.mechanisms": "OAUTHBEARER", JWKS: "http://id.example.com/keys"}, "neither https"),
        (
            {
                "sasl.enabled.mechanisms": "OAUTHBEARER",
                JWKS: "file:///keys",
                "@oauthbearer.sasl.jaas.config": f'{BEARER} unsecuredLoginStringClaim_sub="a";',
            },
            "unsecured tokens",
        ),
        (
            {"sasl.enabled.mechanisms": "OAUTHBEARER", "@oauthbearer.sasl.server.callback.handler.class": "com.Own"},
            "sasl.server.callback.handler.class is one of",
        ),
        ({"sasl.enabled.mechanisms": "PLAIN", "@plain.sasl.enabled.mechanisms": "PLAIN"}, "is not supported"),
        ({"sasl.enabled.mechanisms": "SCRAM-SHA-256", "sasl.kerberos.service.name": "kafka"}, "not supported"),
        ({"sasl.enabled.mechanisms": "SCRAM-SHA-256", "sasl.login.class": "com.Own"}, "not supported"),
        ({"sasl.enabled.mechanisms": "SCRAM-SHA-256", "principal.builder.class": "com.Own"}, "not supported"),
        ({"sasl.enabled.mechanisms": "SCRAM-SHA-256", "listener.name.other.sasl.enabled.mechanisms": "PLAIN"}, "name"),
        (
            {"sasl.enabled.mechanisms": "SCRAM-SHA-256", "einmal.bootstrap.scram.credentials": "hunter2"},
            "entry 1 is not",
        ),
    ],
)
def test_a_setting_that_would_promise_more_stops_the_start(values: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        config(values)
    assert "hunter2" not in str(caught.value)


def test_no_secret_is_in_the_representation_of_settings() -> None:
    found = config(
        {
            "sasl.enabled.mechanisms": "PLAIN",
            "@plain.sasl.jaas.config": f'{PLAIN} user_alice="hunter2";',
            "einmal.bootstrap.scram.credentials": "SCRAM-SHA-256=[name=a,password=hunter2]",
        }
    )
    assert "hunter2" not in f"{found!r} {found.sasl_of('CLIENTS')!r}"
