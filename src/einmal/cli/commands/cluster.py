"""``einmal cluster``: brokers, health, settings and log levels. On any Kafka cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from einmal.cli.aliases import WithAliases
from einmal.cli.clients import (
    Brokers,
    CommandConfig,
    Settings,
    config_of,
    failures_reported,
    key_and_value,
    now_ms,
    without_repetition,
)
from einmal.cli.printing.documents import encoded
from einmal.cli.printing.formats import Format, Output
from einmal.cli.printing.output import print_rows, print_sections

if TYPE_CHECKING:
    from einmal.client import Admin

_Broker: TypeAlias = Annotated[int | None, typer.Option("--broker", help="Id of the broker. Default: the first one.")]

cluster = typer.Typer(cls=WithAliases, help="Clusters: info, health, config, loggers.", no_args_is_help=True)


@cluster.command()
def info(
    brokers: Brokers = None,
    settings: Settings = None,
    command_config: CommandConfig = None,
    output: Output = Format.TEXT,
) -> None:
    """Show a cluster's id, controller and brokers; as JSON everything in it, by the schema of the read model.

    JSON has partitions with offsets and producers, transactions, groups with positions, and the pipelines, ingesters
    and mirrors that commit to the cluster.
    """
    from contextlib import closing

    from einmal.client import Admin
    from einmal.clusters.kafka_cluster import KafkaCluster
    from einmal.inspection.cluster import look
    from einmal.inspection.document import document
    from einmal.inspection.pipelines import with_pipelines

    config = config_of(brokers, settings, command_config)
    with failures_reported(), Admin(config) as admin:
        if output.is_document:
            view = look(admin, now_ms)
            with closing(KafkaCluster({name: str(value) for name, value in config.items()})) as commits:
                print(encoded(document(with_pipelines(view, commits)), output))
            return
        description = admin.describe_cluster()
    controller = description.controller_id if description.controller_id >= 0 else None
    summary = {
        "cluster_id": description.cluster_id,
        "controller": controller,
        "transaction_version": description.transaction_version,
        "brokers": len(description.brokers),
    }
    columns = ("node_id", "host", "port", "rack")
    rows = [{column: getattr(broker, column) for column in columns} for broker in description.brokers]
    print_sections({"cluster": ([summary], tuple(summary)), "brokers": (rows, columns)}, output)


@cluster.command()
def health(
    brokers: Brokers = None,
    settings: Settings = None,
    command_config: CommandConfig = None,
    output: Output = Format.TEXT,
) -> None:
    """Report partitions without a leader or without all their replicas in sync. Status 1 where there are any."""
    from einmal.client import Admin
    from einmal.inspection.document import document
    from einmal.inspection.health import health_of

    with failures_reported(), Admin(config_of(brokers, settings, command_config)) as admin:
        topics = admin.describe_topics()
        cluster_health = health_of(admin.describe_cluster(), topics.values())
    if output.is_document:
        print(encoded(document(cluster_health), output))
    else:
        print(cluster_health.verdict)
        rows = [{"partition": partition, "problem": "no leader"} for partition in cluster_health.leaderless]
        rows += [
            {"partition": partition, "problem": "replicas not in sync"} for partition in cluster_health.under_replicated
        ]
        if rows:
            print_rows(rows, ("partition", "problem"), output)
    if not cluster_health.is_healthy:
        raise typer.Exit(1)


@cluster.command()
def config(
    broker: _Broker = None,
    every: Annotated[bool, typer.Option("--all", help="Include settings that have their default.")] = False,
    brokers: Brokers = None,
    settings: Settings = None,
    command_config: CommandConfig = None,
    output: Output = Format.TEXT,
) -> None:
    """Show the settings of a broker as it runs: those that are not the default."""
    from einmal.client import Admin

    with failures_reported(), Admin(config_of(brokers, settings, command_config)) as admin:
        node_id = _id_of(broker, admin)
        configs = admin.describe_broker_configs(node_id)
    rows = [
        {"broker": node_id, "key": entry.name, "value": entry.value, "default": entry.is_default}
        for entry in sorted(configs.values(), key=lambda entry: entry.name)
        if every or not entry.is_default
    ]
    print_rows(rows, ("broker", "key", "value", "default"), output)


@cluster.command()
def loggers(
    broker: _Broker = None,
    changed: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="LOGGER=LEVEL", help="Set a level: FATAL, ERROR, WARN, INFO, DEBUG or TRACE."),
    ] = None,
    unset: Annotated[
        list[str] | None, typer.Option("--unset", metavar="LOGGER", help="Return to the level of the package above.")
    ] = None,
    brokers: Brokers = None,
    settings: Settings = None,
    command_config: CommandConfig = None,
    output: Output = Format.TEXT,
) -> None:
    """Show the log levels of a broker, or change some until its next start, and show those."""
    from einmal.client import Admin

    levels: dict[str, str | None] = {
        logger: level.upper() for logger, level in without_repetition(map(key_and_value, changed or ())).items()
    }
    if both := sorted(levels.keys() & set(unset or ())):
        raise typer.BadParameter(f"{', '.join(both)}: in --set and in --unset; use one of them")
    levels |= dict.fromkeys(unset or ())
    if levels and broker is None:
        raise typer.BadParameter("--set and --unset need --broker: each broker has its own levels")
    with failures_reported(), Admin(config_of(brokers, settings, command_config)) as admin:
        node_id = _id_of(broker, admin)
        if levels:
            admin.alter_broker_loggers(node_id, levels)
        now = admin.describe_broker_loggers(node_id)
    rows = [
        {"broker": node_id, "logger": logger, "level": level}
        for logger, level in sorted(now.items())
        if not levels or logger in levels
    ]
    print_rows(rows, ("broker", "logger", "level"), output)


def _id_of(broker: int | None, admin: Admin) -> int:
    return admin.describe_cluster().brokers[0].node_id if broker is None else broker
