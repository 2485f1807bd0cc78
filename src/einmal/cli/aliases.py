"""Names that users of other tools type: ``ls`` and ``rm``, and commands in the groups where those tools have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from typer.core import TyperGroup

if TYPE_CHECKING:
    # Typer has its own copy of click.
    from typer._click.core import Command, Context

ALIASES: Final[Mapping[str, str]] = {"ls": "list", "rm": "delete"}
IN_GROUPS: Final[Mapping[tuple[str, str], str]] = {
    ("cluster", "txn"): "txn",
    ("pipeline", "run"): "run",
    ("pipeline", "explain"): "explain",
}
"""Commands of the program that a group has, too: by the group and the name there. rpk has its cluster txn."""


class WithAliases(TyperGroup):
    """A group of commands that has each alias of a verb that it has."""

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:
        """Find a command by its name or an alias."""
        command = super().get_command(ctx, cmd_name) or super().get_command(ctx, ALIASES.get(cmd_name, cmd_name))
        program = ctx.find_root().command
        if command is None and isinstance(program, TyperGroup):
            name = IN_GROUPS.get((str(self.name), cmd_name))
            return None if name is None else program.get_command(ctx, name)
        return command
