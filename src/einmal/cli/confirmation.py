"""A question on stderr before something is changed, and the answer from stdin."""

from __future__ import annotations

import sys
from typing import Final

import typer

_YES: Final = (b"y", b"yes")


def confirm(question: str, yes: bool) -> None:
    """Ask, unless ``yes``; any other answer than yes, or none, ends the command with status 1."""
    if yes:
        return
    print(f"{question} [y/N]: ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.buffer.readline()
    if answer.strip().lower() in _YES:
        return
    if not answer:
        # Not "aborted", which would be read as the outcome of ``einmal txn abort``.
        print("\nerror: nobody has answered: nothing was changed\nhint: --yes does not ask", file=sys.stderr)
    raise typer.Exit(1)
