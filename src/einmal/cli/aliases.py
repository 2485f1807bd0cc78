"""Short names of verbs that users of other tools type: ``ls`` and ``rm``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from typer.core import TyperGroup

if TYPE_CHECKING:
    # Typer has its own copy of click.
    from typer._click.core import Command, Context

ALIASES: Final[Mapping[str, str]] = {"ls": "list", "rm": "delete"}


class WithAliases(TyperGroup):
    """A group of commands that has each alias of a verb that it has."""

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:
        """Find a command by its name or an alias."""
        return super().get_command(ctx, cmd_name) or super().get_command(ctx, ALIASES.get(cmd_name, cmd_name))
