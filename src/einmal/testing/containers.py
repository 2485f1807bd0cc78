"""``KafkaContainer`` in the shape of testcontainers' class of this name, and a broker process in place of Docker.

A test that starts it, configures it by variables and asks for its address changes one import. What is about images and
networks of Docker is accepted and changes nothing; what needs a container, such as its logs, is not there.
"""

from __future__ import annotations

from typing import Self

from einmal.broker.config import VARIABLE_PREFIX, key_of_variable
from einmal.testing.own_brokers import OwnBrokers


class KafkaContainer:
    """A broker of einmal from entering to leaving, or from ``start`` to ``stop``.

    ``image``, ``port`` and settings of Docker are accepted and not used: the broker listens on a free port.
    """

    def __init__(self, image: str = "", port: int = 9093, **docker: object) -> None:
        self._settings: dict[str, str] = {}
        self._brokers: OwnBrokers | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def with_kraft(self) -> Self:
        """Change nothing: there is no ZooKeeper."""
        return self

    def with_env(self, key: str, value: str) -> Self:
        """Set a broker setting by its variable: ``KAFKA_AUTO_CREATE_TOPICS_ENABLE`` is auto.create.topics.enable."""
        if key.startswith(VARIABLE_PREFIX):
            self._settings[key_of_variable(key)] = value
        return self

    def with_kwargs(self, **docker: object) -> Self:
        """Change nothing, as all that is about Docker."""
        return self

    def with_name(self, name: str) -> Self:
        """Change nothing."""
        return self

    def with_network(self, network: object) -> Self:
        """Change nothing."""
        return self

    def with_network_aliases(self, *aliases: str) -> Self:
        """Change nothing."""
        return self

    def with_exposed_ports(self, *ports: object) -> Self:
        """Change nothing: the broker listens on a free port."""
        return self

    def start(self, timeout: float = 30) -> Self:
        """Start the broker unless it runs, and wait until it serves, however long. Raises BrokerFailed."""
        if self._brokers is None:
            self._brokers = OwnBrokers(1, self._settings)
            self._brokers.wait_until_ready()
        return self

    def stop(self, force: bool = True, delete_volume: bool = True) -> None:
        """End the broker and remove its data, whatever is asked for."""
        if self._brokers is not None:
            self._brokers.close()
            self._brokers = None

    def get_bootstrap_server(self) -> str:
        """Raises RuntimeError before ``start``."""
        if self._brokers is None:
            raise RuntimeError("the broker does not run; call start() or use a with statement")
        return self._brokers.cluster.bootstrap_servers

    def get_container_host_ip(self) -> str:
        """Raises RuntimeError before ``start``."""
        return self.get_bootstrap_server().rpartition(":")[0]

    def get_exposed_port(self, port: int) -> str:
        """The port of the broker, whatever ``port`` is. Raises RuntimeError before ``start``."""
        return self.get_bootstrap_server().rpartition(":")[2]
