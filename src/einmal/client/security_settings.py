"""The security settings of all clients, under librdkafka's and Java's names; ``einmal.security`` interprets them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from einmal.client.errors import ConfigError
from einmal.security.errors import SecuritySettingError
from einmal.security.secret import Secret
from einmal.security.settings import PROTOCOLS, Security, TokenCallable, normalise

REQUIRED: Final = object()
INT32_MAX: Final = 2**31 - 1


def setting(
    default: Any, doc: str, *, choices: Sequence[str] = (), minimum: int | None = None, maximum: int = INT32_MAX
) -> Any:
    """A field of a table of settings. ``maximum``: by default that of an int, the type of most settings in Java."""
    metadata = {"doc": doc, "choices": tuple(choices), "minimum": minimum, "maximum": maximum}
    if default is REQUIRED:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityOptions:
    """As the user sets them; ``security`` is their meaning."""

    security_protocol: str = setting(
        "PLAINTEXT", "Protocol of connections to the brokers: TLS with SSL and SASL_SSL.", choices=PROTOCOLS
    )
    ssl_ca_location: str | None = setting(
        None, "File (PEM) or directory of the trusted certificate authorities. Default: the system's."
    )
    ssl_ca_pem: str | None = setting(None, "Trusted certificates themselves, in PEM.")
    ssl_certificate_location: str | None = setting(
        None, "File with the client's certificate and its chain, in PEM, for mutual TLS."
    )
    ssl_certificate_pem: str | None = setting(None, "The client's certificate itself, in PEM.")
    ssl_key_location: str | None = setting(None, "File with the client's private key, in PEM.")
    ssl_key_pem: Secret | None = setting(None, "The client's private key itself, in PEM.")
    ssl_key_password: Secret | None = setting(None, "Password of the client's private key.")
    ssl_endpoint_identification_algorithm: str = setting(
        "https",
        "Check that the certificate is the host's: https. Empty or none: no check.",
        choices=("https", "none", ""),
    )
    enable_ssl_certificate_verification: bool = setting(True, "Verify the broker's certificate.")
    ssl_truststore_type: str | None = setting(None, "Java: type of ssl.truststore.location. Only PEM is supported.")
    ssl_truststore_location: str | None = setting(None, "Java: file of the trusted certificates.")
    ssl_truststore_certificates: str | None = setting(None, "Java: trusted certificates themselves, in PEM.")
    ssl_truststore_password: Secret | None = setting(None, "Java: password of a store; a PEM store has none.")
    ssl_keystore_type: str | None = setting(None, "Java: type of ssl.keystore.location. Only PEM is supported.")
    ssl_keystore_location: str | None = setting(None, "Java: file of the client's private key and certificate chain.")
    ssl_keystore_certificate_chain: str | None = setting(None, "Java: the client's certificate chain itself, in PEM.")
    ssl_keystore_key: Secret | None = setting(None, "Java: the client's private key itself, in PEM.")
    ssl_keystore_password: Secret | None = setting(None, "Java: password of a store; a PEM store has none.")
    sasl_mechanism: str | None = setting(
        None, "SASL mechanism: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER. Java's default, GSSAPI, is missing."
    )
    sasl_mechanisms: str | None = setting(None, "The same under librdkafka's name.")
    sasl_username: str | None = setting(None, "User of PLAIN and SCRAM.")
    sasl_password: Secret | None = setting(None, "Password of PLAIN and SCRAM.")
    sasl_jaas_config: Secret | None = setting(
        None, "Java: PlainLoginModule, ScramLoginModule or OAuthBearerLoginModule with its options."
    )
    sasl_oauthbearer_token_endpoint_url: str | None = setting(
        None, "Source of tokens: https://... (client credentials grant) or file:///path/of/a/token."
    )
    sasl_oauthbearer_token_provider: TokenCallable | None = setting(
        None, "Python function that returns a token, or (token, Unix time of its end). Not in files or Spark's options."
    )
    sasl_oauthbearer_client_id: str | None = setting(None, "Client id at the token endpoint.")
    sasl_oauthbearer_client_secret: Secret | None = setting(None, "Client secret at the token endpoint.")
    sasl_oauthbearer_client_credentials_client_id: str | None = setting(None, "Java 4.1 and later: the client id.")
    sasl_oauthbearer_client_credentials_client_secret: Secret | None = setting(
        None, "Java 4.1 and later: the client secret."
    )
    sasl_oauthbearer_scope: str | None = setting(None, "Scope that is requested at the token endpoint.")
    sasl_oauthbearer_extensions: str | None = setting(None, "SASL extensions (KIP-342): name=value,...")
    sasl_oauthbearer_method: str = setting(
        "oidc", "librdkafka's name for the client credentials grant.", choices=("oidc",)
    )
    sasl_login_callback_handler_class: str | None = setting(
        None, "Java: only Kafka's own OAuthBearerLoginCallbackHandler, which has an equivalent here."
    )

    @property
    def security(self) -> Security:
        """The meaning of these settings. Raises ConfigError."""
        fields = {field.name: field for field in dataclasses.fields(SecurityOptions)}
        values = {name.replace("_", "."): getattr(self, name) for name in fields}
        defaults = {name.replace("_", "."): field.default for name, field in fields.items()}
        try:
            return normalise({name: value for name, value in values.items() if value != defaults[name]})
        except SecuritySettingError as error:
            raise ConfigError(meaning=error.meaning, what_to_do=error.hint) from None


SECURITY_NAMES: Final = frozenset(field.name.replace("_", ".") for field in dataclasses.fields(SecurityOptions))
"""Dotted names."""
