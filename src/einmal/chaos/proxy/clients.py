"""Settings of a client before and behind the proxy: TLS reaches from the proxy to the brokers."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, Final

from einmal.client.config import AdminSettings, parse
from einmal.client.errors import ConfigError
from einmal.security.errors import SecuritySettingError
from einmal.security.tls import tls_context

_PLAIN: Final = {"SSL": "PLAINTEXT", "SASL_SSL": "SASL_PLAINTEXT"}


def upstream_tls(config: Mapping[str, Any]) -> ssl.SSLContext | None:
    """For the proxy's connections to the brokers of a client with this configuration. Raises ConfigError."""
    tls = parse(AdminSettings, config, {}).security.tls
    try:
        return None if tls is None else tls_context(tls)
    except SecuritySettingError as error:
        raise ConfigError(meaning=error.meaning, what_to_do=error.hint) from error


def settings_behind(config: Mapping[str, Any], bootstrap_servers: str) -> dict[str, Any]:
    """The configuration of a client that connects to the proxy, without TLS. Raises ConfigError."""
    protocol = parse(AdminSettings, config, {}).security.protocol
    plain = {name: value for name, value in config.items() if not name.startswith("ssl.")}
    if protocol in _PLAIN:
        plain["security.protocol"] = _PLAIN[protocol]
    return plain | {"bootstrap.servers": bootstrap_servers}
