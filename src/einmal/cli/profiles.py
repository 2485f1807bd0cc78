"""Connection profiles: client settings under a name, in a TOML file of the user that nobody else can read.

    profile = "production"

    [profiles.production]
    "bootstrap.servers" = "kafka-1:9093,kafka-2:9093"
    "security.protocol" = "SASL_SSL"

``profile`` names the one in use. Values may refer to secrets elsewhere, as ``${env:NAME}`` and ``${file:PATH:KEY}`` do.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import typer

from einmal.cli.printing.output import printable

PROFILE_VARIABLE: Final = "EINMAL_PROFILE"
_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
_OTHERS: Final = 0o077
"""Permissions of everybody but the file's owner."""


class _Choice:
    """The choice that the options of this command make."""

    profile: str | None = None


def choose(name: str | None) -> None:
    """The profile of this command; None: that of the environment or the file."""
    _Choice.profile = name


def given_profile() -> str | None:
    """The name that the option of this command has."""
    return _Choice.profile


@dataclass(slots=True)
class Profiles:
    """The content of the file. ``current``: the profile in use."""

    current: str | None = None
    settings: dict[str, dict[str, str]] = field(default_factory=dict)

    def named(self, name: str) -> dict[str, str]:
        """The settings of a profile. Raises typer.BadParameter."""
        if name not in self.settings:
            known = ", ".join(sorted(self.settings)) or "none: make one with einmal profile create"
            raise typer.BadParameter(f"{path()} has no profile {name!r}; there are: {known}")
        return self.settings[name]


def path() -> Path:
    """The file, whether it exists or not."""
    import platformdirs

    return platformdirs.user_config_path("einmal", appauthor=False) / "config.toml"


def chosen() -> tuple[str, dict[str, str]] | None:
    """Name and settings of the profile of this command: of --profile, the environment, or the one in use. An empty name
    is none. Raises typer.BadParameter."""
    name = os.environ.get(PROFILE_VARIABLE) if _Choice.profile is None else _Choice.profile
    if name == "":
        return None
    profiles = read()
    name = name or profiles.current
    return None if name is None else (name, profiles.named(name))


def profile_names(incomplete: str) -> list[str]:
    """Profiles for a shell's completion; none where the file cannot be read."""
    with suppress(typer.BadParameter):
        return sorted(name for name in read().settings if name.startswith(incomplete))
    return []


def read() -> Profiles:
    """The file; no profiles where there is none. Raises typer.BadParameter."""
    file = path()
    try:
        text = file.read_text(encoding="utf-8")
        mode = file.stat().st_mode
    except FileNotFoundError:
        return Profiles()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise typer.BadParameter(f"{file} cannot be read: {reason}") from error
    if mode & _OTHERS and os.name == "posix":
        print(f"warning: {file} can be read by others: chmod 600 {file}", file=sys.stderr)
    return _parsed(file, text)


def _parsed(file: Path, text: str) -> Profiles:
    import tomllib

    try:
        document: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise typer.BadParameter(f"{file} is not TOML: {error}") from error
    tables, current = document.pop("profiles", {}), document.pop("profile", None)
    if document or not isinstance(tables, dict) or not isinstance(current, str | None):
        raise typer.BadParameter(f'{file} may have profile = "NAME" and tables [profiles.NAME], and nothing else')
    return Profiles(current, {name: _settings(file, name, table) for name, table in tables.items()})


def _settings(file: Path, name: str, table: Any) -> dict[str, str]:
    from einmal.declare.document import flattened

    settings = flattened(table) if isinstance(table, Mapping) else {"": table}
    wrong = [key for key, value in settings.items() if not isinstance(value, str)]
    if wrong:
        raise typer.BadParameter(f"{file}: profile {name!r}: {printable(wrong[0])!r} must be a text, in quotes")
    return settings


def write(profiles: Profiles) -> None:
    """Replace the file at once; only its owner may read it. Comments in it are lost. Raises typer.BadParameter."""
    import tempfile

    for name in profiles.settings:
        if not _NAME.fullmatch(name):
            raise typer.BadParameter(f"{name!r} is no name of a profile: letters, digits, - and _ are allowed")
    file, text = path(), _rendered(profiles)
    try:
        content = text.encode()
    except UnicodeEncodeError as error:
        # The text around it has secrets, those of the other profiles, too.
        wrong = error.object[error.start : error.end]
        raise typer.BadParameter(f"a setting with {wrong!a} is not UTF-8") from error
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # A link, as among dotfiles, remains one.
        target = file.resolve()
        # mkstemp makes files that only their owner may read.
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=file.name)
        try:
            with os.fdopen(handle, "wb") as out:
                out.write(content)
            Path(temporary).replace(target)
        except BaseException:
            # It may have secrets.
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise typer.BadParameter(f"{file} cannot be written: {error.strerror}") from error


def _rendered(profiles: Profiles) -> str:
    lines = [] if profiles.current is None else [f"profile = {_quoted(profiles.current)}"]
    for name, settings in profiles.settings.items():
        lines += ["", f"[profiles.{name}]", *(f"{_quoted(key)} = {_quoted(value)}" for key, value in settings.items())]
    return "\n".join(lines).lstrip("\n") + "\n"


def _quoted(text: str) -> str:
    """A basic string of TOML, whose escapes are JSON's."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
