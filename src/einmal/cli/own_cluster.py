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
    from einmal.chaos.own_cluster import OwnCluster, Surroundings
    from einmal.local.processes import NodeProcess, ProcessCluster

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

    ``faults``: those of brokers, as ``mix_of`` has them. Raises KafkaMissing, BrokerFailed, NamespacesMissing,
    ClocksMissing, DisksMissing.
    """
    if kind is None:
        yield None
        return
    from einmal.chaos.own_cluster import OwnCluster, Surroundings, mix_of

    nodes, mix = wanted or 3, mix_of(faults)
    surroundings = Surroundings.of(mix, folder, nodes)
    try:
        if kind is ClusterKind.KAFKA and kafka_home:
            cluster, software = _apache_kafka(folder, nodes, kafka_home, surroundings)
        else:
            cluster, software = _einmal(folder, nodes, surroundings)
    except BaseException:
        surroundings.close()
        raise
    own = OwnCluster(cluster, software, mix, surroundings)
    note(f"starting {nodes} broker{'s' if nodes > 1 else ''} of {own.software}")
    try:
        own.start()
        yield own
    finally:
        own.close()


def _einmal(folder: Path, nodes: int, surroundings: Surroundings) -> tuple[ProcessCluster[NodeProcess], str]:
    from einmal.local.processes import LocalCluster

    inside, hosts = surroundings.command, surroundings.hosts
    if hosts:
        return LocalCluster.on_hosts(folder, hosts, inside), f"einmal {einmal.__version__}"
    return LocalCluster.on_loopback(folder, nodes, inside=inside), f"einmal {einmal.__version__}"


def _apache_kafka(
    folder: Path, nodes: int, home: Path, surroundings: Surroundings
) -> tuple[ProcessCluster[NodeProcess], str]:
    """Raises KafkaMissing."""
    from einmal.local.apache_kafka import ApacheCluster, KafkaJars

    jars, java = KafkaJars.locate(home), java_program()
    inside, hosts = surroundings.command, surroundings.hosts
    if hosts:
        return ApacheCluster.on_hosts(folder, hosts, jars, java, inside), f"Apache Kafka {jars.version}"
    return ApacheCluster.on_loopback(folder, nodes, jars, java, inside), f"Apache Kafka {jars.version}"


def java_program() -> Path:
    """Raises KafkaMissing."""
    from einmal.local.apache_kafka import KafkaMissing
    from einmal.spark.environment.java import JavaMissing, use_java

    try:
        return use_java() / "bin" / "java"
    except JavaMissing as error:
        raise KafkaMissing(str(error)) from error
