"""Claims about security settings: both naming schemes mean the same, and a contradiction is an error with a hint."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from einmal.client.config import ProducerSettings, parse
from einmal.client.errors import ConfigError
from einmal.security.secret import Secret
from einmal.security.settings import ClientCredentials, Security, TokenFile

SERVERS = {"bootstrap.servers": "127.0.0.1:1"}
CANARY = "canary-2"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTH = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
URL = "sasl.oauthbearer.token.endpoint.url"


def security(given: dict[str, Any]) -> Security:
    return parse(ProducerSettings, SERVERS | given, {}).security


def test_java_and_librdkafka_settings_of_sasl_mean_the_same() -> None:
    ours = {"sasl.mechanisms": "SCRAM-SHA-512", "sasl.username": "alice", "sasl.password": 'p"w\\;'}
    jaas = f'{SCRAM_MODULE} required\n username="alice" password="p\\"w\\\\;";'
    java = {"sasl.mechanism": "scram-sha-512", "sasl.jaas.config": jaas}
    found = security({"security.protocol": "sasl_ssl", **ours})
    assert found == security({"security.protocol": "SASL_SSL", **java})
    assert found.sasl is not None
    assert found.sasl.password.reveal() == 'p"w\\;'


def test_java_and_librdkafka_settings_of_mutual_tls_mean_the_same_files() -> None:
    ours = security(
        {
            "security.protocol": "SSL",
            "ssl.ca.location": "/ca",
            "ssl.certificate.location": "/c",
            "ssl.key.location": "/c",
        }
    )
    java = security(
        {
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": "/ca",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": "/c",
        }
    )
    for found in (ours.tls, java.tls):
        assert found is not None
        assert found.authority and found.certificate and found.key
        assert (found.authority.location, found.certificate.location, found.key.location) == ("/ca", "/c", "/c")
        assert found.verifies_certificate and found.verifies_host


def test_pem_in_a_setting_may_have_escaped_line_breaks() -> None:
    found = security({"security.protocol": "SSL", "ssl.truststore.certificates": "-----BEGIN\\nx"})
    assert found.tls and found.tls.authority and found.tls.authority.content == Secret("-----BEGIN\nx")


def test_plaintext_is_the_default_and_settings_without_effect_only_warn() -> None:
    assert security({}) == Security("PLAINTEXT", None, None)
    found = security({"ssl.ca.location": "/ca", "sasl.password": CANARY})
    assert found.warnings == ("security.protocol=PLAINTEXT: sasl.password, ssl.ca.location have no effect",)


@pytest.mark.parametrize(
    ("given", "warning"),
    [
        ({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "none"}, "can pose"),
        ({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": ""}, "can pose"),
        ({"security.protocol": "SSL", "enable.ssl.certificate.verification": "false"}, "can pose"),
        (
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "a",
                "sasl.password": "b",
            },
            "unencrypted",
        ),
    ],
)
def test_less_security_is_warned_of(given: dict[str, str], warning: str) -> None:
    (found,) = security(given).warnings
    assert warning in found


def test_a_warning_is_logged_when_a_client_is_made(caplog: pytest.LogCaptureFixture) -> None:
    from einmal.client.aio.network import secured
    from einmal.seams import TcpNetwork

    secured._logged.clear()
    settings = parse(
        ProducerSettings, SERVERS | {"security.protocol": "SSL"}, {"enable_ssl_certificate_verification": 0}
    )
    with caplog.at_level(logging.WARNING):
        secured.Secured(settings, TcpNetwork())
        secured.Secured(settings, TcpNetwork())
    assert len([each for each in caplog.records if "enable.ssl.certificate.verification" in each.message]) == 1


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"security.protocol": "TLS"},
            "security.protocol cannot be 'TLS'. Choose one of PLAINTEXT, SSL, SASL_PLAINTEXT",
        ),
        ({"security.protocol": "SASL_SSL"}, "needs sasl.mechanism"),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"},
            "unsupported sasl.mechanism 'GSSAPI'. Supported:",
        ),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "PLAIN needs sasl.username"),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "alice"},
            "PLAIN needs sasl.password",
        ),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.mechanisms": "SCRAM-SHA-256"},
            "different mechanisms",
        ),
        (
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": f'{SCRAM_MODULE} required username="a" password="{CANARY}";',
            },
            "login module of SCRAM-SHA-256 and SCRAM-SHA-512, and sasl.mechanism is PLAIN",
        ),
        (
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.password": CANARY,
                "sasl.jaas.config": f'{SCRAM_MODULE} required username="a" password="{CANARY}";',
            },
            "sasl.password and sasl.jaas.config both set it",
        ),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": f"password={CANARY}"},
            "not one login module",
        ),
        (
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": f'com.sun.security.auth.module.Krb5LoginModule required password="{CANARY}";',
            },
            "Krb5LoginModule is not supported",
        ),
        (
            {"security.protocol": "SSL", "ssl.ca.location": "/a", "ssl.ca.pem": "b"},
            "ssl.ca.location and ssl.ca.pem both",
        ),
        ({"security.protocol": "SSL", "ssl.certificate.location": "/a"}, "without the key of this certificate"),
        ({"security.protocol": "SSL", "ssl.key.pem": CANARY}, "without the certificate of this key"),
        (
            {
                "security.protocol": "SSL",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": "/a",
                "ssl.key.location": "/b",
            },
            "both set the client's certificate",
        ),
        (
            {"security.protocol": "SSL", "ssl.truststore.location": "/a b.jks"},
            "keytool -list -rfc -keystore '/a b.jks' > ca.pem",
        ),
        (
            {"security.protocol": "SSL", "ssl.truststore.location": "/a", "ssl.truststore.type": "PKCS12"},
            "openssl pkcs12 -in /a -nokeys -out ca.pem",
        ),
        (
            {"security.protocol": "SSL", "ssl.keystore.location": "/k.jks", "ssl.keystore.password": CANARY},
            "keytool -importkeystore -srckeystore /k.jks -destkeystore client.p12 -deststoretype PKCS12",
        ),
        ({"security.protocol": "SSL", "ssl.keystore.location": "/k.p12"}, "openssl pkcs12 -in /k.p12 -out client.pem"),
        ({"security.protocol": "SSL", "ssl.truststore.location": "/ca.pem"}, "Set ssl.truststore.type=PEM."),
        (
            {
                "security.protocol": "SSL",
                "ssl.truststore.location": "/a",
                "ssl.truststore.type": "PEM",
                "ssl.truststore.password": CANARY,
            },
            "ssl.truststore.password has no meaning",
        ),
        (OAUTH, f"needs {URL} or sasl.oauthbearer.token.provider"),
        (OAUTH | {URL: "http://idp/token"}, "HTTPS only"),
        (OAUTH | {URL: f"https://me:{CANARY}@idp/token"}, "contains credentials"),
        (OAUTH | {URL: "https://idp/token"}, "needs a client's id and secret"),
        (OAUTH | {"sasl.oauthbearer.token.provider": CANARY}, "not a function"),
        (OAUTH | {URL: "file:///t", "sasl.login.callback.handler.class": "com.example.Login"}, "is a Java class"),
        (OAUTH | {URL: "file:///t", "sasl.oauthbearer.extensions": "auth=x"}, "'auth' is no extension"),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "a"}
            | {"sasl.password": f"{CANARY}\udcff"},
            "sasl.password is not UTF-8",
        ),
        (
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "a\0b",
                "sasl.password": CANARY,
            },
            "sasl.username has a NUL character",
        ),
        ({"sasl.pasword": CANARY}, "Did you mean 'sasl.password'"),
        ({"ssl.enabled.protocols": "TLSv1.2"}, "TLS 1.2 and 1.3 are supported"),
    ],
)
def test_a_contradiction_is_an_error_that_names_settings_and_no_secret(given: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        security(given)
    assert told in str(caught.value)
    assert CANARY not in str(caught.value)
    assert CANARY not in repr(caught.value)


@pytest.mark.parametrize("module", ["secured.OAuthBearerLoginCallbackHandler", "OAuthBearerLoginCallbackHandler"])
def test_javas_oauth_settings_are_client_credentials(module: str) -> None:
    given = {
        URL: "https://idp.test/token",
        "sasl.login.callback.handler.class": f"org.apache.kafka.common.security.oauthbearer.{module}",
        "sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
        f'clientId="me" clientSecret="{CANARY}" scope="kafka" extension_logicalCluster="lkc";',
    }
    found = security(OAUTH | given).sasl
    assert found is not None
    assert found.token == ClientCredentials("https://idp.test/token", "me", Secret(CANARY), "kafka")
    assert found.extensions == {"logicalCluster": "lkc"}


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_a_token_endpoint_is_verified_by_the_authority_of_the_settings_under_both_protocols(protocol: str) -> None:
    given = OAUTH | {
        "security.protocol": protocol,
        URL: "https://idp/token",
        "sasl.oauthbearer.client.id": "me",
        "sasl.oauthbearer.client.secret": CANARY,
    }
    for authority in (
        {"ssl.ca.location": "/ca"},
        {"ssl.truststore.type": "PEM", "ssl.truststore.location": "/ca"},
        {
            "ssl.ca.location": "/other",
            "sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
            'ssl.ca.location="/ca";',
        },
    ):
        found = security(given | authority)
        assert found.sasl is not None
        assert isinstance(found.sasl.token, ClientCredentials)
        assert found.sasl.token.authority is not None
        assert found.sasl.token.authority.location == "/ca"
        if "sasl.jaas.config" not in authority:
            assert not any("have no effect" in each for each in found.warnings)
    unused = security(OAUTH | {"security.protocol": "SASL_PLAINTEXT", URL: "file:///t", "ssl.ca.location": "/ca"})
    assert any("ssl.ca.location have no effect" in each for each in unused.warnings)


def test_a_token_may_be_in_a_file() -> None:
    found = security(OAUTH | {URL: "file:///run/a%20token"}).sasl
    assert found is not None
    assert found.token == TokenFile("/run/a token")


def test_no_repr_of_settings_shows_a_secret() -> None:
    given = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": CANARY,
        "ssl.certificate.location": "/c",
        "ssl.key.pem": CANARY,
        "ssl.key.password": CANARY,
    }
    settings = parse(ProducerSettings, SERVERS | given, {})
    assert CANARY not in f"{settings} {settings!r} {settings.security!r}"
    assert "alice" in repr(settings)
