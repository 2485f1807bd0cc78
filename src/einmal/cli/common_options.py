"""Options that every verb has, with one meaning each: ``-q`` and ``-v``; and ``--profile`` where a verb connects.

They are added to the tree of commands, so that no verb can lack them.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import typer
from typer.core import TyperGroup, TyperOption

from einmal.cli.printing.messages import be_quiet
from einmal.cli.profiles import PROFILE_VARIABLE, choose, profile_names

if TYPE_CHECKING:
    # Typer has its own copy of click.
    from typer._click.core import Command, Context

_CONNECTING: Final = {"settings", "command_config"}
"""Parameters of a verb that connects to a cluster with a client of ours."""
_MAY_BE_EMPTY: Final = {"key", "template"}
"""The key of a record, and a template that prints nothing of it."""
_LEVELS: Final = (logging.WARNING, logging.INFO, logging.DEBUG)


def with_common_options(command: Command) -> Command:
    """Return the command, or group of commands, with the options of every verb."""
    for verb in _verbs(command):
        for param in verb.params:
            if isinstance(param, TyperOption) and param.name not in _MAY_BE_EMPTY:
                _refuse_empty(param)
        verb.params += [_quiet(), _verbose()]
        if {param.name for param in verb.params} >= _CONNECTING:
            verb.params.append(_profile())
    return command


def _verbs(command: Command) -> Iterator[Command]:
    if isinstance(command, TyperGroup):
        for subcommand in command.commands.values():
            yield from _verbs(subcommand)
    else:
        yield command


def _refuse_empty(option: TyperOption) -> None:
    """The default in place of ``--brokers "$PRODUCTION"``, where nothing sets it, would be another cluster."""
    process: Callable[[Context, Any], Any] = option.process_value

    def process_value(context: Context, value: Any) -> Any:
        is_empty = value == "" or (isinstance(value, list | tuple) and "" in value)
        if is_empty and not context.resilient_parsing:
            raise typer.BadParameter("it is empty: leave it out, or give it a value", context, option)
        return process(context, value)

    option.process_value = process_value  # type: ignore[method-assign, assignment]


def _quiet() -> TyperOption:
    return TyperOption(
        param_decls=["-q", "--quiet"],
        is_flag=True,
        default=False,
        expose_value=False,
        callback=lambda _context, _option, value: be_quiet(bool(value)),
        help="No notes and no progress on stderr; errors and warnings remain.",
    )


def _verbose() -> TyperOption:
    return TyperOption(
        param_decls=["-v", "--verbose"],
        count=True,
        default=0,
        expose_value=False,
        callback=_log_to_stderr,
        help="Log to stderr, from level INFO; -vv: from DEBUG.",
    )


def _profile() -> TyperOption:
    return TyperOption(
        param_decls=["--profile"],
        metavar="NAME",
        expose_value=False,
        callback=lambda _context, _option, value: choose(value),
        autocompletion=lambda _context, _words, incomplete: profile_names(incomplete),
        help=f"Connection profile. Default: ${PROFILE_VARIABLE}, else the one in use (einmal profile).",
    )


def _log_to_stderr(context: Context, _option: object, count: int) -> None:
    """For the time of the command. ``einmal start`` logs anyway, and takes the level from here."""
    if not count or context.resilient_parsing:
        return
    from einmal.cli.printing.log_formats import JsonFormatter, TextFormatter

    root = logging.getLogger()
    handler, level = logging.StreamHandler(sys.stderr), root.level
    handler.setFormatter(TextFormatter() if sys.stderr.isatty() else JsonFormatter())
    root.addHandler(handler)
    root.setLevel(_LEVELS[min(count, 2)])
    # It reports its own selector, once for each thread.
    logging.getLogger("asyncio").setLevel(logging.WARNING)

    def end() -> None:
        root.removeHandler(handler)
        root.setLevel(level)

    context.call_on_close(end)
