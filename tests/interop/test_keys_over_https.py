"""librdkafka authenticates with a token signed by a key that our broker has fetched over HTTPS."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import pytest

from tests.interop.admin import PATIENCE_S
from tests.interop.einmal_broker import EinmalBroker
from tests.ports import loopback_ports
from tests.security.certificates import Authority
from tests.security.identity_provider import AUDIENCE, ISSUER, Provider, provider, published, signed_token
from tests.security.token_endpoint import Endpoint, running

pytestmark = pytest.mark.interop

ONE, TWO = provider(), provider(key_id="two")
_REFRESH_MS: Final = 1_000


@pytest.fixture
def endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    authority = Authority("provider")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.write(tmp_path / "trusted.pem")))
    with running(Endpoint(tmp_path, authority=authority)) as server:
        server.body = published(ONE)
        yield server


@pytest.fixture
def broker(tmp_path: Path, endpoint: Endpoint) -> Iterator[EinmalBroker]:
    """A process, which has its authorities from the environment."""
    (port,) = loopback_ports(1)
    settings = {
        "listeners": f"CLIENTS://127.0.0.1:{port}",
        "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT",
        "listener.name.clients.sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": endpoint.url,
        "sasl.oauthbearer.jwks.endpoint.refresh.ms": str(_REFRESH_MS),
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": ISSUER,
    }
    node = EinmalBroker(tmp_path / "node", settings)
    node.start()
    yield node
    node.stop()


def is_accepted(broker: EinmalBroker, by: Provider) -> bool:
    """Whether librdkafka delivers a record with a token that this provider has signed."""
    errors: list[Any] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": lambda _config: (signed_token(by), time.time() + 3_600),
            "error_cb": errors.append,
        }
    )
    producer.produce("by-token", b"value")
    deadline = time.monotonic() + PATIENCE_S
    while producer.flush(0.2):
        if any(error.code() == confluent_kafka.KafkaError._AUTHENTICATION for error in errors):
            producer.purge()
            return False
        assert time.monotonic() < deadline, errors
    return True


def test_librdkafka_follows_the_provider_through_a_rotation_of_keys(broker: EinmalBroker, endpoint: Endpoint) -> None:
    assert is_accepted(broker, ONE)
    assert not is_accepted(broker, TWO)
    endpoint.body = published(TWO)
    fetched, deadline = len(endpoint.requests), time.monotonic() + PATIENCE_S
    while len(endpoint.requests) < fetched + 2:
        assert time.monotonic() < deadline, broker.log_tail()
        time.sleep(0.05)
    assert is_accepted(broker, TWO)
    assert not is_accepted(broker, ONE)
