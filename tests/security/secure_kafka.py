"""Apache Kafka with secured listeners, for the tests of clients: SASL_SSL with every mechanism, SSL with client
certificates, SASL_PLAINTEXT with tokens, and PLAINTEXT."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.interop.apache_kafka import OF_A_WHOLE_RUN, ApacheKafka, KafkaUnavailable
from tests.security.certificates import Authority

CANARY: Final = "canary-7f3d91"
"""In every secret of these tests: no artefact may contain it."""
USER: Final = "alice"
PASSWORD: Final = f"{CANARY}-password"
PIPELINE_USER: Final = "orders"
"""Has the same password, for SCRAM: the user of the documentation's pipeline."""
ODD_USER: Final = "bob"
ODD_PASSWORD: Final = "ﬁnal-ª-password"
"""SASLprep would change it; Kafka does not apply SASLprep."""
RENEWED_MS: Final = 10_000
"""connections.max.reauth.ms of PLAIN (KIP-368). A client renews at 95 % at the latest: half a second is left, which a
busy machine may take from it."""
_MODULES: Final = "org.apache.kafka.common.security"


class SecureKafka(ApacheKafka):
    """``directory`` gets the authority, the certificates, and the node."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.authority = Authority()
        self.ca = self.authority.write(directory / "ca.pem")
        server = self.authority.issue(directory, "server")
        self.client_certificate = self.authority.issue(directory, "client", password=f"{CANARY}-key")
        plain = f'{_MODULES}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
        of_tokens = f'{_MODULES}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'
        of_sasl = "listener.name.sasl_ssl"
        settings = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(server.store),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.ca),
            "listener.name.ssl.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
            f"{of_sasl}.plain.sasl.jaas.config": plain,
            f"{of_sasl}.plain.connections.max.reauth.ms": str(RENEWED_MS),
            f"{of_sasl}.scram-sha-256.sasl.jaas.config": f"{_MODULES}.scram.ScramLoginModule required;",
            f"{of_sasl}.scram-sha-512.sasl.jaas.config": f"{_MODULES}.scram.ScramLoginModule required;",
            f"{of_sasl}.oauthbearer.sasl.jaas.config": of_tokens,
            "listener.name.sasl_plaintext.sasl.enabled.mechanisms": "OAUTHBEARER",
            "listener.name.sasl_plaintext.oauthbearer.sasl.jaas.config": of_tokens,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "true",
            **OF_A_WHOLE_RUN,
        }
        users = [
            f"{mechanism}=[name={name},password={password}]"
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
            for name, password in ((USER, PASSWORD), (PIPELINE_USER, PASSWORD), (ODD_USER, ODD_PASSWORD))
        ]
        listeners = {each: each for each in ("SASL_SSL", "SSL", "SASL_PLAINTEXT")}
        super().__init__(directory / "node", settings=settings, listeners=listeners, users=users)

    def at(self, listener: str, host: str = "127.0.0.1") -> str:
        """The address of a listener."""
        return f"{host}:{self.ports.get(listener, self.port)}"

    def settings(self, mechanism: str) -> dict[str, str]:
        """A client's settings for a mechanism of the listener SASL_SSL, or for "mTLS"."""
        common = {"bootstrap.servers": self.at("SASL_SSL"), "ssl.ca.location": str(self.ca)}
        if mechanism == "mTLS":
            return common | {
                "bootstrap.servers": self.at("SSL"),
                "security.protocol": "SSL",
                "ssl.certificate.location": str(self.client_certificate.certificate),
                "ssl.key.location": str(self.client_certificate.key),
                "ssl.key.password": f"{CANARY}-key",
            }
        common |= {"security.protocol": "SASL_SSL", "sasl.mechanism": mechanism}
        if mechanism == "OAUTHBEARER":
            return common | {"sasl.oauthbearer.token.endpoint.url": f"file://{self.token_file()}"}
        return common | {"sasl.username": USER, "sasl.password": PASSWORD}

    def token_file(self) -> Path:
        path = self.ca.with_name("token")
        path.write_text(unsecured_token())
        return path


@contextmanager
def running_secure_kafka(directory: Path) -> Iterator[SecureKafka]:
    """For a fixture: skips its tests where Apache Kafka cannot be run."""
    try:
        node = SecureKafka(directory)
    except KafkaUnavailable as error:
        pytest.skip(str(error))
    node.start()
    yield node
    node.stop()


def unsecured_token(subject: str = USER, lifetime_s: int = 3_600) -> str:
    """An unsecured JWS, which Kafka's default validator accepts."""

    def part(value: dict[str, object]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    now = int(time.time())
    claims: dict[str, object] = {"sub": subject, "iat": now, "exp": now + lifetime_s, "jti": CANARY}
    return f"{part({'alg': 'none'})}.{part(claims)}."
