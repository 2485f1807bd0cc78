"""Three of our brokers with SASL_SSL on every listener, users with SCRAM passwords, and ACLs.

``admin`` may do everything; ``alice`` may use topics, groups and transactional ids that begin with her name.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from einmal.client import Acl, AclOperation, Admin, Consumer, NewTopic, PatternType, Permission, ResourceType
from einmal.types import TopicPartition
from tests.interop.cluster import Cluster
from tests.interop.einmal_broker import EinmalBroker
from tests.interop.topics import at_last
from tests.ports import loopback_ports
from tests.security.certificates import Authority

CANARY: Final = "canary-5c02"
"""In every password: no log may have it."""
ADMIN: Final = "admin"
ALICE: Final = "alice"
HERS: Final = "alice-"
MECHANISM: Final = "SCRAM-SHA-512"
LOGIN_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
_PROTOCOLS: Final = "CLIENTS:SASL_SSL,INTERNAL:SASL_SSL,CONTROLLER:SASL_SSL"
_PATIENCE_S: Final = 180.0


class GuardedCluster(Cluster):
    """Not started. ``directory`` gets the authority, the secrets and the nodes."""

    def __init__(self, directory: Path, count: int = 3) -> None:
        authority = Authority()
        self.ca = authority.write(directory / "ca.pem")
        broker = authority.issue(directory, "broker")
        users = [f'{MECHANISM}=[name={each},password="{password_of(each)}"]' for each in (ADMIN, ALICE)]
        (directory / "users").write_text("\n".join(users))
        secret = directory / "cluster.secret"
        secret.write_text(f"{CANARY} is known to the nodes of this test only")
        secret.chmod(0o600)
        settings = {
            "listener.security.protocol.map": _PROTOCOLS,
            "inter.broker.listener.name": "INTERNAL",
            "einmal.cluster.secret.file": str(secret),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(broker.store),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.ca),
            "listener.name.clients.sasl.enabled.mechanisms": MECHANISM,
            "einmal.bootstrap.scram.credentials": f"${{file:{directory}/users:}}",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:{ADMIN}",
            "auto.create.topics.enable": "false",
        }
        controllers = dict(enumerate(loopback_ports(count), start=1))
        ports = iter(loopback_ports(2 * count))
        nodes: dict[int, EinmalBroker] = {}
        self._ports: list[dict[str, int]] = []
        for node_id, controller in controllers.items():
            own = {"CLIENTS": next(ports), "INTERNAL": next(ports), "CONTROLLER": controller}
            listeners = ",".join(f"{name}://127.0.0.1:{port}" for name, port in own.items())
            of_node = settings | {"listeners": listeners}
            path = directory / str(node_id)
            nodes[node_id] = EinmalBroker(path, of_node, node_id=node_id, controller_ports=controllers)
            self._ports.append(own)
        super().__init__(nodes)

    @property
    def bootstrap(self) -> str:
        return self.at("CLIENTS")

    def at(self, listener: str) -> str:
        """The addresses of all nodes' listeners of this name."""
        return ",".join(f"127.0.0.1:{ports[listener]}" for ports in self._ports)

    # --- settings of clients --------------------------------------------------------------------------------------

    def client(self, user: str = ALICE) -> dict[str, str]:
        """Under the names that librdkafka and our client have in common."""
        return {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.ca),
            "sasl.mechanism": MECHANISM,
            "sasl.username": user,
            "sasl.password": password_of(user),
        }

    def java(self, user: str = ALICE) -> dict[str, str]:
        """Of the Java client."""
        return {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": "SASL_SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.ca),
            "sasl.mechanism": MECHANISM,
            "sasl.jaas.config": f'{LOGIN_MODULE} required username="{user}" password="{password_of(user)}";',
        }

    # --- what the admin does --------------------------------------------------------------------------------------

    def admin(self) -> Admin:
        return Admin(self.client(ADMIN))

    def let_alice_use_what_is_hers(self) -> None:
        wanted = {
            ResourceType.TOPIC: (AclOperation.READ, AclOperation.WRITE),
            ResourceType.GROUP: (AclOperation.READ,),
            ResourceType.TRANSACTIONAL_ID: (AclOperation.WRITE,),
        }
        for kind, operations in wanted.items():
            self.allow_alice(kind, HERS, operations, PatternType.PREFIXED)

    def allow_alice(
        self,
        kind: ResourceType,
        name: str,
        operations: Iterable[AclOperation],
        pattern: PatternType = PatternType.LITERAL,
    ) -> None:
        with self.admin() as admin:
            admin.create_acls(
                Acl(kind, name, pattern, f"User:{ALICE}", "*", operation, Permission.ALLOW) for operation in operations
            )

    def create_topic(
        self, name: str, partitions: int = 1, *, replicas: int = -1, configs: Mapping[str, str] | None = None
    ) -> None:
        with self.admin() as admin:
            admin.create_topics([NewTopic(name, partitions, replicas, dict(configs or {}))])
        self.wait_until_in_sync(name, range(partitions))

    def partition(self, topic: str, partition: int = 0) -> Any:
        with self.admin() as admin:
            return at_last(
                lambda: admin.describe_topics([topic])[topic].partitions[partition],
                lambda found: found.leader in self.serving,
            )

    def leader(self, topic: str, partition: int = 0) -> int:
        return int(self.partition(topic, partition).leader)

    def wait_until_in_sync(self, topic: str, partitions: Iterable[int] = (0,)) -> None:
        for each in partitions:
            at_last(partial(self.partition, topic, each), lambda found: len(found.isr) == len(found.replicas))

    def committed_values(self, topic: str) -> list[str]:
        """Everything in the topic that is committed, partition after partition."""
        with self.admin() as admin:
            count = len(admin.describe_topics([topic])[topic].partitions)
        places = [TopicPartition(topic, each) for each in range(count)]
        with Consumer(self.client(ADMIN), isolation_level="read_committed", enable_auto_commit=False) as consumer:
            ends = consumer.end_offsets(*places)
            consumer.assign(places)
            consumer.seek_to_beginning(*places)
            found: dict[int, list[str]] = {each: [] for each in range(count)}
            deadline = time.monotonic() + _PATIENCE_S
            while any(consumer.position(each) < ends[each] for each in places):
                assert time.monotonic() < deadline, f"the end of {topic} is never reached"
                for record in consumer.poll(200):
                    found[record.partition].append((record.value or b"").decode())
        return [value for values in found.values() for value in values]

    def logs(self) -> str:
        return "".join(node.log_tail(10_000_000) for node in self.nodes.values() if isinstance(node, EinmalBroker))


def password_of(user: str) -> str:
    return f"{CANARY} of {user}"


@contextmanager
def running_guarded_cluster(directory: Path) -> Iterator[GuardedCluster]:
    """For a fixture. Afterwards no log has a secret."""
    cluster = GuardedCluster(directory)
    try:
        cluster.start()
        cluster.let_alice_use_what_is_hers()
        yield cluster
    finally:
        cluster.stop()
    assert CANARY not in cluster.logs()
