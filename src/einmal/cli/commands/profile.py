"""``einmal profile``: connection profiles, which every command that connects uses by their name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from einmal.cli.aliases import WithAliases
from einmal.cli.clients import (
    Brokers,
    CommandConfig,
    Settings,
    key_and_value,
    known_settings,
    read_properties,
    without_unknown,
)
from einmal.cli.printing.formats import Format, Output
from einmal.cli.printing.output import print_rows
from einmal.cli.profiles import path, profile_names, read, write

profile = typer.Typer(
    cls=WithAliases,
    help="Connection profiles: create, list, show, use, delete.",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(metavar="NAME", autocompletion=profile_names)]

_REFERENCE: Final = re.compile(r"\$\{[^{}]*\}")
"""A value that has no secret itself, and shows where the secret is."""


@profile.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Letters, digits, - and _.")],
    servers: Brokers = None,
    assignments: Settings = None,
    command_config: CommandConfig = None,
    output: Output = Format.TEXT,
) -> None:
    """Make a profile of client settings, and use it from now on.

    References such as ${env:PASSWORD} are kept, and resolved at each use. The file is the user's own, mode 0600.
    """
    settings = {}
    if command_config is not None:
        settings = without_unknown(read_properties(command_config), str(command_config))
    settings |= {key.strip(): value.strip() for key, value in map(key_and_value, assignments or ())}
    if servers:
        settings["bootstrap.servers"] = servers
    if not settings.get("bootstrap.servers"):
        raise typer.BadParameter("a profile needs bootstrap servers: -b HOST:PORT")
    unknown = sorted(settings.keys() - known_settings())
    if unknown:
        raise typer.BadParameter(f"no client has the setting {unknown[0]!r}")
    profiles = read()
    if name in profiles.settings:
        raise typer.BadParameter(f"profile {name!r} exists: delete it first (einmal profile delete {name})")
    profiles.settings[name] = settings
    profiles.current = name
    write(profiles)
    _print_list(profiles.settings, profiles.current, [name], output)


@profile.command("list")
def list_profiles(output: Output = Format.TEXT) -> None:
    """List profiles."""
    profiles = read()
    _print_list(profiles.settings, profiles.current, sorted(profiles.settings), output)


@profile.command()
def show(name: Name, output: Output = Format.TEXT) -> None:
    """Show a profile's settings; passwords and other secrets are hidden."""
    from einmal.security.redaction import redacted

    settings = read().named(name)
    shown = redacted(settings) | {key: value for key, value in settings.items() if _REFERENCE.fullmatch(value)}
    print_rows([{"key": key, "value": shown[key]} for key in sorted(shown)], ("key", "value"), output)


@profile.command()
def use(name: Name, output: Output = Format.TEXT) -> None:
    """Use a profile in all commands without --profile."""
    profiles = read()
    profiles.named(name)
    profiles.current = name
    write(profiles)
    _print_list(profiles.settings, name, [name], output)


@profile.command()
def delete(name: Name, output: Output = Format.TEXT) -> None:
    """Delete a profile. If it is in use, none is then."""
    profiles = read()
    profiles.named(name)
    del profiles.settings[name]
    if profiles.current == name:
        profiles.current = None
    write(profiles)
    print_rows([{"profile": name, "status": "deleted", "file": str(path())}], ("profile", "status", "file"), output)


def _print_list(
    settings: Mapping[str, Mapping[str, str]], current: str | None, names: list[str], output: Format
) -> None:
    rows: list[dict[str, Any]] = [
        {"profile": name, "bootstrap_servers": settings[name].get("bootstrap.servers"), "used": name == current}
        for name in names
    ]
    print_rows(rows, ("profile", "bootstrap_servers", "used"), output)
