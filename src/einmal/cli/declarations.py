"""Reads files that declare something, and reports what is wrong with them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import typer

if TYPE_CHECKING:
    from einmal.options.values import OptionError

WRONG_USAGE: Final = 2
T = TypeVar("T")


def why_unreadable(error: OSError | UnicodeDecodeError) -> str:
    """The cause in words, without the error's number and the path."""
    return (error.strerror or str(error)) if isinstance(error, OSError) else "it is not UTF-8"


def parsed(file: Path, parse: Callable[[str, Mapping[str, str], Callable[[str], str]], T]) -> T:
    """``parse``: of the text, the environment, and a function that reads a file to which a value refers. Raises
    OptionError, also where the file cannot be read."""
    from einmal.declare.document import DeclarationError
    from einmal.security.properties import read_file

    try:
        return parse(file.read_text(encoding="utf-8"), os.environ, read_file)
    except (OSError, UnicodeDecodeError) as error:
        problem = f"it cannot be read: {why_unreadable(error)}\nhint: pass the path of a declaration in TOML"
        raise DeclarationError([problem]) from error


def read_declaration(file: Path, parse: Callable[[str, Mapping[str, str], Callable[[str], str]], T]) -> T:
    """As ``parsed``. What is wrong ends the command as wrong usage, with every problem at once."""
    from einmal.options.values import OptionError

    try:
        return parsed(file, parse)
    except OptionError as error:
        raise wrong_usage(file, error) from error


def wrong_usage(file: Path, error: OptionError) -> typer.Exit:
    """Every problem of a declaration is on stderr; to be raised."""
    for problem in getattr(error, "problems", (str(error),)):
        typer.echo(f"error: {file}: {problem}", err=True)
    return typer.Exit(WRONG_USAGE)
