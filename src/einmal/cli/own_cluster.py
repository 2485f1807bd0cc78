"""A cluster that a command starts for itself, to disturb it: of einmal or of Apache Kafka."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import einmal
from einmal.cli.clients import config_of, config_of_other
from einmal.cli.printing.messages import note

if TYPE_CHECKING:
    from einmal.chaos.own_cluster import OwnCluster

Nodes = Annotated[int | None, typer.Option(min=1, max=9, help="Brokers of --cluster. Default: 3.")]


class ClusterKind(StrEnum):
    EINMAL = "einmal"
    KAFKA = "kafka"


def check_target(
    bootstrap_server: str | None, cluster: ClusterKind | None, nodes: int | None, *, disturbs_brokers: bool
) -> None:
    """Raises typer.BadParameter."""
    if nodes is not None and cluster is None:
        raise typer.BadParameter("--nodes is of --cluster, which starts them")
    if bootstrap_server is not None and cluster is not None:
        raise typer.BadParameter("name an existing cluster by --bootstrap-server, or start one by --cluster: not both")
    if disturbs_brokers and cluster is None:
        raise typer.BadParameter("faults of brokers need --cluster: nothing of an existing cluster is killed")


def config_at(
    own: OwnCluster | None,
    bootstrap_server: str | None,
    settings: Sequence[str] | None,
    command_config: Path | None,
) -> dict[str, Any]:
    """Settings of clients; for a cluster of its own without those of the environment and the profile.

    Raises typer.BadParameter.
    """
    if own is None:
        return config_of(bootstrap_server, settings, command_config)
    return config_of_other(own.bootstrap_servers, settings, command_config)


@contextmanager
def own_cluster(
    kind: ClusterKind | None,
    wanted: int | None,
    kafka_home: Path | None,
    folder: Path,
    faults: Collection[str] = ("brokers",),
) -> Iterator[OwnCluster | None]:
    """A running cluster of this kind; None for no kind. ``wanted``: brokers, 3 where nobody asks for a number.

    ``faults``: those of brokers, as ``mix_of`` has them. Raises KafkaMissing, BrokerFailed, NamespacesMissing.
    """
    if kind is None:
        yield None
        return
    nodes = wanted or 3
    if kind is ClusterKind.KAFKA and kafka_home:
        own = _apache_kafka(folder, nodes, kafka_home, faults)
    else:
        own = _einmal(folder, nodes, faults)
    note(f"starting {nodes} broker{'s' if nodes > 1 else ''} of {own.software}")
    own.start()
    try:
        yield own
    finally:
        own.close()


def _einmal(folder: Path, nodes: int, faults: Collection[str]) -> OwnCluster:
    """Raises NamespacesMissing."""
    from einmal.chaos.own_cluster import OwnCluster, mix_of
    from einmal.local.namespaces import Namespaces
    from einmal.local.processes import LocalCluster

    mix = mix_of(faults)
    namespaces = Namespaces(nodes) if mix.partitions else None
    cluster = LocalCluster.in_namespaces(folder, namespaces) if namespaces else LocalCluster.on_loopback(folder, nodes)
    return OwnCluster(cluster, f"einmal {einmal.__version__}", mix, namespaces)


def _apache_kafka(folder: Path, nodes: int, home: Path, faults: Collection[str]) -> OwnCluster:
    """Raises KafkaMissing, NamespacesMissing."""
    from einmal.chaos.own_cluster import OwnCluster, mix_of
    from einmal.local.apache_kafka import ApacheCluster, KafkaJars
    from einmal.local.namespaces import Namespaces

    jars, java, mix = KafkaJars.locate(home), java_program(), mix_of(faults)
    namespaces = Namespaces(nodes) if mix.partitions else None
    if namespaces is None:
        cluster = ApacheCluster.on_loopback(folder, nodes, jars, java)
    else:
        cluster = ApacheCluster.in_namespaces(folder, namespaces, jars, java)
    return OwnCluster(cluster, f"Apache Kafka {jars.version}", mix, namespaces)


def java_program() -> Path:
    """Raises KafkaMissing."""
    from einmal.local.apache_kafka import KafkaMissing
    from einmal.spark.environment.java import JavaMissing, use_java

    try:
        return use_java() / "bin" / "java"
    except JavaMissing as error:
        raise KafkaMissing(str(error)) from error
