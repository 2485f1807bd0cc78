"""Three of our brokers with TLS everywhere: mutual TLS for clients, SASL_SSL between brokers and controllers.

The tests' own raw connections use a listener without TLS beside it. Clients of a load find their settings in the
environment, under names that librdkafka and our client have in common.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.interop.cluster import Cluster
from tests.interop.einmal_broker import EinmalBroker
from tests.ports import loopback_ports
from tests.security.certificates import Authority

USED: Final = bool(os.environ.get("EINMAL_TLS"))
"""Whether tests that can do both use TLS."""
_VARIABLE: Final = "EINMAL_LOAD_SECURITY"
_PROTOCOLS: Final = "PLAINTEXT:PLAINTEXT,SSL:SSL,INTERNAL:SASL_SSL,CONTROLLER:SASL_SSL"


class SecuredCluster(Cluster):
    """``bootstrap``: of the listeners SSL. ``client``: settings of its clients."""

    def __init__(self, nodes: Mapping[int, EinmalBroker], bootstrap: str, client: Mapping[str, str]) -> None:
        super().__init__(nodes)
        self._bootstrap = bootstrap
        self.client = dict(client)

    @property
    def bootstrap(self) -> str:
        return self._bootstrap

    def stop(self) -> None:
        super().stop()
        os.environ.pop(_VARIABLE, None)


def secured_cluster(directory: Path, count: int = 3) -> SecuredCluster:
    """Not started. Clients of this process and its children find the settings for it until it is stopped."""
    directory.mkdir(parents=True)
    authority = Authority()
    ca, broker, client = authority.write(directory / "ca.pem"), *(authority.issue(directory, each) for each in _NAMES)
    secret = directory / "cluster.secret"
    secret.write_text("known to the nodes of this test only")
    secret.chmod(0o600)
    controllers = dict(enumerate(loopback_ports(count), start=1))
    ports = iter(loopback_ports(3 * count))
    nodes: dict[int, EinmalBroker] = {}
    bootstrap = []
    for node_id, controller in controllers.items():
        plain, ssl, internal = next(ports), next(ports), next(ports)
        listeners = {"PLAINTEXT": plain, "SSL": ssl, "INTERNAL": internal, "CONTROLLER": controller}
        settings = {
            "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in listeners.items()),
            "listener.security.protocol.map": _PROTOCOLS,
            "inter.broker.listener.name": "INTERNAL",
            "einmal.cluster.secret.file": str(secret),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(broker.store),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(ca),
            "listener.name.ssl.ssl.client.auth": "required",
        }
        nodes[node_id] = EinmalBroker(directory / str(node_id), settings, node_id=node_id, controller_ports=controllers)
        bootstrap.append(f"127.0.0.1:{ssl}")
    of_client = {
        "security.protocol": "SSL",
        "ssl.ca.location": str(ca),
        "ssl.certificate.location": str(client.certificate),
        "ssl.key.location": str(client.key),
    }
    os.environ[_VARIABLE] = json.dumps(of_client)
    return SecuredCluster(nodes, ",".join(bootstrap), of_client)


_NAMES: Final = ("broker", "client")


def client_security() -> dict[str, Any]:
    """What clients of the load add to their settings."""
    found: dict[str, Any] = json.loads(os.environ.get(_VARIABLE, "{}"))
    return found
