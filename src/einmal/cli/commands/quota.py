"""``einmal quota``: quotas of users, client ids and addresses. On any Kafka cluster."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from einmal.cli.aliases import WithAliases
from einmal.cli.clients import (
    Brokers,
    CommandConfig,
    Settings,
    config_of,
    failures_reported,
    key_and_value,
    without_repetition,
)
from einmal.cli.printing.formats import Format, Output
from einmal.cli.printing.output import print_rows

if TYPE_CHECKING:
    from einmal.client.descriptions import ClientQuota

quota = typer.Typer(cls=WithAliases, help="Client quotas: list, set, remove.", no_args_is_help=True)

DEFAULT: Final = "<default>"
_TYPES: Final = ("user", "client-id", "ip")
_COLUMNS: Final = ("user", "client_id", "ip", "quota", "value")

User = Annotated[
    str | None, typer.Option("--user", metavar="NAME", help=f"User; {DEFAULT}: users without a quota of their own.")
]
ClientId = Annotated[
    str | None,
    typer.Option("--client-id", metavar="ID", help=f"client.id; {DEFAULT}: ids without a quota of their own."),
]
Ip = Annotated[
    str | None,
    typer.Option("--ip", metavar="ADDRESS", help=f"Address; {DEFAULT}: addresses without a quota of their own."),
]


@quota.command("list")
def list_quotas(
    user: User = None,
    client_id: ClientId = None,
    ip: Ip = None,
    brokers: Brokers = None,
    settings: Settings = None,
    command_config: CommandConfig = None,
    output: Output = Format.TEXT,
) -> None:
    """List quotas, by default all."""
    from einmal.client import Admin

    with failures_reported(), Admin(config_of(brokers, settings, command_config)) as admin:
        quotas = admin.describe_client_quotas(_entity(user, client_id, ip))
    _print(quotas, output)


@quota.command("set")
def set_quotas(
    values: Annotated[
        list[str],
        typer.Argument(
            metavar="QUOTA=VALUE...",
            help="producer_byte_rate, consumer_byte_rate (bytes per second), request_percentage, "
            "controller_mutation_rate (partitions per second); of an address connection_creation_rate.",
        ),
    ],
    user: User = None,
    client_id: ClientId = None,
    ip: Ip = None,
    brokers: Brokers = None,
    settings: Settings = None,
    command_config: CommandConfig = None,
    output: Output = Format.TEXT,
) -> None:
    """Set quotas of a user, a client id, a user's client id, or an address."""
    from einmal.client import Admin
    from einmal.client.descriptions import ClientQuota

    entity, wanted = _named(user, client_id, ip), without_repetition(map(_quota_and_value, values))
    with failures_reported(), Admin(config_of(brokers, settings, command_config)) as admin:
        admin.alter_client_quotas(entity, wanted)
    _print([ClientQuota(entity, wanted)], output)


@quota.command("remove")
def remove_quotas(
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="[QUOTA]...", help="Quotas to remove. Default: all."),
    ] = None,
    user: User = None,
    client_id: ClientId = None,
    ip: Ip = None,
    brokers: Brokers = None,
    settings: Settings = None,
    command_config: CommandConfig = None,
    output: Output = Format.TEXT,
) -> None:
    """Remove quotas of a user, a client id, a user's client id, or an address, and show their last values."""
    from einmal.client import Admin

    entity = _named(user, client_id, ip)
    with failures_reported(), Admin(config_of(brokers, settings, command_config)) as admin:
        quotas = admin.describe_client_quotas(entity, strict=True)
        known = [key for client_quota in quotas for key in client_quota.values]
        missing = [key for key in keys or () if key not in known]
        if missing or not known:
            raise typer.BadParameter(f"there is no such quota: {', '.join(missing) or 'none at all'}")
        admin.alter_client_quotas(entity, dict.fromkeys(keys or known))
    _print(quotas, output, keys or known)


def _print(quotas: Sequence[ClientQuota], output: Format, keys: Collection[str] | None = None) -> None:
    """A row for each value, or those with these keys."""
    rows = [
        {
            **{kind.replace("-", "_"): _entity_name(client_quota.entity, kind) for kind in _TYPES},
            "quota": key,
            "value": int(value) if value.is_integer() else value,
        }
        for client_quota in quotas
        for key, value in client_quota.values.items()
        if keys is None or key in keys
    ]
    print_rows(sorted(rows, key=lambda row: [str(row[column] or "") for column in _COLUMNS]), _COLUMNS, output)


def _entity(user: str | None, client_id: str | None, ip: str | None) -> dict[str, str | None]:
    given = dict(zip(_TYPES, (user, client_id, ip), strict=True))
    return {kind: None if name == DEFAULT else name for kind, name in given.items() if name is not None}


def _named(user: str | None, client_id: str | None, ip: str | None) -> dict[str, str | None]:
    """Raises typer.BadParameter."""
    entity = _entity(user, client_id, ip)
    if not entity:
        raise typer.BadParameter("name what the quota is for: --user, --client-id, both, or --ip")
    return entity


def _entity_name(entity: Mapping[str, str | None], kind: str) -> str | None:
    return (entity[kind] or DEFAULT) if kind in entity else None


def _quota_and_value(text: str) -> tuple[str, float]:
    """Raises typer.BadParameter."""
    key, value = key_and_value(text)
    try:
        return key, float(value)
    except ValueError:
        raise typer.BadParameter(f"{key} is a number, not {value!r}") from None
