"""``einmal user``: users that authenticate by SCRAM, and their passwords. On any Kafka cluster."""

from __future__ import annotations

import getpass
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from einmal.cli.aliases import WithAliases
from einmal.cli.clients import Brokers, CommandConfig, Settings, config_of, failures_reported, for_each
from einmal.cli.printing.formats import Format, Output
from einmal.cli.printing.output import print_rows

if TYPE_CHECKING:
    from einmal.client import Admin

user = typer.Typer(cls=WithAliases, help="Users with SCRAM passwords: list, create, delete.", no_args_is_help=True)

_PASSWORD_MAX: Final = 4_096
_PASSWORD_BYTES_MAX: Final = 4 * _PASSWORD_MAX
_TOO_LONG: Final = f"the password has several lines, or more than {_PASSWORD_MAX} characters"


class Mechanism(StrEnum):
    """Mechanism of SCRAM."""

    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"


@user.command("list")
def list_users(
    brokers: Brokers = None,
    settings: Settings = None,
    command_config: CommandConfig = None,
    output: Output = Format.TEXT,
) -> None:
    """List users, the mechanisms that they have passwords for, and iterations."""
    from einmal.client import Admin

    with failures_reported(), Admin(config_of(brokers, settings, command_config)) as admin:
        users = admin.describe_scram_users()
    rows = [
        {"user": name, "mechanism": mechanism, "iterations": iterations}
        for name, mechanisms in users.items()
        for mechanism, iterations in mechanisms.items()
    ]
    print_rows(rows, ("user", "mechanism", "iterations"), output)


@user.command()
def create(
    name: Annotated[str, typer.Argument(metavar="USER")],
    mechanism: Annotated[
        Mechanism, typer.Option("-m", "--mechanism", help="Mechanism that the password is for.")
    ] = Mechanism.SHA_512,
    iterations: Annotated[int, typer.Option(help="Iterations of the hash, 4096 to 16384.")] = 16_384,
    password_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="File with the password, without its last line break; - for stdin; ${file:PATH:KEY} and ${env:NAME} "
            "are resolved. Default: a prompt, or the first line of stdin if that is no terminal.",
        ),
    ] = None,
    brokers: Brokers = None,
    settings: Settings = None,
    command_config: CommandConfig = None,
    output: Output = Format.TEXT,
) -> None:
    """Create a user, or change the password of one."""
    from einmal.client import Admin

    password = _password(name, password_file)
    with failures_reported(), Admin(config_of(brokers, settings, command_config)) as admin:
        admin.set_scram_password(name, password, mechanism=mechanism.value, iterations=iterations)
    row = {"user": name, "mechanism": mechanism.value, "iterations": iterations, "status": "set"}
    print_rows([row], ("user", "mechanism", "iterations", "status"), output)


@user.command()
def delete(
    names: Annotated[list[str], typer.Argument(metavar="USER...")],
    mechanism: Annotated[
        Mechanism | None, typer.Option("-m", "--mechanism", help="Delete only the password for this mechanism.")
    ] = None,
    brokers: Brokers = None,
    settings: Settings = None,
    command_config: CommandConfig = None,
    output: Output = Format.TEXT,
) -> None:
    """Delete users, and report the outcome for each. Their open sessions last until they end."""
    from einmal.client import Admin

    with failures_reported(), Admin(config_of(brokers, settings, command_config)) as admin:

        def delete_one(name: str) -> str:
            for mechanism_name in [mechanism.value] if mechanism else _mechanisms(admin, name):
                admin.delete_scram_credential(name, mechanism_name)
            return "deleted"

        outcomes = for_each(names, delete_one)
        outcomes.print("user", output)
        outcomes.exit()


def _mechanisms(admin: Admin, name: str) -> list[str]:
    return list(admin.describe_scram_users([name])[name])


def _password(user: str, source: str | None) -> str:
    """Never from an argument, which every user of the machine could see. Raises typer.BadParameter."""
    if source is None and sys.stdin.isatty():
        return _from_prompt(user)
    if source is None:
        text = _decoded(sys.stdin.buffer.readline(_PASSWORD_BYTES_MAX + 1))
    elif source == "-":
        text = _decoded(sys.stdin.buffer.read(_PASSWORD_BYTES_MAX + 1))
    else:
        text = _from_file(source)
    password = text.rstrip("\r\n")
    if not password:
        raise typer.BadParameter("the password is empty")
    if len(text) > _PASSWORD_MAX or "\n" in password:
        raise typer.BadParameter(_TOO_LONG)
    return password


def _decoded(password: bytes) -> str:
    """The text of stdin, as that of a file, whatever the locale is. Raises typer.BadParameter."""
    if len(password) > _PASSWORD_BYTES_MAX:
        raise typer.BadParameter(_TOO_LONG)
    try:
        return password.decode()
    except UnicodeDecodeError:
        raise typer.BadParameter("the password is not UTF-8") from None


def _from_file(source: str) -> str:
    from einmal.security.errors import SecuritySettingError
    from einmal.security.properties import read_file, resolved

    try:
        if "${" in source:
            return resolved("--password-file", source, os.environ, read_file)
        return Path(source).read_text(encoding="utf-8")
    except SecuritySettingError as error:
        raise typer.BadParameter(f"{error.meaning}; {error.hint}") from error
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise typer.BadParameter(f"--password-file: {source} cannot be read: {reason}") from error


def _from_prompt(user: str) -> str:
    password = getpass.getpass(f"Password of {user}: ")
    if not password:
        raise typer.BadParameter("the password is empty")
    if getpass.getpass("The same again: ") != password:
        raise typer.BadParameter("the two passwords differ")
    return password
