"""Claims about secrets: no text of one shows its value."""

from __future__ import annotations

import copy
import pickle

import pytest

from einmal.security.redaction import RedactedDict, is_secret, redacted
from einmal.security.secret import Secret

VALUE = "canary-1"


def test_no_text_of_a_secret_shows_its_value() -> None:
    secret = Secret(VALUE)
    texts = [repr(secret), str(secret), f"{secret}", f"{secret:>20}", f"{secret!r}", str([secret])]
    assert not any(VALUE in text for text in texts)
    assert secret.reveal() == VALUE


def test_a_secret_travels_with_its_value() -> None:
    assert pickle.loads(pickle.dumps(Secret(VALUE))) == copy.deepcopy(Secret(VALUE)) == Secret(VALUE)
    assert Secret(VALUE) != Secret("other")
    assert not Secret("")


@pytest.mark.parametrize(
    "name",
    [
        "sasl.password",
        "kafka.sasl.password",
        "sasl.jaas.config",
        "ssl.key.password",
        "ssl.key.pem",
        "ssl.keystore.key",
        "ssl.keystore.password",
        "ssl.truststore.password",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.token.provider",
        "SASL_PASSWORD",
    ],
)
def test_a_setting_that_holds_a_secret_is_known_by_its_name(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name", ["sasl.username", "ssl.ca.location", "ssl.key.location", "group.id", "sasl.oauthbearer.token.endpoint.url"]
)
def test_other_settings_are_shown(name: str) -> None:
    assert not is_secret(name)


def test_redacted_settings_hide_secrets_and_credentials_in_addresses() -> None:
    shown = redacted({"sasl.password": VALUE, "url": f"https://me:{VALUE}@host/", "linger.ms": 5})
    assert VALUE not in str(shown)
    assert shown["linger.ms"] == 5


def test_a_redacted_mapping_prints_without_secrets_and_keeps_them() -> None:
    settings = {"client.id": "a"} | RedactedDict({"sasl.password": VALUE}) | {"acks": "all"}
    assert VALUE not in f"{settings} {settings!r}"
    loaded = pickle.loads(pickle.dumps(settings))
    assert loaded == {"client.id": "a", "sasl.password": VALUE, "acks": "all"}
    assert VALUE not in repr(loaded)
