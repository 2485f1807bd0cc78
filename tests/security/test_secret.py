"""Claims about secrets: no text of one shows its value."""

from __future__ import annotations

import copy
import pickle

import pytest

from einmal.evidence.environment import run_environment
from einmal.security.redaction import RedactedDict, is_secret, redacted, redacted_command
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


@pytest.mark.parametrize(
    ("argument", "shown"),
    [
        (f"sasl.password={VALUE}", "sasl.password=[hidden]"),
        (f"--producer-property=sasl.password={VALUE}", "--producer-property=sasl.password=[hidden]"),
        (f"exec shop --password {VALUE} --fast", "exec shop --password [hidden] --fast"),
        (f"exec shop --password='{VALUE} {VALUE}'", "exec shop --password=[hidden]"),
        (f"API_KEY={VALUE} exec python shop.py", "API_KEY=[hidden] exec python shop.py"),
        (f"export A=1;PASSWORD={VALUE}", "export A=1;PASSWORD=[hidden]"),
        (f"security.protocol=SSL,ssl.key.password={VALUE}", "security.protocol=SSL,ssl.key.password=[hidden]"),
        (f'{{"sasl.password": "{VALUE}"}}', '{"sasl.password": [hidden]}'),
        (f'x sasl.jaas.config="Login password=\\"{VALUE} c\\";" y', "x sasl.jaas.config=[hidden] y"),
        ("exec shop --secret-file=/etc/x", "exec shop --secret-file=/etc/x"),
        ("a token of trust", "a token of trust"),
        (f"-Xsasl.password={VALUE}", "-Xsasl.password=[hidden]"),
        (f"exec shop --user=me --api-token={VALUE} --fast", "exec shop --user=me --api-token=[hidden] --fast"),
        (f"PASSWORD={VALUE}", "PASSWORD=[hidden]"),
        (f"postgresql://me:{VALUE}@host/db", "postgresql://[hidden]@host/db"),
        (f"postgresql://me:p@{VALUE}/w@host/db", "postgresql://[hidden]@host/db"),
        ("ssl.key.location=/etc/key.pem", "ssl.key.location=/etc/key.pem"),
        ("SELECT id FROM input WHERE amount=3", "SELECT id FROM input WHERE amount=3"),
    ],
)
def test_a_command_is_shown_without_secrets(argument: str, shown: str) -> None:
    assert redacted_command(["verify", argument]) == ["verify", shown]
    assert VALUE not in run_environment(["verify", argument], {}).command


@pytest.mark.parametrize(
    "arguments",
    [
        ["-X", f"sasl.jaas.config=Login required username=a password=b {VALUE};"],
        ["-X", f"sasl.password ={VALUE}"],
        ["--password", VALUE],
        ["--", "shop", "--api-key", VALUE, "--fast"],
    ],
)
def test_an_argument_is_hidden_by_the_one_before_it(arguments: list[str]) -> None:
    shown = redacted_command(arguments)
    assert VALUE not in "".join(shown)
    assert len(shown) == len(arguments)


def test_a_redacted_mapping_prints_without_secrets_and_keeps_them() -> None:
    settings = {"client.id": "a"} | RedactedDict({"sasl.password": VALUE}) | {"acks": "all"}
    assert VALUE not in f"{settings} {settings!r}"
    loaded = pickle.loads(pickle.dumps(settings))
    assert loaded == {"client.id": "a", "sasl.password": VALUE, "acks": "all"}
    assert VALUE not in repr(loaded)
