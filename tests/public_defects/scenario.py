"""What a scenario of a public defect is, and the cluster that it runs on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tests.interop import raw
from tests.interop.topics import Broker, create_topic
from tests.interop.transaction_driver import TV1, TV2, Dialect, TransactionDriver
from tests.suite.shared import unique

EINMAL: Final = "einmal"
EINMAL_TV1: Final = "einmal-TV1"
APACHE: Final = "apache"
APACHE_TV1: Final = "apache-TV1"
NOW_AND_THEN: Final = "now and then: "
"""Begins an outcome that is seen in some runs; the right one is seen in the others."""

KINDS: Final = (EINMAL, EINMAL_TV1, APACHE, APACHE_TV1)
"""Clusters that each scenario is run on; TV1: with ``transaction.version`` 1."""

TOPIC: Final = "defect"
"""Begins the name of each topic."""

_TRANSACTION_VERSION: Final = "transaction.version"
_UPGRADE, _UNSAFE_DOWNGRADE = 1, 3

_REPOSITORIES: Final = {
    "crabka": "robot-head/crabka",
    "debezium": "debezium/debezium",
    "franz-go": "twmb/franz-go",
    "iceberg": "apache/iceberg",
    "ingestr": "bruin-data/ingestr",
    "inkless": "aiven/inkless",
    "kafkajs": "tulios/kafkajs",
    "nisshi": "nisshi-io/nisshi",
    "paimon": "apache/paimon",
    "pinot": "apache/pinot",
    "redpanda": "redpanda-data/redpanda",
    "risingwave": "risingwavelabs/risingwave",
    "seatunnel": "apache/seatunnel",
    "strimzi": "strimzi/strimzi-kafka-operator",
    "xtdb": "xtdb/xtdb",
}


@dataclass(frozen=True)
class Target:
    """A cluster of one node. ``restart`` kills the node with signal 9 and starts it again; None: that is forbidden."""

    broker: Broker
    dialect: Dialect
    restart: Callable[[], None] | None = None

    def driver(self, *, partitions: int = 1, timeout_ms: int = 60_000) -> TransactionDriver:
        """A driver with a new transactional id and a new topic."""
        name = unique(TOPIC)
        create_topic(self.broker, name, partitions)
        return TransactionDriver(self.broker, f"id-of-{name}", name, self.dialect, timeout_ms=timeout_ms)

    def restart_under(self, driver: TransactionDriver) -> None:
        """Restart, and connect the driver again."""
        assert self.restart is not None
        self.restart()
        driver.reconnect()

    def set_transaction_version(self, level: int) -> None:
        """As ``kafka-features.sh upgrade`` and ``downgrade`` do it."""
        kind = _UPGRADE if level > finalized_version(self.broker) else _UNSAFE_DOWNGRADE
        update = {"feature": _TRANSACTION_VERSION, "max_version_level": level, "upgrade_type": kind}
        with self.broker.connect() as connection:
            answer = connection.call(raw.UPDATE_FEATURES, 1, timeout_ms=60_000, feature_updates=[update])
        assert not answer.error_code, answer
        assert finalized_version(self.broker) == level


def finalized_version(broker: Broker) -> int:
    """The level of ``transaction.version``, as a client learns it."""
    with broker.connect() as connection:
        answer = connection.call(raw.API_VERSIONS, 3, client_software_name="defects", client_software_version="1")
    return next((each.max_version_level for each in answer.finalized_features if each.name == _TRANSACTION_VERSION), 0)


def dialect_of(broker: Broker) -> Dialect:
    """What a client that knows both versions speaks to this cluster."""
    return TV2 if finalized_version(broker) >= 2 else TV1


Run = Callable[[Target], str | None]
"""None: the right outcome. Else what was seen instead."""


@dataclass(frozen=True)
class Scenario:
    """``reports``: names of the defect, as ``KAFKA-17754`` or ``redpanda#30003``. ``seen``: the other outcomes, by the
    kind of cluster. ``needs_restart``: it kills the cluster. ``changes_version``: it raises and lowers
    ``transaction.version``, and begins and ends with 2."""

    reports: tuple[str, ...]
    what: str
    right: str
    run: Run
    seen: Mapping[str, str] = field(default_factory=dict)
    needs_restart: bool = False
    changes_version: bool = False
    is_slow: bool = False

    @property
    def name(self) -> str:
        return self.run.__name__

    def outcomes_on(self, kind: str) -> tuple[str | None, ...]:
        """What ``run`` may return on a cluster of this kind."""
        seen = self.seen.get(kind)
        if seen is not None and seen.startswith(NOW_AND_THEN):
            return (None, seen.removeprefix(NOW_AND_THEN))
        return (seen,)

    def obstacle(self, target: Target) -> str | None:
        """Why it cannot be run there; None: it can."""
        if self.needs_restart and target.restart is None:
            return "it restarts the broker"
        return "it needs transaction.version 2" if self.changes_version and target.dialect is TV1 else None


class Elsewhere(NamedTuple):
    """A defect whose right outcome other tests claim, of einmal's parts. ``test``: the path of their file."""

    reports: tuple[str, ...]
    what: str
    right: str
    test: str


def link_of(report: str) -> str:
    """The address of a report."""
    if "#" not in report:
        return f"https://issues.apache.org/jira/browse/{report}"
    repository, number = report.split("#")
    return f"https://github.com/{_REPOSITORIES.get(repository, repository)}/issues/{number}"
